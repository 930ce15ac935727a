"""Block metadata in one real Redis where it differs from a cluster, or where the network is held up: layout, changes that come late, lost answers, a hang."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.redis.target import parse_target
from kvcm.common.redis.testing import Network, RedisServer, redis_binary
from kvcm.config.errors import FencedOut
from kvcm.config.model import MetaBackendConfig
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta.backend_redis import RedisBackend
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block, condemn, promote
from kvcm.meta.open_backend import MetadataStores
from kvcm.meta.testing import published
from kvcm.meta.testing_redis import RedisBlocks, loaded
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

KEY = "kvcache:instance_i1:cache_"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as redis:
        yield redis


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    server.call("FLUSHALL")
    return server


@pytest.fixture
def blocks() -> RedisBlocks:
    return RedisBlocks(ProtoLocationEncoder())


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def until_it_answers(backend: RedisBackend) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await backend.read([1])
            except StorageError:
                await asyncio.sleep(0.05)
                continue
            return


def test_what_was_applied_is_there_in_upstreams_layout(redis: RedisServer, blocks: RedisBlocks) -> None:
    stored: dict[int, Block] = {
        1: (blocks.location(1),),
        -2: (promote(blocks.location(2, previous=1)),),
        3: (condemn(blocks.location(3)), promote(blocks.location(4, previous=-2))),
    }

    async def story() -> None:
        async with blocks.opened(redis.port) as backend:
            assert await backend.apply(stored, 1) == {}
            assert await backend.apply({4: (blocks.location(5),), 5: ()}, 1) == {}
            assert await backend.apply({4: ()}, 1) == {}
        async with blocks.opened(redis.port, fence=2) as backend:
            assert await loaded(backend) == stored
            assert await backend.read([1, 3, 99]) == {1: stored[1], 3: stored[3]}

    run(story())
    assert redis.keys("kvcache*cache_*") == [f"{KEY}-2", f"{KEY}1", f"{KEY}3"]
    fields = redis.fields(f"{KEY}-2")
    assert set(fields) == {"BP#lru_time", "BP#prev_key", "L#00000002"}
    assert len(fields["BP#lru_time"]) == 16
    assert fields["BP#prev_key"] == "1"


def test_a_block_that_loses_locations_keeps_no_field_of_them(redis: RedisServer, blocks: RedisBlocks) -> None:
    one, two = blocks.location(1), blocks.location(2, previous=9)

    async def story() -> None:
        async with blocks.opened(redis.port) as backend:
            assert await loaded(backend) == {}
            await backend.apply({7: (one, two), 8: (two, one)}, 1)
            await backend.apply({7: (promote(one),), 8: (promote(two),)}, 1)
            assert await backend.read([7, 8]) == {7: (promote(one),), 8: (promote(two),)}

    run(story())
    assert set(redis.fields(f"{KEY}7")) == {"BP#lru_time", "L#00000001"}
    assert set(redis.fields(f"{KEY}8")) == {"BP#lru_time", "L#00000002", "BP#prev_key"}


@pytest.mark.parametrize("found", ["as it was begun", "nothing", "another block", "a shorter block", "no hash"])
def test_the_end_of_a_write_leaves_whole_records_whatever_became_of_its_beginning(redis: RedisServer, blocks: RedisBlocks, found: str) -> None:
    """The end of a write says less than its beginning: what precedes a block stands there already."""
    begun: dict[int, Block] = {key: (blocks.location(key, previous=key - 1 if key > 1 else None),) for key in range(1, 9)}
    ended: dict[int, Block] = {key: (promote(block[0]),) for key, block in begun.items()}

    async def story() -> None:
        async with blocks.opened(redis.port) as backend:
            assert await loaded(backend) == {}
            await backend.apply(begun, 1)
            if found != "as it was begun":
                redis.call("DEL", f"{KEY}5")
            if found == "another block":
                redis.call("HSET", f"{KEY}5", "BP#prev_key", "77", "BP#lru_time", "1", "L#00000099", "{}")
            if found == "a shorter block":
                redis.call("HSET", f"{KEY}5", "BP#lru_time", "1", "L#00000099", "{}")
            if found == "no hash":
                redis.call("SET", f"{KEY}5", "x")
            await backend.apply(ended, 1)
            assert await backend.read(list(ended)) == ended

    run(story())
    assert set(redis.fields(f"{KEY}5")) == {"BP#lru_time", "BP#prev_key", "L#00000005"}
    assert redis.fields(f"{KEY}5")["BP#prev_key"] == "4"
    assert set(redis.fields(f"{KEY}1")) == {"BP#lru_time", "L#00000001"}


@pytest.mark.parametrize("scanned", [False, True])
def test_a_key_of_another_type_or_layout_is_replaced(redis: RedisServer, blocks: RedisBlocks, scanned: bool) -> None:
    redis.call("SET", f"{KEY}1", "no hash")
    redis.call("HSET", f"{KEY}2", "__uri__", json.dumps({"9": blocks.records.to_dict(blocks.location(9)) | {"id": "9"}}), "_prev_key_", "4")

    async def story() -> None:
        async with blocks.opened(redis.port) as backend:
            assert await backend.read([1]) == {}
            if scanned:
                assert set(await loaded(backend)) == {2}
            changes: dict[int, Block] = {1: (blocks.location(1),), 2: (blocks.location(2, previous=1),)}
            await backend.apply(changes, 1)
            assert await loaded(backend) == changes

    run(story())
    assert set(redis.fields(f"{KEY}2")) == {"BP#lru_time", "BP#prev_key", "L#00000002"}


def test_a_change_of_the_old_leader_that_was_held_up_does_not_land(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with Network(redis.port) as network, blocks.opened(network.port, 4, options="timeout_ms=20000") as old, blocks.opened(redis.port, 0) as new:
            await old.apply({1: (blocks.location(1),)}, 4)
            network.hold()
            held = asyncio.ensure_future(old.apply({2: (blocks.location(2),)}, 4))
            await network.arrived.wait()
            await new.raise_fence(5)
            before = await loaded(new)
            assert await network.release() > 0
            with pytest.raises(FencedOut):
                await held
            assert await loaded(new) == before

    run(story())


def test_a_change_that_was_given_up_does_not_land_after_a_later_answer(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with Network(redis.port) as network, blocks.opened(network.port, options="timeout_ms=200") as backend:
            await backend.apply({1: (blocks.location(1),)}, 1)
            network.hold()
            with pytest.raises(OutcomeUnknown):
                await backend.apply({1: (promote(blocks.location(1)),), 2: (blocks.location(2),)}, 1)
            assert await backend.read([1, 2]) == {1: (blocks.location(1),)}
            await backend.apply({1: (condemn(blocks.location(1)),)}, 1)
            assert await network.release() > 0, "the old change is still on its way, and arrives only now"
            assert await backend.read([1, 2]) == {1: (condemn(blocks.location(1)),)}

    run(story())
    assert redis.call("EXISTS", f"{KEY}2") == 0


def test_an_answer_that_is_lost_is_resolved_by_the_index(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with Network(redis.port) as network, blocks.opened(network.port, options="timeout_ms=200") as backend:
            index = MetaIndex(backend, max_key_count=100)
            network.hold_answers()
            change = asyncio.ensure_future(index.mutate([1, 2], lambda at, key, block: (blocks.location(key),), 1))
            await asyncio.wait({change}, timeout=0.3)
            network.release_answers()
            assert [outcome.changed for outcome in await change] == [True, True]
            assert published(index) == await loaded(backend)

    run(story())


def test_overlapping_changes_share_a_connection(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with blocks.opened(redis.port) as backend:
            await asyncio.gather(*(backend.apply({at: (blocks.location(at),)}, 1) for at in range(20)))
            assert len(await loaded(backend)) == 20
        assert blocks.context.stats.connections == 1

    run(story())


def test_a_huge_change_goes_in_parts(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with blocks.opened(redis.port) as backend:
            changes: dict[int, Block] = {number: (blocks.location(number),) for number in range(1300)}
            assert await backend.apply(changes, 1) == {}
            assert blocks.context.stats.batches == 6
            assert await loaded(backend) == changes

    run(story())


def test_damaged_records_are_left_out_reported_and_kept(redis: RedisServer, blocks: RedisBlocks, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with blocks.opened(redis.port) as backend:
            await backend.apply({number: (blocks.location(number),) for number in range(5)}, 1)
            redis.call("HSET", f"{KEY}1", "L#00000001", "{broken")
            redis.call("DEL", f"{KEY}2")
            redis.call("SET", f"{KEY}2", "no hash")
            redis.call("HSET", f"{KEY}no-number", "a", "b")
            with caplog.at_level(logging.ERROR):
                assert set(await loaded(backend)) == {0, 3, 4}
            with pytest.raises(StorageError, match="damaged"):
                await backend.read([1])

    run(story())
    assert "count=2" in caplog.text
    assert redis.fields(f"{KEY}1")["L#00000001"] == "{broken"
    assert blocks.context.stats.damaged == 2


def test_a_redis_that_hangs_ends_by_the_deadline(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with blocks.opened(redis.port, options="timeout_ms=200") as backend:
            index = MetaIndex(backend, max_key_count=100)
            redis.pause()
            try:
                outcomes = await index.mutate([1], lambda at, key, block: (blocks.location(1),), 1)
                assert outcomes[0].error is not None
                assert index.get(1) == ()
            finally:
                redis.resume()
            await until_it_answers(backend)
            await index.mutate([1], lambda at, key, block: (promote(blocks.location(1)),), 1)
            assert published(index) == await loaded(backend)

    run(story())


def test_leftovers_are_those_of_this_cluster_only(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        pool = BlockingPool(threads=1)
        stores = MetadataStores(pool, blocks.context)
        for name in ("used", "left", "empty"):
            async with blocks.opened(redis.port, instance_id=name) as backend:
                await backend.apply({1: (blocks.location(1),)} if name != "empty" else {}, 1)
        other = RedisBlocks(ProtoLocationEncoder())
        async with other.opened(redis.port, instance_id="foreign", options="cluster_name=other") as backend:
            await backend.apply({1: (other.location(1),)}, 1)
        config = MetaBackendConfig(storage_type="redis", storage_uri=redis.uri)
        behind = MetaBackendConfig(storage_type="async_redis", storage_uri=f"{redis.uri}?async_wait_us=5")
        assert await stores.stored_instances(config, [(behind, "used")]) == ["left"]
        assert await stores.stored_instances(config, [(config, "left")]) == ["used"]
        assert {name.decode() for name in redis.call("SMEMBERS", "kvcm:test:instances")} == {"used", "left"}
        pool.close(1)

    run(story())


def test_it_works_on_the_loop_that_managers_use(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with blocks.opened(redis.port) as backend:
            await backend.apply({1: (blocks.location(1),)}, 1)
            assert await loaded(backend) == {1: (blocks.location(1),)}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


def test_a_password_is_in_no_message(blocks: RedisBlocks) -> None:
    with RedisServer("--requirepass", "s3cret-word") as redis:

        async def story() -> None:
            target = parse_target(f"redis://wr0ng-word@127.0.0.1:{redis.port}/")
            backend = RedisBackend(target, "i", blocks.records, blocks.context)
            with pytest.raises(StorageError) as caught:
                await backend.open()
            assert "word" not in caught.value.message
            assert "word" not in repr(target)
            async with blocks.opened(redis.port, options="auth=s3cret-word") as good:
                await good.apply({1: (blocks.location(1),)}, 1)

        run(story())


def test_one_that_became_a_replica_is_left_and_found_again_as_a_master(blocks: RedisBlocks) -> None:
    with RedisServer() as redis, RedisServer() as other:

        async def story() -> None:
            async with blocks.opened(redis.port) as backend:
                await backend.apply({1: (blocks.location(1),)}, 1)
                before = blocks.context.stats.connections
                redis.call("REPLICAOF", "127.0.0.1", other.port)
                with pytest.raises(StorageError, match="READONLY") as caught:
                    await backend.apply({2: (blocks.location(2),)}, 1)
                assert not isinstance(caught.value, OutcomeUnknown)
                with pytest.raises(StorageError, match="not a master"):
                    await backend.apply({2: (blocks.location(2),)}, 1)
                redis.call("REPLICAOF", "NO", "ONE")
                await until_it_answers(backend)
                await backend.apply({2: (blocks.location(2),)}, 1)
                assert blocks.context.stats.connections > before
                assert 2 in await loaded(backend)

        run(story())
