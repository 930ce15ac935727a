"""What is true of block metadata in one Redis and in a Redis Cluster alike: the port's contract, fences, recovery, writing behind, and warm copies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any

import pytest

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.common.redis.testing_cluster import RedisCluster
from kvcm.config.errors import FencedOut
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.changes import LostTrack
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block, condemn, promote
from kvcm.meta.testing import Census, published
from kvcm.meta.testing_redis import loaded
from kvcm.meta.testing_redis_places import RedisPlace
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]


@pytest.fixture(scope="module", params=["one Redis", "Redis Cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer | RedisCluster]:
    made: RedisServer | RedisCluster = RedisServer() if request.param == "one Redis" else RedisCluster()
    with ExitStack() as stack:
        stack.enter_context(made)
        yield made


@pytest.fixture
def place(server: RedisServer | RedisCluster) -> RedisPlace:
    place = RedisPlace(server, ProtoLocationEncoder())
    place.flush()
    return place


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def until_it_answers(backend: MetadataBackend) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await backend.read(range(64))
            except StorageError:
                await asyncio.sleep(0.05)
                continue
            return


def test_what_was_applied_is_read_and_loaded(place: RedisPlace) -> None:
    stored: dict[int, Block] = {
        1: (place.location(1),),
        -2: (promote(place.location(2, previous=1)),),
        3: (condemn(place.location(3)), promote(place.location(4, previous=-2))),
        (1 << 63) - 1: (place.location(5),),
        -(1 << 63): (place.location(6),),
    }

    async def story() -> None:
        async with place.leader(1) as backend:
            assert await backend.apply(stored, 1) == {}
            assert await backend.apply({4: (place.location(5),), 5: ()}, 1) == {}
            assert await backend.apply({4: (), -2: stored[3]}, 1) == {}
            assert await backend.apply({-2: stored[-2]}, 1) == {}
        async with place.leader(2) as backend:
            assert await loaded(backend) == stored
            assert await backend.read([1, 3, 99]) == {1: stored[1], 3: stored[3]}
            await backend.sync([1])

    run(story())
    fields = place.node_of(place.name_of(-2)).fields(place.name_of(-2))
    assert set(fields) == {"BP#lru_time", "BP#prev_key", "L#00000002"}
    assert fields["BP#prev_key"] == "1"


def test_a_key_of_another_type_is_no_block_and_is_replaced(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1) as backend:
            place.node_of(place.name_of(1)).call("SET", place.name_of(1), "no hash")
            assert await backend.read([1]) == {}
            await backend.apply({1: (place.location(1),)}, 1)
            assert await loaded(backend) == {1: (place.location(1),)}

    run(story())


def test_instances_whose_names_are_alike_or_strange_do_not_meet(place: RedisPlace) -> None:
    async def story() -> None:
        names = ["i1", "i1:cache_", "i*", "i?", "i[1]", "{i1}", "ä", "i1 "]
        for number, name in enumerate(names):
            place.instance_id = name
            async with place.leader(1) as backend:
                await backend.apply({number: (place.location(number),)}, 1)
        for number, name in enumerate(names):
            place.instance_id = name
            async with place.leader(0) as backend:
                assert set(await loaded(backend)) == {number}

    run(story())


def test_a_new_leader_refuses_the_old_one_before_it_looks(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(4) as old, place.leader(0) as new:
            await old.apply({1: (place.location(1),)}, 4)
            await new.raise_fence(5)
            for changes in ({1: ()}, {key: (place.location(key),) for key in range(100)}):
                with pytest.raises(FencedOut) as caught:
                    await old.apply(changes, 4)
                assert caught.value.fence == 5
            assert set(await loaded(new)) == {1}
            assert set(await loaded(old)) == {1}, "it may still look"
            with pytest.raises(FencedOut):
                await old.raise_fence(4)
            with pytest.raises(FencedOut):
                await new.apply({1: ()}, 4)

    run(story())


def test_an_unknown_outcome_is_settled_by_a_read_for_good(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1, options="timeout_ms=400") as backend:
            await backend.apply({key: (place.location(key),) for key in range(64)}, 1)
            for node in place.nodes:
                node.call("PING")
                node.pause()
            try:
                with pytest.raises(OutcomeUnknown):
                    await backend.apply({key: (promote(place.location(key)),) for key in range(64)}, 1)
            finally:
                # What was sent is in the buffers of its connections and arrives now, together with the question.
                for node in place.nodes:
                    node.resume()
            await until_it_answers(backend)
            seen = await backend.read(range(64))
            assert len(seen) == 64
            for _ in range(3):
                assert await backend.read(range(64)) == seen
            await backend.apply(dict.fromkeys(range(64), ()), 1)
            assert await loaded(backend) == {}

    run(story())


def test_many_changes_at_once_and_huge_ones(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1) as backend:
            steps: list[Block] = [(place.location(1),), (promote(place.location(1)),), (condemn(place.location(1)),)]
            await asyncio.gather(*(backend.apply({1: step, 10 + at: step}, 1) for at, step in enumerate(steps)))
            assert (await backend.read([1]))[1] == steps[-1]
            for node in place.nodes:
                node.call("SCRIPT", "FLUSH")
            await asyncio.gather(*(backend.apply({100 + at: (place.location(at),)}, 1) for at in range(20)))
            assert len(await loaded(backend)) == 24
            changes: dict[int, Block] = {number: (place.location(number),) for number in range(5000)}
            assert await backend.apply(changes, 1) == {}
            assert await loaded(backend) == changes

    run(story())


def test_damaged_records_are_left_out_reported_and_kept(place: RedisPlace, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with place.leader(1) as backend:
            await backend.apply({1: (place.location(1),), 2: (place.location(2),)}, 1)
            name = place.name_of(2)
            place.node_of(name).call("HSET", name, "L#00000002", json.dumps({"id": "other"}))
            assert await loaded(backend) == {1: (place.location(1),)}
            with pytest.raises(StorageError, match="damaged"):
                await backend.read([2])
            assert place.node_of(name).call("EXISTS", name) == 1
            await backend.apply({2: (place.location(2),)}, 1)
            assert set(await loaded(backend)) == {1, 2}

    run(story())
    assert "metadata_records_damaged instance=i1 count=1" in caplog.text


def test_a_full_redis_refuses_blocks_for_certain(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1) as backend:
            await backend.apply({key: (place.location(key),) for key in range(32)}, 1)
            for node in place.nodes:
                node.call("CONFIG", "SET", "maxmemory", 1)
            try:
                with pytest.raises(StorageError, match="OOM") as caught:
                    await backend.apply({key: (place.location(key),) for key in range(32, 64)}, 1)
                assert not isinstance(caught.value, OutcomeUnknown)
            finally:
                for node in place.nodes:
                    node.call("CONFIG", "SET", "maxmemory", 0)
            assert set(await loaded(backend)) == set(range(32))

    run(story())


@pytest.mark.parametrize("options", ["", "no stream", "redis_layout=legacy"])
def test_a_full_redis_goes_on_with_every_change_that_makes_no_block_larger(place: RedisPlace, options: str) -> None:
    """Marks come before removals, and a leader before both: without them nothing could ever be removed from it."""
    single = len(place.nodes) == 1
    if options and not single:
        pytest.skip("for one Redis only")

    def leader(fence: int) -> AbstractAsyncContextManager[MetadataBackend]:
        return place.opened(place.nodes[0].port, fence) if options == "no stream" else place.leader(fence, options=options)

    async def story() -> None:
        writing: dict[int, Block] = {key: (place.location(key, key - 1 if key else None),) for key in range(32)}
        other = place.location(999)
        async with leader(1) as backend:
            await backend.apply(writing, 1)
            await backend.apply({40: (place.location(40), other)}, 1)
            await loaded(backend)
            for node in place.nodes:
                node.call("CONFIG", "SET", "maxmemory", 1)
            try:
                serving = {key: (promote(block[0]),) for key, block in writing.items()}
                assert await backend.apply(serving, 1) == {}, "the ends of writes"
                async with leader(2) as heir:
                    assert await loaded(heir) == serving | {40: (place.location(40), other)}, "a new leader"
                    marked = {key: (condemn(serving[key][0]),) for key in range(8)} | {40: (condemn(promote(place.location(40))), condemn(promote(other)))}
                    assert await heir.apply(marked, 2) == {}, "marks"
                    gone: dict[int, Block] = dict.fromkeys(range(8), ())
                    assert await heir.apply(gone, 2) == {}, "removals"
                    with pytest.raises(StorageError, match="OOM") as caught:
                        await heir.apply({99: (place.location(99),)}, 2)
                    assert not isinstance(caught.value, OutcomeUnknown)
                    if "legacy" not in options:  # there all locations are one field
                        with pytest.raises(StorageError, match="OOM"):
                            await heir.apply({8: (serving[8][0], other)}, 2)
            finally:
                for node in place.nodes:
                    node.call("CONFIG", "SET", "maxmemory", 0)
            assert await loaded(backend) == {key: serving[key] for key in range(8, 32)} | {40: marked[40]}

    run(story())


@pytest.mark.parametrize("other", ["text", "hash", "long digits"])
def test_what_is_no_token_under_the_name_of_a_fence_excludes_nobody(place: RedisPlace, other: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with place.leader(3) as backend:
            await backend.apply({1: place.block(1)}, 3)
            for name in place.fences:
                place.node_of(name).call("DEL", name)
                if other == "hash":
                    place.node_of(name).call("HSET", name, "a", "b")
                else:
                    place.node_of(name).call("SET", name, "garbage" if other == "text" else "9" * 40 + ".x")
            if other == "hash":  # what a script says about it may have come in the middle of a change
                with pytest.raises(OutcomeUnknown):
                    await backend.apply({2: place.block(2)}, 3)
            assert await backend.apply({2: place.block(2)}, 3) == {}
            async with place.leader(4) as heir:
                assert set(await loaded(heir)) == {1, 2}
                with pytest.raises(FencedOut):
                    await backend.apply({3: place.block(3)}, 3)

    run(story())
    assert ("redis_unexpected_error" if other == "hash" else "redis_fence_lost") in caplog.text


def test_a_leader_of_the_same_epoch_from_another_election_ends_this_one(place: RedisPlace, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        told: list[bool] = []
        place.context.on_fenced = lambda: told.append(True)
        async with place.leader(3) as backend:
            await backend.apply({key: place.block(key) for key in range(32)}, 3)
            for name in place.fences:
                place.node_of(name).call("SET", name, f"{3:020d}.0therone01234567")
            with pytest.raises(FencedOut):
                await backend.apply({40: place.block(40)}, 3)
            assert told == [True]
            assert set(await backend.read(range(32))) == set(range(32)), "it may still look"
            with pytest.raises(FencedOut):
                await backend.apply({40: place.block(40)}, 3)
            async with place.leader(4) as heir:
                assert set(await loaded(heir)) == set(range(32))

    run(story())
    assert "redis_two_leaders" in caplog.text


def test_one_that_lost_its_data_is_said_and_goes_on(place: RedisPlace, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with place.leader(3) as backend:
            await backend.apply({key: (place.location(key),) for key in range(32)}, 3)
            place.flush()
            await backend.apply({key: (place.location(key),) for key in range(32, 64)}, 3)
            assert set(await loaded(backend)) == set(range(32, 64))
            assert await place.scanned_keys() == set(range(32, 64)), "the next leader finds it too"

    run(story())
    assert "redis_fence_lost" in caplog.text


@pytest.mark.parametrize("kind", ["redis", "async_redis", "cached"])
def test_each_kind_stores_and_a_newer_leader_stops_it(place: RedisPlace, kind: str) -> None:
    async def story() -> None:
        options = "persistent_type=async_redis" if kind == "cached" else ""
        async with place.leader(3, kind, options) as old, place.leader(0) as new:
            await old.apply({key: place.block(key) for key in range(100)}, 3)
            await old.sync(range(100))
            await old.apply({1: ()}, 3)
            await old.sync([1])
            await new.raise_fence(4)
            assert set(await loaded(new)) == {*range(100)} - {1}
            with pytest.raises(FencedOut):
                await stored(old, {2: ()}, 3)
            assert 2 in await loaded(new)

    run(story())


def test_written_behind_is_stored_by_a_stop(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1, "async_redis") as backend:
            await backend.apply({number: (place.location(number),) for number in range(3000)}, 1)
        async with place.leader(2) as after:
            assert len(await loaded(after)) == 3000
        assert place.context.stats.dropped == 0

    run(story())


# -- followers -----------------------------------------------------------------------------------------------------------------------------------


def test_a_copy_follows_and_is_taken_over(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1) as leader, place.copy() as copy:
            await leader.apply({key: place.block(key) for key in range(1000)}, 1)
            await copy.fill()
            assert (copy.behind, copy.index.key_count) == (0, 1000)
            await leader.apply({1: (), 2: (condemn(place.block(2)[0]),), 2000: (place.location(2000),)}, 1)
            await copy.follow(0.01)
            assert (copy.behind, copy.behind_s, copy.index.key_count) == (0, 0.0, 1000)
            await leader.apply({3: ()}, 1)
            # In the middle of a wait, as a follower that wins is.
            waiting = asyncio.ensure_future(copy.follow(20))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            index = await copy.take_over(2)
            assert index is copy.index
            scan = await place.scanned()
            assert published(index) == published(scan)
            assert Census.reported_by(index) == Census.reported_by(scan)
            assert sorted(copy.unsettled or ()) == [2, 2000]
            with pytest.raises(FencedOut):
                await leader.apply({4: ()}, 1)
            await index.mutate([4], lambda at, key, block: (), 2)
            assert place.node_of(place.name_of(4)).call("EXISTS", place.name_of(4)) == 0

    run(story())


def test_a_long_tail_is_read_to_its_end(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1) as leader, place.copy() as copy:
            await copy.fill()
            for number in range(700):  # several pages, all in the bucket of one key and then in all of them
                await leader.apply({7: (place.location(number),)}, 1)
            await leader.apply({key: place.block(key) for key in range(100)}, 1)
            index = await copy.take_over(2)
            assert index is not None
            assert published(index) == published(await place.scanned())
            assert index.get(7) == place.block(7)

    run(story())


def test_lag_is_counted_in_entries(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.leader(1) as leader:
            backend, changes = place.backend()
            await backend.open()
            first = (await changes.end()).position
            for _ in range(5):
                await leader.apply({7: place.block(7)}, 1)
            page = await changes.changes_after(first, 2)
            assert (len(page.entries), page.behind) == (2, 3)
            assert page.behind_ms >= 0
            page = await changes.changes_after(page.entries[-1].position, 10)
            assert (len(page.entries), page.behind) == (3, 0)
            assert [list(entry.keys) for entry in page.entries] == [[7]] * 3
            await backend.close()

    run(story())


@pytest.mark.parametrize("what", ["cut", "deleted", "flushed", "silent leader", "damaged entry"])
def test_doubt_is_noticed_and_ends_in_a_scan(place: RedisPlace, what: str) -> None:
    async def story() -> None:
        stream, fence = next((one, two) for one, two in zip(place.streams, place.fences, strict=True) if _beside(place, one, place.name_of(2)))
        node = place.node_of(stream)
        async with place.leader(1) as leader, place.copy() as copy:
            await leader.apply({1: place.block(1)}, 1)
            await copy.fill()
            if what == "silent leader":
                # One that raises the fence and tells nothing.
                node.call("SET", fence, f"{2:020d}.x")
            elif what == "flushed":
                place.flush()
            elif what == "deleted":
                node.call("DEL", stream)
            elif what == "damaged entry":
                node.call("XADD", stream, "*", "f", 1, "k", "short")
            if what not in ("silent leader", "flushed"):
                await leader.apply({2: place.block(2), 3: place.block(3)}, 1)
            if what == "cut":
                await leader.apply({2: ()}, 1)
                node.call("XTRIM", stream, "MAXLEN", 1)
            assert await copy.take_over(3) is None
        async with place.copy() as fresh:
            await fresh.fill()
            assert published(fresh.index) == published(await place.scanned())

    run(story())


def test_nobody_follows_where_nobody_tells(place: RedisPlace) -> None:
    async def story() -> None:
        async with place.copy() as copy:
            with pytest.raises(LostTrack):
                await copy.fill()
        async with place.leader(1, options="stream_max_entries=1"), place.copy() as copy:
            await copy.fill()
            for node, stream in ((place.node_of(stream), stream) for stream in place.streams):
                node.call("DEL", stream)
            with pytest.raises(LostTrack):
                await copy.follow(0.01)

    run(story())


def test_an_index_survives_a_kill_of_every_node() -> None:
    durable: list[RedisServer | RedisCluster] = [RedisServer(durable=True), RedisCluster(durable=True)]
    for server in durable:
        with ExitStack() as stack:
            stack.enter_context(server)
            run(killed(RedisPlace(server, ProtoLocationEncoder())))


async def killed(place: RedisPlace) -> None:
    async with place.leader(3, options="timeout_ms=500") as backend:
        index = MetaIndex(backend, max_key_count=1000)
        await index.mutate(range(50), lambda at, key, block: (place.location(key),), 3)
        for node in place.nodes:
            node.kill()
        outcomes = await index.mutate([1, 77], lambda at, key, block: (promote(block[0]),) if block else (place.location(key),), 3)
        assert all(outcome.error is not None for outcome in outcomes)
        for node in place.nodes:
            node.start()
        if isinstance(place.server, RedisCluster):
            place.server.wait_ok()
        await until_it_answers(backend)
        outcomes = await index.mutate([1, 77], lambda at, key, block: (promote(block[0]),) if block else (place.location(key),), 3)
        assert all(outcome.changed for outcome in outcomes)
        fresh = MetaIndex(backend, max_key_count=1000)
        assert await fresh.recover() == 51
        assert published(fresh) == published(index)
        assert Census.reported_by(fresh) == Census.of(published(index).values())


async def stored(backend: MetadataBackend, changes: dict[int, Block], fence: int) -> None:
    """Accepted, and by the store too."""
    await backend.apply(changes, fence)
    await backend.sync(changes)


def _beside(place: RedisPlace, stream: str, block: str) -> bool:
    """Does the stream tell of this block?"""
    return isinstance(place.server, RedisServer) or stream.rpartition(":")[0] == block.rpartition(":b:")[0]
