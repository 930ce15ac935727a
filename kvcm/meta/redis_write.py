"""Blocks -> what Redis holds of them (behaviour 9.2), as packed arguments of a script: one formatting step for a usual block.

    hash    BP#prev_key, L#<location id> = JSON (upstream's current layout); P#<location id>#prev_key where a location's differs from its block's
    legacy  _prev_key_, __uri__ = JSON of all locations by id (what older releases of upstream read)

The script adds the time (BP#lru_time, __lru_time__). A usual block has one location with one spec; its JSON differs from its neighbours' in id and URI only,
so the rest is made once. Everything else takes the slow way through `RecordCodec`, with the same result byte for byte (a property test holds that).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from kvcm.common.redis.fenced import arg
from kvcm.meta.location import Block, Location, previous_key_of
from kvcm.meta.record import RecordCodec

Fields = list[tuple[bytes, bytes]]

_UNSAFE = re.compile(rb'["\\\x00-\x1f]')  # must be escaped in JSON
_MAX_HEADS = 1024
_MAX_MIDDLES = 4096
_SLICE = 256
_NO_CHECKSUM = bytes(8)
_END = b'"}]}'

# key, 4, BP#prev_key, its value, L#<id>, the JSON in four parts
_WITH_PREVIOUS = b'$%d\r\n%b\r\n$1\r\n4\r\n$11\r\nBP#prev_key\r\n$%d\r\n%b\r\n$%d\r\nL#%b\r\n$%d\r\n{"id":"%b%b%b%b\r\n'
_FIRST = b'$%d\r\n%b\r\n$1\r\n2\r\n$%d\r\nL#%b\r\n$%d\r\n{"id":"%b%b%b%b\r\n'


class BlockPacker:
    def __init__(self, records: RecordCodec, *, legacy: bool = False) -> None:
        self._records = records
        self._fields = self._legacy_fields if legacy else self._hash_fields
        self._fast = not legacy
        self.time_field = b"__lru_time__" if legacy else b"BP#lru_time"
        self._heads: dict[bytes, tuple[bytes, int]] = {}
        """Wire bytes in front of the URI of a location with one spec -> (the spec's name, length of the URI)."""
        self._lengths: list[int] = []
        self._middles: dict[bytes, bytes] = {}

    async def pack(self, changes: Mapping[int, Block]) -> tuple[bytes, int]:
        """(packed arguments, their number): per block its key, the number of field names and values, and these. Others run in between."""
        parts: list[bytes] = []
        count = 0
        items = list(changes.items())
        for start in range(0, len(items), _SLICE):
            if start:
                await asyncio.sleep(0)
            page = items[start : start + _SLICE]
            packed = self._pack_fast(page) if self._fast else None
            if packed is None:
                packed = self._pack_slowly(page)
            parts.append(packed[0])
            count += packed[1]
        return b"".join(parts), count

    def _pack_fast(self, page: list[tuple[int, Block]]) -> tuple[bytes, int] | None:
        """None: some URI has characters that JSON escapes."""
        parts: list[bytes] = []
        uris: list[bytes] = []
        count, last_key = 0, None
        last_text = head = start = middle = b""
        total = length = 0
        for key, block in page:
            text = b"%d" % key
            if len(block) != 1:
                packed, number = self._one(text, block)
                parts.append(packed)
                count += number
                continue
            header, wire = block[0]
            if len(wire) != total or header[:13] != start or not wire.startswith(head):
                found = self._head_of(wire)
                if found is None:
                    packed, number = self._one(text, block)
                    parts.append(packed)
                    count += number
                    continue
                head, total, length, start = found, len(wire), len(found), header[:13]
                middle = self._middle(head, block[0])
            name = header[21:29]
            if not name.isalnum():
                name = name.rstrip(b"\0")
            uri = wire[length:]
            uris.append(uri)
            end = _END if header[37:45] == _NO_CHECKSUM else b'"}],"checksum":%d}' % block[0].checksum
            size = 7 + len(name) + len(middle) + len(uri) + len(end)
            previous = previous_key_of(block[0])
            if previous is None:
                parts.append(_FIRST % (len(text), text, len(name) + 2, name, size, name, middle, uri, end))
                count += 4
            else:
                before = last_text if previous == last_key else b"%d" % previous
                parts.append(_WITH_PREVIOUS % (len(text), text, len(before), before, len(name) + 2, name, size, name, middle, uri, end))
                count += 6
            last_key, last_text = key, text
        return None if _UNSAFE.search(b"".join(uris)) else (b"".join(parts), count)

    def _pack_slowly(self, page: list[tuple[int, Block]]) -> tuple[bytes, int]:
        packed = [self._one(b"%d" % key, block) for key, block in page]
        return b"".join(part for part, _ in packed), sum(number for _, number in packed)

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
        if not uri or _UNSAFE.search(name) or not wire.endswith(uri):
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
            created = b'"create_time":%d,' % location.create_time_us if location.create_time_us else b""
            middle = b'","status":%d,"type":%d,"spec_size":1,%b"location_specs":[{"name":"%b","uri":"' % (
                location.header[0],
                location.type_code,
                created,
                self._heads[head][0],
            )
            if len(self._middles) >= _MAX_MIDDLES:
                self._middles.clear()
            self._middles[kind] = middle
        return middle


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
