"""A manager whose wall clock is stepped by an hour keeps its lease and takes nobody else's; a part of `python -m faults.clocks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.clocks import play
from faults.crash_world import CrashWorld
from faults.fake_time import library
from kvcm.common.redis.testing import redis_binary

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(redis_binary() is None, reason="needs Debian's package redis-server"),
    pytest.mark.skipif(library() is None, reason="needs Debian's package libfaketime"),
]


def test_an_hour_more_or_less_on_one_node_changes_nothing(tmp_path: Path) -> None:
    with CrashWorld("through", tmp_path, 2, steppable=True, lease_ms=2000) as world:
        said = play(world, leases=1.2, fail_overs=1)
    assert len(said) == 5
