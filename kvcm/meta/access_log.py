"""When was a block last wanted? (design D3: touched per request, not per key.)

Block keys are prefix chains: whoever reads block n has read every block before it. A prefix read therefore records one time, at the last block it
returned; that time counts for the whole chain in front of it, which a reader of this log finds through each block's previous key. Reads that are no
chain record each key they returned. A block that was never read has its creation time.

Maintenance never calls this module: that is what "no touch" means (I-MI-6).

Only blocks that exist have a time: a touch of a key that was removed meanwhile is dropped, and a removed key is forgotten. So the log is never longer
than the index.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from kvcm.meta.tiered_map import TieredMap


class AccessLog:
    def __init__(self, blocks: Container[int]) -> None:
        """`blocks`: the keys that exist."""
        self._blocks = blocks
        self._times: TieredMap[int] = TieredMap()

    def touch_chain(self, last_key: int, now_us: int) -> None:
        if last_key in self._blocks:
            self._times.set(last_key, now_us)

    def touch_end(self, last_key: int, now_us: int) -> None:
        """`touch_chain` for a block that the caller has just read, so that it exists."""
        self._times.set(last_key, now_us)

    def touch_keys(self, keys: Iterable[int], now_us: int) -> None:
        blocks = self._blocks
        for key in keys:
            if key in blocks:
                self._times.set(key, now_us)

    def forget(self, key: int) -> None:
        self._times.discard(key)

    def own_time_us(self, key: int) -> int | None:
        """Time of the last read that ended at this block, wall clock in microseconds; None if there was none."""
        return self._times.get(key)

    def snapshot(self, keys: Sequence[int]) -> list[int | None]:
        return [self._times.get(key) for key in keys]

    def __len__(self) -> int:
        return len(self._times)
