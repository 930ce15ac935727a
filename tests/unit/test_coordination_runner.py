"""The loop around the elector, on real time with short intervals; everything is awaited by event, nothing is timed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvcm.common.clock import FakeClock, SystemClock
from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.coordination.elector import ElectorSettings, Role
from kvcm.coordination.etcd import EtcdCoordinator
from kvcm.coordination.memory import MemoryCoordinator
from kvcm.coordination.open import open_coordinator
from kvcm.coordination.port import MAX_NODES, NODE_INFO_TTL_MS, Leader, NodeInfo
from kvcm.coordination.runner import LeaderRunner

pytestmark = pytest.mark.unit

QUICK = ElectorSettings("n1", lease_ms=60_000, loop_interval_ms=5, promote_backoff_ms=1, promote_backoff_max_ms=5)


class Node:
    def __init__(self, coordinator: MemoryCoordinator, settings: ElectorSettings = QUICK) -> None:
        self.calls: list[str] = []
        self.failures = 0
        self.hold: asyncio.Event | None = None
        self.runner = LeaderRunner(coordinator, SystemClock(), settings, self.promote, self.demote)

    async def promote(self, epoch: int) -> None:
        self.calls.append(f"promote {epoch}")
        assert not self.runner.is_leader()
        if self.failures:
            self.failures -= 1
            raise StorageError("the registry is away")
        if self.hold is not None:
            await self.hold.wait()

    async def demote(self, epoch: int) -> None:
        assert not self.runner.is_leader()
        self.calls.append(f"demote {epoch}")


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(run())


def test_a_single_node_leads_serves_drains_and_gives_the_lease_back() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator(SystemClock(), epoch_floor=41)
        node = Node(coordinator)
        assert (node.runner.lease_ends_wall_us(), node.runner.deadline_us, node.runner.demote()) == (-1, 0, False)
        await node.runner.start()
        await node.runner.wait_for(Role.LEADER)
        assert node.runner.is_leader()
        assert node.runner.epoch == 42
        assert node.runner.deadline_us > SystemClock().monotonic_us()
        assert node.runner.lease_ends_wall_us() > SystemClock().wall_us()
        assert node.runner.last_loop_wall_ms > 0
        assert await coordinator.observe() == Leader("n1", 42)
        await node.runner.stop()
        await node.runner.stop()
        assert node.calls == ["promote 42", "demote 42"]
        assert await coordinator.observe() is None
        assert not node.runner.is_leader()

    play(story)


def test_two_processes_with_one_node_id_do_not_take_the_lease_from_each_other_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    class Watched(MemoryCoordinator):
        looks = 0
        looked_often = asyncio.Event()

        async def observe(self) -> Leader | None:
            self.looks += 1
            if self.looks == 10:
                self.looked_often.set()
            return await super().observe()

    async def story() -> None:
        coordinator = Watched(SystemClock())
        first, second = Node(coordinator), Node(coordinator)
        await first.runner.start()
        await first.runner.wait_for(Role.LEADER)
        await second.runner.start()
        await second.runner.wait_for(Role.LEADER)  # for all that it knows, its former self has ended
        await first.runner.wait_for(Role.FOLLOWER)
        await coordinator.looked_often.wait()
        assert second.calls == ["promote 2"]
        assert second.runner.is_leader()
        await second.runner.stop()
        await first.runner.wait_for(Role.LEADER)
        assert first.runner.last_failure == ""
        await first.runner.stop()
        assert first.calls == ["promote 1", "demote 1", "promote 3", "demote 3"]

    play(story)
    assert caplog.text.count("another manager runs with this node id and leads: give each manager its own") == 1


def test_a_failed_promotion_releases_the_lease_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        node = Node(MemoryCoordinator(SystemClock()))
        node.failures = 2
        await node.runner.start()
        await node.runner.wait_for(Role.LEADER)
        assert node.calls == ["promote 1", "demote 1", "promote 2", "demote 2", "promote 3"]
        assert node.runner.last_failure == ""
        stats = node.runner.stats
        assert (stats.promotions, stats.demotions, stats.failures) == (1, 2, {"promote": 2})
        await node.runner.stop()

    play(story)
    assert caplog.text.count("the registry is away") == 1


def test_a_node_that_steps_down_is_no_leader_at_once_and_another_takes_over_after_it_has_drained() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator(SystemClock())
        first = Node(coordinator)
        second = Node(coordinator, ElectorSettings("n2", lease_ms=60_000, loop_interval_ms=5))
        await first.runner.start()
        await first.runner.wait_for(Role.LEADER)
        await second.runner.start()
        first.runner.campaign_delay_ms = 100_000
        assert first.runner.demote()
        assert not first.runner.is_leader()
        assert not first.runner.demote()
        await second.runner.wait_for(Role.LEADER)
        assert first.calls == ["promote 1", "demote 1"]
        assert second.calls == ["promote 2"]
        assert first.runner.role is Role.FOLLOWER
        assert first.runner.campaign_delay_ms == 100_000
        await first.runner.stop()
        await second.runner.stop()

    play(story)


def test_stopping_during_a_promotion_cancels_it_and_cleans_up() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator(SystemClock())
        node = Node(coordinator)
        node.hold = asyncio.Event()
        await node.runner.start()
        await node.runner.wait_for(Role.PROMOTING)
        await node.runner.stop()
        assert node.calls[-1:] in (["demote 1"], [])
        assert node.runner.role is Role.FOLLOWER
        assert await coordinator.observe() is None

    play(story)


def test_a_promotion_that_is_cancelled_before_its_first_step_does_not_get_stuck() -> None:
    async def story() -> None:
        node = Node(MemoryCoordinator(SystemClock()))
        await node.runner.start()
        await node.runner.wait_for(Role.PROMOTING, Role.LEADER)
        node.runner.demote()
        await node.runner.wait_for(Role.FOLLOWER)
        await node.runner.stop()
        assert node.calls.count("demote 1") == 1

    play(story)


def test_a_drain_that_hangs_is_cut_off_and_the_lease_is_given_back() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator(SystemClock())

        async def promote(_: int) -> None:
            return

        async def hang(_: int) -> None:
            await asyncio.Event().wait()

        settings = ElectorSettings("n1", lease_ms=60_000, loop_interval_ms=5, drain_ms=20)
        runner = LeaderRunner(coordinator, SystemClock(), settings, promote, hang)
        await runner.start()
        await runner.wait_for(Role.LEADER)
        await runner.stop()
        assert await coordinator.observe() is None
        assert "no answer in time" in runner.last_failure

    play(story)


def test_a_coordinator_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryCoordinator):
        failures = 3

        async def campaign(self, node_id: str, lease_ms: int) -> int | None:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("secret detail")
            return await super().campaign(node_id, lease_ms)

    async def story() -> None:
        node = Node(Broken(SystemClock()))
        await node.runner.start()
        await node.runner.wait_for(Role.LEADER)
        await node.runner.stop()

    play(story)
    assert caplog.text.count("internal error (RuntimeError)") == 1


def test_the_memory_coordinator_excludes_expires_and_counts_upwards() -> None:
    async def run() -> None:
        clock = FakeClock()
        coordinator = MemoryCoordinator(clock, epoch_floor=5)
        assert await coordinator.campaign("a", 100) == 6
        assert await coordinator.campaign("b", 100) is None
        assert await coordinator.campaign("a", 100) == 7
        assert not await coordinator.keep_alive("a", 6, 100)
        clock.advance_us(99_999)
        assert await coordinator.keep_alive("a", 7, 100)
        clock.step_wall(10**12)
        assert await coordinator.observe() == Leader("a", 7)
        clock.advance_us(100_000)
        assert await coordinator.observe() is None
        assert not await coordinator.keep_alive("a", 7, 100)
        assert await coordinator.campaign("b", 100) == 8
        await coordinator.resign("a", 7)
        assert await coordinator.observe() == Leader("b", 8)
        await coordinator.resign("b", 8)
        assert await coordinator.observe() is None
        await coordinator.put_node_info("a", "{}")
        assert (await coordinator.get_node_info("a"), await coordinator.get_node_info("z")) == ("{}", None)
        for node, lease in (("", 1), ("a", 0)):
            with pytest.raises(InvalidArgument):
                await coordinator.campaign(node, lease)
        clock.advance_us(NODE_INFO_TTL_MS * 1000 - 1)
        await coordinator.put_node_info("b", "[]")
        assert await coordinator.list_nodes() == (NodeInfo("a", "{}"), NodeInfo("b", "[]"))
        clock.advance_us(1)
        assert (await coordinator.get_node_info("a"), await coordinator.list_nodes()) == (None, (NodeInfo("b", "[]"),))
        for _ in range(2):
            await coordinator.remove_node_info("b")
        assert await coordinator.list_nodes() == ()
        for number in range(MAX_NODES):
            await coordinator.put_node_info(f"n{number}", "{}")
        with pytest.raises(StorageError):
            await coordinator.put_node_info("one too many", "{}")
        await coordinator.close()

    asyncio.run(run())


def test_the_uri_chooses_the_coordinator() -> None:
    for uri in ("", "memory://"):
        assert isinstance(open_coordinator(uri, FakeClock()), MemoryCoordinator)
    assert isinstance(open_coordinator("etcd://h:2379/x", FakeClock()), EtcdCoordinator)
    for uri in ("nothing", "etcd://h", "zookeeper://h", "memory", "file://", "file:///x?y=z", "redis://", "redis://h/?colour=red"):
        with pytest.raises(InvalidArgument):
            open_coordinator(uri, FakeClock())
