"""A short memory of "the bytes are there", so that a burst of reads of one prefix asks the store once.

Only PRESENT is kept: an ABSENT or UNKNOWN answer is always asked again. The danger is an answer that was on its way while the block was deleted;
`generation` guards it: `put` drops what was asked before the last deletion or re-allocation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvcm.common.clock import Clock

DEFAULT_TTL_US = 200_000
DEFAULT_CAPACITY = 65_536


class ProbeCache:
    """Not thread-safe: used from the loop only. `ttl_us` in microseconds, 0 remembers nothing; the oldest entries make room when `capacity` is reached."""

    def __init__(self, clock: Clock, ttl_us: int = DEFAULT_TTL_US, capacity: int = DEFAULT_CAPACITY) -> None:
        self._clock = clock
        self._ttl_us = ttl_us
        self._capacity = capacity
        self._until: OrderedDict[str, int] = OrderedDict()
        self.generation = 0

    def __len__(self) -> int:
        return len(self._until)

    def present(self, uris: Iterable[str]) -> set[str]:
        """Those of `uris` that were seen present within the time to live."""
        until = self._until
        if not until:
            return set()
        now = self._clock.monotonic_us()
        while until and next(iter(until.values())) <= now:
            until.popitem(last=False)
        return {uri for uri in uris if uri in until}

    def put(self, uris: Iterable[str], asked_at_generation: int) -> None:
        """Remember `uris` as present, unless something was deleted since the question was asked."""
        if asked_at_generation != self.generation or not self._ttl_us:
            return
        expires = self._clock.monotonic_us() + self._ttl_us
        for uri in uris:
            self._until[uri] = expires
            self._until.move_to_end(uri)
        while len(self._until) > self._capacity:
            self._until.popitem(last=False)

    def invalidate(self, uris: Iterable[str]) -> None:
        self.generation += 1
        if self._until:
            for uri in uris:
                self._until.pop(uri, None)
