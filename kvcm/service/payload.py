"""A message as a short JSON text for the access log: bounded work, bounded text, no secrets.

Not the JSON of the wire: lists show their first elements and how many there are, long texts are cut, and when the budget is spent the rest is left out
with a word. A read of a thousand blocks costs here what a read of a few costs.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quote  # the C function behind json.dumps
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kvcm.common.redaction import HIDDEN, is_secret_name, redact

SHOWN_ELEMENTS: Final = 8
SHOWN_CHARS: Final = 256
_LOOKED_AT_CHARS: Final = 1024  # patterns are at worst quadratic in it, and hold the interpreter
_MAX_DEPTH: Final = 8
# Snapshots hold whatever was configured, accounts too.
_OPAQUE: Final = frozenset({"config_snapshot"})


def payload_text(message: Message, max_chars: int) -> str:
    """A JSON object of at most about `max_chars` characters (the field that crosses the line is still written). Never shows a secret."""
    return _Writer(max_chars).object(message, 0)


class _Writer:
    def __init__(self, budget: int) -> None:
        self._left = budget

    def object(self, message: Message, depth: int) -> str:
        members = []
        for field, value in message.ListFields():
            if self._left <= 0 or depth >= _MAX_DEPTH:
                members.append('"...":"cut"')
                break
            members.append(f"{quote(field.name)}:{self._value(field, value, depth)}")
            self._left -= len(field.name) + 4
        return "{" + ",".join(members) + "}"

    def _value(self, field: FieldDescriptor, value: Any, depth: int) -> str:
        if is_secret_name(field.name):
            return f'"{HIDDEN}"'
        if field.name in _OPAQUE:
            return self._spent(quote(f"({len(value)} characters)"))
        if not field.is_repeated:
            return self._one(field, value, depth)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return self._spent(quote(f"({len(value)} entries)"))
        shown = [self._one(field, element, depth) for element in value[:SHOWN_ELEMENTS]]
        if len(value) > SHOWN_ELEMENTS:
            shown.append(quote(f"... {len(value)} in all"))
        return "[" + ",".join(shown) + "]"

    def _one(self, field: FieldDescriptor, value: Any, depth: int) -> str:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            return self.object(value, depth + 1)
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._spent(quote(short(value)))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._spent(quote(f"({len(value)} bytes)"))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self._spent("true" if value else "false")
        if field.type == FieldDescriptor.TYPE_ENUM:
            known = field.enum_type.values_by_number.get(value) if field.enum_type is not None else None
            return self._spent(quote(known.name) if known is not None else str(value))
        if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self._spent(repr(value) if value == value and abs(value) != float("inf") else quote(repr(value)))
        # 64-bit numbers are texts, as everywhere in this API's JSON.
        wide = field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
        return self._spent(f'"{value}"' if wide else str(value))

    def _spent(self, text: str) -> str:
        self._left -= len(text)
        return text


def short(text: str, limit: int = SHOWN_CHARS) -> str:
    """The beginning of a text without its secrets."""
    clean = redact(text[:_LOOKED_AT_CHARS])
    return clean if len(clean) <= limit and len(text) <= _LOOKED_AT_CHARS else f"{clean[:limit]}... {len(text)} characters in all"
