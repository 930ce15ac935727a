"""The etcd client against a real etcd: transactions, leases, watches, and every way in which a connection can fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kvcm.common.errors import OutcomeUnknown
from kvcm.common.testing_ports import free_ports
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.errors import Compacted, EtcdRefused, EtcdUnavailable, LeaseGone, RequestTooLarge
from kvcm.etcd.model import Compare, Delete, Event, EventKind, Get, Put, prefix_end
from kvcm.etcd.testing import PROGRAM, EtcdServer
from kvcm.etcd.testing_proxy import TcpProxy
from kvcm.etcd.uri import EtcdConfig, parse_etcd_uri
from kvcm.etcd.watch import Watch

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


def config(*addresses: str, timeout_s: float = 5.0) -> EtcdConfig:
    return EtcdConfig(tuple(addresses), timeout_s=timeout_s)


@asynccontextmanager
async def client_of(*addresses: str, timeout_s: float = 5.0) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(config(*addresses, timeout_s=timeout_s))
    try:
        yield client
    finally:
        await client.close()


async def next_events(watch: Watch, count: int) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            try:
                found += (await watch.next()).events
            except EtcdUnavailable:
                await asyncio.sleep(0.05)
    return found


async def until_it_fails(watch: Watch) -> None:
    async with asyncio.timeout(30):
        while True:
            await watch.next()


def test_a_transaction_does_all_of_one_branch(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with client_of(etcd.address) as client:
            won = await client.txn([Compare(b"t/a", "create_revision", 0)], [Put(b"t/a", b"1"), Put(b"t/b", b"2")], [Get(b"t/a")])
            assert won.succeeded
            lost = await client.txn([Compare(b"t/a", "create_revision", 0)], [Put(b"t/a", b"3")], [Get(b"t/a"), Delete(b"t/b")])
            found = lost.found(0)
            assert not lost.succeeded
            assert found is not None
            assert (found.value, found.create_revision, found.mod_revision, lost.answers[1]) == (b"1", won.revision, won.revision, 1)
            await client.put(b"t/a", b"4")
            again, revision = await client.get(b"t/a")
            assert again is not None
            assert (again.value, again.create_revision, again.mod_revision) == (b"4", won.revision, revision)
            assert await client.delete(b"t/", prefix_end(b"t/")) == 1
            assert await client.get(b"t/a") == (None, revision + 1)

    asyncio.run(run())


def test_pages_at_one_revision_show_one_moment(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with client_of(etcd.address) as client:
            for number in range(5):
                await client.put(f"p/{number}".encode(), b"old")
            first = await client.range(b"p/", prefix_end(b"p/"), limit=2)
            await client.delete(b"p/4")
            rest = await client.range(first.kvs[-1].key + b"\0", prefix_end(b"p/"), revision=first.revision)
            assert (first.more, first.count, [item.key for item in rest.kvs]) == (True, 5, [b"p/2", b"p/3", b"p/4"])

    asyncio.run(run())


def test_a_lease_takes_its_keys_along_and_says_when_it_is_gone(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with client_of(etcd.address) as client:
            lease = await client.grant(2)
            assert lease.ttl_s >= 2
            await client.put(b"l/a", b"1", lease.id)
            assert await client.keep_alive(lease.id)
            assert 0 <= await client.time_to_live(lease.id) <= lease.ttl_s
            _, revision = await client.get(b"l/a")
            watch = client.watch(b"l/a", start_revision=revision + 1)
            assert [event.kind for event in await next_events(watch, 1)] == [EventKind.DELETE], "the lease ran out"
            await watch.close()
            assert not await client.keep_alive(lease.id)
            assert await client.time_to_live(lease.id) == 0
            await client.revoke(lease.id)
            with pytest.raises(LeaseGone):
                await client.put(b"l/a", b"1", lease.id)

    asyncio.run(run())


def test_what_etcd_refuses_has_certainly_not_happened(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with client_of(etcd.address) as client:
            with pytest.raises(RequestTooLarge, match="max-txn-ops"):
                await client.txn((), [Put(f"x/{n}".encode(), b"") for n in range(200)])
            with pytest.raises(RequestTooLarge):
                await client.put(b"x/big", bytes(2_000_000))
            with pytest.raises(EtcdRefused, match="duplicate key"):
                await client.txn((), [Put(b"x/1", b""), Put(b"x/1", b"")])
            assert (await client.range(b"x/", prefix_end(b"x/"))).count == 0

    asyncio.run(run())


def test_an_answer_that_is_too_large_is_told_apart(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with client_of(etcd.address) as client:
            for number in range(13):
                await client.put(f"big/{number:02}".encode(), bytes(1_400_000))
            with pytest.raises(RequestTooLarge, match="answer"):
                await client.range(b"big/", prefix_end(b"big/"))
            assert len((await client.range(b"big/", prefix_end(b"big/"), limit=4)).kvs) == 4
            await client.delete(b"big/", prefix_end(b"big/"))

    asyncio.run(run())


def test_a_watch_goes_on_over_dropped_connections_without_gap_or_repetition(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with TcpProxy(etcd.only.port) as proxy, client_of(proxy.address) as watcher, client_of(etcd.address) as writer:
            _, revision = await writer.get(b"w/")
            watch = watcher.watch(b"w/", prefix_end(b"w/"), start_revision=revision + 1)
            found: list[Event] = []
            for number in range(6):
                if number % 2:
                    proxy.drop()
                await writer.put(f"w/{number}".encode(), b"")
                found += await next_events(watch, 1)
            assert [event.kv.key for event in found] == [f"w/{number}".encode() for number in range(6)]
            await watch.close()

    asyncio.run(run())


def test_silence_of_a_dead_stream_is_found_out(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with TcpProxy(etcd.only.port) as proxy, client_of(proxy.address, timeout_s=1.0) as watcher, client_of(etcd.address) as writer:
            _, revision = await writer.get(b"s")
            watch = watcher.watch(b"s", start_revision=revision + 1, silence_s=0.5)
            for _ in range(3):
                assert (await watch.next()).events == (), "a living stream answers when it is asked"
            proxy.silent = True
            await writer.put(b"s", b"unseen")
            with pytest.raises(EtcdUnavailable):
                await until_it_fails(watch)
            proxy.silent = False
            assert [event.kv.value for event in await next_events(watch, 1)] == [b"unseen"]
            await watch.close()

    asyncio.run(run())


def test_history_that_was_compacted_is_said_and_not_skipped(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with TcpProxy(etcd.only.port) as proxy, client_of(proxy.address) as watcher, client_of(etcd.address) as writer:
            await writer.put(b"c", b"0")
            _, revision = await writer.get(b"c")
            watch = watcher.watch(b"c", start_revision=revision + 1)
            await writer.put(b"c", b"1")
            assert len(await next_events(watch, 1)) == 1
            # While the watch is away, what it would resume from is forgotten.
            proxy.refusing = True
            proxy.drop()
            for number in range(3):
                await writer.put(b"c", str(number).encode())
            _, revision = await writer.get(b"c")
            await writer.compact(revision)
            await writer.compact(revision)
            proxy.refusing = False
            with pytest.raises(Compacted) as caught:
                await next_events(watch, 1)
            assert caught.value.revision == revision
            with pytest.raises(Compacted):
                await writer.range(b"c", revision=revision - 1)
            # The caller reads anew and watches on from there.
            found, revision = await writer.get(b"c")
            assert found is not None
            watch = watcher.watch(b"c", start_revision=revision + 1)
            await writer.put(b"c", b"last")
            assert [event.kv.value for event in await next_events(watch, 1)] == [b"last"]
            await watch.close()

    asyncio.run(run())


def test_reads_are_repeated_and_writes_are_not_when_an_answer_is_lost(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with TcpProxy(etcd.only.port) as proxy, client_of(proxy.address) as client, client_of(etcd.address) as other:
            await client.put(b"r", b"1")

            async def cut() -> None:
                await asyncio.sleep(0.1)
                proxy.silent = False
                proxy.drop()

            for _ in range(2):
                proxy.silent = True
                cutting = asyncio.create_task(cut())
                found, _ = await client.get(b"r")
                assert found is not None
                await cutting
            proxy.silent = True
            cutting = asyncio.create_task(cut())
            with pytest.raises(OutcomeUnknown):
                await client.put(b"r", b"2")
            await cutting
            found, _ = await other.get(b"r")
            assert found is not None
            assert found.value in (b"1", b"2")

    asyncio.run(run())


def test_a_half_open_connection_costs_one_deadline_and_no_more(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with client_of(etcd.address, timeout_s=0.5) as client:
            await client.put(b"h", b"1")
            etcd.only.pause()
            try:
                with pytest.raises(EtcdUnavailable, match=r"no answer in time|no connection"):
                    await client.get(b"h")
                with pytest.raises((OutcomeUnknown, EtcdUnavailable)):
                    await client.put(b"h", b"2")
            finally:
                etcd.only.resume()
        async with client_of(etcd.address) as client:
            assert (await client.get(b"h"))[0] is not None

    asyncio.run(run())


def test_a_slow_endpoint_is_slow_and_not_dead(etcd: EtcdServer) -> None:
    async def run() -> None:
        async with TcpProxy(etcd.only.port) as proxy, client_of(proxy.address, etcd.address, timeout_s=8) as client, client_of(etcd.address) as other:
            await client.get(b"slow")
            proxy.delay_s = 2.0
            await client.put(b"slow", b"1")
            assert proxy.connections == 1
            found, _ = await other.get(b"slow")
            assert found is not None
            assert found.value == b"1"

    asyncio.run(run())


def test_endpoints_are_tried_in_turn_and_by_name(etcd: EtcdServer) -> None:
    async def run() -> None:
        dead = free_ports(1)[0]
        async with client_of(f"127.0.0.1:{dead}", f"localhost:{etcd.only.port}") as client:
            await client.put(b"n", b"1")
            assert (await client.get(b"n"))[0] is not None
        async with client_of(f"127.0.0.1:{dead}", timeout_s=0.5) as client:
            with pytest.raises(EtcdUnavailable, match=f"127.0.0.1:{dead} cannot be reached: no connection"):
                await client.put(b"n", b"1")
        async with client_of("no-such-host.invalid:1", timeout_s=0.5) as client:
            with pytest.raises(EtcdUnavailable):
                await client.get(b"n")

    asyncio.run(run())


def test_a_crash_and_a_restart_are_survived() -> None:
    async def run() -> None:
        with EtcdServer() as etcd:
            async with client_of(etcd.address, timeout_s=10) as client:
                await client.put(b"k", b"1")
                _, revision = await client.get(b"k")
                watch = client.watch(b"k", start_revision=revision + 1)
                await watch.next()
                etcd.only.kill()
                reading = asyncio.create_task(client.get(b"k"))
                seen = asyncio.create_task(next_events(watch, 1))
                await asyncio.sleep(0.2)
                etcd.only.start()
                found, _ = await reading
                assert found is not None
                assert found.value == b"1"
                await client.put(b"k", b"2")
                assert [event.kv.value for event in await seen] == [b"2"]
                await watch.close()

    asyncio.run(run())


def test_one_of_three_members_may_die_or_hang() -> None:
    async def run() -> None:
        with EtcdServer("--heartbeat-interval=50", "--election-timeout=500", members=3) as etcd:
            async with client_of(*etcd.addresses.split(","), timeout_s=10) as client:
                lease = await client.grant(30)
                await client.put(b"m", b"1", lease.id)
                _, revision = await client.get(b"m")
                watch = client.watch(b"m", start_revision=revision + 1, silence_s=0.5)
                await watch.next()
                etcd.members[0].kill()
                assert await client.keep_alive(lease.id)
                await put_until_known(client, b"m", b"2")
                assert (await next_events(watch, 1))[0].kv.value == b"2"
                etcd.members[0].start()
                etcd.members[0].wait_healthy()
                etcd.members[1].pause()
                assert await client.keep_alive(lease.id)
                await put_until_known(client, b"m", b"3")
                events = await next_events(watch, 1)
                while events[-1].kv.value != b"3":
                    events += await next_events(watch, 1)
                await watch.close()

    asyncio.run(run())


async def put_until_known(client: EtcdClient, key: bytes, value: bytes) -> None:
    """As callers must do it: read before repeating."""
    async with asyncio.timeout(30):
        while True:
            try:
                await client.put(key, value)
                return
            except OutcomeUnknown:
                found, _ = await client.get(key)
                if found is not None and found.value == value:
                    return


def test_a_closed_client_says_so(etcd: EtcdServer) -> None:
    async def run() -> None:
        client = EtcdClient(replace(parse_etcd_uri(f"etcd://{etcd.address}"), timeout_s=1))
        await client.get(b"k")
        await client.close()
        await client.close()
        with pytest.raises(EtcdUnavailable, match="closed"):
            await client.get(b"k")

    asyncio.run(run())
