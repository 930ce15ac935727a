"""Who tells about metrics besides `/metrics` (`kvcm.metrics.reporter_type`; docs/metrics.md).

The logging reporter writes one short line per family that has changed, each interval: sums over the family's series, never the series themselves, so that
a thousand instances make no longer lines than one. All of it is bounded: MAX_LINES a report, and the label values of nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from kvcm.common.clock import Clock
from kvcm.metrics.families import AnyFamily, Family, Histogram
from kvcm.metrics.registry import Metrics

LOGGER: Final = "kvcm.metrics.report"
MAX_LINES: Final = 200
_MIN_INTERVAL_S: Final = 0.1
_log = logging.getLogger("kvcm.metrics.reporter")


class Summary:
    """Turns all families into lines about those that differ from the last time."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, ...]] = {}

    def lines(self, families: Sequence[AnyFamily], wall_us: int) -> list[str]:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_us / 1e6))
        found = []
        for family in families:
            if not family.samples:
                continue
            numbers, text = _histogram(family) if isinstance(family, Histogram) else _plain(family)
            before = self._last.get(family.name)
            if before == numbers:
                continue
            self._last[family.name] = numbers
            delta = ""
            if isinstance(family, Histogram) or family.kind == "counter":
                delta = f" delta={_short(numbers[1] - (before[1] if before is not None else 0))}"
            found.append(f"time={stamp} metric={family.name} series={len(family.samples)} {text}{delta}")
        if len(found) > MAX_LINES:
            found[MAX_LINES - 1 :] = [f"time={stamp} metrics_left_out={len(found) - MAX_LINES + 1}"]
        return found


class LoggingReporter:
    """Belongs to the loop that calls `start`. `write` takes finished lines, in a thread."""

    def __init__(self, metrics: Metrics, clock: Clock, interval_ms: int, write: Callable[[Sequence[str]], None]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._interval_s = max(_MIN_INTERVAL_S, interval_ms / 1000)
        self._write = write
        self._summary = Summary()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def report(self) -> None:
        """One report now."""
        wall_us = self._clock.wall_us()
        await self._metrics.in_thread(lambda families: self._write(self._summary.lines(families, wall_us)))

    async def _run(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.report()
                failing = False
            except Exception:
                if not failing:
                    _log.exception("report_failed: it is tried again each interval")
                failing = True


def _plain(family: Family) -> tuple[tuple[float, ...], str]:
    values = [value for _, value in family.samples]
    if family.kind == "counter":
        total = sum(values)
        return (len(values), total), f"sum={_short(total)}"
    least, most = min(values), max(values)
    return (len(values), least, most), f"value={_short(least)}" if len(values) == 1 else f"min={_short(least)} max={_short(most)}"


def _histogram(family: Histogram) -> tuple[tuple[float, ...], str]:
    count = sum(sum(counts) for _, counts, _ in family.samples)
    total = sum(total for _, _, total in family.samples)
    mean = total / count if count else 0.0
    return (len(family.samples), count, total), f"count={count} mean={_short(mean)}"


def _short(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6g}"
