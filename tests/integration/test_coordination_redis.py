"""What is particular to coordination through Redis: names and values that upstream's manager shares, lost scripts and data, fail-overs, broken connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from kvcm.common.clock import SystemClock
from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.common.redis.target import parse_target
from kvcm.common.redis.testing import Network, RedisServer, redis_binary
from kvcm.coordination.open import open_coordinator
from kvcm.coordination.port import NODE_INFO_TTL_MS, Coordinator, Leader, NodeInfo
from kvcm.coordination.redis import RedisCoordinator

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

T = TypeVar("T")
LEASE = 60_000
KEY = "_TAIR_KVCM_LEADER_KEY"
LOCK, TERM = f"kvcm_c_lock:{KEY}", f"kvcm_c_term:{KEY}"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    """Empty, but known to the clusters `c` and `d`: nobody waits for what an earlier run may have promised."""
    server.call("FLUSHALL")
    run = next(line for line in server.call("INFO", "server").decode().split() if line.startswith("run_id:")).removeprefix("run_id:")
    for cluster in ("c", "d"):
        server.call("HSET", f"kvcm_{cluster}_term:{KEY}", "run", run)
    return server


def client(redis: RedisServer, cluster: str = "c", floor: int = 0) -> Coordinator:
    return open_coordinator(f"{redis.uri}?cluster_name={cluster}", SystemClock(), floor)


def play(story: Awaitable[None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await story

    asyncio.run(run())


async def eventually(ask: Callable[[], Awaitable[T | None]]) -> T:
    while True:
        try:
            if (found := await ask()) is not None:
                return found
        except StorageError:
            pass
        await asyncio.sleep(0.02)


async def until(holds: Callable[[], bool]) -> None:
    async def ask() -> bool | None:
        return holds() or None

    await eventually(ask)


def test_names_and_values_are_upstreams(redis: RedisServer) -> None:
    async def story() -> None:
        a = client(redis)
        assert await a.campaign("host:1_a", LEASE) == 1
        await a.put_node_info("host:1_a", '{"node_id":"host:1_a"}')
        await a.close()

    play(story())
    assert redis.call("GET", LOCK) == b"host:1_a"
    assert 0 < redis.call("PTTL", LOCK) <= LEASE
    info = "kvcm_c_kv:_TAIR_KVCM_NODE_INFO_host:1_a"
    assert redis.call("GET", info) == b'{"node_id":"host:1_a"}'
    assert 0 < redis.call("PTTL", info) <= NODE_INFO_TTL_MS
    assert redis.keys("kvcm_c_*") == sorted([info, LOCK, TERM, "kvcm_c_nodes"])
    assert redis.fields(TERM)["epoch"] == "1"


def test_without_a_cluster_name_the_names_have_none() -> None:
    coordinator = RedisCoordinator(parse_target("redis://h/"))
    assert (coordinator._lock, coordinator._info) == (f"kvcm_lock:{KEY}", "kvcm_kv:_TAIR_KVCM_NODE_INFO_")


def test_a_manager_of_upstream_and_ours_exclude_each_other(redis: RedisServer) -> None:
    async def story() -> None:
        a = client(redis)
        assert await a.campaign("ours", LEASE) == 1
        # It takes the lock when there is none.
        assert redis.call("SET", LOCK, "theirs", "NX", "PX", LEASE) is None
        await a.resign("ours", 1)
        assert redis.call("SET", LOCK, "theirs", "NX", "PX", LEASE) == b"OK"
        redis.call("SET", "kvcm_c_kv:_TAIR_KVCM_NODE_INFO_theirs", '{"host":"h"}')
        assert await a.campaign("ours", LEASE) is None
        assert not await a.keep_alive("ours", 1, LEASE)
        assert not await a.put_shared("ours", 1, "plan", "x")
        await a.resign("ours", 1)
        assert redis.call("GET", LOCK) == b"theirs"
        assert await a.observe() == Leader("theirs", 0)
        assert await a.list_nodes() == (NodeInfo("theirs", '{"host":"h"}'),)
        redis.call("DEL", LOCK)
        assert await a.campaign("ours", LEASE) == 2
        # It has taken over from ours, and the term is not theirs.
        redis.call("SET", LOCK, "theirs")
        assert not await a.keep_alive("ours", 2, LEASE)
        await a.close()

    play(story())


def test_two_clusters_in_one_redis_do_not_see_each_other(redis: RedisServer) -> None:
    async def story() -> None:
        a, b = client(redis, "c"), client(redis, "d")
        assert await a.campaign("same", LEASE) == 1
        assert await b.observe() is None
        assert await b.campaign("other", LEASE) == 1
        await a.put_node_info("same", "{}")
        assert await b.get_node_info("same") is None
        assert await b.list_nodes() == ()
        await b.resign("other", 1)
        assert await a.keep_alive("same", 1, LEASE)
        for coordinator in (a, b):
            await coordinator.close()

    play(story())


def test_scripts_that_redis_has_forgotten_are_loaded_again(redis: RedisServer) -> None:
    async def story() -> None:
        a = client(redis)
        assert await a.campaign("a", LEASE) == 1
        redis.call("SCRIPT", "FLUSH")
        assert await a.keep_alive("a", 1, LEASE)
        redis.call("SCRIPT", "FLUSH")
        assert await a.observe() == Leader("a", 1)
        await a.close()

    play(story())


def test_epochs_go_on_above_what_a_process_has_seen_when_redis_has_lost_its_count(redis: RedisServer) -> None:
    async def story() -> None:
        a, b, late = client(redis, floor=41), client(redis), client(redis)
        assert await a.campaign("a", LEASE) == 42
        assert await b.observe() == Leader("a", 42)
        redis.call("DEL", LOCK)
        redis.call("HDEL", TERM, "epoch", "node")
        assert await b.campaign("b", LEASE) == 43
        assert not await a.keep_alive("a", 42, LEASE)
        assert await late.observe() == Leader("b", 43)
        for coordinator in (a, b, late):
            await coordinator.close()

    play(story())


def test_a_redis_that_came_back_with_an_older_state_crowns_nobody_before_a_lease_has_passed(redis: RedisServer) -> None:
    """Its snapshot says that `a` holds the lock with epoch 5; in truth `b` has won epoch 6 since."""

    async def story() -> None:
        a, b = client(redis), client(redis)
        redis.call("HSET", TERM, "epoch", 5, "node", "a", "run", "an-earlier-run", "lease", LEASE)
        redis.call("SET", LOCK, "a", "PX", LEASE)
        assert await a.campaign("a", LEASE) is None
        assert not await b.keep_alive("b", 6, LEASE)
        redis.call("DEL", LOCK)
        assert await a.campaign("a", LEASE) is None
        # The true leader's renewal takes the lock back, and from then on this run is known.
        assert await b.keep_alive("b", 6, LEASE)
        assert await a.campaign("a", LEASE) is None
        assert await a.observe() == Leader("b", 6)
        assert not await a.keep_alive("a", 5, LEASE)
        await b.resign("b", 6)
        # The run is known: what is gone was given back, and is not taken back by a renewal that comes late.
        assert not await b.keep_alive("b", 6, LEASE)
        assert await a.campaign("a", LEASE) == 7
        for coordinator in (a, b):
            await coordinator.close()

    play(story())


def test_a_renewal_with_an_old_epoch_takes_nothing_back(redis: RedisServer) -> None:
    async def story() -> None:
        a = client(redis)
        redis.call("HSET", TERM, "epoch", 9, "node", "b", "run", "an-earlier-run")
        assert not await a.keep_alive("a", 8, LEASE)
        assert redis.call("GET", LOCK) is None
        await a.close()

    play(story())


def test_a_replica_is_left_and_a_promoted_one_elects_after_a_lease() -> None:
    async def story(master: RedisServer, replica: RedisServer) -> None:
        a = client(replica)
        lease = 300
        first = await eventually(lambda: a.campaign("a", lease))
        replica.call("REPLICAOF", "127.0.0.1", master.port)
        with pytest.raises(StorageError):
            await a.keep_alive("a", first, lease)
        with pytest.raises(StorageError, match="not a master"):
            await eventually_fails(a)
        await until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"))
        # The lock of the master has come along, though it is no lock of this cluster's nodes any more; then the fail-over.
        master.call("SET", "something", 1)
        await until(lambda: replica.call("GET", "something") is not None)
        replica.call("REPLICAOF", "NO", "ONE")
        loop = asyncio.get_running_loop()
        asked = loop.time()
        await eventually(lambda: a.campaign("b", lease))
        assert loop.time() - asked >= lease / 1000
        await a.close()

    async def eventually_fails(coordinator: Coordinator) -> None:
        while True:
            try:
                await coordinator.observe()
            except StorageError as error:
                if "not a master" in error.message:
                    raise
            await asyncio.sleep(0.02)

    with RedisServer() as master, RedisServer() as replica:
        play(story(master, replica))


def test_a_full_redis_goes_on_having_a_leader_and_elects_the_next_one() -> None:
    async def story(redis: RedisServer) -> None:
        first, second = client(redis), client(redis)
        lease = 1000
        redis.call("CONFIG", "SET", "maxmemory", 1)
        assert "OOM" in str(redis.call("SET", "x", "y"))

        async def wins() -> int | None:
            return await first.campaign("node-1", lease)

        epoch = await eventually(wins)  # this Redis has just started, so a lease passes first
        assert await first.keep_alive("node-1", epoch, LEASE)
        await first.put_node_info("node-1", "info")
        assert await second.observe() == Leader("node-1", epoch)
        assert await second.campaign("node-2", LEASE) is None
        redis.call("DEL", TERM, LOCK)
        assert await first.keep_alive("node-1", epoch, LEASE), "what Redis has lost is told to it again"
        await first.resign("node-1", epoch)
        assert await second.campaign("node-2", LEASE) == epoch + 1
        assert set(redis.keys()) == {LOCK, TERM, "kvcm_c_nodes", "kvcm_c_kv:_TAIR_KVCM_NODE_INFO_node-1"}
        await first.close()
        await second.close()

    with RedisServer("--maxmemory-policy", "noeviction") as redis:
        play(story(redis))


def test_the_password_is_used_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "s3cret-canary"

    async def story(redis: RedisServer) -> None:
        for uri, works in (
            (f"redis://{secret}@127.0.0.1:{redis.port}/", True),
            (f"redis://127.0.0.1:{redis.port}/?auth={secret}", True),
            (f"redis://{secret}wrong@127.0.0.1:{redis.port}/", False),
            (f"redis://127.0.0.1:{redis.port}/", False),
        ):
            coordinator = open_coordinator(uri, SystemClock())
            assert secret not in repr(coordinator)
            if works:
                assert await coordinator.observe() is None
            else:
                with pytest.raises(StorageError) as caught:
                    await coordinator.observe()
                assert secret not in str(caught.value)
            await coordinator.close()

    with RedisServer("--requirepass", secret) as redis:
        play(story(redis))
    with pytest.raises(InvalidArgument) as refused:
        open_coordinator(f"redis://:{secret}@h:x/", SystemClock())
    assert secret not in str(refused.value)
    assert secret not in caplog.text


def test_a_half_open_connection_costs_one_call_and_what_was_on_it_comes_late_and_changes_nothing(redis: RedisServer) -> None:
    async def story() -> None:
        async with Network(redis.port) as network:
            lease = 900
            a = open_coordinator(f"redis://127.0.0.1:{network.port}/?cluster_name=c", SystemClock())
            b = client(redis)
            first = await a.campaign("a", lease)
            assert first is not None
            network.hold()
            with pytest.raises(StorageError):
                await a.keep_alive("a", first, lease)
            # Another connection, and the lease is kept or, on a machine that was busy, won again.
            if not await a.keep_alive("a", first, LEASE):
                first = await a.campaign("a", LEASE) or 0
            await a.resign("a", first)
            second = await b.campaign("b", LEASE)
            assert second is not None
            before = redis.call("PTTL", LOCK)
            assert await network.release() > 0
            await a.observe()
            assert await b.observe() == Leader("b", second)
            assert before - 30_000 < redis.call("PTTL", LOCK) <= LEASE
            network.cut()
            assert await eventually(a.observe) == Leader("b", second)
            await a.close()
            await b.close()
            with pytest.raises(StorageError):
                await a.observe()

    play(story())


def test_what_is_no_part_of_an_election_is_left_alone(redis: RedisServer) -> None:
    """Keys of these names with other content are somebody's mistake: said, not overwritten."""

    async def story() -> None:
        a = client(redis)
        redis.call("LPUSH", LOCK, "x")
        for _ in range(2):
            with pytest.raises(StorageError, match=f"something else under {LOCK}"):
                await a.campaign("a", LEASE)
        redis.call("DEL", LOCK)
        assert await a.campaign("a", LEASE) == 1
        await a.close()

    play(story())
    assert redis.call("GET", LOCK) == b"a"


def test_a_redis_that_is_away_is_said_and_found_again(redis: RedisServer) -> None:
    async def story() -> None:
        with RedisServer() as own:
            a = client(own)
            own.kill()
            for _ in range(3):
                with pytest.raises(StorageError, match=f"127.0.0.1:{own.port}"):
                    await a.observe()
            own.start()
            await eventually(lambda: a.campaign("a", 200))
            await a.close()

    play(story())
