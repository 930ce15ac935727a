"""Two managers whose blocks lie in a Redis Cluster: kept through a kill and a stop, taken over by a warm follower, and refused from whoever led before."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvcm.common.redis.testing import redis_binary
from kvcm.common.redis.testing_cluster import RedisCluster
from kvcm.common.testing_waiting import eventually
from kvcm.meta.cluster_layout import DEFAULT_BUCKETS, ClusterLayout
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_blocks import Engine
from kvcm.service.testing_pair import ManagerPair, metric

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

BLOCKS = 3000
BATCH = 500
LAYOUT = ClusterLayout("spread", DEFAULT_BUCKETS)


class Pair(ManagerPair):
    def __init__(self, stack: ExitStack, cluster: RedisCluster, folder: Path) -> None:
        self.cluster = cluster
        super().__init__(stack, folder, "spread", {"kvcm.registry_storage.uri": f"local://{folder}/registry.json"})
        backend = {"storage_type": "redis", "storage_uri": f"{cluster.uri}?cluster_name=spread"}
        self.engine.set_up("spread", "nfs", indexer={"max_key_count": 0, "meta_storage_backend_config": backend})

    @property
    def engine(self) -> Engine:
        return self.engine_of(self.leader)

    def write(self, keys: range) -> list[str]:
        engine = self.engine
        started = engine.start(list(keys))
        engine.finish(started)
        return [places["tp0"] for places in started.places]

    def served(self, node: ManagerProcess, keys: range) -> list[str]:
        return [places["tp0"] for places in self.engine_of(node).prefix(list(keys))]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, stack.enter_context(RedisCluster(durable=True)), tmp_path)


def test_a_follower_takes_over_what_was_acknowledged_while_slots_move_and_a_node_restarts(pair: Pair) -> None:
    cluster = pair.cluster
    places: list[str] = []
    for first in range(0, BLOCKS, BATCH):
        if first == BATCH:
            for slot in LAYOUT.slots[:6]:
                cluster.move(slot, cluster.masters[2])
        places += pair.write(range(first, first + BATCH))
    heir = next(node for node in pair.nodes if node is not pair.leader)
    eventually(lambda: metric(heir, "follower_blocks") == BLOCKS and metric(heir, "follower_lag_entries") == 0, "a complete copy")
    # What an engine will never finish.
    pair.engine.start([-1, -2, -3])
    old = pair.leader
    old.send(signal.SIGSTOP)
    try:
        eventually(lambda: pair.leads(heir), "the follower leads")
        assert pair.served(heir, range(BLOCKS)) == places
        assert f"instance_taken_over instance=spread blocks={BLOCKS + 3} orphan_writes=3" in heir.log
        assert "metadata_loaded" not in heir.log.partition("instance_taken_over")[2], "without a scan"
    finally:
        old.send(signal.SIGCONT)
    pair.engine.wait_gone([-1, -2, -3])
    fences = [cluster.of_key(LAYOUT.fence_key(bucket)).ok("GET", LAYOUT.fence_key(bucket)) for bucket in range(DEFAULT_BUCKETS)]
    assert len({token[:20] for token in fences}) == 1
    # A node goes and comes back: writes fail meanwhile, and nothing that was acknowledged is lost; a cold start finds it.
    cluster.masters[0].kill()
    assert pair.served(heir, range(BLOCKS)) == places, "reads never ask Redis"
    cluster.masters[0].start()
    cluster.wait_ok()
    places += pair.write(range(BLOCKS, BLOCKS + BATCH))
    for node in pair.nodes:
        node.kill()
    pair.nodes[0].start()
    eventually(lambda: pair.leads(pair.nodes[0]), "a leader that starts cold")
    assert pair.served(pair.nodes[0], range(BLOCKS + BATCH)) == places
