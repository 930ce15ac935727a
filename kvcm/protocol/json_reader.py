"""JSON bodies of the HTTP API to messages (wire contract 3.4).

Lenient where protobuf's own JSON is: snake_case and lowerCamelCase names, unknown fields and unknown enum *names* ignored, numbers in
quotes, null means unset. Strict everywhere else: whatever cannot be understood raises `JsonBodyError` with the path of the field, and the caller
answers HTTP 400. Nothing of the body is repeated in the message.

Danger: bodies come from anybody. The number of objects and lists is checked before anything is read, depth before any message is built, and Python's
own scanner refuses what is deeper than its recursion limit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from kvcm.common.errors import InvalidArgument
from kvcm.protocol.json_writer import is_map, is_wrapper, map_value_field

MAX_DEPTH = 100
MAX_CONTAINERS = 1 << 20
"""Objects and lists of one body. Each costs Python some 90 bytes, `[],` three on the wire; a call with 131,072 blocks needs 0.4 million."""
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# Older names that test files and clients still send (wire contract 7.3, behaviour 2.6).
_FIELD_ALIASES = {
    "InstanceGroup": {
        "event_reporting_storage_candidates": "event_report_storage_candidates",
        "eventReportingStorageCandidates": "event_report_storage_candidates",
    },
    "MigrationStrategy": {"methods": "method_configs"},
}
_ENUM_ALIASES = {"StorageType": {"ST_VINEYARD": "ST_EVENT_REPORT_L1P5"}}
_INTEGER_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1, "a 32-bit integer"),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1, "a 64-bit integer"),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1, "an unsigned 32-bit integer"),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1, "an unsigned 64-bit integer"),
}

M = TypeVar("M", bound=Message)
Convert = Callable[[object], Any]
Assign = Callable[[Any, Any], None]


class JsonBodyError(InvalidArgument):
    """The body is not JSON for the message; HTTP answers 400."""


class _Wrong(Exception):
    """A value that does not fit, on its way up to where the path of its field is known."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = ""

    def under(self, name: str) -> _Wrong:
        self.path = f"{name}.{self.path}" if self.path and not self.path.startswith("[") else name + self.path
        return self


class _Ignored(Exception):
    """An enum name that is not known: the field keeps its default."""


def json_to_message(body: bytes, cls: type[M]) -> M:
    """A new message from a request body. Raises JsonBodyError."""
    value = _parse(body)
    if not isinstance(value, dict):
        raise JsonBodyError("the body must be a JSON object")
    msg = cls()
    try:
        _fill(msg, value)
    except _Wrong as wrong:
        raise JsonBodyError(f"field {wrong.path} must be {wrong.expected}") from None
    return msg


def _parse(body: bytes) -> object:
    containers = body.count(b"[") + body.count(b"{")
    if containers > MAX_CONTAINERS:
        raise JsonBodyError(f"the body holds more than {MAX_CONTAINERS} objects and lists")
    try:
        text = body.decode()
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise JsonBodyError("the body is not valid JSON in UTF-8") from None
    if containers > MAX_DEPTH:
        _check_depth(value)
    if b"\\ud" in body or b"\\uD" in body:
        _check_surrogates(value)
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _check_depth(value: object) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise JsonBodyError(f"the body is nested deeper than {MAX_DEPTH} levels")


def _check_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise JsonBodyError("the body holds half of a surrogate pair") from None


class _Field:
    """How one JSON member is put into a message. `oneof` is the name of the real oneof the field belongs to."""

    __slots__ = ("assign", "name", "oneof")

    def __init__(self, name: str, oneof: str | None, assign: Assign) -> None:
        self.name = name
        self.oneof = oneof
        self.assign = assign


_PLANS: dict[Any, dict[str, _Field]] = {}


def _plan(descriptor: Any) -> dict[str, _Field]:
    known = _PLANS.get(descriptor)
    if known is None:
        known = {}
        for field in descriptor.fields:
            # A oneof of one member is how protobuf spells `optional`; it cannot conflict.
            oneof = field.containing_oneof
            shared = oneof.name if oneof is not None and len(oneof.fields) > 1 else None
            known[field.name] = known[field.json_name] = _Field(field.name, shared, _assigner(field))
        for alias, name in _FIELD_ALIASES.get(descriptor.name, {}).items():
            known[alias] = known[name]
        _PLANS[descriptor] = known
    return known


def _fill(msg: Message, values: dict[str, object]) -> None:
    plan = _plan(msg.DESCRIPTOR)
    chosen: dict[str, str] = {}
    for key, value in values.items():
        field = plan.get(key)
        if field is None or value is None:
            continue
        if field.oneof is not None and chosen.setdefault(field.oneof, field.name) != field.name:
            raise _Wrong(f"the only one of its kind: {chosen[field.oneof]} is given too").under(field.name)
        try:
            field.assign(msg, value)
        except _Wrong as wrong:
            raise wrong.under(field.name) from None


def _assigner(field: FieldDescriptor) -> Assign:
    if field.is_repeated:
        if is_map(field):
            return _map_assigner(field.name, _converter(map_value_field(field)))
        return _list_assigner(field.name, _converter(field)) if field.message_type is None else _message_list_assigner(field.name)
    if field.message_type is None:
        return _scalar_assigner(field.name, _converter(field))
    if is_wrapper(field.message_type):
        return _wrapper_assigner(field.name, _converter(field.message_type.fields_by_name["value"]))
    return _message_assigner(field.name)


def _scalar_assigner(name: str, convert: Convert) -> Assign:
    def assign(msg: Any, value: object) -> None:
        try:
            setattr(msg, name, convert(value))
        except _Ignored:
            msg.ClearField(name)

    return assign


def _wrapper_assigner(name: str, convert: Convert) -> Assign:
    def assign(msg: Any, value: object) -> None:
        wrapper = getattr(msg, name)
        wrapper.value = convert(value)
        wrapper.SetInParent()

    return assign


def _message_assigner(name: str) -> Assign:
    def assign(msg: Any, value: object) -> None:
        if not isinstance(value, dict):
            raise _Wrong("a JSON object")
        msg.ClearField(name)
        child = getattr(msg, name)
        child.SetInParent()
        _fill(child, value)

    return assign


def _list_assigner(name: str, convert: Convert) -> Assign:
    def assign(msg: Any, value: object) -> None:
        msg.ClearField(name)
        getattr(msg, name).extend(_converted(_as_list(value), convert))

    return assign


def _converted(values: Sequence[object], convert: Convert) -> list[Any]:
    result = []
    for index, value in enumerate(values):
        try:
            result.append(convert(value))
        except _Ignored:
            continue
        except _Wrong as wrong:
            raise wrong.under(f"[{index}]") from None
    return result


def _message_list_assigner(name: str) -> Assign:
    def assign(msg: Any, value: object) -> None:
        msg.ClearField(name)
        target = getattr(msg, name)
        for index, item in enumerate(_as_list(value)):
            try:
                if not isinstance(item, dict):
                    raise _Wrong("a JSON object")
                _fill(target.add(), item)
            except _Wrong as wrong:
                raise wrong.under(f"[{index}]") from None

    return assign


def _map_assigner(name: str, convert: Convert) -> Assign:
    """Maps of this contract have text keys and plain values."""

    def assign(msg: Any, value: object) -> None:
        if not isinstance(value, dict):
            raise _Wrong("a JSON object")
        msg.ClearField(name)
        target = getattr(msg, name)
        for key, item in value.items():
            target[key] = convert(item)

    return assign


def _as_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _Wrong("a list")
    return value


def _converter(field: FieldDescriptor) -> Convert:
    if field.enum_type is not None:
        return _enum_converter(field.enum_type)
    if field.cpp_type in _INTEGER_LIMITS:
        return _integer_converter(*_INTEGER_LIMITS[field.cpp_type])
    return {
        FieldDescriptor.CPPTYPE_BOOL: _to_bool,
        FieldDescriptor.CPPTYPE_DOUBLE: _to_double,
        FieldDescriptor.CPPTYPE_STRING: _to_text,
    }[field.cpp_type]


def _integer_converter(lowest: int, highest: int, expected: str) -> Convert:
    def convert(value: object) -> int:
        if type(value) is not int:
            value = _integer_of(value, expected)
        if not lowest <= value <= highest:
            raise _Wrong(expected)
        return value

    return convert


def _integer_of(value: object, expected: str) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _Wrong(expected)


def _enum_converter(enum: EnumDescriptor) -> Convert:
    numbers = {name: value.number for name, value in enum.values_by_name.items()}
    for alias, name in _ENUM_ALIASES.get(enum.name, {}).items():
        if name in numbers:
            numbers[alias] = numbers[name]
    to_number = _integer_converter(-(1 << 31), (1 << 31) - 1, "an enum name or a 32-bit integer")

    def convert(value: object) -> int:
        if isinstance(value, str) and not _INTEGER.fullmatch(value):
            if value not in numbers:
                raise _Ignored
            return numbers[value]
        number: int = to_number(value)
        return number

    return convert


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise _Wrong("true or false")


def _to_text(value: object) -> str:
    if not isinstance(value, str):
        raise _Wrong("a text")
    return value


def _to_double(value: object) -> float:
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    if not usable and not (isinstance(value, str) and _NUMBER.fullmatch(value)):
        raise _Wrong("a number")
    try:
        result = float(value)  # type: ignore[arg-type]
    except OverflowError:
        result = math.inf
    if math.isinf(result):
        raise _Wrong("a number that a double can hold")
    return result
