"""Managers that get more and fewer pods: nothing stops before the leader is one that stays."""

from __future__ import annotations

from functools import partial

import pytest

from kvcm_operator.testing_house import House
from kvcm_operator.testing_nodes import Nodes
from kvcm_operator.testing_several import BOSS, SET, deleted, events, is_reason, ready, run, sizes, spec

pytestmark = pytest.mark.scenario


def test_fewer_pods_and_the_leader_among_those_that_go() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        nodes.elect("demo-4")
        spec(house, replicas=3)
        await house.beats(partial(is_reason, house, "HandingOver"))
        assert sizes(house) == 5, "nobody goes before another one leads"
        await house.beats(partial(ready, house))
        assert (sizes(house), nodes.demoted, nodes.leader) == (3, ["demo-4"], "demo-0")
        assert house.status(BOSS)["replicas"] == 3
        assert deleted(house) == []
        assert house.reasons(BOSS).count("DriftCorrected") == 0
        spec(house, replicas=5)
        await house.beats(partial(ready, house))
        assert (sizes(house), nodes.leader, nodes.demoted) == (5, "demo-0", ["demo-4"])

    run(story, replicas=5)


def test_another_one_that_has_to_go_wins_and_is_asked_too() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        for name in ("demo-0", "demo-1", "demo-2"):
            nodes.by_name[name].follows = True
        nodes.elect("demo-4")
        spec(house, replicas=3)
        moments = await house.beats(lambda: nodes.demoted == ["demo-4", "demo-3"])
        assert moments < 20, "nobody had to be patient"
        assert sizes(house) == 4
        assert house.status(BOSS)["handover"]["attempts"] == 2
        for name in ("demo-0", "demo-1", "demo-2"):
            nodes.by_name[name].follows = False
        await house.beats(partial(ready, house))
        assert (sizes(house), nodes.leader) == (3, "demo-0")

    run(story, replicas=5)


def test_those_above_the_leader_go_before_it_is_asked() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        nodes.elect("demo-3")
        spec(house, replicas=3)
        await house.once(BOSS)
        assert (sizes(house), nodes.demoted) == (4, [])
        await house.beats(partial(ready, house))
        assert (sizes(house), nodes.demoted) == (3, ["demo-3"])
        assert nodes.leader in ("demo-0", "demo-1", "demo-2")
        assert house.reasons(BOSS).count("DriftCorrected") == 0

    run(story, replicas=5)


def test_fewer_pods_while_the_leader_stays_is_done_at_once() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        spec(house, replicas=3)
        await house.once(BOSS)
        assert sizes(house) == 3
        assert house.condition(BOSS) == ("False", "ScalingDown")
        await house.beats(partial(ready, house))
        assert nodes.demoted == []
        assert events(house, "ScalingDown")[0] == "stopping the pods with the highest numbers, which the spec no longer asks for"

    run(story, replicas=5)


def test_a_new_image_and_fewer_pods_at_once() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        nodes.elect("demo-4")
        spec(house, replicas=3, image="kvcm:2")
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]
        assert nodes.demoted == ["demo-4"]
        assert nodes.leader in ("demo-0", "demo-1", "demo-2")

    run(story, replicas=5)


def test_stopped_and_started_again() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        spec(house, replicas=0)
        await house.once(BOSS)
        assert sizes(house) == 0
        assert house.condition(BOSS) == ("False", "ScalingDown")
        await house.beats(partial(is_reason, house, "ScaledToZero"))
        assert nodes.demoted == []
        assert "leader" not in house.status(BOSS)
        spec(house, replicas=3)
        await house.beats(partial(ready, house))

    run(story)


def test_a_set_that_somebody_else_has_grown_is_made_small_again_without_losing_the_leader() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        house.kube.edit(SET, lambda body: body["spec"].update(replicas=5))
        house.cluster.step()
        house.cluster.step()
        nodes.elect("demo-4")
        await house.beats(lambda: sizes(house) == 3)
        assert nodes.demoted == ["demo-4"]
        await house.beats(partial(ready, house))

    run(story)
