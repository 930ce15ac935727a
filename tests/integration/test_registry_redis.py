"""The registry in a real Redis: upstream's layout, damage, fences, and changes whose answer is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import InvalidArgument, OutcomeUnknown, StorageError, Unsupported
from kvcm.common.redis.testing import Network, RedisServer, redis_binary
from kvcm.common.testing_ports import free_port
from kvcm.config.errors import FencedOut
from kvcm.config.registry import Registry
from kvcm.config.startup import default_group, default_storage
from kvcm.config.store import Change, RegistrySnapshot, open_store
from kvcm.config.store_redis import RedisStore
from kvcm.config.testing import FakeStorages

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

T = TypeVar("T")
GROUP = Change("instance_group", "g", {"name": "g", "text": 'ä"\\'})
ONE = Change("instance", "one", {"instance_id": "one"})
TWO = Change("instance", "two", {"instance_id": "two"})
PREFIX = "kvcache_registry:c:"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as redis:
        yield redis


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    server.call("FLUSHALL")
    return server


def with_store(redis: RedisServer, story: Callable[[RedisStore], Coroutine[Any, Any, T]], options: str = "", port: int = 0) -> T:
    async def run() -> T:
        store = RedisStore(f"redis://127.0.0.1:{port or redis.port}/?cluster_name=c{options}")
        try:
            await store.open()
            return await story(store)
        finally:
            await store.close()

    return asyncio.run(run())


def read(redis: RedisServer) -> RegistrySnapshot:
    return with_store(redis, lambda store: store.load())


def write(redis: RedisServer, *changes: Change, fence: int = 1) -> None:
    with_store(redis, lambda store: store.apply(changes, fence))


def test_the_layout_is_that_of_upstream(redis: RedisServer) -> None:
    write(redis, GROUP, ONE, TWO)
    write(redis, Change("instance", "two", None))
    assert redis.fields(f"{PREFIX}instance_group") == {"g": json.dumps(GROUP.record, ensure_ascii=False, separators=(",", ":"))}
    assert redis.fields(f"{PREFIX}instance") == {"one": "one"}
    assert redis.fields(f"{PREFIX}one") == {"one": '{"instance_id":"one"}'}
    assert redis.keys() == sorted([f"{PREFIX}instance_group", f"{PREFIX}instance", f"{PREFIX}one", f"{PREFIX}__kvcm_fence__"])


def test_what_was_written_is_read_and_removed(redis: RedisServer) -> None:
    write(redis, GROUP, ONE)
    snapshot = read(redis)
    assert (snapshot.get("instance_group", "g"), snapshot.get("instance", "one"), snapshot.fence) == (GROUP.record, ONE.record, 1)
    assert snapshot.quarantined == ()
    write(redis, Change("instance_group", "g", None), Change("instance", "one", None), Change("storage", "never there", None), fence=2)
    assert redis.keys() == [f"{PREFIX}__kvcm_fence__"]
    assert read(redis).fence == 2


def test_a_registry_of_upstream_is_read(redis: RedisServer) -> None:
    redis.call("HSET", f"{PREFIX}storage", "nfs_01", '{"type":"file","global_unique_name":"nfs_01"}')
    redis.call("HSET", f"{PREFIX}instance", "i1", "")
    redis.call("HSET", f"{PREFIX}i1", "i1", '{"instance_id":"i1"}')
    snapshot = read(redis)
    assert snapshot.get("storage", "nfs_01") == {"type": "file", "global_unique_name": "nfs_01"}
    assert snapshot.get("instance", "i1") == {"instance_id": "i1"}


def test_clusters_of_other_names_do_not_meet(redis: RedisServer) -> None:
    write(redis, GROUP)

    async def other() -> RegistrySnapshot:
        store = open_store(f"{redis.uri}?cluster_name=d")
        await store.apply([ONE], 1)
        try:
            return await store.load()
        finally:
            await store.close()

    assert asyncio.run(other()).tables["instance_group"] == {}
    assert read(redis).tables["instance"] == {}


def test_damaged_records_are_quarantined_and_kept(redis: RedisServer) -> None:
    write(redis, GROUP, ONE, TWO)
    redis.call("HSET", f"{PREFIX}instance_group", "bad", "{nothing")
    redis.call("HSET", f"{PREFIX}one", "one", b"\xff\xfe")
    redis.call("DEL", f"{PREFIX}two")
    redis.call("SET", f"{PREFIX}storage", "no hash")
    snapshot = read(redis)
    assert {(item.table, item.id) for item in snapshot.quarantined} == {("instance_group", "bad"), ("instance", "one"), ("instance", "two"), ("storage", "")}
    assert snapshot.get("instance_group", "g") == GROUP.record
    write(redis, Change("storage", "s", {"a": 1}))
    assert redis.call("GET", f"{PREFIX}__kvcm_damaged__storage") == b"no hash"
    assert read(redis).get("storage", "s") == {"a": 1}
    assert redis.fields(f"{PREFIX}instance_group")["bad"] == "{nothing"


def test_nobody_is_lost_with_the_list_of_instances(redis: RedisServer) -> None:
    write(redis, ONE, TWO, GROUP)
    redis.call("DEL", f"{PREFIX}instance")
    redis.call("SET", f"{PREFIX}instance", "damaged")

    async def story(store: RedisStore) -> RegistrySnapshot:
        found = await store.load()
        await store.apply([Change("instance", "three", {"instance_id": "three"})], 1)
        return found

    assert set(with_store(redis, story).tables["instance"]) == {"one", "two"}
    assert set(read(redis).tables["instance"]) == {"one", "two", "three"}


def test_an_old_leader_is_refused_and_told(redis: RedisServer) -> None:
    async def story(old: RedisStore) -> None:
        await old.apply([GROUP], 7)
        new = RedisStore(f"{redis.uri}?cluster_name=c")
        await new.apply((), 8)
        with pytest.raises(FencedOut) as caught:
            await old.apply([ONE], 7)
        assert caught.value.fence == 8
        assert (await old.load()).tables["instance"] == {}
        await new.apply([ONE], 8)
        await new.close()

    with_store(redis, story)


def test_fences_beyond_what_lua_numbers_hold_are_compared_rightly(redis: RedisServer) -> None:
    big = (1 << 63) - 2
    write(redis, GROUP, fence=big)
    write(redis, ONE, fence=big + 1)
    with pytest.raises(FencedOut):
        write(redis, TWO, fence=big)
    assert read(redis).fence == big + 1


def test_a_change_that_was_given_up_never_lands_later(redis: RedisServer) -> None:
    async def run() -> None:
        async with Network(redis.port) as network:
            store = RedisStore(f"redis://127.0.0.1:{network.port}/?cluster_name=c&timeout_ms=300")
            await store.apply([GROUP], 1)
            network.hold()
            with pytest.raises(OutcomeUnknown):
                await store.apply([ONE], 1)
            seen = await store.load()
            assert seen.get("instance", "one") is None
            assert await network.release() > 0, "the change is still under way, and arrives now"
            await store.apply([TWO], 1)
            assert set((await store.load()).tables["instance"]) == {"two"}
            await store.close()

    asyncio.run(run())


def test_a_lost_answer_is_found_by_reading(redis: RedisServer) -> None:
    async def run() -> None:
        async with Network(redis.port) as network:
            store = RedisStore(f"redis://127.0.0.1:{network.port}/?cluster_name=c&timeout_ms=300")
            await store.apply([GROUP], 1)
            network.hold_answers()
            with pytest.raises(OutcomeUnknown):
                await store.apply([ONE], 1)
            network.release_answers()
            assert (await store.load()).get("instance", "one") == ONE.record
            await store.close()

    asyncio.run(run())


def test_scripts_that_redis_has_forgotten_are_loaded_again(redis: RedisServer) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply([GROUP], 1)
        redis.call("SCRIPT", "FLUSH")
        await store.apply([ONE], 1)
        redis.call("SCRIPT", "FLUSH")
        await store.apply((), 2)

    with_store(redis, story)
    assert read(redis).fence == 2


def test_a_redis_that_is_killed_and_comes_back() -> None:
    with RedisServer(durable=True) as redis:

        async def story(store: RedisStore) -> None:
            await store.apply([GROUP], 3)
            redis.kill()
            with pytest.raises(StorageError):
                await store.apply([ONE], 3)
            with pytest.raises(StorageError):
                await store.load()
            redis.start()
            await _until_it_answers(store)
            await store.apply([TWO], 3)

        with_store(redis, story)
        found = read(redis)
        assert (found.get("instance_group", "g"), set(found.tables["instance"]), found.fence) == (GROUP.record, {"two"}, 3)


async def _until_it_answers(store: RedisStore) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await store.load()
            except StorageError:
                await asyncio.sleep(0.05)
                continue
            return


def test_a_redis_that_hangs_ends_by_the_deadline_and_goes_on_afterwards(redis: RedisServer) -> None:
    async def story(store: RedisStore) -> None:
        await store.apply([GROUP], 1)
        redis.pause()
        try:
            with pytest.raises(OutcomeUnknown):
                await store.apply([ONE], 1)
            with pytest.raises(StorageError):
                await store.load()
        finally:
            redis.resume()
        await _until_it_answers(store)
        # What hung was executed in between or is refused for good; either way the answer is final.
        before = await store.load()
        await store.apply([TWO], 1)
        assert (await store.load()).get("instance", "one") == before.get("instance", "one")

    with_store(redis, story, "&timeout_ms=300")


@pytest.mark.parametrize("uri", ["redis://127.0.0.1/", "redis://127.0.0.1/?cluster_name="])
def test_a_cluster_name_is_mandatory(uri: str) -> None:
    with pytest.raises(InvalidArgument, match="cluster_name"):
        open_store(uri)


def test_a_password_is_needed_used_and_never_shown() -> None:
    with RedisServer("--requirepass", "s3cret-word") as redis:

        async def opened(uri: str) -> None:
            store = open_store(uri)
            try:
                await store.open()
            finally:
                await store.close()

        asyncio.run(opened(f"redis://s3cret-word@127.0.0.1:{redis.port}/?cluster_name=c"))
        asyncio.run(opened(f"redis://127.0.0.1:{redis.port}/?cluster_name=c&auth=s3cret-word"))
        asyncio.run(opened(f"redis://default:s3cret-word@127.0.0.1:{redis.port}/?cluster_name=c"))
        for login in ("", "wr0ng-word@"):
            with pytest.raises(StorageError) as caught:
                asyncio.run(opened(f"redis://{login}127.0.0.1:{redis.port}/?cluster_name=c"))
            assert "word" not in caught.value.message.replace("password", "")


def test_a_redis_cluster_is_refused_with_a_sentence() -> None:
    with RedisServer("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as redis, pytest.raises(Unsupported, match="Redis Cluster"):
        read(redis)


def test_a_replica_is_refused_with_a_sentence(redis: RedisServer) -> None:
    with RedisServer("--replicaof", f"127.0.0.1 {redis.port}") as replica, pytest.raises(StorageError, match="not a master"):
        read(replica)


def test_a_registry_recovers_from_it(redis: RedisServer) -> None:
    async def run(fence: int) -> list[str]:
        store = open_store(f"{redis.uri}?cluster_name=c")
        registry = Registry(store, FakeStorages(), FakeClock())
        try:
            await registry.recover(fence)
            await registry.apply_startup(default_storage(), default_group())
            return [group.name for group in registry.list_groups()]
        finally:
            await registry.cleanup()
            await store.close()

    assert asyncio.run(run(1)) == asyncio.run(run(2)) == ["default"]
    assert set(redis.fields(f"{PREFIX}storage")) == {"nfs_01"}
