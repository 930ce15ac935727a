"""A dictionary from int to bytes that never stalls when it grows.

One Python dict with a million entries rehashes for 100 ms and more when it grows, on the loop that serves every request. Here entries go into
tiers of bounded size: a full tier is sealed and a new one begun, so the longest single pause is the growth of one tier (a few milliseconds).
Sealed tiers that deletions have thinned out are emptied little by little into the newest one.

Values must be types that the garbage collector does not track (bytes, int): then a full collection does not visit a million objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V", bytes, int)

TIER_CAPACITY = 174_762  # what a CPython dict with 2**18 slots holds before it grows
_SPARSE = TIER_CAPACITY // 4
_MOVES_PER_DELETE = 16


class _Tier(Generic[V]):
    __slots__ = ("entries", "inserted", "serial")

    def __init__(self, serial: int) -> None:
        self.entries: dict[int, V] = {}
        self.inserted = 0
        self.serial = serial


class TieredMap(Generic[V]):
    """Not thread safe: it belongs to one loop."""

    def __init__(self, tier_capacity: int = TIER_CAPACITY) -> None:
        self._capacity = tier_capacity
        self._sparse = min(_SPARSE, tier_capacity // 4)
        self._serial = 0
        self._tiers: list[_Tier[V]] = [_Tier(0)]  # newest first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        for tier in self._tiers:  # noqa: SIM110  (a plain loop is several times faster than any() over a generator)
            if key in tier.entries:
                return True
        return False

    def get(self, key: int) -> V | None:
        for tier in self._tiers:
            value = tier.entries.get(key)
            if value is not None:
                return value
        return None

    def set(self, key: int, value: V) -> None:
        for tier in self._tiers:
            if key in tier.entries:
                tier.entries[key] = value
                return
        self._insert(key, value)
        self._count += 1

    def get_all(self, keys: Sequence[int]) -> list[V | None]:
        """`get` for several keys, in order."""
        found: list[V | None] = list(map(self._tiers[0].entries.get, keys))
        if len(self._tiers) > 1 and None in found:
            return [self.get(key) if value is None else value for key, value in zip(keys, found, strict=True)]
        return found

    def set_all(self, entries: dict[int, V]) -> None:
        newest = self._tiers[0].entries
        if newest.keys() >= entries.keys():
            newest.update(entries)
            return
        for key, value in entries.items():
            self.set(key, value)

    def add_all(self, entries: dict[int, V]) -> None:
        """`set_all` for keys that are not there. Danger: one that is would be there twice."""
        newest = self._tiers[0]
        if newest.inserted + len(entries) <= self._capacity:
            newest.entries.update(entries)
            newest.inserted += len(entries)
        else:
            for key, value in entries.items():
                self._insert(key, value)
        self._count += len(entries)

    def discard(self, key: int) -> None:
        for tier in self._tiers:
            if key in tier.entries:
                del tier.entries[key]
                self._count -= 1
                self._compact()
                return

    def pages(self, size: int) -> Iterator[list[int]]:
        """Keys in pages of at most `size`. The map may change meanwhile: a key present during the whole iteration is seen at least once.

        Oldest tier first; entries only ever move to the newest tier, which comes last, so none can slip behind the iteration.
        """
        last = -1
        while True:
            waiting = [tier for tier in self._tiers if tier.serial > last]
            if not waiting:
                return
            tier = min(waiting, key=lambda candidate: candidate.serial)
            last = tier.serial
            keys = list(tier.entries)
            for start in range(0, len(keys), size):
                yield keys[start : start + size]

    def tier_sizes(self) -> list[int]:
        return [len(tier.entries) for tier in self._tiers]

    def _insert(self, key: int, value: V) -> None:
        newest = self._tiers[0]
        if newest.inserted >= self._capacity:
            # Deletions leave room that CPython only reuses after a rehash of the same bounded size, so a thinned newest tier goes on.
            if len(newest.entries) > self._capacity // 2:
                self._serial += 1
                newest = _Tier(self._serial)
                self._tiers.insert(0, newest)
            else:
                newest.inserted = len(newest.entries)
        newest.entries[key] = value
        newest.inserted += 1

    def _compact(self) -> None:
        for index in range(len(self._tiers) - 1, 0, -1):
            tier = self._tiers[index]
            if not tier.entries:
                del self._tiers[index]
            elif len(tier.entries) < self._sparse:
                for _ in range(min(_MOVES_PER_DELETE, len(tier.entries))):
                    self._insert(*tier.entries.popitem())
                if not tier.entries:
                    self._tiers.remove(tier)  # by identity: the insertion may have shifted the indexes
                return
