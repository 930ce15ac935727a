"""Roll-outs and sizes of a manager with three pods: followers first, the leader last and once, and what is said when something is in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from kvcm.common.errors import OutcomeUnknown
from kvcm.resources.conditions import varying_parts
from kvcm.resources.kstatus import Kstatus, kstatus
from kvcm.resources.manager import KVCacheManagerStatus
from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.subject import Subject
from kvcm_operator.testing_house import House, applied_manager, group, several, storage
from kvcm_operator.testing_nodes import Nodes
from kvcm_operator.world import MANAGER, Ref

pytestmark = pytest.mark.scenario

BOSS = Ref(MANAGER, "default", "demo")
SET = Ref("StatefulSet", "default", "demo")
Story = Callable[[House, Nodes], Awaitable[None]]


def run(story: Story, replicas: int = 3) -> None:
    """From a manager that is ready, with `demo-0` leading."""

    async def told() -> None:
        house = House(dict(RECONCILERS))
        nodes = house.with_nodes()
        house.cluster.slow_stop = True
        house.kube.put(applied_manager(**several(replicas)))
        await house.beats(partial(ready, house))
        assert nodes.leader == "demo-0"
        house.kube.writes.clear()
        await story(house, nodes)
        for ref, body in house.kube.statuses:
            if ref != BOSS:
                continue
            KVCacheManagerStatus.model_validate(body["status"])
            for condition in body["status"]["conditions"]:
                assert varying_parts(condition["message"]) == [], condition
            if kstatus(body) is Kstatus.CURRENT:
                assert body["status"]["updatedReplicas"] == body["status"]["readyReplicas"] == body["spec"]["replicas"]

    asyncio.run(told())


def ready(house: House) -> bool:
    return house.condition(BOSS) == ("True", "Ready") and Subject(house.kube.body(BOSS)).settled


def is_reason(house: House, reason: str) -> bool:
    return house.condition(BOSS)[1] == reason


def spec(house: House, **fields: Any) -> None:
    house.kube.edit(BOSS, lambda body: body["spec"].update(fields))


def message(house: House, kind: str = "Ready") -> str:
    return str(Subject(house.kube.body(BOSS)).condition(kind)["message"])


def deleted(house: House) -> list[str]:
    return [write.removeprefix("delete Pod ") for write in house.kube.writes if write.startswith("delete Pod")]


def events(house: House, reason: str) -> list[str]:
    return [event.message for event in house.kube.events if event.about == BOSS and event.reason == reason]


def sizes(house: House) -> int:
    return int(house.kube.body(SET)["spec"]["replicas"])


def test_followers_go_first_the_leader_is_asked_and_goes_last() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        before = house.status(BOSS)
        assert (before["replicas"], before["readyReplicas"], before["updatedReplicas"]) == (3, 3, 3)
        assert before["leader"]["pod"] == "demo-0"
        spec(house, image="kvcm:2")
        downs: list[int] = []
        while not ready(house):
            await house.beat()
            downs.append(3 - sum(ready_pod(house, number) for number in range(3)))
            assert len(downs) < 60
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]
        assert max(downs) == 1
        assert nodes.demoted == ["demo-0"]
        assert nodes.history == ["demo-0", "demo-1"]
        after = house.status(BOSS)
        assert (after["updatedReplicas"], after["version"]) == (3, "kvcm:2")
        assert after["leader"] == {"pod": "demo-1", "nodeId": "demo-1", "epoch": 2, "since": after["leader"]["since"]}
        assert "handover" not in after
        assert events(house, "RollingOut")[1:] == [f"replacing pod demo-{number} by one with the new settings and volumes" for number in (2, 1, 0)]
        assert [text for text in events(house, "HandingOver") if "asking" in text] == [
            "asking pod demo-0 to give up leadership before it is replaced or stopped"
        ]

    run(story)


def test_when_all_is_well_nothing_is_written() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        spec(house, image="kvcm:2")
        await house.beats(partial(ready, house))
        before = house.kube.version
        house.restart()
        for _ in range(10):
            await house.beat(30)
        assert house.kube.version == before

    run(story)


def test_the_status_names_a_new_leader_and_says_when_there_is_none() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        for node in nodes.by_name.values():
            node.follows = True
        nodes.depose()
        await house.beat()
        assert house.condition(BOSS) == ("False", "NoLeader")
        assert house.condition(BOSS, "Available") == ("False", "NoLeader")
        assert "leader" not in house.status(BOSS)
        nodes.by_name["demo-2"].follows = False
        await house.beats(partial(ready, house))
        leader = house.status(BOSS)["leader"]
        assert (leader["pod"], leader["epoch"]) == ("demo-2", 2)
        assert deleted(house) == []

    run(story)


def ready_pod(house: House, number: int) -> bool:
    ref = Ref("Pod", "default", f"demo-{number}")
    if not house.kube.has(ref):
        return False
    body = house.kube.body(ref)
    return "deletionTimestamp" not in body["metadata"] and any(one["status"] == "True" for one in body["status"].get("conditions", []))


def test_a_bad_image_stops_at_the_first_follower_and_a_better_one_goes_on_there() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        house.cluster.missing_images.add("kvcm:typo")
        spec(house, image="kvcm:typo")
        await house.beats(partial(is_reason, house, "RollOutHalted"))
        told = "pod demo-2 does not become ready: its image cannot be fetched; no other pod is replaced before it does"
        assert message(house) == told
        assert house.condition(BOSS, "Progressing") == ("False", "RollOutHalted")
        assert house.condition(BOSS, "Available") == ("True", "Serving")
        for _ in range(20):
            await house.beat(30)
        assert deleted(house) == ["demo-2"]
        assert [event.type for event in house.kube.events if event.reason == "RollOutHalted"] == ["Warning"]
        spec(house, image="kvcm:2")
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-2", "demo-1", "demo-0"]
        assert nodes.history == ["demo-0", "demo-1"]

    run(story)


def test_going_back_to_the_old_image_touches_no_healthy_pod() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        house.cluster.missing_images.add("kvcm:typo")
        spec(house, image="kvcm:typo")
        await house.beats(partial(is_reason, house, "RollOutHalted"))
        house.kube.edit(BOSS, lambda body: body["spec"].pop("image"))
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-2"]
        assert (nodes.history, nodes.demoted) == (["demo-0"], [])

    run(story)


def test_a_leader_that_nobody_follows_keeps_its_pod_and_is_asked_ever_more_rarely() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        for name in ("demo-1", "demo-2"):
            nodes.by_name[name].follows = True
        nodes.on_start = lambda node: setattr(node, "follows", True)
        spec(house, image="kvcm:2")
        await house.beats(partial(is_reason, house, "HandoverFailed"))
        assert house.condition(BOSS, "Progressing") == ("False", "HandoverFailed")
        for _ in range(120):
            await house.beat(5)
        assert deleted(house) == ["demo-2", "demo-1"]
        assert 4 <= len(nodes.demoted) <= 7
        assert set(nodes.demoted) == {"demo-0"}
        assert house.status(BOSS)["handover"]["attempts"] == len(nodes.demoted)
        assert is_reason(house, "HandoverFailed")
        assert house.reasons(BOSS).count("HandoverFailed") == 1
        nodes.by_name["demo-2"].follows = False
        await house.beat(500)
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]
        assert nodes.leader == "demo-2"

    run(story)


def test_the_next_pod_waits_until_the_last_one_could_take_over_at_once() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        nodes.on_start = lambda node: setattr(node, "filling", True)
        spec(house, image="kvcm:2")
        for _ in range(30):
            await house.beat(5)
        assert deleted(house) == ["demo-2"]
        assert message(house) == "a follower still reads block metadata, so it could not take over at once; the next pod goes after that"
        nodes.on_start = lambda node: None
        nodes.by_name["demo-2"].filling = False
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]

    run(story)


def test_a_lost_answer_to_the_demotion_is_looked_at_and_not_assumed() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        asked: list[str] = []

        async def lose(what: str) -> None:
            if what == "leader_demote":
                asked.append(what)
                if len(asked) == 1:
                    raise OutcomeUnknown("no answer")

        house.directory.on_call = lose
        spec(house, image="kvcm:2")
        await house.beats(partial(ready, house))
        assert len(asked) == 2, "the first never arrived, so the leader is asked again after a while"
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]
        assert nodes.demoted == ["demo-0"]

    run(story)


def test_while_nobody_tells_who_leads_no_healthy_pod_goes() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        for node in nodes.by_name.values():
            node.silent = True
        spec(house, image="kvcm:2")
        for _ in range(30):
            await house.beat()
        assert deleted(house) == []
        assert house.condition(BOSS) == ("False", "RollingOut")
        assert message(house) == "the next pod is not replaced yet: not every pod tells who leads, and none that does names a leader"
        for node in nodes.by_name.values():
            node.silent = False
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]

    run(story)


def test_a_leader_that_changes_by_itself_meanwhile_is_the_one_that_goes_last() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        spec(house, image="kvcm:2")
        await house.beats(lambda: deleted(house) == ["demo-2"])
        nodes.elect("demo-1")
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-0", "demo-1"]
        assert nodes.demoted == ["demo-1"]

    run(story)


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


def test_the_service_keeps_its_registry_through_a_roll_out() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        fast, chat = house.kube.put(storage()), house.kube.put(group())
        await house.beats(lambda: house.condition(chat) == ("True", "Ready"))
        spec(house, image="kvcm:2")
        await house.beats(partial(ready, house))
        await house.beats(lambda: house.condition(fast) == house.condition(chat) == ("True", "Ready"))
        assert nodes.registry.calls == ["add_storage fast", "create_group chat"]
        assert house.status(BOSS)["counts"] == {"storages": 1, "groups": 1, "instances": 0}

    run(story)


def test_all_pods_go_with_the_manager_and_nobody_is_asked() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        house.kube.mark_deleted(BOSS)
        await house.beats(lambda: house.kube.refs("Pod") == [])
        assert nodes.demoted == []
        assert not house.kube.has(BOSS)

    run(story)
