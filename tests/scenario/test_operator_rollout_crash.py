"""The operator ends right before and right after each thing that it does to pods and leaders, and a new one starts: the roll-out is the same."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.subject import Subject
from kvcm_operator.testing_house import House, applied_manager, several
from kvcm_operator.testing_nodes import Nodes
from kvcm_operator.world import MANAGER, Ref

pytestmark = pytest.mark.scenario

BOSS = Ref(MANAGER, "default", "demo")
DEEDS = ("delete Pod", "leader_demote", "set_campaign_delay", "replace StatefulSet")


class Cut(BaseException):
    """The process ends here."""


async def three_pods() -> tuple[House, Nodes]:
    house = House(dict(RECONCILERS))
    nodes = house.with_nodes()
    house.cluster.slow_stop = True
    house.kube.put(applied_manager(**several(3)))
    await house.beats(lambda: is_done(house))
    return house, nodes


def is_done(house: House) -> bool:
    return house.condition(BOSS) == ("True", "Ready") and Subject(house.kube.body(BOSS)).settled


async def roll_out(house: House, cut_at: int | None, smaller: bool) -> list[str]:
    """The calls that were made, up to the cut."""
    calls: list[str] = []
    numbers = count()

    async def hook(what: str) -> None:
        if next(numbers) == cut_at:
            raise Cut(what)
        calls.append(what)

    house.kube.on_call = house.directory.on_call = hook
    house.kube.edit(BOSS, lambda body: body["spec"].update({"replicas": 2} if smaller else {"image": "kvcm:2"}))
    try:
        await house.beats(lambda: is_done(house))
    except Cut:
        house.kube.on_call = house.directory.on_call = None
        house.restart()
    await house.beats(lambda: is_done(house))
    return calls


@pytest.mark.parametrize("smaller", [False, True])
def test_cut_off_around_every_deed_the_leader_still_goes_last_and_once(smaller: bool) -> None:
    async def story(cut_at: int | None) -> list[str]:
        house, nodes = await three_pods()
        nodes.elect("demo-2" if smaller else "demo-0")
        house.kube.writes.clear()
        calls = await roll_out(house, cut_at, smaller)
        deleted = [write for write in house.kube.writes if write.startswith("delete Pod")]
        if smaller:
            assert deleted == []
            assert len(house.kube.refs("Pod")) == 2
        else:
            assert deleted == ["delete Pod demo-2", "delete Pod demo-1", "delete Pod demo-0"], f"cut at {cut_at}"
        assert nodes.demoted == ["demo-2" if smaller else "demo-0"], f"cut at {cut_at}"
        assert len(nodes.history) == 3
        told = [event.message for event in house.kube.events if event.about == BOSS]
        assert len(told) == len(set(told)), f"told twice when cut at {cut_at}: {told}"
        return calls

    async def all_points() -> int:
        calls = await story(None)
        points = sorted({at + after for at, what in enumerate(calls) if what in DEEDS for after in (0, 1)})
        for at in points:
            await story(at)
        return len(points)

    assert asyncio.run(all_points()) > 4
