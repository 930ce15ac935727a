"""Promotion opens requests last, demotion closes them first and always gets to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import StorageError
from kvcm.coordination.elector import ElectorSettings, Role
from kvcm.coordination.memory import MemoryCoordinator
from kvcm.coordination.port import Leader
from kvcm.coordination.runner import LeaderRunner
from kvcm.service import lifecycle as lifecycle_module
from kvcm.service.cluster import Endpoint
from kvcm.service.host import advertised_host, node_id
from kvcm.service.in_flight import InFlight
from kvcm.service.lifecycle import LeaderGate, Lifecycle, Term
from kvcm.service.live_cluster import LiveCluster
from kvcm.service.node_info import parse_endpoint

pytestmark = pytest.mark.unit


class Part:
    """Stands for registry, manager and background work at once: notes the order, and fails where told."""

    def __init__(self, term: Term) -> None:
        self.seen: list[str] = []
        self.fail_at = ""
        self._term = term

    def note(self, step: str) -> None:
        assert not self._term.open, f"{step} while requests are open"
        self.seen.append(step)
        if step == self.fail_at:
            raise StorageError(f"{step} failed.")

    async def recover(self, *epoch: int) -> None:
        self.note("recover registry" if epoch else "recover manager")

    async def apply_startup(self, *_: object) -> None:
        self.note("startup")

    async def cleanup(self) -> None:
        self.note("cleanup")

    def shards(self) -> list[object]:
        return []

    def start(self) -> None:
        self.note("start work")

    async def stop(self) -> None:
        self.note("stop work")


def build() -> tuple[Lifecycle, Term, Part, InFlight]:
    term, in_flight = Term(), InFlight()
    part: Any = Part(term)
    return Lifecycle(term, part, part, [part], in_flight, (None, None), tune_gc=False), term, part, in_flight


def test_requests_open_last_and_close_first() -> None:
    lifecycle, term, part, _ = build()
    asyncio.run(lifecycle.promote(7))
    assert part.seen == ["recover registry", "startup", "recover manager", "start work"]
    assert (term.open, term.epoch) == (True, 7)
    part.seen.clear()
    asyncio.run(lifecycle.demote(7))
    assert part.seen == ["stop work", "cleanup", "cleanup"]
    assert not term.open


@pytest.mark.parametrize("step", ["recover registry", "startup", "recover manager", "start work"])
def test_a_failed_promotion_never_opens_requests(step: str) -> None:
    lifecycle, term, part, _ = build()
    part.fail_at = step
    with pytest.raises(StorageError):
        asyncio.run(lifecycle.promote(1))
    assert not term.open


@pytest.mark.parametrize("step", ["stop work", "cleanup"])
def test_demotion_goes_on_after_a_failing_step(step: str, caplog: pytest.LogCaptureFixture) -> None:
    lifecycle, _, part, _ = build()
    part.fail_at = step
    asyncio.run(lifecycle.demote(1))
    assert part.seen == ["stop work", "cleanup", "cleanup"]
    assert f"{step} failed" in caplog.text


def test_demotion_waits_for_running_calls() -> None:
    async def scenario() -> None:
        lifecycle, _, part, in_flight = build()
        in_flight.count = 1
        demotion = asyncio.create_task(lifecycle.demote(1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert part.seen == []
        in_flight.count = 0
        await demotion
        assert part.seen == ["stop work", "cleanup", "cleanup"]

    asyncio.run(scenario())


def test_a_call_that_hangs_does_not_stop_a_demotion_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(lifecycle_module, "DRAIN_S", 0.01)
    lifecycle, _, part, in_flight = build()
    in_flight.count = 1
    asyncio.run(lifecycle.demote(1))
    assert part.seen == ["stop work", "cleanup", "cleanup"]
    assert "drain_incomplete" in caplog.text


def test_the_cluster_view_follows_role_lease_and_recovery() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        coordinator = MemoryCoordinator(clock)
        term = Term()

        async def promote(epoch: int) -> None:
            term.epoch = epoch

        async def demote(epoch: int) -> None:
            term.open = False

        runner = LeaderRunner(coordinator, clock, ElectorSettings("n1", 10_000, 100, campaign_delay_ms=60_000), promote, demote)
        gate = LeaderGate(term)
        assert not gate.may_serve()
        gate.follow(runner)
        own = Endpoint("n1", "host", 1, 2, 3, 4, "note")
        cluster = LiveCluster(own, runner, gate, coordinator, clock, 100)
        assert not cluster.snapshot().is_health

        await runner.start()
        async with asyncio.timeout(5):
            await runner.wait_for(Role.LEADER)
        held = cluster.snapshot()
        assert (held.is_leader, held.is_health, held.leader_node_id) == (False, False, "n1")
        term.open = True
        serving = cluster.snapshot()
        assert (serving.is_leader, serving.is_health, serving.leader_endpoint) == (True, True, own)
        assert serving.self_leader_expiration_us > clock.wall_us()

        await cluster.look()
        assert parse_endpoint(await coordinator.get_node_info("n1")) == own
        assert gate.lease_holds(clock.monotonic_us())
        clock.advance_us(20_000_000)  # the lease has run out, whoever has noticed
        assert not gate.may_serve()
        assert not gate.lease_holds(clock.monotonic_us())
        stale = cluster.snapshot()
        assert (stale.is_leader, stale.self_leader_expiration_us, stale.is_health) == (False, -1, False)

        runner.demote()
        async with asyncio.timeout(5):
            await runner.wait_for(Role.FOLLOWER)
        await coordinator.put_node_info("n2", '{"node_id": "n2", "host": "other", "meta_rpc_port": 9}')
        assert await coordinator.campaign("n2", 10_000) is not None
        await cluster.look()
        follower = cluster.snapshot()
        assert (follower.leader_node_id, follower.leader_endpoint.meta_rpc_port, follower.is_leader) == ("n2", 9, False)
        assert await coordinator.observe() == Leader("n2", 2)
        await runner.stop()
        await cluster.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"meta_rpc_port": "x"}', "x" * 100_000, "[" * 50_000])
def test_unreadable_node_information_is_a_blank_endpoint(text: str | None) -> None:
    assert parse_endpoint(text) == Endpoint()


def test_node_ids_are_unique_unless_they_are_given() -> None:
    first, second = node_id("", "h", 6492), node_id("", "h", 6492)
    assert first != second
    assert first.startswith("h:6492_")
    assert len(first) == len("h:6492_") + 16
    assert node_id("given", "h", 1) == "given"
    assert advertised_host("10.0.0.9") == "10.0.0.9"
    assert advertised_host("").count(".") == 3
