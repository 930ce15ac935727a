"""A manager that has led stays for a moment when it goes, if there is another to go to; otherwise it does not wait."""

from __future__ import annotations

import asyncio

import pytest

from kvcm.service import farewell as module
from kvcm.service.cluster import ClusterSnapshot, Endpoint, NodeView
from kvcm.service.farewell import farewell

pytestmark = pytest.mark.unit


class Nodes:
    def __init__(self, count: int) -> None:
        self.count = count
        self.silent = False

    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot("n0")

    async def nodes(self) -> tuple[NodeView, ...]:
        if self.silent:
            await asyncio.Event().wait()
        return tuple(NodeView(Endpoint(f"n{number}")) for number in range(self.count))


@pytest.mark.parametrize(("count", "has_led", "waits"), [(2, True, True), (1, True, False), (2, False, False)])
def test_it_waits_only_for_those_who_may_still_ask(count: int, has_led: bool, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(farewell(Nodes(count), lambda: has_led))
    assert slept == ([module.FAREWELL_S] if waits else [])


def test_a_coordinator_that_does_not_answer_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASK_S", 0.0)
    nodes = Nodes(2)
    nodes.silent = True

    async def run() -> None:
        async with asyncio.timeout(10):
            await farewell(nodes, lambda: True, seconds=100.0)

    asyncio.run(run())
