"""A node without a copy leaves a free lease to others for a second, gives back what its former self holds, and never waits for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kvcm.common.clock import FakeClock, SystemClock
from kvcm.common.errors import StorageError
from kvcm.coordination.elector import ElectorSettings, Role
from kvcm.coordination.memory import MemoryCoordinator
from kvcm.coordination.port import Leader, NodeInfo
from kvcm.coordination.runner import LeaderRunner
from kvcm.coordination.standing_back import STAND_BACK_US, StandingBack

pytestmark = pytest.mark.unit

LEASE_MS = 10_000


class Cold:
    """Node `cold`, which is not ready, and a clock of the test's."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.coordinator = MemoryCoordinator(self.clock)
        self.ready = False
        self.standing_back = StandingBack(self.coordinator, "cold", lambda: self.ready)

    async def may(self, after_us: int = 0) -> bool:
        self.clock.advance_us(after_us)
        return await self.standing_back.may_campaign(self.clock.monotonic_us())

    async def meet(self, *nodes: str) -> None:
        for node in nodes:
            await self.coordinator.put_node_info(node, "{}")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_a_free_lease_is_left_to_others_for_a_second_and_no_longer() -> None:
    async def story() -> None:
        node = Cold()
        await node.meet("cold", "other")
        assert not await node.may()
        assert not await node.may(STAND_BACK_US - 1)
        assert await node.may(1)
        assert not await node.may(1)  # whoever has had its turn stands back again
        assert await node.may(STAND_BACK_US)

    run(story())


def test_the_second_is_counted_anew_when_somebody_else_has_led_in_between() -> None:
    async def story() -> None:
        node = Cold()
        await node.meet("cold", "other")
        assert not await node.may()
        epoch = await node.coordinator.campaign("other", LEASE_MS)
        assert epoch is not None
        assert not await node.may(STAND_BACK_US)
        await node.coordinator.resign("other", epoch)
        assert not await node.may()
        assert await node.may(STAND_BACK_US)

    run(story())


def test_a_node_that_is_ready_or_alone_does_not_wait() -> None:
    async def story() -> None:
        node = Cold()
        assert await node.may()
        await node.meet("cold")
        assert await node.may()
        await node.meet("other")
        assert not await node.may()
        node.ready = True
        assert await node.may()
        node.ready = False
        assert not await node.may(STAND_BACK_US)  # ready in between: it begins anew

    run(story())


def test_what_the_former_self_holds_is_given_back_while_others_are_there() -> None:
    async def story() -> None:
        node = Cold()
        await node.coordinator.campaign("cold", LEASE_MS)
        assert await node.may()  # nobody else: it simply goes on
        assert await node.coordinator.observe() == Leader("cold", 1)
        await node.meet("other")
        assert not await node.may()
        assert await node.coordinator.observe() is None
        assert not await node.may(STAND_BACK_US - 1)
        assert await node.may(1)

    run(story())


def test_a_lease_of_somebody_who_counts_no_epochs_is_not_given_back() -> None:
    class Upstream(MemoryCoordinator):
        async def observe(self) -> Leader | None:
            return Leader("cold", 0)

        async def list_nodes(self) -> tuple[NodeInfo, ...]:
            return (NodeInfo("other", "{}"),)

        async def resign(self, node_id: str, epoch: int) -> None:
            raise AssertionError("nothing to give back")

    async def story() -> None:
        assert await StandingBack(Upstream(FakeClock()), "cold", lambda: False).may_campaign(1)

    run(story())


def test_of_two_nodes_the_one_with_a_copy_takes_over_again_and_again() -> None:
    """Whoever steps down is cold from then on; only who is warm may follow, although all of them ask ten times as often as a lease is long."""

    async def story() -> None:
        coordinator = MemoryCoordinator(SystemClock())
        warm = {"a": True, "b": True, "c": False}
        won: list[str] = []
        runners: dict[str, LeaderRunner] = {}

        def node(name: str) -> LeaderRunner:
            async def promote(epoch: int) -> None:
                won.append(name)

            async def demote(epoch: int) -> None:
                warm[name] = False

            settings = ElectorSettings(name, lease_ms=60_000, loop_interval_ms=5)
            return LeaderRunner(coordinator, SystemClock(), settings, promote, demote, lambda: warm[name])

        async with asyncio.timeout(20):
            for name in warm:
                await coordinator.put_node_info(name, "{}")
                runners[name] = node(name)
            for name in ("c", "a", "b"):
                await runners[name].start()
            for _ in range(10):
                (leader,) = await _leaders(runners)
                heir = next(name for name in warm if warm[name] and name != leader)
                runners[leader].demote()
                await runners[heir].wait_for(Role.LEADER)
                assert won[-1] == heir
                warm[leader] = True
            for runner in runners.values():
                await runner.stop()
        assert "c" not in won

    run(story())


async def _leaders(runners: dict[str, LeaderRunner]) -> list[str]:
    while True:
        found = [name for name, runner in runners.items() if runner.role is Role.LEADER]
        if found:
            return found
        await asyncio.sleep(0.001)


def test_a_coordinator_that_cannot_be_asked_is_a_failed_campaign() -> None:
    class Away(MemoryCoordinator):
        async def observe(self) -> Leader | None:
            if seen:
                asked.set()  # the failure of the time before has been noted
            seen.append(True)
            raise StorageError("it is away")

    asked, seen = asyncio.Event(), list[bool]()

    async def story() -> None:
        async def nothing(epoch: int) -> None:
            raise AssertionError("nobody won")

        async with asyncio.timeout(20):
            settings = ElectorSettings("cold", lease_ms=60_000, loop_interval_ms=5)
            runner = LeaderRunner(Away(SystemClock()), SystemClock(), settings, nothing, nothing, lambda: False)
            await runner.start()
            await asked.wait()
            await asyncio.sleep(0)
            assert "it is away" in runner.last_failure
            await runner.stop()

    run(story())
