"""Two managers over one Redis: when the leader is killed, the follower goes on with every block that was acknowledged, without reading them all first."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvcm.common.redis.testing import RedisServer
from kvcm.common.testing_waiting import eventually
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_blocks import Engine, StartedWrite
from kvcm.service.testing_pair import LEASE_MS, ManagerPair, metric
from kvcm.service.testing_wire import HttpWire

pytestmark = pytest.mark.integration

BLOCKS = 20_000
BATCH = 1000
STREAM = "kvcache:instance_warm:__kvcm_stream__"


class Pair(ManagerPair):
    def __init__(self, stack: ExitStack, redis: RedisServer, folder: Path) -> None:
        self.redis = redis
        super().__init__(stack, folder, "warm", {"kvcm.registry_storage.uri": f"{redis.uri}?cluster_name=warm"})
        backend = {"storage_type": "redis", "storage_uri": redis.uri}
        self.engine_of(self.leader).set_up("warm", "nfs", indexer={"max_key_count": 0, "meta_storage_backend_config": backend})

    def follows(self, blocks: int) -> None:
        follower = self.follower
        eventually(lambda: metric(follower, "follower_blocks") == blocks and metric(follower, "follower_lag_entries") == 0, f"a copy of {blocks} blocks")

    def copies_by_role(self) -> dict[str, str]:
        """As the leader tells it: what each node says of its copies, nothing for those that have none."""
        told = HttpWire(self.leader.admin_http_url).call("GetManagerClusterInfo", {"trace_id": "t"})["nodes"]
        return {node["role"]: node["copies"]["state"] if node.get("copies") else "" for node in told}

    def kill_leader(self) -> ManagerProcess:
        """The next leader."""
        leader, follower = self.leader, self.follower
        leader.send(signal.SIGKILL)
        leader.wait()
        eventually(lambda: self.leads(follower), "the follower leads")
        return follower


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, stack.enter_context(RedisServer()), tmp_path)


def write(engine: Engine, keys: list[int]) -> StartedWrite:
    started = engine.start(keys)
    engine.finish(started)
    return started


def served(engine: Engine, keys: list[int]) -> list[str]:
    return [places["tp0"] for places in engine.prefix(keys)]


def test_a_killed_leaders_blocks_are_all_served_without_a_scan(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    engine = pair.engine_of(pair.leader)
    places: list[str] = []
    for first in range(0, BLOCKS, BATCH):
        places += [found["tp0"] for found in write(engine, list(range(first, first + BATCH))).places]
    pair.follows(BLOCKS)
    eventually(lambda: pair.copies_by_role() == {"NODE_ROLE_LEADER": "", "NODE_ROLE_FOLLOWER": "COPY_STATE_WARM"}, "the leader tells that its heir is warm")
    # What the follower may not have read yet when it wins, and what nobody will ever finish.
    last = [found["tp0"] for found in write(engine, list(range(BLOCKS, BLOCKS + 32))).places]
    engine.start([-1, -2, -3])
    began = time.monotonic()
    heir = pair.kill_leader()
    warm_s = time.monotonic() - began
    engine = pair.engine_of(heir)
    assert served(engine, list(range(BLOCKS + 32))) == places + last
    assert f"instance_taken_over instance=warm blocks={BLOCKS + 35} orphan_writes=3" in heir.log
    assert "metadata_loaded" in heir.log.partition("instance_taken_over")[0]  # once, as a follower
    assert "metadata_loaded" not in heir.log.partition("instance_taken_over")[2]
    engine.wait_gone([-1, -2, -3])
    write(engine, [1 << 40])
    with capsys.disabled():
        print(f"\n  {BLOCKS} blocks: killed leader -> warm follower serves {warm_s:.2f} s (lease {LEASE_MS} ms)")


def test_a_follower_whose_stream_was_cut_or_lost_scans_and_so_does_its_promotion(pair: Pair) -> None:
    engine, follower = pair.engine_of(pair.leader), pair.follower
    write(engine, [1, 2, 3])
    pair.follows(3)
    follower.send(signal.SIGSTOP)
    try:
        write(engine, [4, 5])
        write(engine, [6])
        pair.redis.call("XTRIM", STREAM, "MAXLEN", 1)
    finally:
        follower.send(signal.SIGCONT)
    pair.follows(6)
    assert metric(follower, "follower_resync_counter") == 1
    pair.redis.call("DEL", STREAM)
    write(engine, [7])
    pair.follows(7)
    assert metric(follower, "follower_resync_counter") == 2
    engine.ok(engine.meta, "RemoveCache", instance_id="warm", block_keys=[2])
    engine.wait_gone([2])
    pair.follows(6)
    # Cut once more, in front of a promotion.
    leader = pair.leader  # before one of them cannot be asked
    follower.send(signal.SIGSTOP)
    try:
        write(engine, [8, 9])
        leader.send(signal.SIGKILL)
        leader.wait()
        pair.redis.call("XTRIM", STREAM, "MAXLEN", 1)
    finally:
        follower.send(signal.SIGCONT)
    eventually(lambda: pair.leads(follower), "the follower leads")
    assert len(served(pair.engine_of(follower), [3, 4, 5, 6, 7, 8, 9])) == 7
    # It found out as a follower, and had the time for a scan, or as a leader.
    assert follower.log.count("follower_resyncs") + follower.log.count("warm_copy_dropped") == 3
