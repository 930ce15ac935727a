"""The stream of changes in a real Redis: what is in it, that it is whole or known not to be, and that copies which follow it equal a scan."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.common.redis.target import parse_target
from kvcm.common.redis.testing import RedisServer
from kvcm.config.errors import FencedOut
from kvcm.config.model import MetaBackendConfig
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta.backend_redis import RedisBackend
from kvcm.meta.changes import LostTrack
from kvcm.meta.index import MetaIndex
from kvcm.meta.key_packing import FixedWidth
from kvcm.meta.location import Block, condemn, promote
from kvcm.meta.open_backend import MetadataStores
from kvcm.meta.testing import published
from kvcm.meta.testing_redis import RedisBlocks
from kvcm.meta.warm import WarmIndex
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.integration

STREAM = "kvcache:instance_i1:__kvcm_stream__"
KEY = "kvcache:instance_i1:cache_"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as redis:
        yield redis


class Desk:
    """Leaders and followers of one instance."""

    def __init__(self, redis: RedisServer) -> None:
        self.redis = redis
        self.blocks = RedisBlocks(ProtoLocationEncoder())

    def backend(self, entries: int = 1000) -> RedisBackend:
        target = parse_target(f"{self.redis.uri}?timeout_ms=2000")
        return RedisBackend(target, "i1", self.blocks.records, self.blocks.context, stream_entries=entries)

    @asynccontextmanager
    async def leader(self, fence: int, entries: int = 1000) -> AsyncIterator[RedisBackend]:
        backend = self.backend(entries)
        await backend.open()
        await backend.raise_fence(fence)
        yield backend
        await backend.close()

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[WarmIndex]:
        backend = self.backend()
        config = MetaBackendConfig("redis", self.redis.uri)
        copy = WarmIndex(config, "i1", backend, backend.changes, FixedWidth(), self.blocks.context.monotonic_us)
        try:
            yield copy
        finally:
            await copy.close()

    def block(self, key: int) -> Block:
        return (promote(self.blocks.location(key)),)

    def blocked(self) -> bool:
        """Does somebody wait in Redis for an entry?"""
        return b"blocked_clients:0\r" not in self.redis.call("INFO", "clients")

    async def scanned(self) -> MetaIndex:
        index = MetaIndex(self.backend(), max_key_count=1 << 40)
        await index.open()
        await index.recover()
        await index.close()
        await asyncio.sleep(0)
        return index


@pytest.fixture
def desk(server: RedisServer) -> Desk:
    server.call("FLUSHALL")
    return Desk(server)


def entries(redis: RedisServer) -> list[dict[bytes, bytes]]:
    return [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in redis.call("XRANGE", STREAM, "-", "+")]


def test_each_change_and_each_term_is_an_entry(desk: Desk) -> None:
    async def story() -> None:
        async with desk.leader(3) as old:
            await old.apply({7: desk.block(7), -1: desk.block(1)}, 3)
            await old.apply({7: ()}, 3)
            async with desk.leader(9):
                with pytest.raises(FencedOut):
                    await old.apply({8: desk.block(8)}, 3)

    asyncio.run(story())
    packed = [struct.pack("<2q", 7, -1), struct.pack("<q", 7)]
    assert entries(desk.redis) == [
        {b"f": b"3", b"p": b"0"},
        {b"f": b"3", b"n": b"1", b"k": packed[0]},
        {b"f": b"3", b"n": b"2", b"k": packed[1]},
        {b"f": b"9", b"p": b"3"},
    ]


def test_the_stream_is_bounded_and_can_be_switched_off(desk: Desk) -> None:
    async def story(limit: int) -> None:
        async with desk.leader(1 if limit else 2, limit) as leader:
            for key in range(400):
                await leader.apply({key: desk.block(key)}, 1 if limit else 2)

    asyncio.run(story(50))
    assert 50 <= desk.redis.call("XLEN", STREAM) <= 150
    asyncio.run(story(0))
    assert desk.redis.call("EXISTS", STREAM) == 0


def test_a_key_of_another_type_in_the_streams_place_is_replaced(desk: Desk) -> None:
    async def story() -> None:
        async with desk.leader(1) as leader:
            desk.redis.call("SET", STREAM, "x")
            await leader.apply({1: desk.block(1)}, 1)
            assert await leader.read([1]) == {1: desk.block(1)}

    asyncio.run(story())
    assert len(entries(desk.redis)) == 1


def test_a_change_that_cannot_be_told_is_not_made(desk: Desk) -> None:
    async def story() -> None:
        async with desk.leader(1) as leader:
            desk.redis.call("ACL", "SETUSER", "default", "-xadd")
            try:
                with pytest.raises(StorageError):
                    await leader.apply({1: desk.block(1)}, 1)
                assert await leader.read([1]) == {}
            finally:
                desk.redis.call("ACL", "SETUSER", "default", "+@all")

    asyncio.run(story())


def test_a_blocked_wait_ends_with_a_change_and_holds_up_no_take_over(desk: Desk) -> None:
    async def blocked(copy: WarmIndex) -> asyncio.Future[None]:
        waiting = asyncio.ensure_future(copy.follow(600))
        while not desk.blocked():
            assert not waiting.done()
            await asyncio.sleep(0.001)
        return waiting

    async def story() -> None:
        async with asyncio.timeout(20), desk.leader(1) as leader, desk.copy() as copy:
            await copy.fill()
            waiting = await blocked(copy)
            await leader.apply({1: desk.block(1)}, 1)
            await waiting
            assert published(copy.index) == {1: desk.block(1)}
            # As a follower that wins: it still waits on the connection that it will read the rest of the changes on.
            waiting = await blocked(copy)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert await copy.take_over(2) is copy.index

    asyncio.run(story())


def test_nobody_follows_a_leader_that_does_not_tell(desk: Desk) -> None:
    async def story() -> None:
        async with desk.leader(1, 0) as leader, desk.copy() as copy:
            await leader.apply({1: desk.block(1)}, 1)
            with pytest.raises(LostTrack):
                await copy.fill()

    asyncio.run(story())


def test_damaged_and_foreign_keys_are_left_out_as_by_a_scan(desk: Desk) -> None:
    async def story() -> None:
        async with desk.leader(1) as leader, desk.copy() as copy:
            await leader.apply({1: desk.block(1), 2: desk.block(2), 3: desk.block(3)}, 1)
            await copy.fill()
            await leader.apply({key: (condemn(desk.block(key)[0]),) for key in (1, 2, 3)}, 1)
            desk.redis.call("HSET", f"{KEY}1", "L#00000001", "no JSON")
            desk.redis.call("SET", f"{KEY}2", "no hash")
            await copy.follow(5)
            assert published(copy.index) == published(await desk.scanned())
            assert set(published(copy.index)) == {3}

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["redis", "async_redis", "cached"])
def test_each_kind_of_redis_backend_is_followed(desk: Desk, kind: str) -> None:
    async def story() -> None:
        pool = BlockingPool()
        stores = MetadataStores(pool, desk.blocks.context)
        config = MetaBackendConfig(kind, f"{desk.redis.uri}?stream_max_entries=100")
        leader = stores.open(config, "i1", desk.blocks.records)
        await leader.open()
        await leader.raise_fence(1)
        await leader.apply({key: desk.block(key) for key in range(300)}, 1)
        await leader.sync(range(300))
        opened = stores.open_followed(config, "i1", desk.blocks.records)
        assert opened is not None
        copy = WarmIndex(config, "i1", *opened, FixedWidth(), desk.blocks.context.monotonic_us)
        await copy.fill()
        await leader.apply({1: (), 2: (condemn(desk.block(2)[0]),)}, 1)
        await leader.sync([1, 2])
        index = await copy.take_over(2)
        assert index is not None
        assert published(index) == published(await desk.scanned())
        assert (index.key_count, copy.unsettled) == (299, [2])
        await index.mutate([7], lambda at, key, block: (), 2)
        await index.sync([7])
        assert desk.redis.call("EXISTS", f"{KEY}7") == 0
        await index.close()
        await leader.close()
        await pool_closed(pool)

    asyncio.run(story())


async def pool_closed(pool: BlockingPool) -> None:
    pool.close()
    await asyncio.sleep(0)


def test_stores_that_tell_nobody_are_not_followed() -> None:
    blocks = RedisBlocks(ProtoLocationEncoder())
    pool = BlockingPool()
    stores = MetadataStores(pool, blocks.context)
    for config in (MetaBackendConfig("local"), MetaBackendConfig("dummy", "file:///x"), MetaBackendConfig("redis", "redis://h/?stream_max_entries=0")):
        assert stores.open_followed(config, "i1", blocks.records) is None
    with pytest.raises(InvalidArgument, match="stream_max_entries"):
        stores.open(MetaBackendConfig("redis", "redis://h/?stream_max_entries=many"), "i1", blocks.records)
    pool.close()


def test_the_streams_of_instances_that_are_gone_go(desk: Desk) -> None:
    async def story() -> None:
        pool = BlockingPool()
        stores = MetadataStores(pool, desk.blocks.context)
        config = MetaBackendConfig("redis", desk.redis.uri)
        leader = stores.open(config, "i1", desk.blocks.records)
        await leader.open()
        await leader.raise_fence(1)
        await leader.apply({1: desk.block(1)}, 1)
        assert await stores.stored_instances(config, []) == ["i1"]
        await leader.apply({1: ()}, 1)
        assert await stores.stored_instances(config, [(config, "i1")]) == []
        # The same Redis by another name, as another group may call it: what is in use there is in use.
        other_name = MetaBackendConfig("redis", desk.redis.uri.replace("127.0.0.1", "localhost"))
        assert await stores.stored_instances(config, [(other_name, "i1")]) == []
        assert desk.redis.call("EXISTS", STREAM) == 1
        assert await stores.stored_instances(config, []) == []
        assert desk.redis.call("EXISTS", STREAM) == 0
        await leader.close()
        await pool_closed(pool)

    asyncio.run(story())


def test_what_taking_over_costs_beside_a_scan(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> tuple[float, float]:
        async with desk.leader(1) as leader, desk.copy() as copy:
            for first in range(0, 20_000, 500):
                await leader.apply({key: desk.block(key) for key in range(first, first + 500)}, 1)
            await copy.fill()
            await leader.apply(dict.fromkeys(range(32), ()), 1)
            began = time.perf_counter()
            assert await copy.take_over(2) is not None
            warm = time.perf_counter() - began
            began = time.perf_counter()
            scan = await desk.scanned()
            cold = time.perf_counter() - began
            assert published(copy.index) == published(scan)
            return warm, cold

    warm, cold = asyncio.run(story())
    with capsys.disabled():
        print(f"\n  20000 blocks: taking a copy over {warm * 1000:.1f} ms, scan {cold * 1000:.0f} ms")
