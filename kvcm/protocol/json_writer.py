"""Messages to the JSON of the HTTP API (wire contract 3.3).

Compact, snake_case, in the order of field numbers; scalars, lists and maps always printed; unset sub-messages and oneof members left out;
enums as names, 64-bit integers as strings, doubles without a needless `.0`. Own extension fields (numbers from 1000 on) appear only when
they hold something, so that upstream clients see exactly what they know.

Works from the descriptors: one list of printers per message type, made on first use. Depth is bounded because no message contains itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

FIRST_EXTENSION_NUMBER = 1000
_LONG = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_WRAPPER_PREFIX = "google.protobuf."

Convert = Callable[[Any], object]
Emit = Callable[[Message, dict[str, object]], None]


def message_to_json(msg: Message) -> bytes:
    """The UTF-8 JSON text of a reply."""
    return json.dumps(message_to_plain(msg), separators=(",", ":"), ensure_ascii=False).encode()


def message_to_plain(msg: Message) -> dict[str, object]:
    """The same as dictionaries and lists."""
    out: dict[str, object] = {}
    for emit in _printers(msg.DESCRIPTOR):
        emit(msg, out)
    return out


def is_wrapper(descriptor: Descriptor) -> bool:
    """Is it one of protobuf's wrapper messages, which JSON shows as their bare value?"""
    return descriptor.full_name.startswith(_WRAPPER_PREFIX) and descriptor.full_name.endswith("Value")


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def map_value_field(field: FieldDescriptor) -> FieldDescriptor:
    """The value's declaration inside a map field."""
    entry = field.message_type
    if entry is None:
        raise ValueError("only a map field has a value field")
    return entry.fields_by_name["value"]


_PRINTERS: dict[Any, list[Emit]] = {}


def _printers(descriptor: Any) -> list[Emit]:
    known = _PRINTERS.get(descriptor)
    if known is None:
        fields = sorted(descriptor.fields, key=lambda field: field.number)
        known = _PRINTERS[descriptor] = [_printer(field) for field in fields]
    return known


def _printer(field: FieldDescriptor) -> Emit:
    name, extension = field.name, field.number >= FIRST_EXTENSION_NUMBER
    if field.is_repeated:
        return _map_printer(field) if is_map(field) else _list_printer(field)
    convert = _converter(field)
    if field.has_presence:

        def emit_present(msg: Message, out: dict[str, object]) -> None:
            if msg.HasField(name):
                out[name] = convert(getattr(msg, name))

        return emit_present

    def emit_scalar(msg: Message, out: dict[str, object]) -> None:
        value = getattr(msg, name)
        if value or not extension:
            out[name] = convert(value)

    return emit_scalar


def _list_printer(field: FieldDescriptor) -> Emit:
    name, extension, convert = field.name, field.number >= FIRST_EXTENSION_NUMBER, _converter(field)

    def emit(msg: Message, out: dict[str, object]) -> None:
        values = getattr(msg, name)
        if values or not extension:
            out[name] = [convert(value) for value in values]

    return emit


def _map_printer(field: FieldDescriptor) -> Emit:
    name, convert = field.name, _converter(map_value_field(field))

    def emit(msg: Message, out: dict[str, object]) -> None:
        values = getattr(msg, name)
        # Sorted, so that equal messages print alike.
        out[name] = {str(key): convert(values[key]) for key in sorted(values)}

    return emit


def _converter(field: FieldDescriptor) -> Convert:
    if field.message_type is not None:
        return _wrapper_converter(field.message_type) if is_wrapper(field.message_type) else message_to_plain
    if field.enum_type is not None:
        return _enum_converter(field.enum_type)
    if field.cpp_type in _LONG:
        return str
    return _number if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE else _same


def _wrapper_converter(descriptor: Descriptor) -> Convert:
    convert = _converter(descriptor.fields_by_name["value"])

    def unwrap(wrapper: Any) -> object:
        return convert(wrapper.value)

    return unwrap


def _enum_converter(enum: EnumDescriptor) -> Convert:
    names = {number: value.name for number, value in enum.values_by_number.items()}

    def name_of(number: int) -> object:
        return names.get(number, number)

    return name_of


def _number(value: float) -> object:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _same(value: object) -> object:
    return value
