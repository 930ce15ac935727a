"""Objects to look at, each at most once at a time in the queue, worked off by a few workers.

Bounds: `capacity` names wait at most; what does not fit is dropped and comes back with the drift timer. Danger: a failing object must not
crowd out the others, so it waits longer after each failure (2 s doubling to 300 s, with jitter), and any success forgets that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from random import Random

from kvcm_operator.world import Ref

BASE_S = 2.0
CAP_S = 300.0
WORKERS = 8
CAPACITY = 10_000
_log = logging.getLogger("kvcm.operator.queue")


def back_off(failures: int, random: Random) -> float:
    """Seconds before the next try after the given number of failures in a row, the first being 0; up to a quarter less than the full value."""
    full = min(CAP_S, BASE_S * 2.0 ** min(failures, 30))
    return full * (1.0 - 0.25 * random.random())


class WorkQueue:
    """Belongs to one event loop. `work` returns seconds until the object should be looked at again, None for never."""

    def __init__(self, work: Callable[[Ref], Awaitable[float | None]], random: Random, *, workers: int = WORKERS, capacity: int = CAPACITY) -> None:
        self._work = work
        self._random = random
        self._workers = workers
        self._capacity = capacity
        self._ready: dict[Ref, None] = {}
        self._later: dict[Ref, tuple[float, asyncio.TimerHandle]] = {}
        self._failures: dict[Ref, int] = {}
        self._wake = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._news: set[asyncio.Task[None]] = set()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name=f"kvcm-queue-{number}") for number in range(self._workers)]

    async def stop(self) -> None:
        for _, handle in self._later.values():
            handle.cancel()
        self._later.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._news, return_exceptions=True)

    def add_all(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            self.add(ref)

    def add(self, ref: Ref, after: float = 0.0) -> None:
        """Look at it, now or later; of several wishes the earliest counts."""
        if ref in self._ready:
            return
        waiting = self._later.get(ref)
        loop = asyncio.get_running_loop()
        due = loop.time() + max(after, 0.0)
        if waiting is not None:
            if waiting[0] <= due:
                return
            waiting[1].cancel()
            del self._later[ref]
        elif len(self) >= self._capacity:
            self.dropped += 1
            return
        if after > 0:
            self._later[ref] = (due, loop.call_at(due, self._due, ref))
        else:
            self._due(ref)

    def forget(self, ref: Ref) -> None:
        """The object is gone."""
        self._failures.pop(ref, None)
        self._ready.pop(ref, None)
        waiting = self._later.pop(ref, None)
        if waiting is not None:
            waiting[1].cancel()

    def _due(self, ref: Ref) -> None:
        self._later.pop(ref, None)
        self._ready[ref] = None
        task = asyncio.ensure_future(self._notify())
        self._news.add(task)
        task.add_done_callback(self._news.discard)

    async def _notify(self) -> None:
        async with self._wake:
            self._wake.notify()

    async def _run(self) -> None:
        while True:
            async with self._wake:
                await self._wake.wait_for(lambda: bool(self._ready))
                ref = next(iter(self._ready))
                del self._ready[ref]
            await self._one(ref)

    async def _one(self, ref: Ref) -> None:
        try:
            after = await self._work(ref)
        except Exception as error:  # a worker that ends would be missed by nobody
            failures = self._failures.get(ref, 0)
            self._failures[ref] = failures + 1
            delay = back_off(failures, self._random)
            _log.warning("pass failed kind=%s namespace=%s name=%s retry_s=%.0f: %s", ref.kind, ref.namespace, ref.name, delay, type(error).__name__)
            self.add(ref, delay)
            return
        self._failures.pop(ref, None)
        if after is not None:
            self.add(ref, after)
