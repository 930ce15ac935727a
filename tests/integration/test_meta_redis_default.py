"""Groups that ask for Redis and name none keep their metadata in the manager's own (`kvcm.meta.redis_uri`), so that no password stands in a group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvcm.common.clock import SystemClock
from kvcm.common.errors import InvalidArgument
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.config.model import MetaBackendConfig
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta.open_backend import MetadataStores
from kvcm.meta.testing_redis import RedisBlocks
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]
OWN = MetaBackendConfig("redis")


def test_a_group_without_a_uri_is_kept_in_the_managers_redis(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pw-canary\n")
    blocks = RedisBlocks(ProtoLocationEncoder())
    with RedisServer("--requirepass", "pw-canary") as redis:
        redis.call("AUTH", "pw-canary")
        uri = f"{redis.uri}?password_file={tmp_path / 'password'}&cluster_name=c"

        async def story() -> None:
            pool = BlockingPool(threads=1, clock=SystemClock())
            try:
                stores = MetadataStores(pool, blocks.context, uri)
                assert "canary" not in repr(stores)
                backend = stores.open(OWN, "i1", blocks.records)
                await backend.open()
                await backend.raise_fence(1)
                await backend.apply({1: (blocks.location(1),)}, 1)
                await backend.close()
                assert stores.open_followed(OWN, "i1", blocks.records) is not None
                assert await stores.stored_instances(OWN, []) == ["i1"]
                # Both name the same store, whichever way.
                assert await stores.stored_instances(OWN, [(MetaBackendConfig("async_redis", uri), "i1")]) == []
            finally:
                pool.close()

        asyncio.run(story())
        assert "kvcache:instance_i1:cache_1" in set(redis.keys())


def test_without_one_the_sentence_names_the_setting() -> None:
    blocks = RedisBlocks(ProtoLocationEncoder())
    pool = BlockingPool(threads=1, clock=SystemClock())
    try:
        with pytest.raises(InvalidArgument, match=r"kvcm\.meta\.redis_uri"):
            MetadataStores(pool, blocks.context).open(MetaBackendConfig("async_redis"), "i", blocks.records)
        for uri in ("redis://", "etcd://h:1/p", "redis://h/?nothing=1"):
            with pytest.raises(InvalidArgument):
                MetadataStores(pool, blocks.context, uri)
    finally:
        pool.close()
