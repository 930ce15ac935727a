"""A manager whose registry, leadership and block metadata are all in one Redis that is full: it reads, ends writes and removes, and so does the next leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_blocks import Engine, path_of, wait_until
from kvcm.service.testing_wire import HttpWire, code

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]


def test_everything_but_new_blocks_goes_on_and_the_next_leader_takes_over(tmp_path: Path) -> None:
    with RedisServer("--maxmemory-policy", "noeviction") as redis:
        uri = f"{redis.uri}?cluster_name=full"
        settings = {
            "kvcm.registry_storage.uri": uri,
            "kvcm.coordination.uri": uri,
            "kvcm.leader_elector.lease_ms": "2000",
        }
        with ManagerProcess(settings) as manager:
            engine = _engine(manager, tmp_path)
            engine.set_up("full", "nfs", indexer={"max_key_count": 1000, "meta_storage_backend_config": {"storage_type": "redis", "storage_uri": uri}})
            kept = engine.put([1, 2, 3, 4])
            begun = engine.start([5, 6])
            redis.call("CONFIG", "SET", "maxmemory", 1)
            engine.save(begun)
            engine.finish(begun)
            assert len(engine.prefix([1, 2, 3, 4])) == 4
            assert len(engine.prefix([5, 6])) == 2
            word, why = engine.refused("StartWriteCache", instance_id="full", block_keys=[7], write_timeout_seconds=600)
            assert "OOM" in why, word
            engine.ok(engine.meta, "RemoveCache", instance_id="full", block_keys=[4])
            engine.wait_gone([4])
            wait_until(lambda: not path_of(kept.places[3]["tp0"]).exists(), "the bytes are gone")
            manager.kill()
            manager.start()
            engine = _engine(manager, tmp_path)
            engine.name = "full"
            wait_until(lambda: code(engine.meta.call("GetInstanceInfo", {"trace_id": "t", "instance_id": "full"})) == "OK", "it leads again")
            assert len(engine.prefix([1, 2, 3])) == 3
            assert len(engine.prefix([5, 6])) == 2
            engine.ok(engine.meta, "RemoveCache", instance_id="full", block_keys=[5])
            engine.wait_gone([5])
            redis.call("CONFIG", "SET", "maxmemory", 0)
            assert engine.put([7]).keys == [7]
            assert engine.put([4, 5]).keys == [4, 5]


def _engine(manager: ManagerProcess, folder: Path) -> Engine:
    return Engine(HttpWire(manager.http_url), HttpWire(manager.admin_http_url), folder)
