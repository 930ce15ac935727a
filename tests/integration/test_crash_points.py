"""Real managers die, or lose an answer, at places of behaviour 10.3 and 15.5; what is left is repaired, counts equal a recount, and no place has two owners.

This is a part of the matrix; all of it: `python -m faults.crash_matrix`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.crash_stores import KINDS
from faults.crash_stories import STORIES, Case, cases, crash, lose_answer
from faults.crash_world import CrashWorld
from kvcm.common.failpoints import OPERATIONS, POINTS
from kvcm.common.redis.testing import redis_binary
from kvcm.etcd.testing import PROGRAM

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(redis_binary() is None or not PROGRAM, reason="needs Debian's packages etcd-server and redis-server"),
]

# A new leader that cannot read the registry pauses for five seconds.
SLOW = ("registry.fence", "registry.load")


def test_no_point_is_without_a_story() -> None:
    assert STORIES.keys() == OPERATIONS.keys()
    assert {case.point for kind in KINDS for case in cases(kind)} == set(POINTS)


@pytest.mark.parametrize(
    ("kind", "nodes", "points"),
    [
        ("through", 2, ["blocks.add.after", "blocks.condemn.after", "bytes.delete.after", "blocks.bury.after"]),
        ("behind", 1, ["blocks.flush.before", "blocks.bury.before"]),
        ("file", 1, ["bytes.delete.before", "registry.replace.before"]),
        ("etcd", 1, ["registry.apply.after", "registry.transaction.before@4"]),
    ],
)
def test_a_crash_is_repaired_by_whoever_leads_next(tmp_path: Path, kind: str, nodes: int, points: list[str]) -> None:
    with CrashWorld(kind, tmp_path, nodes) as world:
        for point in points:
            name, _, at = point.partition("@")
            crash(world, Case(name, int(at or 1)))


@pytest.mark.parametrize("kind", ["through", "etcd"])
def test_the_outcome_of_a_change_whose_answer_was_lost_is_found_out(tmp_path: Path, kind: str) -> None:
    with CrashWorld(kind, tmp_path) as world:
        for case in cases(kind):
            if case.point.startswith(SLOW) or (kind == "etcd" and not case.point.startswith("registry.transaction")):
                continue
            lose_answer(world, case)
