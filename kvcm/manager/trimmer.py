"""Removing many blocks page by page (wire contract 4.14, 4.15, behaviour 3.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvcm.common.cut_short import cut_short, graver
from kvcm.common.errors import KvcmError, NotLeader
from kvcm.manager.deleter import Deleter
from kvcm.manager.shard import InstanceShard
from kvcm.meta.location import Location, Status

_REMOVE_PAGE = 512
"""A few milliseconds of work."""
_REMOVED_GRACE_US = 500_000


@dataclass(frozen=True, slots=True)
class TrimRange:
    """SERVING locations created within [begin_s, end_s], both ends included, in seconds since the epoch."""

    begin_s: int
    end_s: int

    def contains(self, location: Location) -> bool:
        # The end second counts as a whole: create times are microseconds, the request has seconds.
        return location.header[0] == Status.SERVING and self.begin_s * 1_000_000 <= location.create_time_us < (self.end_s + 1) * 1_000_000


async def trim_keys(deleter: Deleter, shard: InstanceShard, delay_us: int, wanted: TrimRange | None = None) -> int:
    """Condemn every block (or what `wanted` names); returns the number of locations. A page that fails does not stop the others: the first error
    is raised at the end; TakenOver only when nothing was changed. Raises NotLeader between two pages when leadership is being given up."""
    select = None if wanted is None else lambda _, location: wanted.contains(location)
    return await _condemn_pages(deleter, shard, shard.index.pages(), delay_us, select)


async def clear_removed(deleter: Deleter, shard: InstanceShard, delay_us: int) -> None:
    """`trim_keys` of an instance that has been unregistered. When leadership goes, it goes on for a moment: no later leader would know that these blocks are to
    go. But nobody leads meanwhile."""
    await _condemn_pages(deleter, shard, shard.index.pages(), delay_us, None, grace_us=_REMOVED_GRACE_US)


async def remove_keys(deleter: Deleter, shard: InstanceShard, keys: Sequence[int], delay_us: int) -> int:
    """Condemn the blocks of `keys`, in the same way."""
    pages = (keys[start : start + _REMOVE_PAGE] for start in range(0, len(keys), _REMOVE_PAGE))
    return await _condemn_pages(deleter, shard, pages, delay_us, None)


async def _condemn_pages(
    deleter: Deleter,
    shard: InstanceShard,
    pages: Iterable[Sequence[int]],
    delay_us: int,
    select: Callable[[int, Location], bool] | None,
    *,
    grace_us: int = 0,
) -> int:
    """`grace_us`: how long to go on when leadership is being given up."""
    ends_us: int | None = None
    total = 0
    failure: KvcmError | None = None
    for at, page in enumerate(pages):
        if at:
            await asyncio.sleep(0)  # let requests in between pages
            if deleter.is_ending:
                ends_us = deleter.now_us() + grace_us if ends_us is None else ends_us
                if deleter.now_us() >= ends_us:
                    raise NotLeader("this manager has ceased to lead; a part of the blocks is removed, repeat the call to the leader for the rest")
        try:
            total += await deleter.condemn(shard, page, delay_us, select)
        except KvcmError as error:
            failure = graver(failure, error)
    if failure is not None:
        raise cut_short(failure, stored=total > 0)
    return total
