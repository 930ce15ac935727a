"""Block metadata in a real Redis Cluster where it differs from one Redis: slots that are moved under load, nodes that go, fences that are raised in part."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument, KvcmError, OutcomeUnknown, StorageError, Unsupported
from kvcm.common.redis.cluster_fenced import FencedSlot
from kvcm.common.redis.cluster_nodes import ClusterNodes
from kvcm.common.redis.target import parse_target
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.common.redis.testing_cluster import ClusterNode, RedisCluster
from kvcm.config.errors import FencedOut
from kvcm.config.model import MetaBackendConfig
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta import cluster_scripts
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.cluster_layout import layout_key
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block, Status, condemn, promote
from kvcm.meta.open_backend import MetadataStores
from kvcm.meta.testing import Census, published
from kvcm.meta.testing_redis import loaded
from kvcm.meta.testing_redis_places import RedisPlace
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]


@pytest.fixture(scope="module")
def formed() -> Iterator[RedisCluster]:
    with RedisCluster(durable=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(formed: RedisCluster) -> RedisCluster:
    formed.flush()
    return formed


@pytest.fixture
def place(cluster: RedisCluster) -> RedisPlace:
    return RedisPlace(cluster, ProtoLocationEncoder())


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def keys_of_slot(place: RedisPlace, slot: int, count: int) -> list[int]:
    bucket = place.layout.slots.index(slot)
    return [key for key in range(100_000) if place.layout.bucket_of(key) == bucket][:count]


def two_nodes(cluster: RedisCluster, slot: int) -> tuple[ClusterNode, ClusterNode]:
    """Who holds the slot, and another."""
    holder = cluster.holder(slot)
    return holder, next(node for node in cluster.masters if node is not holder)


async def eventually_applied(backend: MetadataBackend, changes: dict[int, Block], fence: int) -> None:
    """Whole blocks may be repeated whatever the outcome was."""
    async with asyncio.timeout(30):
        while changes:
            try:
                failed = await backend.apply(changes, fence)
            except StorageError:
                await asyncio.sleep(0.05)
                continue
            changes = {key: changes[key] for key in failed}


def test_an_instance_lies_on_all_masters_in_our_own_layout(cluster: RedisCluster, place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(7) as backend:
            await backend.apply({key: (place.location(key),) for key in range(600)}, 7)

    run(story())
    counts = [len(node.keys("kvcm:*:b:*")) for node in cluster.masters]
    assert sum(counts) == 600
    assert min(counts) > 120, "16 buckets lie 6, 5 and 5"
    assert cluster.keys("kvcache*") == []
    assert cluster.of_key(layout_key("i1")).fields(layout_key("i1").decode()) == {"instance": "i1", "buckets": "16"}
    assert [cluster.of_key(fence).ok("GET", fence)[:20] for fence in place.fences] == [b"%020d" % 7] * 16


def test_the_layout_is_written_once_and_then_counts(cluster: RedisCluster, place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1, options="cluster_buckets=4") as backend:
            await backend.apply({key: (place.location(key),) for key in range(100)}, 1)
        async with place.leader(2, options="cluster_buckets=64") as backend:
            assert len(await loaded(backend)) == 100
            await backend.apply({5: ()}, 2)
        async with place.leader(3) as backend:
            assert len(await loaded(backend)) == 99

    run(story())
    assert len(cluster.keys("kvcm:*:fence")) == 4


def test_blocks_of_a_layout_that_was_lost_are_reported_and_left(cluster: RedisCluster, place: RedisPlace, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with place.leader(1, options="cluster_buckets=4") as backend:
            await backend.apply({key: (place.location(key),) for key in range(10)}, 1)
        cluster.of_key(layout_key("i1")).ok("DEL", layout_key("i1"))
        async with place.leader(2) as backend:
            assert await loaded(backend) == {}
            await backend.apply({1: (place.location(1),)}, 2)
            assert set(await loaded(backend)) == {1}

    run(story())
    assert "metadata_blocks_misplaced instance=i1 count=10" in caplog.text


def test_a_layout_that_is_damaged_is_refused_and_nothing_is_written(cluster: RedisCluster, place: RedisPlace) -> None:
    node = cluster.of_key(layout_key("i1"))
    for fields in (("buckets", "3", "instance", "i1"), ("buckets", "16", "instance", "other")):
        node.ok("DEL", layout_key("i1"))
        node.ok("HSET", layout_key("i1"), *fields)

        async def story() -> None:
            with pytest.raises(StorageError, match=r"damaged|another instance"):
                async with place.leader(1):
                    pass

        run(story())
    assert cluster.keys("kvcm:*:fence") == []


def test_slots_that_are_moved_under_load_lose_nothing_and_make_nothing_up(cluster: RedisCluster, place: RedisPlace) -> None:
    """A random load through an index while each slot of the instance goes to another node, with halts in the middle of it."""
    chance = random.Random(5)
    moves = chance.sample(place.layout.slots, 8)

    def begin(at: int, key: int, block: Block) -> Block | None:
        return None if block else (place.location(key),)

    def finish(at: int, key: int, block: Block) -> Block | None:
        return (promote(block[0]),) if block and block[0].status is Status.WRITING else None

    def mark(at: int, key: int, block: Block) -> Block | None:
        return (condemn(block[0]),) if block and block[0].status is Status.SERVING and chance.random() < 0.3 else None

    def remove(at: int, key: int, block: Block) -> Block | None:
        return () if block and block[0].status is Status.DELETING else None

    async def load(index: MetaIndex, keys: Sequence[int], done: asyncio.Event) -> int:
        rounds = 0
        while not done.is_set() or rounds < 3:
            for step in (begin, finish, mark, remove):
                outcomes = await index.mutate(keys, step, 1)
                assert all(outcome.error is None or isinstance(outcome.error, KvcmError) for outcome in outcomes)
            rounds += 1
        return rounds

    def move_all() -> None:
        for slot in moves:
            source, target = two_nodes(cluster, slot)
            cluster.begin_move(slot, source, target)
            some = source.ok("CLUSTER", "GETKEYSINSLOT", slot, 4)
            if some:
                cluster.move_keys(slot, source, target, some)
            cluster.finish_move(slot, source, target)

    async def story() -> None:
        async with place.leader(1) as backend:
            index = MetaIndex(backend, max_key_count=10_000)
            done = asyncio.Event()
            loads = [asyncio.create_task(load(index, range(first, first + 40), done)) for first in (0, 40, 80, -40)]
            await asyncio.to_thread(move_all)
            done.set()
            assert min(await asyncio.gather(*loads)) >= 3
            assert published(index) == await loaded(backend)
            fresh = MetaIndex(backend, max_key_count=10_000)
            await fresh.recover()
            assert Census.reported_by(fresh) == Census.of(published(index).values())
            # And it goes on as if nothing had been.
            outcomes = await index.mutate(range(1000, 1100), lambda at, key, block: (place.location(key),), 1)
            assert all(outcome.changed for outcome in outcomes)

    run(story())


def test_in_a_slot_that_is_half_moved_reads_are_right_and_changes_happen_whole_or_not(cluster: RedisCluster, place: RedisPlace) -> None:
    slot = place.layout.slots[3]
    source, target = two_nodes(cluster, slot)
    here, there, new = keys_of_slot(place, slot, 3)

    async def story() -> None:
        async with place.leader(1, options="timeout_ms=400") as backend:
            await backend.apply({key: place.block(key) for key in (here, there)}, 1)
            cluster.begin_move(slot, source, target)
            cluster.move_keys(slot, source, target, [place.name_of(there)])
            try:
                assert await backend.read([here, there, new]) == {key: place.block(key) for key in (here, there)}
                assert set(await backend.apply({here: (condemn(place.block(here)[0]),), there: (), -1: ()}, 1)) == {here, there}
                for changes in ({new: place.block(new)}, {there: ()}):
                    with pytest.raises(StorageError, match="moved") as caught:
                        await backend.apply(changes, 1)
                    assert not isinstance(caught.value, OutcomeUnknown)
                await backend.apply({here: (condemn(place.block(here)[0]),)}, 1)
                # The fence is on one side or the other: also a new leader gets it.
                cluster.move_keys(slot, source, target, [place.fences[3], place.streams[3]])
                async with place.leader(2, options="timeout_ms=400") as heir:
                    assert set(await heir.read([here, there])) == {here, there}
                    with pytest.raises(FencedOut):
                        await backend.raise_fence(1)
            finally:
                cluster.finish_move(slot, source, target)
            async with place.leader(3) as last:
                assert await last.apply({new: place.block(new), there: ()}, 3) == {}
                assert await loaded(last) == {here: (condemn(place.block(here)[0]),), new: place.block(new)}

    run(story())


def test_a_load_waits_for_the_end_of_a_move(cluster: RedisCluster, place: RedisPlace, caplog: pytest.LogCaptureFixture) -> None:
    slot = place.layout.slots[0]
    source, target = two_nodes(cluster, slot)
    caplog.set_level("INFO")

    async def story() -> None:
        async with place.leader(1) as backend:
            await backend.apply({key: place.block(key) for key in range(200)}, 1)
            cluster.begin_move(slot, source, target)
            cluster.move_keys(slot, source, target, [place.name_of(keys_of_slot(place, slot, 1)[0])])
            loading = asyncio.create_task(loaded(backend))
            await asyncio.to_thread(cluster.eventually, lambda: "metadata_scan_again" in caplog.text, "a scan that begins anew")
            cluster.finish_move(slot, source, target)
            assert await loading == {key: place.block(key) for key in range(200)}

    run(story())


def test_a_master_that_is_killed_takes_its_blocks_with_it_until_it_is_back(cluster: RedisCluster, place: RedisPlace) -> None:
    dead = cluster.masters[1]
    theirs = {key for key in range(200) if place.node_of(place.name_of(key)) is dead}

    async def story() -> None:
        async with place.leader(1, options="timeout_ms=500") as backend:
            index = MetaIndex(backend, max_key_count=1000)
            outcomes = await index.mutate(range(100), lambda at, key, block: (place.location(key),), 1)
            assert all(outcome.changed for outcome in outcomes)
            dead.kill()
            try:
                # The others have not noticed yet, or refuse everything; what was not theirs may be stored, what was is not.
                outcomes = await index.mutate(range(200), lambda at, key, block: (promote(block[0]),) if block else (place.location(key),), 1)
                assert all(outcomes[key].error is not None for key in theirs)
            finally:
                dead.start()
                await asyncio.to_thread(cluster.wait_ok)
            wanted = {key: place.block(key) for key in range(200)}
            await eventually_applied(backend, dict(wanted), 1)
            assert await loaded(backend) == wanted

    run(story())


def test_a_fence_that_cannot_be_raised_everywhere_is_not_raised(cluster: RedisCluster, place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1) as old, place.copy() as copy:
            await old.apply({key: place.block(key) for key in range(100)}, 1)
            await copy.fill()
            silent = next(node for node in cluster.masters if node is not cluster.of_key(layout_key("i1")))
            silent.pause()
            try:
                with pytest.raises(StorageError):
                    async with place.leader(2, options="timeout_ms=600"):
                        pass
            finally:
                silent.resume()
            # Where it was raised the old leader is out, and says so; where it was not the chain of terms has no gap.
            with pytest.raises(FencedOut):
                await old.raise_fence(1)
            await copy.follow(0.01)
            assert copy.is_warm
            index = await copy.take_over(3)
            assert index is not None
            assert published(index) == published(await place.scanned())
            for bucket in range(16):
                token = cluster.of_key(place.fences[bucket]).ok("GET", place.fences[bucket])
                assert token.startswith(b"%020d" % 3)

    run(story())


def test_terms_that_reached_some_buckets_only_are_no_gap_for_a_follower(cluster: RedisCluster, place: RedisPlace) -> None:
    async def story() -> None:
        nodes = ClusterNodes(parse_target(cluster.uri, cluster=True), "test")
        try:
            async with place.leader(1) as leader, place.copy() as copy:
                await leader.apply({key: place.block(key) for key in range(100)}, 1)
                await copy.fill()
                for bucket in (0, 5, 9):
                    await _slot_of(nodes, place, bucket).raise_fence(2)
                # What is left to the old leader it may still do.
                free = next(key for key in range(100) if place.layout.bucket_of(key) not in (0, 5, 9))
                assert await leader.apply({free: ()}, 1) == {}
                taken = next(key for key in range(100) if place.layout.bucket_of(key) == 5)
                told: list[bool] = []
                place.context.on_fenced = lambda: told.append(True)
                failed = await leader.apply({free: place.block(free), taken: ()}, 1)
                assert set(failed) == {taken}
                assert told == [True]
                await copy.follow(0.01)
                index = await copy.take_over(3)
                assert index is not None
                assert published(index) == published(await place.scanned()) == {key: place.block(key) for key in range(100)}
        finally:
            await nodes.close()

    run(story())


def _slot_of(nodes: ClusterNodes, place: RedisPlace, bucket: int) -> FencedSlot:
    stream = place.layout.stream_key(bucket)
    return FencedSlot(nodes, place.layout.slots[bucket], place.layout.fence_key(bucket), lambda fence: cluster_scripts.claim(stream, b"1000", fence))


def test_a_full_node_goes_on_removing_and_gets_a_new_leader(cluster: RedisCluster, place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1) as backend, place.copy() as copy:
            await backend.apply({key: place.block(key) for key in range(32)}, 1)
            await copy.fill()
            for node in cluster.masters:
                node.ok("CONFIG", "SET", "maxmemory", 1)
            try:
                assert await backend.apply(dict.fromkeys(range(30), ()), 1) == {}
                async with place.leader(2) as heir:
                    assert set(await loaded(heir)) == {30, 31}
                    assert await heir.apply({30: ()}, 2) == {}
                    with pytest.raises(StorageError, match="OOM"):
                        await heir.apply({99: place.block(99)}, 2)
            finally:
                for node in cluster.masters:
                    node.ok("CONFIG", "SET", "maxmemory", 0)
            assert set(await loaded(backend)) == {31}
            assert await copy.take_over(3) is None, "what could not be told makes a follower begin anew"

    run(story())


def test_leftovers_are_found_and_what_is_gone_is_forgotten(cluster: RedisCluster, place: RedisPlace) -> None:
    async def story() -> None:
        stores = MetadataStores(BlockingPool(threads=1), place.context)
        for name in ("used", "left", "empty"):
            place.instance_id = name
            async with place.leader(1) as backend:
                await backend.apply({1: place.block(1)} if name != "empty" else {}, 1)
        other = f"redis-cluster://127.0.0.1:{cluster.nodes[2].port}/"
        config, behind = MetaBackendConfig("redis", cluster.uri), MetaBackendConfig("async_redis", f"{other}?async_wait_us=5")
        assert await stores.stored_instances(config, [(behind, "used")]) == ["left"]
        assert await stores.stored_instances(config, [(config, "left")]) == ["used"]

    run(story())
    assert set(cluster.of_key("kvcm:test:instances").ok("SMEMBERS", "kvcm:test:instances")) == {b"used", b"left"}
    assert len(cluster.keys("kvcm:*:stream")) == 32


def test_a_replica_that_takes_over_goes_on_with_what_it_had() -> None:
    with RedisCluster(replicas=1, node_timeout_ms=1000) as cluster:
        place = RedisPlace(cluster, ProtoLocationEncoder())
        master, replica = cluster.masters[0], cluster.nodes[3]

        @asynccontextmanager
        async def dead() -> Any:
            await asyncio.to_thread(master.ok, "WAIT", 1, 5000)
            master.kill()
            yield

        async def story() -> None:
            async with place.leader(1, options="timeout_ms=500") as backend, place.copy() as copy:
                await backend.apply({key: place.block(key) for key in range(100)}, 1)
                await copy.fill()
                # No answer may be taken for a certain one before the replica has everything.
                for node in cluster.nodes:
                    node.call("PING")
                async with dead():
                    await eventually_applied(backend, {key: place.block(key) for key in range(50, 150)}, 1)
                assert b"master" in replica.ok("ROLE")[0]
                assert await loaded(backend) == {key: place.block(key) for key in range(150)}
                index = await copy.take_over(2)
                assert index is None or published(index) == published(await place.scanned())
                with pytest.raises(FencedOut):
                    async with place.leader(1):
                        pass

        run(story())


def test_what_a_cluster_cannot_do_is_refused_with_what_can(cluster: RedisCluster, place: RedisPlace) -> None:
    stores = MetadataStores(BlockingPool(threads=1), place.context)
    for uri, said in (
        (f"{cluster.uri}?redis_layout=legacy", "layout of our own"),
        (f"{cluster.uri}?cluster_buckets=3", "power of two"),
        ("redis://127.0.0.1:1/?cluster_buckets=4", "redis-cluster"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            stores.open(MetaBackendConfig("redis", uri), "i1", place.records)

    async def story() -> None:
        plain = f"redis://127.0.0.1:{cluster.nodes[0].port}/"
        with pytest.raises(Unsupported, match="redis-cluster"):
            await stores.open(MetaBackendConfig("redis", plain), "i1", place.records).open()
        with RedisServer() as one:
            with pytest.raises(Unsupported, match="no Redis Cluster"):
                await stores.open(MetaBackendConfig("redis", one.uri.replace("redis", "redis-cluster")), "i1", place.records).open()
            one.kill()
            with pytest.raises(StorageError, match="cannot be reached"):
                await stores.open(MetaBackendConfig("redis", one.uri.replace("redis", "redis-cluster")), "i1", place.records).open()

    run(story())
