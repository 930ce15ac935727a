"""Two clusters of two managers in one Redis, as the ecosystem's own isolation test runs them (wire contract 8.3): names in Redis, and whose demotion it is."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kvcm.service
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.common.testing_waiting import eventually
from kvcm.service.testing_dropin import DropIn
from kvcm.service.testing_wire import HttpWire, code

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

CLUSTERS = ("red", "blue")
INSTANCE = {
    "trace_id": "t",
    "block_size": 8,
    "model_deployment": {"model_name": "m", "dtype": "FP8", "tp_size": 1},
    "location_spec_infos": [{"name": "tp0", "size": 1024}],
}


def admin(worker: DropIn, rpc: str, **request: Any) -> dict[str, Any]:
    return HttpWire(worker.admin_http_url).call(rpc, {"trace_id": "t", **request})


class House:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.redis = stack.enter_context(RedisServer())
        text = (Path(kvcm.service.__file__).parent / "etc" / "default_startup_config.json").read_text(encoding="utf-8")
        self.workers: dict[str, list[DropIn]] = {}
        for cluster in CLUSTERS:
            startup = json.loads(text)
            startup["storage_config"] |= {"global_unique_name": f"nfs_{cluster}"}
            startup["storage_config"]["storage_spec"]["root_path"] = str(folder / cluster)
            group = startup["instance_group"]
            group |= {"name": f"group_{cluster}", "storage_candidates": [f"nfs_{cluster}"]}
            group["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] = {"storage_type": "redis", "storage_uri": self.redis.uri}
            path = folder / f"{cluster}.json"
            path.write_text(json.dumps(startup), encoding="utf-8")
            self.workers[cluster] = [stack.enter_context(DropIn(self._settings(cluster, number, path))) for number in range(2)]

    def _settings(self, cluster: str, number: int, startup: Path) -> dict[str, str]:
        uri = f"{self.redis.uri}?cluster_name={cluster}"
        return {
            "kvcm.registry_storage.uri": uri,
            "kvcm.coordination.uri": uri,
            "kvcm.leader_elector.node_id": f"{cluster}_{number}",
            "kvcm.leader_elector.lease_ms": "2000",
            "kvcm.service.advertised_host": "127.0.0.1",
            "kvcm.startup_config": str(startup),
        }

    def leader(self, cluster: str) -> tuple[int, DropIn]:
        found: list[tuple[int, DropIn]] = []

        def look() -> bool:
            found[:] = [(number, worker) for number, worker in enumerate(self.workers[cluster]) if admin(worker, "CheckHealth")["is_leader"]]
            assert len(found) <= 1, "two nodes lead"
            return bool(found)

        eventually(look, f"a leader of {cluster}")
        return found[0]

    def lock(self, cluster: str) -> str:
        held: bytes | None = self.redis.call("GET", f"kvcm_{cluster}_lock:_TAIR_KVCM_LEADER_KEY")
        return (held or b"").decode()

    def epoch(self, cluster: str) -> int:
        return int(admin(self.leader(cluster)[1], "GetManagerClusterInfo")["leader_epoch"])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(tmp_path_factory.mktemp("isolation"), stack)


def test_each_cluster_has_its_own_leader_nodes_registry_and_blocks(house: House) -> None:
    for cluster in CLUSTERS:
        number, leader = house.leader(cluster)
        assert house.lock(cluster) == f"{cluster}_{number}"
        info = f"kvcm_{cluster}_kv:_TAIR_KVCM_NODE_INFO_"
        eventually(lambda info=info, cluster=cluster: house.redis.keys(f"{info}*") == [f"{info}{cluster}_{node}" for node in range(2)], "two node infos")  # type: ignore[misc]
        told = json.loads(house.redis.call("GET", f"{info}{cluster}_{number}"))
        assert (told["node_id"], told["admin_http_port"]) == (f"{cluster}_{number}", leader.endpoint.admin_http_port)

        wire = HttpWire(leader.http_url)
        instance = {"instance_id": f"i_{cluster}", "trace_id": "t"}
        assert code(wire.call("RegisterInstance", INSTANCE | instance | {"instance_group": f"group_{cluster}"})) == "OK"
        started = wire.call("StartWriteCache", {**instance, "block_keys": [1, 2], "write_timeout_seconds": 30})
        finish = {**instance, "write_session_id": started["write_session_id"], "success_blocks": {"bool_masks": {"values": [True, True]}}}
        assert code(wire.call("FinishWriteCache", finish)) == "OK"
        assert len(house.redis.keys(f"kvcache:instance_i_{cluster}:cache_*")) >= 2

        registry = f"kvcache_registry:{cluster}:"
        assert list(house.redis.fields(f"{registry}storage")) == [f"nfs_{cluster}"]
        assert [name for name in house.redis.fields(f"{registry}instance_group") if not name.startswith("__")] == [f"group_{cluster}"]
        assert f"i_{cluster}" in house.redis.fields(f"{registry}instance")


def test_a_demotion_stays_inside_its_cluster(house: House) -> None:
    number, leader = house.leader("red")
    red, blue, lock = house.epoch("red"), house.epoch("blue"), house.lock("blue")
    assert code(admin(leader, "UpdateLeaderElectorConfig", campaign_delay_time_ms=100_000)) == "OK"
    assert code(admin(leader, "LeaderDemote")) == "OK"
    assert not admin(leader, "CheckHealth")["is_leader"]
    eventually(lambda: house.lock("red") == f"red_{1 - number}", "the other red node takes over")
    assert house.leader("red")[0] == 1 - number
    assert house.epoch("red") > red
    assert (house.epoch("blue"), house.lock("blue")) == (blue, lock)
    assert code(admin(leader, "UpdateLeaderElectorConfig", campaign_delay_time_ms=0)) == "OK"


def test_leaders_stay_when_redis_starts_anew_and_has_forgotten_everything(house: House) -> None:
    before = {cluster: (house.leader(cluster)[0], house.epoch(cluster)) for cluster in CLUSTERS}
    house.redis.kill()
    house.redis.start()
    for cluster in CLUSTERS:
        eventually(lambda cluster=cluster: house.lock(cluster) != "", "the lock is there again")  # type: ignore[misc]
        number, epoch = house.leader(cluster)[0], house.epoch(cluster)
        # On a machine that was too busy for a renewal within the lease the other may lead by now, in a later term.
        assert (number, epoch) == before[cluster] or epoch > before[cluster][1]


def test_a_leader_that_was_stopped_beyond_its_lease_finds_another(house: House) -> None:
    number, leader = house.leader("red")
    epoch = house.epoch("red")
    leader.send(signal.SIGSTOP)
    try:
        eventually(lambda: house.lock("red") == f"red_{1 - number}", "the other takes the lock")
        other = house.workers["red"][1 - number]
        eventually(lambda: bool(admin(other, "CheckHealth")["is_leader"]), "the other leads")
    finally:
        leader.send(signal.SIGCONT)
    assert code(HttpWire(leader.http_url).call("GetInstanceInfo", {"trace_id": "t", "instance_id": "i_red"})) == "SERVER_NOT_LEADER"
    assert house.leader("red")[0] == 1 - number
    assert house.epoch("red") > epoch
    eventually(lambda: admin(leader, "GetManagerClusterInfo")["leader_node_id"] == f"red_{1 - number}", "it knows its successor")
