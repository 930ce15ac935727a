"""Write-behind to a real Redis: order, barrier, bounds, and what is lost and counted (behaviour 9.4, 9.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.common.redis.testing import Network, RedisServer, redis_binary
from kvcm.config.errors import FencedOut
from kvcm.meta.location import condemn, promote
from kvcm.meta.testing_redis import RedisBlocks, loaded
from kvcm.meta.write_behind import BehindSettings, WriteBehind
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]


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


async def until_it_takes(backend: WriteBehind) -> None:
    while True:
        try:
            return await backend.sync(range(10))
        except StorageError:
            continue


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_I_MB_3_after_the_barrier_what_was_accepted_before_it_is_stored(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        # A round never begins by itself: only the barrier makes it.
        async with blocks.behind(redis.port, options="async_wait_us=10000000") as backend, blocks.opened(redis.port, 0) as other:
            await backend.apply({1: (blocks.location(1),), 2: (blocks.location(2),)}, 1)
            await asyncio.sleep(0)
            await backend.apply({1: (promote(blocks.location(1)),)}, 1)
            assert await other.read([1, 2]) == {}
            await asyncio.wait_for(backend.sync([1]), 15)
            assert (await other.read([1]))[1] == (promote(blocks.location(1)),)
            await backend.sync([1, 2, 3])
            assert backend.waiting == 0

    run(story())


def test_I_MB_1_reading_back_shows_what_waits(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with blocks.behind(redis.port, options="async_wait_us=500000") as backend:
            await backend.apply({1: (blocks.location(1),), 2: (blocks.location(2),)}, 1)
            await backend.sync([1, 2])
            await backend.apply({1: (promote(blocks.location(1)),), 2: ()}, 1)
            assert await backend.read([1, 2, 3]) == {1: (promote(blocks.location(1)),)}

    run(story())


def test_closing_stores_what_waits(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with blocks.behind(redis.port) as backend:
            await backend.apply({number: (blocks.location(number),) for number in range(3000)}, 1)
            assert backend.waiting == 3000
            assert blocks.context.stats.behind["i1"][0] == 3000
        async with blocks.opened(redis.port, 2) as after:
            assert len(await loaded(after)) == 3000
        assert blocks.context.stats.dropped == 0
        with pytest.raises(StorageError, match="closed"):
            await backend.apply({1: ()}, 1)

    run(story())


def test_a_store_that_is_down_fills_the_queue_and_then_refuses(blocks: RedisBlocks) -> None:
    with RedisServer(durable=True) as redis:

        async def story() -> None:
            options = "timeout_ms=200&async_max_size=10&async_enqueue_timeout_ms=50&async_sync_timeout_ms=100"
            async with blocks.behind(redis.port, options=options) as backend:
                redis.kill()
                await backend.apply({number: (blocks.location(number),) for number in range(10)}, 1)
                with pytest.raises(StorageError, match="wait to be stored"):
                    await backend.apply({99: (blocks.location(99),)}, 1)
                with pytest.raises(StorageError, match="within 100 ms"):
                    await backend.sync([1])
                await backend.sync([12345])
                redis.start()
                async with asyncio.timeout(20):
                    await until_it_takes(backend)
                await backend.apply({99: (blocks.location(99),)}, 1)
                await backend.sync([99])
                assert set(await loaded(backend)) == {*range(10), 99}

        run(story())


def test_what_is_not_stored_when_the_time_for_closing_is_over_is_counted(blocks: RedisBlocks) -> None:
    with RedisServer() as redis:

        async def story() -> None:
            async with blocks.behind(redis.port, options="timeout_ms=200&async_drain_ms=100") as backend:
                redis.pause()
                await backend.apply({1: (blocks.location(1),), 2: (blocks.location(2),)}, 1)
            assert blocks.context.stats.dropped == 2
            assert blocks.context.stats.behind == {}
            redis.resume()

        run(story())


def test_a_newer_leader_makes_what_waits_worthless(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with blocks.behind(redis.port, 3, options="async_wait_us=100000") as old, blocks.opened(redis.port, 0) as new:
            await old.apply({1: (blocks.location(1),)}, 3)
            await old.sync([1])
            await old.apply({1: (promote(blocks.location(1)),), 2: (blocks.location(2),)}, 3)
            await new.raise_fence(4)
            with pytest.raises(FencedOut):
                await old.sync([2])
            with pytest.raises(FencedOut):
                await old.apply({3: (blocks.location(3),)}, 3)
            assert await loaded(new) == {1: (blocks.location(1),)}
            assert blocks.context.stats.dropped == 2

    run(story())


def test_a_lost_answer_is_repeated_and_an_older_change_never_overtakes(redis: RedisServer, blocks: RedisBlocks) -> None:
    async def story() -> None:
        async with Network(redis.port) as network, blocks.behind(network.port, options="timeout_ms=150&async_wait_us=1") as backend:
            await backend.apply({1: (blocks.location(1),)}, 1)
            await backend.sync([1])
            network.hold()
            await backend.apply({1: (promote(blocks.location(1)),)}, 1)
            await network.arrived.wait()
            await backend.apply({1: (condemn(blocks.location(1)),)}, 1)
            await backend.sync([1])
            assert await network.release() > 0
            assert await backend.read([1]) == {1: (condemn(blocks.location(1)),)}
            assert await loaded(backend) == {1: (condemn(blocks.location(1)),)}
        assert blocks.context.stats.unknown >= 1

    run(story())


def test_parameters_are_upstreams_and_checked() -> None:
    assert BehindSettings.of({}) == BehindSettings()
    found = BehindSettings.of({"async_queue_count": "4", "async_max_size": "100", "async_enqueue_timeout_ms": "0", "async_drain_ms": "7"})
    assert (found.max_blocks, found.enqueue_timeout_ms, found.drain_ms) == (400, 0, 7)
    for bad in ({"async_queue_count": "0"}, {"async_queue_count": "2049"}, {"async_max_batch": "0"}, {"async_wait_us": "x"}, {"async_drain_ms": "-1"}):
        with pytest.raises(InvalidArgument, match=next(iter(bad))):
            BehindSettings.of(bad)
