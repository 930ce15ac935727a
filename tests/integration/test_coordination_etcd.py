"""Leadership through a real etcd: what lies there, keys deleted by hand, answers that are lost, and a running election under faults of the store."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kvcm.common.clock import SystemClock
from kvcm.common.errors import KvcmError, OutcomeUnknown, StorageError
from kvcm.coordination.elector import ElectorSettings, Role
from kvcm.coordination.etcd import EtcdCoordinator
from kvcm.coordination.port import Leader
from kvcm.coordination.runner import LeaderRunner
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.testing import PROGRAM, EtcdServer
from kvcm.etcd.testing_proxy import TcpProxy
from kvcm.etcd.uri import parse_etcd_uri

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")]

_numbers = itertools.count()
LONG_MS = 60_000
QUICK = ("--heartbeat-interval=20", "--election-timeout=200")


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with EtcdServer(*QUICK) as etcd:
        yield etcd


@pytest.fixture
def uri(server: EtcdServer) -> str:
    return f"etcd://{server.address}/c{next(_numbers)}"


@asynccontextmanager
async def opened(uri: str) -> AsyncIterator[tuple[EtcdCoordinator, EtcdClient]]:
    node, client = EtcdCoordinator(uri), EtcdClient(parse_etcd_uri(uri))
    try:
        yield node, client
    finally:
        await node.close()
        await client.close()


def test_the_epoch_is_the_create_revision_and_renewals_write_nothing(uri: str) -> None:
    async def run() -> None:
        async with opened(uri) as (node, client):
            epoch = await node.campaign("a", LONG_MS)
            assert epoch is not None
            await node.put_node_info("a", "{}")
            kv, revision = await client.get(client.config.key("coordination", "leader"))
            assert kv is not None
            assert (kv.create_revision, json.loads(kv.value)) == (epoch, {"version": 1, "node_id": "a", "epoch_base": 0})
            for _ in range(5):
                assert await node.keep_alive("a", epoch, LONG_MS)
                assert await node.campaign("b", LONG_MS) is None
                await node.put_node_info("a", "{}")
            assert (await client.get(b"x"))[1] == revision
            assert await client.time_to_live(kv.lease) > 50

    asyncio.run(run())


def test_a_key_that_was_deleted_by_hand_ends_the_term_although_its_lease_lives(uri: str) -> None:
    async def run() -> None:
        async with opened(uri) as (node, client), opened(uri) as (other, _):
            first = await node.campaign("a", LONG_MS)
            assert first is not None
            await client.delete(client.config.key("coordination", "leader"))
            assert not await node.keep_alive("a", first, LONG_MS)
            second = await other.campaign("b", LONG_MS)
            assert second is not None
            assert second > first
            assert not await node.keep_alive("a", first, LONG_MS)
            await node.resign("a", first)
            assert await node.observe() == Leader("b", second)

    asyncio.run(run())


def test_a_leader_key_that_nobody_understands_is_said(uri: str) -> None:
    async def run() -> None:
        async with opened(uri) as (node, client):
            await client.put(client.config.key("coordination", "leader"), b"??")
            for call in (node.campaign("a", 1000), node.observe()):
                with pytest.raises(StorageError, match="delete the key coordination/leader"):
                    await call

    asyncio.run(run())


def test_a_campaign_whose_answer_was_lost_is_won_or_can_never_be(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        for carried_out in (True, False):
            async with opened(uri) as (node, _), opened(uri) as (other, _):
                real = node._client.txn

                async def lost(*args: object, carried_out: bool = carried_out, real: object = real, **kwargs: object) -> object:
                    answer = await real(*args, **kwargs) if carried_out or not args[0] else None  # type: ignore[operator]
                    if args[0]:
                        raise OutcomeUnknown("no answer")
                    return answer

                monkeypatch.setattr(node._client, "txn", lost)
                if carried_out:
                    epoch = await node.campaign("a", LONG_MS)
                    assert epoch is not None
                    assert await other.observe() == Leader("a", epoch)
                    assert await node.keep_alive("a", epoch, LONG_MS)
                    await other.resign("a", epoch)
                else:
                    with pytest.raises(OutcomeUnknown):
                        await node.campaign("a", LONG_MS)
                    assert await other.campaign("b", LONG_MS) is not None

    asyncio.run(run())


class Node:
    """One elector over etcd. Promotion and demotion cost nothing."""

    def __init__(self, name: str, uri: str, lease_ms: int = 2000) -> None:
        self.coordinator = EtcdCoordinator(uri)
        self.clock = SystemClock()
        settings = ElectorSettings(name, lease_ms, loop_interval_ms=50, promote_backoff_ms=100)
        self.runner = LeaderRunner(self.coordinator, self.clock, settings, self._nothing, self._nothing)
        self.epochs: list[int] = []

    async def _nothing(self, epoch: int) -> None:
        if epoch not in self.epochs:
            self.epochs.append(epoch)

    async def __aenter__(self) -> Node:
        await self.runner.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runner.stop()
        await self.coordinator.close()

    async def leads(self) -> None:
        async with asyncio.timeout(60):
            await self.runner.wait_for(Role.LEADER)


async def renewed_until(node: Node, deadline_us: int) -> None:
    async with asyncio.timeout(30):
        while node.runner.deadline_us < deadline_us:  # noqa: ASYNC110  # a renewal is no event
            await asyncio.sleep(0.05)


async def stops_leading(node: Node) -> None:
    """At the latest when its deadline is over."""
    deadline_us = node.runner.deadline_us
    async with asyncio.timeout(60):
        await node.runner.wait_for(Role.DEMOTING, Role.FOLLOWER)
    assert not node.runner.is_leader()
    assert deadline_us > 0


def test_the_leader_leads_until_its_deadline_while_etcd_is_away_and_recovers_by_itself() -> None:
    async def run() -> None:
        with EtcdServer(*QUICK) as etcd:
            async with Node("a", f"etcd://{etcd.address}/x") as a:
                await a.leads()
                first = a.runner.epoch
                # A crash shorter than the lease goes unnoticed. (On a machine that is too slow for that it is a longer one.)
                until_us = a.runner.deadline_us
                etcd.only.kill()
                etcd.only.start()
                await asyncio.to_thread(etcd.only.wait_healthy)
                assert a.runner.is_leader() or a.clock.monotonic_us() >= until_us
                await a.leads()
                # A longer silence does not.
                etcd.only.pause()
                await stops_leading(a)
                etcd.only.resume()
                await a.leads()
                assert a.runner.epoch > first
                etcd.only.kill()
                await stops_leading(a)
                etcd.only.start()
                await a.leads()
                assert a.epochs == sorted(a.epochs)

    asyncio.run(run())


def test_dropped_connections_go_unnoticed_and_a_half_open_one_costs_at_most_the_lease(server: EtcdServer, uri: str) -> None:
    async def run() -> None:
        async with TcpProxy(server.only.port) as proxy, Node("a", uri.replace(server.address, proxy.address)) as a, Node("b", uri) as b:
            await asyncio.wait({asyncio.ensure_future(a.leads()), asyncio.ensure_future(b.leads())}, return_when=asyncio.FIRST_COMPLETED)
            if b.runner.is_leader():
                b.runner.campaign_delay_ms = 60_000
                b.runner.demote()
            await a.leads()
            epoch = a.runner.epoch
            b.runner.campaign_delay_ms = 0
            for _ in range(5):
                proxy.drop()
                await asyncio.sleep(0.1)
            assert (a.runner.is_leader(), a.runner.epoch) == (True, epoch)
            proxy.silent = True
            leading_until = asyncio.ensure_future(stops_leading(a))
            await b.leads()
            assert not a.runner.is_leader(), "never two"
            await leading_until
            assert b.runner.epoch > epoch
            proxy.silent = False

    asyncio.run(run())


def test_one_of_three_members_may_die_without_a_change_of_leader() -> None:
    async def run() -> None:
        with EtcdServer("--heartbeat-interval=50", "--election-timeout=500", members=3) as etcd:
            async with Node("a", f"etcd://{etcd.addresses}/x?timeout_ms=2500", lease_ms=9000) as a:
                await a.leads()
                epoch, before = a.runner.epoch, a.runner.deadline_us
                etcd.members[0].kill()
                await renewed_until(a, before + 2_500_000)
                assert (a.runner.is_leader(), a.runner.epoch) == (True, epoch)
                etcd.members[1].kill()
                with pytest.raises(KvcmError):
                    await a.coordinator.observe()

    asyncio.run(run())


def test_a_slow_etcd_is_led_through(server: EtcdServer, uri: str) -> None:
    async def run() -> None:
        async with TcpProxy(server.only.port) as proxy, Node("a", uri.replace(server.address, proxy.address), lease_ms=10_000) as a:
            await a.leads()
            epoch, before = a.runner.epoch, a.runner.deadline_us
            proxy.delay_s = 2.0
            await renewed_until(a, before + 2_500_000)
            assert (a.runner.is_leader(), a.runner.epoch) == (True, epoch)
            proxy.delay_s = 0.0

    asyncio.run(run())
