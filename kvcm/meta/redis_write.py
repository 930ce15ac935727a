"""Blocks -> what Redis holds of them (behaviour 9.2), as packed arguments of a script: one formatting step for a usual block.

    hash    BP#prev_key, L#<location id> = JSON (upstream's current layout); P#<location id>#prev_key where a location's differs from its block's
    legacy  _prev_key_, __uri__ = JSON of all locations by id (what older releases of upstream read)

The script adds the time (BP#lru_time, __lru_time__). Usual blocks have one location with one spec and follow one another: each names the one before it. Their
JSON differs in id and URI only, so the rest is made once, and the script finds id and predecessor by itself. Everything else takes the slow way through
`RecordCodec`, with the same result byte for byte (a property test holds that).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvcm.common.redis.fenced import arg
from kvcm.meta.location import Block, Location, Status, are_promoted, previous_key_of
from kvcm.meta.record import RecordCodec

Fields = list[tuple[bytes, bytes]]

_UNSAFE = b'"\\' + bytes(range(32))  # must be escaped in JSON
_MAX_HEADS = 1024
_MAX_MIDDLES = 4096
PART_BLOCKS = 256
"""Blocks of one script: few enough to hold neither Redis nor our loop for long."""
_NO_CHECKSUM = bytes(8)
# key, the JSON in three parts
_LINK = b'$%d\r\n%b\r\n$%d\r\n{"id":"%b%b%b"}]}\r\n'
_WRITING, _SERVING = bytes([Status.WRITING]), bytes([Status.SERVING])
# With the quotes around it, which no id, name or URI of a usual block holds.
_IS_WRITING, _IS_SERVING = (b'","status":%d,"type":' % status for status in (Status.WRITING, Status.SERVING))
_AROUND = len('{"id":"' + "01234567" + '"}]}')
_BLANK = _BREAK = b"$0\r\n\r\n"
_REMOVED = b"$%d\r\n%b\r\n$0\r\n\r\n"


class Packed(NamedTuple):
    """`chain`: key and JSON of each block, without JSON to remove it, and before a block that does not follow the last one nothing and the key that it
    follows (or nothing); else per block its key, the number of field names and values, and these."""

    args: bytes
    number: int
    chain: bool
    state: bytes = b""
    """Of all locations, if every block has one and they are in the same state."""
    same: bool = False
    """The same blocks were packed before, and but for the state of their locations nothing of them has changed since."""


class RecentWrites:
    """Changes that begin writes, as they were packed: what ends a write a moment later is the same but for the state. Bounded; one for all instances."""

    def __init__(self, max_bytes: int = 2 << 20) -> None:
        self._max_bytes = max_bytes
        self.kept_bytes = 0
        self._kept: dict[tuple[int, ...], tuple[tuple[bytes, ...], tuple[bytes, ...], Packed]] = {}

    def keep(self, changes: Mapping[int, Block], packed: Packed) -> None:
        """`changes`: blocks with one location each, which is WRITING, and so packed."""
        keys = tuple(changes)
        self._forget(keys)
        (locations,) = zip(*changes.values(), strict=True)
        headers, wires = zip(*locations, strict=True)
        self._kept[keys] = (headers, wires, packed)
        self.kept_bytes += len(packed.args)
        while self.kept_bytes > self._max_bytes:
            self._forget(next(iter(self._kept)))

    def take(self, changes: Mapping[int, Block]) -> Packed | None:
        """The same change with all blocks SERVING, if it was kept. Then it is not kept any longer."""
        keys = tuple(changes)
        found = self._kept.get(keys)
        if found is None:
            return None
        self._forget(keys)
        begun, same_wires, packed = found
        try:
            (locations,) = zip(*changes.values(), strict=True)
        except ValueError:
            return None
        headers, wires = zip(*locations, strict=True)
        if wires != same_wires or not are_promoted(begun, headers):
            return None
        return packed._replace(args=packed.args.replace(_IS_WRITING, _IS_SERVING), state=_SERVING, same=True)

    def _forget(self, keys: tuple[int, ...]) -> None:
        found = self._kept.pop(keys, None)
        if found is not None:
            self.kept_bytes -= len(found[2].args)


class BlockPacker:
    def __init__(self, records: RecordCodec, *, legacy: bool = False, recent: RecentWrites | None = None) -> None:
        self._records = records
        self._recent = recent or RecentWrites()
        self._fields = self._legacy_fields if legacy else self._hash_fields
        self._fast = not legacy
        self.time_field = b"__lru_time__" if legacy else b"BP#lru_time"
        self._heads: dict[bytes, tuple[bytes, int]] = {}
        """Wire bytes in front of the URI of a location with one spec -> (the spec's name, length of the URI)."""
        self._lengths: list[int] = []
        self._middles: dict[bytes, bytes] = {}

    def pack(self, changes: Mapping[int, Block]) -> list[Packed]:
        """The arguments of one or two scripts: the usual blocks and the others. At most PART_BLOCKS blocks."""
        state = _state_of(changes) if self._fast else b""
        if state == _SERVING and (again := self._recent.take(changes)) is not None:
            return [again]
        usual, others = self._pack_chain(changes) if self._fast else (None, list(changes.items()))
        if not others:
            if usual is None:
                return []
            if state == _WRITING and usual.state == _WRITING:
                self._recent.keep(changes, usual)
            return [usual]
        rest = self._pack_fields(others)
        return [rest] if usual is None else [usual, rest]

    def _pack_chain(self, changes: Mapping[int, Block]) -> tuple[Packed | None, list[tuple[int, Block]]]:
        """The usual blocks, and what is left: it takes the slow way."""
        parts: list[bytes] = []
        uris: list[bytes] = []
        others: list[tuple[int, Block]] = []
        count = 0
        before: int | None = None
        before_raw = b""
        head = start = middle = b""
        states: set[bytes] = set()
        total = length = size = 0
        for key, block in changes.items():
            text = b"%d" % key
            if len(block) != 1:
                if block:
                    others.append((key, block))
                else:
                    parts.append(_REMOVED % (len(text), text))
                    states.add(b"")
                    count += 2
                continue
            location = block[0]
            header, wire = location
            if len(wire) != total or header[:13] != start or not wire.startswith(head):
                found = self._head_of(wire)
                if found is None:
                    others.append((key, block))
                    continue
                head, total, length, start = found, len(wire), len(found), header[:13]
                middle = self._middle(head, location)
                states.add(start[:1])
                size = _AROUND + len(middle) + total - length
            name = header[21:29]
            follows = header[29:] == before_raw and header[4] & 1
            if not name.isalnum() or (not follows and header[37:] != _NO_CHECKSUM):
                others.append((key, block))
                continue
            if not follows:
                previous = previous_key_of(location)
                if previous != before:
                    parts.append(_BREAK + (arg(b"%d" % previous) if previous is not None else _BLANK))
                    count += 2
            uri = wire[length:]
            uris.append(uri)
            parts.append(_LINK % (len(text), text, size, name, middle, uri))
            count += 2
            before, before_raw = key, key.to_bytes(8, "little", signed=True) + _NO_CHECKSUM
        if _is_unsafe(b"".join(uris)):
            return None, list(changes.items())
        return (Packed(b"".join(parts), count, True, states.pop() if len(states) == 1 else b"") if parts else None), others

    def _pack_fields(self, page: Sequence[tuple[int, Block]]) -> Packed:
        packed = [self._one(b"%d" % key, block) for key, block in page]
        return Packed(b"".join(part for part, _ in packed), sum(number for _, number in packed), False)

    def _one(self, text: bytes, block: Block) -> tuple[bytes, int]:
        fields = self._fields(block) if block else []
        parts = [arg(text), arg(b"%d" % (2 * len(fields)))]
        for name, value in fields:
            parts += (arg(name), arg(value))
        return b"".join(parts), len(parts)

    def fields_of(self, block: Block) -> Fields:
        """What is stored of a block, without the time."""
        return self._fields(block)

    def _hash_fields(self, block: Block) -> Fields:
        common = previous_key_of(block[0])
        fields: Fields = [] if common is None else [(b"BP#prev_key", b"%d" % common)]
        for location in block:
            record = self._record(location)
            name = location.location_id.encode()
            fields.append((b"L#" + name, _dump(record)))
            previous = previous_key_of(location)
            if previous != common:
                fields.append((b"P#%b#prev_key" % name, b"" if previous is None else b"%d" % previous))
        return fields

    def _legacy_fields(self, block: Block) -> Fields:
        common = previous_key_of(block[0])
        records: dict[str, dict[str, Any]] = {}
        for location in block:
            record = records[location.location_id] = self._record(location)
            previous = previous_key_of(location)
            if previous != common:
                record["prev_key"] = "" if previous is None else str(previous)
        fields: Fields = [(b"__uri__", _dump(records))]
        return fields if common is None else [*fields, (b"_prev_key_", b"%d" % common)]

    def _record(self, location: Location) -> dict[str, Any]:
        record = self._records.to_dict(location)
        record.pop("prev_key", None)
        if not record["create_time"]:  # upstream's older records have none
            del record["create_time"]
        return record

    def _head_of(self, wire: bytes) -> bytes | None:
        for length in self._lengths:
            head = wire[:length]
            known = self._heads.get(head)
            if known is not None and length + known[1] == len(wire):
                return head
        _, specs = self._records.encoder.decode(wire)
        if len(specs) != 1:
            return None
        name, uri = specs[0][0].encode(), specs[0][1].encode()
        if not uri or _is_unsafe(name) or not wire.endswith(uri):
            return None
        head = wire[: -len(uri)]
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
            self._lengths.clear()
        self._heads[head] = (name, len(uri))
        if len(head) not in self._lengths:
            self._lengths.append(len(head))
        return head

    def _middle(self, head: bytes, location: Location) -> bytes:
        """The JSON between id and URI."""
        kind = head + location.header[:13]
        middle = self._middles.get(kind)
        if middle is None:
            middle = _middle_of(location, self._heads[head][0])
            if len(self._middles) >= _MAX_MIDDLES:
                self._middles.clear()
            self._middles[kind] = middle
        return middle


def _state_of(changes: Mapping[int, Block]) -> bytes:
    """Of the first block, if it has one location."""
    for block in changes.values():
        return block[0].header[:1] if len(block) == 1 else b""
    return b""


def _middle_of(location: Location, spec: bytes) -> bytes:
    created = b'"create_time":%d,' % location.create_time_us if location.create_time_us else b""
    return b'","status":%d,"type":%d,"spec_size":1,%b"location_specs":[{"name":"%b","uri":"' % (location.header[0], location.type_code, created, spec)


def _is_unsafe(text: bytes) -> bool:
    """Must some of it be escaped in JSON?"""
    return len(text.translate(None, _UNSAFE)) != len(text)


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
