"""Loop lag and garbage collections are seen and kept."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from kvcm.metrics import gc_tuning
from kvcm.metrics.loop_monitor import WINDOW_S, Durations, LoopMonitor

pytestmark = pytest.mark.unit


def test_a_maximum_stays_for_one_to_two_windows() -> None:
    durations = Durations(0.0)
    durations.add(0.5, 1.0)
    durations.add(0.1, 2.0)
    assert durations.recent_max(WINDOW_S - 1) == 0.5
    assert durations.recent_max(WINDOW_S + 1) == 0.5
    durations.add(0.2, WINDOW_S + 2)
    assert durations.recent_max(2 * WINDOW_S + 2) == 0.2
    assert durations.recent_max(9 * WINDOW_S) == 0.0
    assert durations.max == 0.5
    assert sum(durations.counts) == 3


def test_a_blocked_loop_shows_as_lag() -> None:
    async def scenario() -> LoopMonitor:
        monitor = LoopMonitor()
        monitor.start()
        await asyncio.sleep(0)
        time.sleep(0.06)  # noqa: ASYNC251  # blocking the loop is the point
        for _ in range(3):
            await asyncio.sleep(0)
        await monitor.stop()
        return monitor

    monitor = asyncio.run(scenario())
    assert monitor.lag.max >= 0.02
    assert any(family.name == "loop.lag_max_seconds" for family in monitor.families())


def test_collections_are_counted_by_generation_only_while_watching() -> None:
    async def scenario() -> LoopMonitor:
        monitor = LoopMonitor()
        monitor.start()
        gc.collect(1)
        gc.collect(2)
        await monitor.stop()
        return monitor

    monitor = asyncio.run(scenario())
    seen = sum(monitor.gc_pauses[2].counts)
    assert seen >= 1
    assert sum(monitor.gc_pauses[1].counts) >= 1
    gc.collect()
    assert sum(monitor.gc_pauses[2].counts) == seen


def test_freeze_hides_what_lives_and_thaw_brings_it_back() -> None:
    thresholds = gc.get_threshold()
    kept = [[index] for index in range(1000)]
    try:
        gc_tuning.tune()
        assert gc.get_threshold() == gc_tuning.THRESHOLDS
        assert gc_tuning.freeze() >= len(kept)
        gc_tuning.thaw()
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
