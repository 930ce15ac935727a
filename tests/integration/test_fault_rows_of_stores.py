"""Stores go away under a mixed load, and things happen to them that nobody may notice: a part of `python -m faults --row stores,unnoticed`.

Times are printed and not judged, and leases are long enough for a busy machine; everything else has to hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from faults.breaches import Breaches, Kind
from faults.house import Plan
from faults.report import table, verdict
from faults.rows import ROWS, Row, stores, unnoticed
from faults.run import play
from faults.scene import Round, Scene
from kvcm.common.redis.testing import redis_binary
from kvcm.etcd.testing import PROGRAM

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PROGRAM or redis_binary() is None, reason="needs Debian's packages etcd-server and redis-server"),
]

BLOCKS = 2_000


def _chosen(row: Row, numbers: Sequence[int]) -> tuple[Row, int]:
    """Only these rounds of a row."""

    async def chosen(scene: Scene, number: int) -> Round:
        return await row.play(scene, numbers[number])

    return replace(row, play=chosen), len(numbers)


def _play(plan: Plan, rows: Sequence[tuple[Row, int]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The notes of all rounds."""
    breaches = Breaches()
    lines: list[str] = []
    played = asyncio.run(play(plan, BLOCKS, rows, 1, lines.append, breaches))
    with capsys.disabled():
        print(f"\n{BLOCKS} blocks\n{table(played)}")
    assert breaches.counts.keys() <= {Kind.SLOW}, "\n".join([verdict(breaches), *lines])
    assert all(row.counts["acknowledged"] > 0 for row in played)
    return [note for row in played for figures in row.rounds for note in figures.notes]


def test_a_store_that_is_away_stops_nobody_longer_than_it_must(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{store} {fault.name}" for store, fault in stores.cases("etcd")]
    away = [names.index(name) for name in ("etcd half-open", "redis killed for longer than the lease")]
    assert len(_play(Plan(stores="etcd", lease_ms=2000, **ROWS["stores"].needs), [_chosen(ROWS["stores"], away)], capsys)) == len(away)


def test_the_housekeeping_of_stores_is_unnoticed(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = len(unnoticed.cases("etcd"))
    assert len(_play(Plan(stores="etcd", lease_ms=10_000, **ROWS["unnoticed"].needs), [(ROWS["unnoticed"], rounds)], capsys)) == rounds
