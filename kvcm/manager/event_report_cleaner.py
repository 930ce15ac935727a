"""Takes out copies that nobody can see any more: of hosts that are gone and of generations that a snapshot has replaced (behaviour 21.5).

They are hidden already, so this is about memory only and takes its time: a round walks one index in small steps, and only when there may be something. What is
garbage is decided again at the moment a block changes, by the same look as readers take, so a round that began long ago can do no harm (I-RE-7).
It reads as nobody: no access time changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from kvcm.common.errors import KvcmError
from kvcm.manager.event_report_blocks import without_garbage
from kvcm.manager.event_report_roster import Roster
from kvcm.manager.ports import Leadership
from kvcm.manager.shard import InstanceShard
from kvcm.meta.location import Block

log = logging.getLogger("kvcm.events")

PAGES_PER_STEP = 32
"""Some 2,000 blocks."""
_PAGES_AT_ONCE = 8  # a few milliseconds when every block has to be changed


@dataclass(slots=True)
class _Round:
    """`epoch`: the roster's when the round began. `pages`: None between rounds."""

    cleaned_epoch: int = 0
    epoch: int = 0
    pages: Iterator[list[int]] | None = None
    failed: bool = False
    taken: int = 0


class Cleaner:
    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._rounds: WeakKeyDictionary[Roster, _Round] = WeakKeyDictionary()
        self.taken = 0
        """Copies taken out since the process began."""

    async def step(self, shards: Iterable[InstanceShard]) -> bool:
        """Go on with one step in each index that needs it; is there more to do?"""
        more = False
        for shard in shards:
            if shard.reports is not None and not shard.closed and await self._step(shard, shard.reports):
                more = True
        return more

    async def _step(self, shard: InstanceShard, roster: Roster) -> bool:
        state = self._rounds.setdefault(roster, _Round())
        if state.pages is None:
            if state.cleaned_epoch == roster.garbage_epoch:
                return False
            state.epoch, state.pages, state.failed, state.taken = roster.garbage_epoch, shard.index.pages(), False, 0
        for count in range(PAGES_PER_STEP):
            if count and not count % _PAGES_AT_ONCE:
                await asyncio.sleep(0)
            page = next(state.pages, None)
            if page is None:
                self._end(shard, state)
                return state.cleaned_epoch != roster.garbage_epoch
            await self._clean(shard, roster, page, state)
        return True

    async def _clean(self, shard: InstanceShard, roster: Roster, page: list[int], state: _Round) -> None:
        keys = [key for key in page if any(roster.is_garbage(location) for location in shard.index.get(key))]
        if not keys:
            return

        def plan(_: int, key: int, block: Block) -> Block | None:
            return without_garbage(block, roster)

        try:
            outcomes = await shard.index.mutate(keys, plan, self._leadership.epoch, reports=True)
        except KvcmError:
            state.failed = True  # other changes hold the blocks: the next round comes by
            return
        state.taken += sum(outcome.changed for outcome in outcomes)

    def _end(self, shard: InstanceShard, state: _Round) -> None:
        state.pages = None
        if not state.failed:
            state.cleaned_epoch = state.epoch
        self.taken += state.taken
        if state.taken:
            log.info("event_reports_cleaned instance=%s blocks=%d", shard.instance_id, state.taken)
