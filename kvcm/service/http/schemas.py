"""JSON schemas of protobuf messages, as the HTTP API reads and writes them (wire contract 3.3, 3.4).

Requests and replies have different rules (a 64-bit integer is a text in a reply and may be a number in a request; replies print every scalar, requests
need none), so a message that goes both ways has two schemas: the plain name is the reply's, `-input` is added for requests.

Works from descriptors alone, so that the document cannot differ from what is served.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from kvcm.protocol.json_writer import FIRST_EXTENSION_NUMBER, is_map, is_wrapper, map_value_field

Schema = dict[str, Any]
_PREFIX = "kv_cache_manager.proto."
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: ("int32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: ("uint32", 0, (1 << 32) - 1),
}
_LONGS = {
    FieldDescriptor.CPPTYPE_INT64: ("int64", "^-?[0-9]{1,19}$", -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: ("uint64", "^[0-9]{1,20}$", 0, (1 << 64) - 1),
}


class Schemas:
    """Collects the schemas of messages and of everything they hold. Ask for references first, then for `components`."""

    def __init__(self, requests: Iterable[Any], replies: Iterable[Any]) -> None:
        """Message descriptors of both directions."""
        self._incoming, self._outgoing = _reachable(requests), _reachable(replies)

    def components(self) -> dict[str, Schema]:
        """`components.schemas` of the document, sorted by name."""
        found = {self._name(descriptor, True): self._message(descriptor, True) for descriptor in self._incoming.values()}
        found |= {self._name(descriptor, False): self._message(descriptor, False) for descriptor in self._outgoing.values()}
        return dict(sorted(found.items()))

    def reference(self, descriptor: Any, incoming: bool) -> Schema:
        return {"$ref": f"#/components/schemas/{self._name(descriptor, incoming)}"}

    def _name(self, descriptor: Any, incoming: bool) -> str:
        both = descriptor.full_name in self._incoming and descriptor.full_name in self._outgoing
        return str(descriptor.full_name.removeprefix(_PREFIX)) + ("-input" if incoming and both else "")

    def _message(self, descriptor: Any, incoming: bool) -> Schema:
        fields = sorted(descriptor.fields, key=lambda field: field.number)
        schema: Schema = {"type": "object", "properties": {field.name: self._field(field, incoming) for field in fields}}
        if not incoming:
            always = [field.name for field in fields if _always_printed(field)]
            if always:
                schema["required"] = always
        apart = [[member.name for member in group.fields] for group in descriptor.oneofs if len(group.fields) > 1]
        if apart:
            schema["description"] = "At most one of " + "; at most one of ".join(", ".join(group) for group in apart) + "."
            schema["allOf"] = [{"not": {"required": [first, second]}} for group in apart for at, first in enumerate(group) for second in group[at + 1 :]]
        return schema

    def _field(self, field: FieldDescriptor, incoming: bool) -> Schema:
        if is_map(field):
            return _nullable({"type": "object", "additionalProperties": self._value(map_value_field(field), incoming)}, incoming)
        if field.is_repeated:
            return _nullable({"type": "array", "items": self._value(field, incoming)}, incoming)
        return _nullable(self._value(field, incoming), incoming)

    def _value(self, field: FieldDescriptor, incoming: bool) -> Schema:
        if field.message_type is not None:
            if is_wrapper(field.message_type):
                return self._value(field.message_type.fields_by_name["value"], incoming)
            return self.reference(field.message_type, incoming)
        if field.enum_type is not None:
            return _enum(field.enum_type)
        return _scalar(field, incoming)


def _enum(enum: Any) -> Schema:
    """A reply prints a number that has no name as a number; a request may use any number, and an unknown name leaves the default."""
    names = [value.name for value in enum.values]
    return {"title": enum.name, "anyOf": [{"type": "string", "enum": names}, {"type": "integer", "minimum": -(1 << 31), "maximum": (1 << 31) - 1}]}


def _scalar(field: FieldDescriptor, incoming: bool) -> Schema:
    kind = field.cpp_type
    if kind in _LONGS:
        form, pattern, lowest, highest = _LONGS[kind]
        text: Schema = {"type": "string", "format": form, "pattern": pattern}
        return {"anyOf": [text, {"type": "integer", "minimum": lowest, "maximum": highest}]} if incoming else text
    if kind in _INTEGERS:
        form, lowest, highest = _INTEGERS[kind]
        return {"type": "integer", "format": form, "minimum": lowest, "maximum": highest}
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return {"type": "boolean"}
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return {"type": "string"}
    # JSON has no word for these three.
    return {"anyOf": [{"type": "number", "format": "double"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]}


def _nullable(schema: Schema, incoming: bool) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]} if incoming else schema


def _always_printed(field: FieldDescriptor) -> bool:
    return (field.is_repeated or not field.has_presence) and field.number < FIRST_EXTENSION_NUMBER


def _reachable(roots: Iterable[Any]) -> dict[str, Any]:
    """Every message that the roots hold, without map entries and wrappers, which have no name in JSON."""
    found: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        descriptor = waiting.pop()
        if descriptor.full_name in found or is_wrapper(descriptor):
            continue
        if not descriptor.GetOptions().map_entry:
            found[descriptor.full_name] = descriptor
        waiting.extend(field.message_type for field in descriptor.fields if field.message_type is not None)
    return found
