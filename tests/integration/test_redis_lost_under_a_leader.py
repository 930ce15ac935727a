"""What `redis_fence_lost` costs (docs/known-limits.md): the leader goes on with what it has in memory, the next one has only what changed after the loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_blocks import Engine
from kvcm.service.testing_wire import ADMIN, META, GrpcWire

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

OLD, OVERLAPPING, NEW = [1, 2, 3], [11, 12, 13], [21, 22, 23]


def test_only_what_changes_after_the_loss_outlives_the_leader(tmp_path: Path) -> None:
    def engine_of(manager: ManagerProcess) -> Engine:
        found = Engine(GrpcWire(manager.meta_address, META), GrpcWire(manager.admin_address, ADMIN), tmp_path)
        found.name = "lost"
        return found

    with RedisServer() as redis, ManagerProcess({"kvcm.registry_storage.uri": f"local://{tmp_path}/registry.json"}) as manager:
        engine = engine_of(manager)
        backend = {"storage_type": "redis", "storage_uri": redis.uri}
        engine.set_up("lost", "nfs", indexer={"max_key_count": 0, "meta_storage_backend_config": backend})
        old = engine.put(OLD).places
        begun = engine.start(OVERLAPPING)
        redis.call("FLUSHALL")
        # A write that overlaps the loss is stored whole by its end, and is whole for whoever comes next.
        engine.save(begun)
        engine.finish(begun)
        new = engine.put(NEW).places
        assert "redis_fence_lost" in manager.log
        assert [engine.prefix(keys) for keys in (OLD, OVERLAPPING, NEW)] == [old, begun.places, new]
        manager.kill()
        manager.start()
        engine = engine_of(manager)
        assert [engine.prefix(keys) for keys in (OLD, OVERLAPPING, NEW)] == [[], begun.places, new]
        # The bytes of what was lost belong to nobody now; the same keys can be written anew.
        again = engine.put(OLD).places
        assert engine.prefix(OLD) == again
