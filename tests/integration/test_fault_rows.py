"""The rows of `make faults`, small: a few rounds at 20,000 blocks. Times are printed and not judged; everything else has to hold."""

from __future__ import annotations

import asyncio
import re

import pytest

from faults.breaches import Breaches
from faults.house import Plan
from faults.report import Played, table, verdict
from faults.rows import ROWS
from faults.run import play
from kvcm.common.redis.testing import redis_binary
from kvcm.etcd.testing import PROGRAM

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PROGRAM or redis_binary() is None, reason="needs Debian's packages etcd-server and redis-server"),
]

BLOCKS = 20_000


def _play(plan: Plan, capsys: pytest.CaptureFixture[str], **rounds: int) -> list[Played]:
    breaches = Breaches()
    lines: list[str] = []
    played = asyncio.run(play(plan, BLOCKS, [(ROWS[name], count) for name, count in rounds.items()], 1, lines.append, breaches))
    with capsys.disabled():
        print(f"\n{BLOCKS} blocks\n{table(played)}")
    assert not breaches, "\n".join([verdict(breaches), *lines])
    assert [len(row.rounds) for row in played] == list(rounds.values())
    assert all(row.counts["acknowledged"] > 0 for row in played)
    return played


def test_a_leader_that_is_killed_stopped_or_suspended_takes_nothing_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    played = _play(Plan(stores="etcd"), capsys, kill=2, demote=2, terminate=1, suspend=1)
    epochs = [figures.epoch for row in played for figures in row.rounds]
    assert epochs == sorted(set(epochs))
    _refused(played[-1], "etcd")


def test_the_same_over_redis_written_behind_loses_at_most_the_tail(capsys: pytest.CaptureFixture[str]) -> None:
    killed, suspended = _play(Plan(stores="redis", mode="behind"), capsys, kill=2, suspend=1)
    assert killed.counts["tail"] >= killed.counts["tail_lost"]
    _refused(suspended, "redis")


def _refused(suspended: Played, registry: str) -> None:
    (figures,) = suspended.rounds
    told = "\n".join(figures.notes)
    # Its time was over when it went on, or the refusal was there before it looked at the time.
    assert re.search("StartWrite held back: (IO_ERROR|SERVER_NOT_LEADER)$", told, re.MULTILINE)
    assert f"the late blocks arrived at Redis: refused, its fence is at epoch {figures.epoch}" in told
    assert f"the late group arrived at {registry}: refused, its fence is at epoch {figures.epoch}" in told
