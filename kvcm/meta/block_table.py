"""Published block state of one instance: key -> locations, as bytes only (design D3).

Two maps. `wire` has an entry exactly for blocks with one location that is SERVING, the common case: a prefix read of those never looks at anything
else. `meta` has an entry for every block: the header of that one location, or all locations packed into one string when there are several or the
single one is not SERVING. Everything is bytes, so the garbage collector never walks it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from kvcm.meta.location import HEADER_BYTES, Block, Location, Status
from kvcm.meta.tiered_map import TIER_CAPACITY, TieredMap

_PACKED = 0xFF  # no status has this number, so the first byte tells a packed block from a plain header
_LENGTH = struct.Struct("<I")
_MARK = bytes([_PACKED])
_EMPTY: Block = ()


class BlockTable:
    def __init__(self, tier_capacity: int = TIER_CAPACITY) -> None:
        self._wire: TieredMap[bytes] = TieredMap(tier_capacity)
        self._meta: TieredMap[bytes] = TieredMap(tier_capacity)

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._meta)

    def __contains__(self, key: object) -> bool:
        return key in self._meta

    def get(self, key: int) -> Block:
        """All locations of a block; empty if it does not exist."""
        meta = self._meta.get(key)
        if meta is None:
            return _EMPTY
        if meta[0] == _PACKED:
            return _unpack(meta)
        wire = self._wire.get(key)
        assert wire is not None, "a plain header always has its wire bytes"
        return (Location(meta, wire),)

    def put(self, key: int, block: Block, before: Block) -> None:
        """Replace a block; an empty one is removed. `before` is what `get` says now: the caller knows it, so it is not looked up again."""
        if not block:
            self._wire.discard(key)
            self._meta.discard(key)
            return
        first = block[0]
        if len(block) == 1 and first.header[0] == Status.SERVING:
            self._wire.set(key, first.wire)
            self._meta.set(key, first.header)
            return
        if len(before) == 1 and before[0].header[0] == Status.SERVING:
            self._wire.discard(key)
        self._meta.set(key, _pack(block))

    def serving_run(self, keys: Sequence[int], out: list[bytes]) -> int:
        """Append the wire bytes of the leading keys whose only location is SERVING; returns how many."""
        return self._wire.run_into(keys, out)

    def pages(self, size: int) -> Iterator[list[int]]:
        return self._meta.pages(size)


def _pack(block: Block) -> bytes:
    if len(block) == 1:
        header, wire = block[0]
        return b"".join((_MARK, header, _LENGTH.pack(len(wire)), wire))
    parts = [_MARK]
    for header, wire in block:
        parts += (header, _LENGTH.pack(len(wire)), wire)
    return b"".join(parts)


def _unpack(packed: bytes) -> Block:
    locations = []
    at = 1
    while at < len(packed):
        body = at + HEADER_BYTES + _LENGTH.size
        (length,) = _LENGTH.unpack_from(packed, at + HEADER_BYTES)
        locations.append(Location(packed[at : at + HEADER_BYTES], packed[body : body + length]))
        at = body + length
    return tuple(locations)
