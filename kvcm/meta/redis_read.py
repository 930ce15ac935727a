"""What Redis holds of a block -> the block, in every layout that upstream has written (behaviour 9.2).

    L#<location id>              one location as JSON
    P#<location id>#prev_key     a property of one location; BP#prev_key of the block. Other properties are upstream's and are not looked at.
    __loc__<location id>         one location, older
    __uri__                      all locations by id as one JSON object, with _prev_key_; oldest

A usual record, as `redis_write` and upstream write it, is compared with those that were read before it, and only what differs is looked at: a new leader
reads a million of them before it serves. Everything else is read by the JSON reader and `RecordCodec`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcm.data_storage.model import StorageType
from kvcm.meta.location import REPORTED_CODES, Block, Location, LocationFields, Status, restore
from kvcm.meta.record import DamagedRecord, RecordCodec

_PLAIN = re.compile(
    rb'\{"id":"([A-Za-z0-9_\-]{1,8})","status":([234]),"type":(\d{1,4}),"spec_size":1,"create_time":(\d{1,18}),'
    rb'"location_specs":\[\{"name":"([^"\\\x00-\x1f]*)",'
    rb'"uri":"([a-z0-9_]+://([^/?:@"\\\x00-\x1f]+)(?:/[^?"\\\x00-\x1f]*)?\?(?:[^"\\\x00-\x1f]*&)?size=(\d{1,18})(?:&[^"\\\x00-\x1f]*)?)"\}\]\}'
)
_KINDS = {b"%d" % kind: int(kind) for kind in StorageType if kind not in REPORTED_CODES}
_STATES = {b"%d" % state: state for state in (Status.WRITING, Status.SERVING, Status.DELETING)}
_URI, _HOST = 6, 7
_MAX_KINDS = 4096
_MAX_HEADS = 256
_STAMP, _PREVIOUS = b"BP#lru_time", b"BP#prev_key"
_USUAL_ITEMS = 6
_URI_AT = 60  # the URI begins later in every record
_PLAIN_BYTES = bytes(code for code in range(32, 127) if code not in b'"\\?')
_PREVIOUS_KEY = struct.Struct("<q")
_NO_CHECKSUM = bytes(8)
_NO_PREVIOUS = bytes(16)


@dataclass(frozen=True, slots=True)
class _Kind:
    """`first`, `with_previous`: how the header of a location without and with a predecessor begins. `heads`: by length of the URI."""

    type_code: int
    spec: str
    uri_at: int
    first: bytes
    with_previous: bytes
    heads: dict[int, bytes]


class BlockUnpacker:
    def __init__(self, records: RecordCodec) -> None:
        self._records = records
        self._kinds: dict[bytes, _Kind] = {}
        self._sizes: dict[bytes, bytes] = {}

    def unpack(self, flat: Sequence[bytes]) -> Block:
        """The block of a hash as HGETALL gives it; empty when it names no location. Raises DamagedRecord."""
        if len(flat) > _USUAL_ITEMS:
            return self._unpack_any(flat)
        text: bytes | None = None
        previous: bytes | None = None
        for at in range(0, len(flat), 2):
            name = flat[at]
            if name == _STAMP:
                continue
            if name == _PREVIOUS:
                previous = flat[at + 1]
            elif name[:2] == b"L#" and text is None:
                text, identity = flat[at + 1], name[2:]
            else:
                return self._unpack_any(flat)
        if text is None:
            return ()
        # {"id":"01234567","status":..,"uri":"scheme://host/... : what is alike in many records is looked up, the rest is cut out.
        host_end = text.find(b"/", text.find(b"://", _URI_AT) + 3)
        kind = self._kinds.get(text[15:host_end])
        if kind is None:
            kind = self._learn(text, host_end)
        if kind is None or text[7:15] != identity or not identity.isalnum() or text[-4:] != b'"}]}':
            return self._unpack_any(flat)
        uri = text[kind.uri_at : -4]
        size_at = uri.rfind(b"size=")
        size = self._sizes.get(uri[size_at:])
        if size is None:
            size = self._learn_size(uri[size_at:])
        if size is None or uri[size_at - 1] not in b"?&" or uri.count(b"size=") != 1 or uri.translate(None, _PLAIN_BYTES) != b"?":
            return self._unpack_any(flat)
        head = kind.heads.get(len(uri))
        if head is None:
            head = self._learn_head(kind, uri)
            if head is None:
                return self._unpack_any(flat)
        if previous:
            try:
                header = kind.with_previous + size + identity + _PREVIOUS_KEY.pack(int(previous)) + _NO_CHECKSUM
            except (ValueError, struct.error):
                raise DamagedRecord("the key in front of a stored block is not a number of 64 bits") from None
        else:
            header = kind.first + size + identity + _NO_PREVIOUS
        return (Location(header, head + uri),)

    def _learn(self, text: bytes, host_end: int) -> _Kind | None:
        """What records have in common that are equal between their id and the end of their host; None for one that is not usual."""
        found = _PLAIN.fullmatch(text)
        if found is None or found.end(_HOST) != host_end:
            return None
        _, status, kind, created, spec, _, host, _ = found.groups()
        if kind not in _KINDS:
            return None
        try:
            fields = LocationFields(_STATES[status], _KINDS[kind], self._records.slot_of(host.decode()), int(created), 0, "01234567", None, 0)
            name = spec.decode()
        except UnicodeDecodeError:
            return None
        first, with_previous = (restore(item, b"").header[:13] for item in (fields, fields._replace(previous_key=0)))
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        made = self._kinds[text[15:host_end]] = _Kind(fields.type_code, name, found.start(_URI), first, with_previous, {})
        return made

    def _learn_size(self, text: bytes) -> bytes | None:
        digits = text[5:]
        if text[:5] != b"size=" or not digits.isdigit() or len(digits) > 18:
            return None
        if len(self._sizes) >= _MAX_KINDS:
            self._sizes.clear()
        size = self._sizes[text] = int(digits).to_bytes(8, "little")
        return size

    def _learn_head(self, kind: _Kind, uri: bytes) -> bytes | None:
        """The wire bytes in front of a URI of this length."""
        try:
            wire = self._records.encoder.encode(kind.type_code, ((kind.spec, uri.decode()),))
        except UnicodeDecodeError:
            return None
        if not wire.endswith(uri):
            return None
        if len(kind.heads) >= _MAX_HEADS:
            kind.heads.clear()
        head = kind.heads[len(uri)] = wire[: -len(uri)]
        return head

    def _unpack_any(self, flat: Sequence[bytes]) -> Block:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        common = _optional_key(fields.get(b"BP#prev_key", fields.get(b"_prev_key_")))
        found: list[tuple[str | None, Any]] = []
        for name, text in fields.items():
            if name == b"__uri__":
                records = _object(text)
                found.extend((str(record_id), record) for record_id, record in records.items())
            elif name[:2] == b"L#" or name[:7] == b"__loc__":
                found.append((_text(name[2:] if name[:2] == b"L#" else name[7:]), _object(text)))
        block: dict[bytes, Location] = {}
        for record_id, record in found:
            if not isinstance(record, dict) or str(record.get("id")) != record_id:
                raise DamagedRecord("a stored location is not what it is stored as")
            if record.get("type") in REPORTED_CODES:
                continue  # what hosts report is theirs to report again
            previous = common
            own = fields.get(b"P#%b#prev_key" % record_id.encode())
            if own is not None:
                previous = _optional_key(own)
            elif "prev_key" in record:
                previous = _optional_key(str(record["prev_key"]).encode())
            whole = {"create_time": 0, **record, "prev_key": previous}
            location = self._records.from_dict(whole)
            if location.raw_id in block:
                raise DamagedRecord("two locations of a stored block have the same id")
            block[location.raw_id] = location
        return tuple(sorted(block.values(), key=lambda location: (location.create_time_us, location.raw_id)))


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise DamagedRecord("a stored location is not JSON") from None
    if not isinstance(found, dict):
        raise DamagedRecord("a stored location is not a JSON object")
    return found


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise DamagedRecord("a stored location has an id that is not UTF-8") from None


def _key(text: bytes) -> int:
    try:
        value = int(text)
    except ValueError:
        raise DamagedRecord("the key in front of a stored block is not a number") from None
    if not -(1 << 63) <= value < 1 << 63:
        raise DamagedRecord("the key in front of a stored block has more than 64 bits")
    return value


def _optional_key(text: bytes | None) -> int | None:
    return _key(text) if text else None
