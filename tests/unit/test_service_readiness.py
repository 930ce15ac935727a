"""When a node is ready, and what it says about the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import StorageError, reason_of
from kvcm.config.store import Change, RegistrySnapshot
from kvcm.config.store_local import LocalStore
from kvcm.config.store_memory import MemoryStore
from kvcm.coordination.elector import ElectorSettings, Role
from kvcm.coordination.memory import MemoryCoordinator
from kvcm.coordination.port import Leader, NodeInfo
from kvcm.coordination.runner import LeaderRunner
from kvcm.service.cluster import ClusterSnapshot, CopiesView, CopyState, Endpoint, NodeView
from kvcm.service.lifecycle import LeaderGate, Term
from kvcm.service.live_cluster import LiveCluster
from kvcm.service.node_info import node_text, parse_node
from kvcm.service.readiness import Readiness

pytestmark = pytest.mark.unit


class View:
    def __init__(self) -> None:
        self.known = ClusterSnapshot("a")

    def snapshot(self) -> ClusterSnapshot:
        return self.known

    async def nodes(self) -> tuple[NodeView, ...]:
        return ()


class Store:
    def __init__(self) -> None:
        self.broken = True

    async def open(self) -> None: ...

    async def load(self) -> RegistrySnapshot:
        return RegistrySnapshot()

    async def probe(self) -> None:
        if self.broken:
            raise StorageError("the disk is gone")

    async def apply(self, changes: Sequence[Change], fence: int) -> None: ...

    async def close(self) -> None: ...


def test_a_follower_is_ready_with_a_known_leader_and_a_registry_and_a_leader_while_it_serves() -> None:
    async def run() -> None:
        view, store = View(), Store()
        readiness = Readiness(view, store)
        assert readiness.reason() == "no leader is known"
        view.known = ClusterSnapshot("a", "a", is_leader=False, is_health=False)
        assert readiness.reason() == "it is taking over"
        view.known = ClusterSnapshot("a", "b", is_health=False)
        assert readiness.reason() == "the election loop does not run"
        view.known = ClusterSnapshot("a", "b", is_health=True)
        assert "not been read yet" in readiness.reason()
        await readiness.probe()
        assert readiness.reason() == "the registry cannot be read: the disk is gone"
        # Sending the callers of a leader that serves away would make an outage of one.
        view.known = ClusterSnapshot("a", "a", is_leader=True, is_health=True)
        assert readiness.ready()
        view.known = ClusterSnapshot("a", "b", is_health=True)
        store.broken = False
        await readiness.probe()
        assert readiness.ready()
        readiness.close()
        assert readiness.reason() == "it is stopping"
        await readiness.stop()

    asyncio.run(run())


def test_changes_of_readiness_are_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        readiness = Readiness(View(), Store())
        with caplog.at_level("INFO"):
            readiness.start()
            for _ in range(5):
                await asyncio.sleep(0)
        await readiness.stop()

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == ["not_ready: no leader is known"]


def test_stores_tell_whether_they_can_be_read(tmp_path: Path) -> None:
    async def run() -> None:
        await MemoryStore().probe()
        folder = tmp_path / "registry"
        store = LocalStore(str(folder / "file"))
        await store.open()
        await store.probe()
        (folder / "file").mkdir()
        with pytest.raises(StorageError):
            await store.probe()
        (folder / "file").rmdir()
        folder.rmdir()
        with pytest.raises(StorageError):
            await store.probe()
        await store.close()

    asyncio.run(run())


class Breakable(MemoryCoordinator):
    broken = False

    async def observe(self) -> Leader | None:
        if self.broken:
            raise StorageError("gone")
        return await super().observe()

    async def list_nodes(self) -> tuple[NodeInfo, ...]:
        if self.broken:
            raise StorageError("gone")
        return await super().list_nodes()


def _cluster(clock: FakeClock, coordinator: MemoryCoordinator, name: str, port: int, copies: Callable[[], CopiesView | None] = lambda: None) -> LiveCluster:
    async def nothing(epoch: int) -> None:
        return

    runner = LeaderRunner(coordinator, clock, ElectorSettings(name, 10_000, 100), nothing, nothing)
    return LiveCluster(Endpoint(name, "host", port), runner, LeaderGate(Term()), coordinator, clock, 100, 10_000, copies)


def test_every_node_is_listed_and_a_role_that_was_overtaken_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        clock = FakeClock()
        coordinator = Breakable(clock)
        a, b = _cluster(clock, coordinator, "a", 1), _cluster(clock, coordinator, "b", 2)
        await a.look()
        await b.look()
        await coordinator.put_node_info("c", node_text(Endpoint("c", "host", 3), Role.LEADER, 4))
        await coordinator.put_node_info("theirs", '{"node_id": "theirs", "host": "h", "meta_rpc_port": 9}')
        await coordinator.put_node_info("junk", '{"node_id": "junk", "meta_rpc_port": -1}')
        nodes = await a.nodes()
        assert [(node.endpoint.node_id, node.role, node.epoch) for node in nodes] == [
            ("a", Role.FOLLOWER, 0),
            ("b", Role.FOLLOWER, 0),
            ("c", Role.LEADER, 4),
            ("theirs", None, 0),
        ]
        # b wins; c has said nothing since.
        await coordinator.campaign("b", 10_000)
        await a.look()
        clock.advance_us(1_000_000)
        assert [(node.endpoint.node_id, node.role, node.epoch) for node in await a.nodes()][1:3] == [("b", Role.PROMOTING, 1), ("c", None, 4)]
        # Without the coordinator, the nodes of before; and the leader for no longer than a lease.
        coordinator.broken = True
        for _ in range(5):
            clock.advance_us(1_000_000)
            assert len(await a.nodes()) == 4
        assert caplog.text.count("nodes_unknown") == 1, "once, when it begins"
        assert a.snapshot().leader_node_id == "b"
        clock.advance_us(5_000_000)
        assert a.snapshot().leader_node_id == ""
        with pytest.raises(StorageError):
            await a.look()
        coordinator.broken = False
        a.start()
        await a.stop()
        assert await coordinator.get_node_info("a") is None

    asyncio.run(run())


def test_a_node_says_itself_again_in_time_and_when_its_role_changes() -> None:
    async def run() -> None:
        clock = FakeClock()
        coordinator = MemoryCoordinator(clock)
        a = _cluster(clock, coordinator, "a", 1)
        for _ in range(20):
            await a.look()
            clock.advance_us(11_000_000)
            assert await coordinator.get_node_info("a") is not None

    asyncio.run(run())


class Counted(MemoryCoordinator):
    puts = 0

    async def put_node_info(self, node_id: str, info: str) -> None:
        self.puts += 1
        await super().put_node_info(node_id, info)


def test_other_nodes_hear_at_once_that_a_follower_is_warm_and_of_its_lag_now_and_then() -> None:
    async def run() -> None:
        clock = FakeClock()
        coordinator = Counted(clock)
        told = [CopiesView(CopyState.LOADING, 0, 1)]
        a, b = _cluster(clock, coordinator, "a", 1), _cluster(clock, coordinator, "b", 2, lambda: told[-1])
        await b.look()

        async def heard() -> CopiesView | None:
            clock.advance_us(1_000_000)
            return next(node.copies for node in await a.nodes() if node.endpoint.node_id == "b")

        assert await heard() == told[-1]
        told.append(CopiesView(CopyState.WARM, 1, 0, 5, 100))
        await b.look()
        assert await heard() == told[-1]
        # Its lag alone is no reason to write to the coordinator; asked itself, the node tells of it at once.
        told.append(CopiesView(CopyState.WARM, 1, 0, 900, 2_000))
        await b.look()
        assert (coordinator.puts, await heard()) == (2, told[-2])
        assert [node.copies for node in await b.nodes() if node.endpoint.node_id == "b"] == [told[-1]]
        clock.advance_us(10_000_000)
        await b.look()
        assert await heard() == told[-1]
        # Once it has won, it has no copies: it has the blocks.
        await coordinator.campaign("b", 10_000)
        await a.look()
        assert await heard() is None

    asyncio.run(run())


class Deaf(MemoryCoordinator):
    async def observe(self) -> Leader | None:
        raise TimeoutError


def test_while_nobody_leads_nobody_is_sent_to_the_leader(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        clock = FakeClock()
        coordinator = MemoryCoordinator(clock)
        node = _cluster(clock, coordinator, "a", 1)
        await node.look()
        assert node.why_not_leader() == "nobody leads now, as far as this node knows; try again soon"
        await coordinator.campaign("b", 10_000)
        await node.look()
        assert "ask the leader" in node.why_not_leader()
        cut_off = _cluster(clock, Deaf(clock), "a", 1)
        cut_off.start()
        async with asyncio.timeout(10):
            while not caplog.records:  # noqa: ASYNC110  # a log line is no event
                await asyncio.sleep(0)
        assert cut_off.why_not_leader() == "nobody leads now: the coordinator (kvcm.coordination.uri) does not answer this node"
        await cut_off.stop()

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == ["leader_unknown: the coordinator cannot be asked who leads (no answer in time)"]


def test_an_error_that_says_nothing_is_named() -> None:
    assert [reason_of(error) for error in (TimeoutError(), ValueError(), StorageError("the disk is full."))] == [
        "no answer in time",
        "ValueError",
        "the disk is full.",
    ]


def test_what_a_silent_node_said_last_only_grows_older() -> None:
    async def run() -> None:
        clock = FakeClock()
        coordinator = Counted(clock)
        a, b = _cluster(clock, coordinator, "a", 1), _cluster(clock, coordinator, "b", 2)
        await b.look()

        async def ages() -> list[int]:
            return [clock.wall_us() // 1000 - node.told_at_ms for node in await a.nodes()]

        assert await ages() == [0, 0]
        clock.advance_us(41_000_000)
        assert await ages() == [0, 41_000]
        # To say the same again is news too, every ten seconds.
        await b.look()
        clock.advance_us(2_000_000)
        assert await ages() == [0, 2_000]

    asyncio.run(run())


def test_what_a_node_publishes_is_read_back() -> None:
    endpoint = Endpoint("n", "h", 1, 2, 3, 4, "note")
    for role in Role:
        assert parse_node(node_text(endpoint, role, 7)) == NodeView(endpoint, role, 7)
    copies = CopiesView(CopyState.WARM, 3, 0, 12, 300)
    assert parse_node(node_text(endpoint, Role.FOLLOWER, 7, copies)) == NodeView(endpoint, Role.FOLLOWER, 7, copies)
    assert parse_node(node_text(endpoint, Role.LEADER, 7, None, 1_700_000_000_000)) == NodeView(endpoint, Role.LEADER, 7, told_at_ms=1_700_000_000_000)
    assert parse_node('{"told_at_ms": -5}') == NodeView(Endpoint())
    # A leader has none, and what somebody else wrote there may be anything.
    assert parse_node(node_text(endpoint, Role.LEADER, 7, copies)) == NodeView(endpoint, Role.LEADER, 7)
    for text, told in (
        ('{"role": "follower", "copies": 7}', None),
        ('{"role": "follower", "copies": {"state": "boiling"}}', None),
        ('{"role": "follower", "copies": {"state": "cold", "warm": -4, "behind": 1e30}}', CopiesView(CopyState.COLD, behind=(1 << 63) - 1)),
    ):
        assert parse_node(text) == NodeView(Endpoint(), Role.FOLLOWER, 0, told)
    assert parse_node('{"role": "follower", "copies": {"state": "cold", "warm": []}}') is None
    for text in ("null", "[]", '{"meta_rpc_port": 65536}', '{"epoch": "x"}', '{"epoch": 1e999}'):
        assert parse_node(text) is None
