"""What Redis holds of a block -> the block, in every layout that upstream has written (behaviour 9.2).

    L#<location id>              one location as JSON
    P#<location id>#prev_key     a property of one location; BP#prev_key of the block. Other properties are upstream's and are not looked at.
    __loc__<location id>         one location, older
    __uri__                      all locations by id as one JSON object, with _prev_key_; oldest

A usual record, as `redis_write` and upstream write it, is read by one regular expression; everything else by the JSON reader and `RecordCodec`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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
_MAX_HOSTS = 4096


class BlockUnpacker:
    def __init__(self, records: RecordCodec) -> None:
        self._records = records
        self._encode = records.encoder.encode
        self._slots: dict[bytes, int] = {}

    def unpack(self, flat: Sequence[bytes]) -> Block:
        """The block of a hash as HGETALL gives it; empty when it names no location. Raises DamagedRecord."""
        text: bytes | None = None
        previous: int | None = None
        for at in range(0, len(flat), 2):
            name = flat[at]
            if name[:2] == b"L#":
                if text is not None:
                    return self._unpack_any(flat)
                text = flat[at + 1]
                identity = name[2:]
            elif name == b"BP#prev_key":
                previous = _key(flat[at + 1])
            elif name[:2] == b"P#" or name[:1] == b"_":
                return self._unpack_any(flat)
        if text is None:
            return ()
        found = _PLAIN.fullmatch(text)
        if found is None:
            return self._unpack_any(flat)
        location_id, status, kind, created, spec, uri, host, size = found.groups()
        if location_id != identity or kind not in _KINDS or uri.count(b"size=") != 1:
            return self._unpack_any(flat)
        slot = self._slots.get(host)
        if slot is None:
            if len(self._slots) >= _MAX_HOSTS:
                self._slots.clear()
            try:
                slot = self._slots[host] = self._records.slot_of(host.decode())
            except UnicodeDecodeError:
                raise DamagedRecord("a stored location names a storage in characters that are not UTF-8") from None
        code = _KINDS[kind]
        fields = LocationFields(_STATES[status], code, slot, int(created), int(size), location_id.decode(), previous, 0)
        try:
            return (restore(fields, self._encode(code, ((spec.decode(), uri.decode()),))),)
        except UnicodeDecodeError:
            raise DamagedRecord("a stored location holds characters that are not UTF-8") from None

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
