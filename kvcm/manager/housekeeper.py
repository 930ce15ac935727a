"""The manager's background work: expire write sessions, run due deletions, finish removed instances, look after hosts. Thin loops around testable steps.

Expiry and reporting hosts have loops of their own: a sweep may wait for a metadata store that hangs, and sessions must end in time all the same (I-WL-2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kvcm.common.clock import Clock
from kvcm.manager.cache_manager import CacheManager

log = logging.getLogger("kvcm.housekeeper")

_SWEEP_S = 1.0
_LONGEST_WAIT_S = 5.0


class Housekeeper:
    """Started when leadership is complete, stopped before clean-up."""

    def __init__(self, manager: CacheManager, clock: Clock) -> None:
        self._manager = manager
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopping = False
        self._tasks = [loop.create_task(self._forever(step)) for step in (self._expire, self._sweep, self._delete, self._reports)]

    async def stop(self) -> None:
        """Stop the loops. Steps under way belong to the manager and are awaited by its clean-up."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _expire(self) -> None:
        await self._manager.expire_sessions()
        await asyncio.sleep(_SWEEP_S)

    async def _sweep(self) -> None:
        await self._manager.sweep()
        await asyncio.sleep(_SWEEP_S)

    async def _reports(self) -> None:
        await asyncio.sleep(await self._manager.tend_reports())

    async def _delete(self) -> None:
        deleter = self._manager.deleter
        await self._manager.run_due_deletions()
        if deleter.is_ending:  # what is due stays so
            await asyncio.sleep(_SWEEP_S)
        due = deleter.next_due_us()
        wait = _LONGEST_WAIT_S if due is None else (due - self._clock.monotonic_us()) / 1e6
        if wait > 0:
            await deleter.wait_for_work(min(wait, _LONGEST_WAIT_S))

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
                await asyncio.sleep(0)  # a step that finds nothing to wait for must not keep the loop from everybody else
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and self._stopping:
                    raise
                # Also a cancellation that nobody has asked for: without this loop nothing would be cleaned up for the rest of the term.
                log.exception("housekeeping_failed step=%s", getattr(step, "__name__", "step"))
                await asyncio.sleep(_SWEEP_S)
