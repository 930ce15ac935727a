"""The logging reporter: short lines, only about what has changed, never more than its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from kvcm.common.clock import FakeClock
from kvcm.metrics.families import AnyFamily, Family, Histogram
from kvcm.metrics.registry import Metrics
from kvcm.metrics.reporters import MAX_LINES, LoggingReporter, Summary
from kvcm.metrics.request_metrics import RequestMetrics

pytestmark = pytest.mark.unit

WALL_US = 1_700_000_000_000_000


def counter(*values: float) -> Family:
    return Family("a.calls", "counter", "", ("n",), [((str(at),), value) for at, value in enumerate(values)])


def test_a_line_has_sums_and_what_came_since_the_last_one() -> None:
    summary = Summary()
    assert summary.lines([counter(3, 4)], WALL_US) == ["time=2023-11-14T22:13:20Z metric=a.calls series=2 sum=7 delta=7"]
    assert summary.lines([counter(3, 4)], WALL_US) == []
    assert summary.lines([counter(5, 4)], WALL_US)[0].endswith("series=2 sum=9 delta=2")


def test_gauges_have_their_range_and_histograms_their_mean() -> None:
    gauge = Family("b.level", "gauge", "", ("n",), [(("1",), 0.5), (("2",), 9)])
    single = Family("c.level", "gauge", "", (), [((), 7)])
    histogram = Histogram("d.seconds", "", (1.0,), (), [((), (3, 1), 6.0)])
    first, second, third = Summary().lines([gauge, single, histogram], WALL_US)
    assert first.endswith("metric=b.level series=2 min=0.5 max=9")
    assert second.endswith("metric=c.level series=1 value=7")
    assert third.endswith("metric=d.seconds series=1 count=4 mean=1.5 delta=4")


def test_a_thousand_series_make_no_longer_line_and_no_label_shows() -> None:
    (line,) = Summary().lines([Family("a.calls", "counter", "", ("n",), [((f"secret-{at}",), 10**9) for at in range(1000)])], WALL_US)
    assert len(line) < 120
    assert "secret" not in line


def test_reports_are_bounded() -> None:
    lines = Summary().lines([Family(f"x.n{at}", "gauge", "", (), [((), at)]) for at in range(MAX_LINES + 50)], WALL_US)
    assert len(lines) == MAX_LINES
    assert lines[-1].endswith("metrics_left_out=51")


class Steps:
    """A source whose counter grows each time."""

    def __init__(self) -> None:
        self.count = 0

    def families(self) -> Iterable[AnyFamily]:
        self.count += 1
        return (counter(self.count),)


def test_the_reporter_reports_each_interval_until_it_is_stopped() -> None:
    async def scenario() -> list[str]:
        metrics = Metrics(RequestMetrics(lambda _: True))
        metrics.add(Steps())
        loop = asyncio.get_running_loop()
        lines: list[str] = []
        twice = asyncio.Event()

        def write(found: Sequence[str]) -> None:
            lines.extend(line for line in found if "a.calls" in line)
            if len(lines) >= 2:
                loop.call_soon_threadsafe(twice.set)

        reporter = LoggingReporter(metrics, FakeClock(), 1, write)
        reporter.start()
        async with asyncio.timeout(10):
            await twice.wait()
        await reporter.stop()
        await reporter.stop()
        metrics.close()
        return lines

    lines = asyncio.run(scenario())
    assert "sum=1 delta=1" in lines[0]
    assert "sum=2 delta=1" in lines[1]


def test_a_report_that_fails_does_not_end_the_reporter(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        metrics = Metrics(RequestMetrics(lambda _: True))
        metrics.add(Steps())
        loop = asyncio.get_running_loop()
        tries: list[int] = []
        thrice = asyncio.Event()

        def write(found: Sequence[str]) -> None:
            tries.append(1)
            if len(tries) >= 3:
                loop.call_soon_threadsafe(thrice.set)
            raise OSError("disk full")

        reporter = LoggingReporter(metrics, FakeClock(), 1, write)
        reporter.start()
        async with asyncio.timeout(10):
            await thrice.wait()
        await reporter.stop()
        metrics.close()

    asyncio.run(scenario())
    assert caplog.text.count("report_failed") == 1
