"""A message as a short JSON text for the access log: bounded work, bounded text, no secrets.

Not the JSON of the wire: lists show their first elements and how many there are, long texts are cut, and when the budget is spent the rest is left out
with a word. A read of a thousand blocks costs here what a read of a few costs.
"""

from __future__ import annotations

import math
from json.encoder import encode_basestring_ascii as quote  # the C function behind json.dumps
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kvcm.common.redaction import HIDDEN, is_secret_name, redact

SHOWN_ELEMENTS: Final = 8
SHOWN_MESSAGES: Final = 2
SHOWN_CHARS: Final = 256
_LOOKED_AT_CHARS: Final = 1024  # patterns are at worst quadratic in it, and hold the interpreter
_MAX_DEPTH: Final = 8
# Snapshots hold whatever was configured, accounts too.
_OPAQUE: Final = frozenset({"config_snapshot"})


def payload_text(message: Message, max_chars: int) -> str:
    """A JSON object of at most about `max_chars` characters (the field that crosses the line is still written). Never shows a secret."""
    return _Writer(max_chars).object(message, 0)


class _Shape:
    """What a field's value is written by; looked up once per field of the protocol."""

    __slots__ = ("enum", "head", "kind", "repeated")

    def __init__(self, field: FieldDescriptor) -> None:
        self.head = f"{quote(field.name)}:"
        self.repeated = field.is_repeated
        self.enum = field.enum_type
        self.kind = _KINDS.get(field.type, "whole")
        if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
            self.kind = "wide"
        if field.name in _OPAQUE or (field.message_type is not None and field.message_type.GetOptions().map_entry):
            self.kind = "opaque"
        if is_secret_name(field.name):
            self.kind = "secret"


_KINDS: Final = {
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_FLOAT: "real",
    FieldDescriptor.TYPE_DOUBLE: "real",
}
_shapes: dict[FieldDescriptor, _Shape] = {}


class _Writer:
    def __init__(self, budget: int) -> None:
        self._left = budget

    def object(self, message: Message, depth: int) -> str:
        members = []
        for field, value in message.ListFields():
            if self._left <= 0 or depth >= _MAX_DEPTH:
                members.append('"...":"cut"')
                break
            shape = _shapes.get(field) or _shapes.setdefault(field, _Shape(field))
            members.append(shape.head + self._value(shape, value, depth))
            self._left -= len(shape.head) + 1
        return "{" + ",".join(members) + "}"

    def _value(self, shape: _Shape, value: Any, depth: int) -> str:
        if shape.kind == "secret":
            return f'"{HIDDEN}"'
        if shape.kind == "opaque":
            return self._spent(quote(f"({len(value)} in all, not shown)"))
        if not shape.repeated:
            return self._one(shape, value, depth)
        most = SHOWN_MESSAGES if shape.kind == "message" else SHOWN_ELEMENTS
        shown = [self._one(shape, element, depth) for element in value[:most]]
        if len(value) > most:
            shown.append(quote(f"... {len(value)} in all"))
        return "[" + ",".join(shown) + "]"

    def _one(self, shape: _Shape, value: Any, depth: int) -> str:
        match shape.kind:
            case "message":
                return self.object(value, depth + 1)
            case "wide":
                # 64-bit numbers are texts, as everywhere in this API's JSON.
                return self._spent(f'"{value}"')
            case "text":
                return self._spent(quote(short(value)))
            case "bytes":
                return self._spent(quote(f"({len(value)} bytes)"))
            case "bool":
                return self._spent("true" if value else "false")
            case "enum":
                known = shape.enum.values_by_number.get(value) if shape.enum is not None else None
                return self._spent(quote(known.name) if known is not None else str(value))
            case "real":
                return self._spent(repr(value) if math.isfinite(value) else quote(repr(value)))
            case _:
                return self._spent(str(value))

    def _spent(self, text: str) -> str:
        self._left -= len(text)
        return text


def short(text: str, limit: int = SHOWN_CHARS) -> str:
    """The beginning of a text without its secrets."""
    clean = redact(text[:_LOOKED_AT_CHARS])
    return clean if len(clean) <= limit and len(text) <= _LOOKED_AT_CHARS else f"{clean[:limit]}... {len(text)} characters in all"
