"""Published block state of one instance: key -> locations, as plain bytes (design D3).

One map from block key to a short byte string, of these forms:

- packed: every location with its wire bytes, for blocks that have several locations or one that is not SERVING (a bounded number of them, the ones of writes
  that are under way, are kept as they are and only marked in the map);
- in line: header and wire bytes of the only location, which is SERVING;
- in a run: the header of the only location, which is SERVING, and where its wire bytes lie (see `runs`).

The last one is what almost all blocks of a busy manager are. Blocks that become SERVING together and in a row form a run, short additions to the end of a run
join it, and a prefix read takes whole runs at a time. The map's values are bytes, so the garbage collector never walks a million of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from kvcm.meta.key_packing import FixedWidth, KeyPacking
from kvcm.meta.location import HEADER_BYTES, Block, Location, Status, previous_key_of
from kvcm.meta.runs import MAX_RUN, Run
from kvcm.meta.tiered_map import TIER_CAPACITY, TieredMap

Part = bytes | bytearray

_PACKED = 0xFF  # no status has this number, so the first byte tells a packed block from a header
_MARK = bytes([_PACKED])
_ASIDE = 0xFE
_ASIDE_ENTRY = bytes([_ASIDE])
_MAX_ASIDE = 16_384  # tuples that the collector walks: few enough to cost it nothing
_LENGTH = struct.Struct("<I")
_PLACE = struct.Struct("<IH")  # run id (0: in line) and slot, behind the header
_IN_LINE = _PLACE.pack(0, 0)
_BODY = HEADER_BYTES + _PLACE.size
_EMPTY: Block = ()
_SERVING = int(Status.SERVING)

MIN_RUN = 8
"""A shorter sequence that continues no run stays in line: a run costs about as much memory as four blocks."""

Change = tuple[int, Block, Block]
"""(key, block until now, new block)."""


class BlockTable:
    def __init__(self, tier_capacity: int = TIER_CAPACITY, packing: KeyPacking | None = None) -> None:
        self._packing: KeyPacking = packing or FixedWidth()
        self._entries: TieredMap[bytes] = TieredMap(tier_capacity)
        self._aside: dict[int, Block] = {}
        self._runs: list[Run | None] = [None]  # id 0 means "in line"
        self._free_ids: list[int] = []

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: int) -> Block:
        """All locations of a block; empty if it does not exist."""
        entry = self._entries.get(key)
        if entry is None:
            return _EMPTY
        if entry[0] >= _ASIDE:
            return self._aside[key] if entry[0] == _ASIDE else _unpack(entry)
        run_id, slot = _PLACE.unpack_from(entry, HEADER_BYTES)
        if not run_id:
            return (Location(entry[:HEADER_BYTES], entry[_BODY:]),)
        return (Location(entry[:HEADER_BYTES], self._run(run_id).wire_of(slot)),)

    def get_all(self, keys: Sequence[int]) -> list[Block]:
        """`get` for several keys, in order; quick where none exists, and where all are blocks of writes under way."""
        entries = self._entries.get_all(keys)
        if not any(entries):
            return [_EMPTY] * len(entries)
        if entries.count(_ASIDE_ENTRY) == len(entries):
            return list(map(self._aside.__getitem__, keys))
        return list(map(self.get, keys))

    def put(self, key: int, block: Block, before: Block) -> None:
        """Replace one block; an empty one is removed. `before` is what `get` says now."""
        self.put_all([(key, before, block)])

    def put_all(self, changes: Iterable[Change]) -> None:
        """Replace blocks. Those that become plainly SERVING one after the other are stored as a run."""
        fresh_keys: list[int] = []
        fresh: list[Location] = []
        parked: list[int] = []
        for key, before, block in changes:
            was_plain = len(before) == 1 and before[0].header[0] == _SERVING
            if was_plain:
                self._leave_run(key)
            elif before:
                self._aside.pop(key, None)
            if not block:
                self._entries.discard(key)
                continue
            is_plain = len(block) == 1 and block[0].header[0] == _SERVING
            if is_plain:
                fresh_keys.append(key)
                fresh.append(block[0])
            if was_plain or not is_plain:
                # Also for a plain block that stays plain: no entry may name a place that it has left, not even until the end of this call.
                self._set_other(key, block)
                if is_plain:
                    parked.append(key)
        if fresh:
            self._store(fresh_keys, fresh)
        for key in parked:
            self._aside.pop(key, None)

    def begin_all(self, keys: Sequence[int], blocks: Sequence[Block]) -> None:
        """`put_all` for blocks that do not exist yet and are not plainly SERVING."""
        if len(self._aside) + len(keys) > _MAX_ASIDE:
            self.put_all(zip(keys, repeat(_EMPTY, len(keys)), blocks, strict=True))
            return
        self._aside.update(zip(keys, blocks, strict=True))
        self._entries.add_all(dict.fromkeys(keys, _ASIDE_ENTRY))

    def serve_all(self, keys: Sequence[int], locations: Sequence[Location]) -> None:
        """`put_all` for blocks that were not plainly SERVING and are so from now on, with these locations."""
        if keys:
            self._store(keys, locations)
            for key in keys:
                self._aside.pop(key, None)

    def serving_run(self, keys: Sequence[int], out: list[Part], packed: bytes | None = None) -> int:
        """Append the wire bytes of the leading keys whose only location is SERVING, as one or more parts; returns how many keys.

        `packed`: the same keys packed, if the caller has them so.
        """
        total = len(keys)
        get = self._entries.get
        done = at = 0
        while done < total:
            key = keys[done]
            entry = get(key)
            if entry is None or entry[0] != _SERVING:
                return done
            run_id, slot = _PLACE.unpack_from(entry, HEADER_BYTES)
            if not run_id:
                out.append(entry[_BODY:])
                done += 1
                at += self._packing.width(key)
                continue
            run = self._run(run_id)
            if done + 1 == total:
                out.append(run.slice(slot, 1))
                return total
            if packed is None:
                packed = self._packing.pack(keys)
            count, size = run.match(slot, packed, at, total - done)
            out.append(run.slice(slot, count))
            done += count
            at += size
        return done

    def pages(self, size: int) -> Iterator[list[int]]:
        return self._entries.pages(size)

    def _set_other(self, key: int, block: Block) -> None:
        if len(self._aside) < _MAX_ASIDE:
            self._aside[key] = block
            self._entries.set(key, _ASIDE_ENTRY)
        else:
            self._entries.set(key, _pack(block))

    # -- runs ----------------------------------------------------------------------------------------------------------------------------------

    def _run(self, run_id: int) -> Run:
        run = self._runs[run_id]
        assert run is not None, "an entry never names a run that is gone"
        return run

    def _store(self, keys: Sequence[int], locations: Sequence[Location]) -> None:
        """Keep plain blocks: first to the end of the run that they continue, the rest as runs of their own, what is too short in line."""
        start = self._append(keys, locations)
        while start < len(keys):
            part_keys, part = keys[start : start + MAX_RUN], locations[start : start + MAX_RUN]
            start += MAX_RUN
            if len(part) < MIN_RUN:
                for key, location in zip(part_keys, part, strict=True):
                    self._entries.set(key, b"".join((location.header, _IN_LINE, location.wire)))
                continue
            self._new_run(part_keys, part)

    def _append(self, keys: Sequence[int], locations: Sequence[Location]) -> int:
        """Add leading blocks to the run whose last member is the first block's predecessor; returns how many were added."""
        previous = previous_key_of(locations[0])
        entry = self._entries.get(previous) if previous is not None else None
        if entry is None or entry[0] != _SERVING:
            return 0
        run_id, slot = _PLACE.unpack_from(entry, HEADER_BYTES)
        if not run_id:
            return 0
        run = self._run(run_id)
        room = MAX_RUN - len(run)
        if slot != len(run) - 1 or room <= 0:
            return 0
        first = len(run)
        run.extend(keys[:room], [location.wire for location in locations[:room]], self._packing)
        self._place(run_id, first, keys[:room], locations[:room])
        return min(room, len(keys))

    def _place(self, run_id: int, first: int, keys: Sequence[int], locations: Sequence[Location]) -> None:
        places = map(_PLACE.pack, repeat(run_id), range(first, first + len(keys)))
        headers = (header for header, _ in locations)
        self._entries.set_all(dict(zip(keys, map(bytes.__add__, headers, places), strict=True)))

    def _leave_run(self, key: int) -> None:
        """The block of `key` is about to change: its place in a run is dead from now on."""
        entry = self._entries.get(key)
        if entry is None or entry[0] != _SERVING:
            return
        run_id, slot = _PLACE.unpack_from(entry, HEADER_BYTES)
        if not run_id:
            return
        run = self._run(run_id)
        run.kill(slot)
        if run.dead == len(run):
            self._drop(run_id)
        elif run.dead * 2 > len(run):
            self._rewrite(run_id, run)

    def _rewrite(self, run_id: int, run: Run) -> None:
        """Give the memory of dead members back: the living ones move to a new, smaller run (or in line)."""
        keys, locations = [], []
        for slot, key in enumerate(self._packing.unpack(bytes(run.keys))):
            if not run.alive[slot]:
                continue
            entry = self._entries.get(key)
            assert entry is not None, "a living member has an entry"
            keys.append(key)
            locations.append(Location(entry[:HEADER_BYTES], run.wire_of(slot)))
        self._drop(run_id)
        if len(keys) >= MIN_RUN:
            self._new_run(keys, locations)
            return
        for key, location in zip(keys, locations, strict=True):
            self._entries.set(key, b"".join((location.header, _IN_LINE, location.wire)))

    def _new_run(self, keys: Sequence[int], locations: Sequence[Location]) -> None:
        run = Run()
        run.extend(keys, [location.wire for location in locations], self._packing)
        run_id = self._new_id()
        self._runs[run_id] = run
        self._place(run_id, 0, keys, locations)

    def _new_id(self) -> int:
        if self._free_ids:
            return self._free_ids.pop()
        self._runs.append(None)
        return len(self._runs) - 1

    def _drop(self, run_id: int) -> None:
        self._runs[run_id] = None
        self._free_ids.append(run_id)


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
