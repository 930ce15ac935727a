"""How long the event loop stands still, and how long garbage collections take (design D3: nothing may stall the loop for more than 20 ms).

A timer asks to be called every 20 ms; how much later it is called is the lag. Highest values are kept for windows, not reset by a scrape, so
that several scrapers see the same.
"""

from __future__ import annotations

import asyncio
import gc
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, Final

from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily

INTERVAL_S: Final = 0.02
WINDOW_S: Final = 60.0
BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Durations:
    """A histogram, the highest value of the last one to two windows, and the highest ever. Seconds."""

    def __init__(self, now: float) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total = 0.0
        self.last = 0.0
        self.max = 0.0
        self._window_max = 0.0
        self._previous_max = 0.0
        self._window_ends = now + WINDOW_S

    def add(self, value: float, now: float) -> None:
        self._turn(now)
        self.counts[bisect_left(BOUNDS_S, value)] += 1
        self.total += value
        self.last = value
        self.max = max(self.max, value)
        self._window_max = max(self._window_max, value)

    def recent_max(self, now: float) -> float:
        self._turn(now)
        return max(self._window_max, self._previous_max)

    def _turn(self, now: float) -> None:
        if now < self._window_ends:
            return
        # After more than a whole window without a value, the last one is no longer recent.
        self._previous_max = self._window_max if now < self._window_ends + WINDOW_S else 0.0
        self._window_max = 0.0
        self._window_ends = now + WINDOW_S


class LoopMonitor:
    """Start it on the loop that it watches. `gc.callbacks` is global: pauses of other threads' collections stop this loop just as well."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.lag = Durations(now())
        self.gc_pauses = [Durations(now()) for _ in range(3)]
        self._gc_started = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        gc.callbacks.append(self._on_gc)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def families(self) -> Iterable[AnyFamily]:
        now = self._now()
        lag = self.lag
        yield catalogue.LOOP_LAG.only(lag.last)
        yield catalogue.LOOP_LAG_MAX.only(lag.recent_max(now))
        yield catalogue.LOOP_LAG_EVER.only(lag.max)
        yield catalogue.LOOP_LAGS.of(BOUNDS_S, [((), list(lag.counts), lag.total)])
        generations = [((str(number),), pauses) for number, pauses in enumerate(self.gc_pauses)]
        yield catalogue.GC_MAX.of([(labels, pauses.recent_max(now)) for labels, pauses in generations])
        yield catalogue.GC_EVER.of([(labels, pauses.max) for labels, pauses in generations])
        yield catalogue.GC_PAUSES.of(BOUNDS_S, [(labels, list(pauses.counts), pauses.total) for labels, pauses in generations])

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now = self._now()
        if phase == "start":
            self._gc_started = now
        elif self._gc_started:
            self.gc_pauses[info["generation"]].add(now - self._gc_started, now)
            self._gc_started = 0.0

    async def _watch(self) -> None:
        while True:
            before = self._now()
            await asyncio.sleep(INTERVAL_S)
            now = self._now()
            self.lag.add(max(0.0, now - before - INTERVAL_S), now)
