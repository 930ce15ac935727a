"""One walk through Redis finds the blocks of every instance that opens at the same time, and never less than a walk of its own would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from kvcm.common.redis.target import parse_target
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.meta.backend_redis import RedisBackend
from kvcm.meta.location import Block, promote
from kvcm.meta.redis_scan import KeyScans
from kvcm.meta.testing_redis import RedisBlocks, loaded
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

IDS = ("i", "i:cache_1", "j", "empty")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def walks(redis: RedisServer) -> int:
    """How often a SCAN has begun at the beginning: all of these tests' keys come with one call."""
    stats = redis.call("INFO", "commandstats").decode()
    return int(stats.partition("cmdstat_scan:calls=")[2].partition(",")[0] or 0)


def backends(redis: RedisServer, blocks: RedisBlocks) -> list[RedisBackend]:
    target = parse_target(f"{redis.uri}?timeout_ms=2000")
    return [RedisBackend(target, instance_id, blocks.records, blocks.context) for instance_id in IDS]


def test_instances_that_open_together_are_found_by_one_walk(redis: RedisServer) -> None:
    blocks = RedisBlocks(ProtoLocationEncoder())
    stored: dict[str, dict[int, Block]] = {
        name: {number * 100 + key: (promote(blocks.location(key)),) for key in range(1, 5)} for number, name in enumerate(IDS) if name != "empty"
    }
    stored["i"][-7] = (promote(blocks.location(7)),)

    async def story() -> None:
        for name, content in stored.items():
            async with blocks.opened(redis.port, instance_id=name) as backend:
                await backend.apply(content, 1)
        redis.call("SET", "kvcache:instance_i:cache_nothing", "x")
        redis.call("SET", "kvcache:instance_j:cache_007", "x")
        before = walks(redis)

        async def opened(backend: RedisBackend) -> dict[int, Block]:
            await backend.open()
            await backend.raise_fence(2)
            return dict(await loaded(backend))

        async with AsyncExitStack() as stack:
            members = backends(redis, blocks)
            for member in members:
                stack.push_async_callback(member.close)
            found = await asyncio.gather(*map(opened, members))
            assert found == [stored.get(name, {}) for name in IDS]
            assert walks(redis) - before == 1

    asyncio.run(story())


def test_a_walk_that_has_begun_is_not_joined(redis: RedisServer) -> None:
    async def story() -> None:
        scans = KeyScans()
        target = parse_target(redis.uri)
        first = scans.join(target, b"kvcache:instance_a:cache_")
        assert scans.join(target, b"kvcache:instance_b:cache_") is first
        await first.keys(b"kvcache:instance_a:cache_")
        assert scans.join(target, b"kvcache:instance_c:cache_") is not first
        assert list(await first.keys(b"kvcache:instance_b:cache_")) == []

    asyncio.run(story())


def test_a_walk_waits_for_those_who_are_expected_and_not_for_ever(redis: RedisServer) -> None:
    redis.call("SET", "kvcache:instance_a:cache_5", "x")

    async def story() -> None:
        scans = KeyScans()
        target = parse_target(redis.uri)
        scans.expect(target)
        scan = scans.join(target, b"kvcache:instance_a:cache_")
        asking = asyncio.ensure_future(scan.keys(b"kvcache:instance_a:cache_"))
        await asyncio.sleep(0.05)
        assert not scan.begun
        scans.arrived(target)
        assert list(await asking) == [5]
        scans.expect(target)  # and never comes
        assert list(await scans.join(target, b"kvcache:instance_a:cache_").keys(b"kvcache:instance_a:cache_")) == [5]

    asyncio.run(story())


def test_one_who_goes_away_does_not_end_the_walk_of_the_others_and_the_last_one_does(redis: RedisServer) -> None:
    async def story() -> None:
        scans = KeyScans()
        target = parse_target(redis.uri)
        prefixes = [b"kvcache:instance_a:cache_", b"kvcache:instance_b:cache_", b"kvcache:instance_c:cache_"]
        scans.expect(target)
        scan, *_ = [scans.join(target, prefix) for prefix in prefixes]
        asking = [asyncio.ensure_future(scan.keys(prefix)) for prefix in prefixes[:2]]
        await asyncio.sleep(0)
        asking[0].cancel()
        await asyncio.wait(asking[:1])
        assert not asking[1].done()
        asking[1].cancel()
        await asyncio.wait(asking)
        assert walks(redis) == 0
        scans.arrived(target)
        assert list(await scan.keys(prefixes[2])) == [], "whoever has joined and comes later begins it anew"
        assert walks(redis) == 1

    asyncio.run(story())


def test_a_walk_that_was_given_up_before_it_began_fails_nobody_who_comes_later(redis: RedisServer) -> None:
    """Leadership may be lost while the instances are still waited for, and won again a moment later."""
    redis.call("SET", "kvcache:instance_i:cache_1", "x")
    target = parse_target(redis.uri)
    scans = KeyScans()
    prefix = b"kvcache:instance_i:cache_"

    async def story() -> None:
        scans.expect(target)
        scan = scans.join(target, prefix)
        waiting = asyncio.get_running_loop().create_task(scan.keys(prefix))
        await asyncio.sleep(0)
        scans.join(target, b"kvcache:instance_j:cache_")  # and does not ask for its keys yet
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        scans.arrived(target)
        later = scans.join(target, prefix)
        assert later is not scan
        assert list(await later.keys(prefix)) == [1]
        assert list(await scan.keys(b"kvcache:instance_j:cache_")) == [], "who had joined is not failed either"

    asyncio.run(story())
