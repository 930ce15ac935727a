"""Roll-outs of a manager with three pods: followers first, the leader last and once, and what is said when something is in the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest

from kvcm.client.errors import AccessDenied
from kvcm.common.errors import OutcomeUnknown
from kvcm_operator.admin import Silent
from kvcm_operator.testing_house import House, group, storage
from kvcm_operator.testing_nodes import Nodes
from kvcm_operator.testing_several import BOSS, SET, deleted, events, is_reason, message, ready, ready_pod, run, spec
from kvcm_operator.world import Json, Ref

pytestmark = pytest.mark.scenario


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


def test_a_leader_that_never_comes_to_serving_does_not_keep_the_remedy_away() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        nodes.by_name["demo-1"].stuck = True
        nodes.elect("demo-1", serves=False)
        await house.beat()
        assert house.condition(BOSS) == ("False", "NoLeader")
        spec(house, image="kvcm:2")
        for _ in range(10):
            await house.beat()
        assert deleted(house) == [], "it may be about to serve"
        assert message(house) == "the next pod is not replaced yet: the pod that leads does not serve yet, or does not answer"
        await house.beats(partial(ready, house), at_most=200)
        assert deleted(house) == ["demo-2", "demo-0", "demo-1"]
        assert nodes.demoted == ["demo-1"]

    run(story)


def test_a_leader_that_cannot_be_asked_is_named_and_keeps_its_pod() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        async def refuse(what: str) -> None:
            if what == "leader_demote":
                raise AccessDenied("another token")

        house.directory.on_call = refuse
        spec(house, image="kvcm:2")
        await house.beats(lambda: "cannot be asked" in message(house))
        assert message(house) == "pod demo-0 leads and cannot be asked to give that up: the manager does not accept the operator's token"
        for _ in range(20):
            await house.beat(10)
        assert "handover" not in house.status(BOSS), "nobody was asked, so nobody has to be patient"
        house.directory.on_call = None
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]
        assert nodes.demoted == ["demo-0"]

    run(story)


def test_a_manager_that_cannot_be_opened_at_all_is_not_touched() -> None:
    """The Secret with the token is away, say."""

    async def story(house: House, nodes: Nodes) -> None:
        def closed(doors: object, on_call: object) -> AbstractAsyncContextManager[Sequence[Any]]:
            raise Silent("the Secret demo-admin-token does not exist")

        real = nodes.connect
        nodes.connect = closed  # type: ignore[method-assign]
        spec(house, image="kvcm:2")
        for _ in range(20):
            await house.beat()
        assert deleted(house) == []
        assert is_reason(house, "RollingOut")
        nodes.connect = real  # type: ignore[method-assign]
        await house.beats(partial(ready, house))

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


def test_a_pod_made_while_somebody_had_changed_the_set_by_hand_is_replaced() -> None:
    """`kubectl set image` on the StatefulSet while the operator is away: the pod bears the operator's hash and runs something else."""

    async def story(house: House, nodes: Nodes) -> None:
        house.kube.edit(SET, lambda body: body["spec"]["template"]["spec"]["containers"][0].update(image="kvcm:by-hand"))
        house.kube.mark_deleted(Ref("Pod", "default", "demo-1"))
        for _ in range(4):
            house.cluster.step()
        assert house.kube.body(Ref("Pod", "default", "demo-1"))["spec"]["containers"][0]["image"] == "kvcm:by-hand"
        house.kube.writes.clear()
        await house.beat()
        await house.beats(partial(ready, house))
        images = {house.kube.body(Ref("Pod", "default", f"demo-{number}"))["spec"]["containers"][0]["image"] for number in range(3)}
        assert images == {"kvcm:test"}
        assert deleted(house) == ["demo-1"], "the others never had anything else"
        assert nodes.demoted == []

    run(story)


def test_somebody_who_keeps_changing_the_set_by_hand_costs_no_pod() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        real, hand = house.kube.replace, iter(range(1, 100))

        async def replaced(body: Json) -> None:
            """As soon as the operator has put it right it is wrong again, and the set's controller has seen it."""
            await real(body)
            if body["kind"] == "StatefulSet":
                house.kube.edit(SET, lambda body: body["spec"]["template"]["spec"]["containers"][0].update(image=f"kvcm:by-hand-{next(hand)}"))
                house.cluster.step()

        house.kube.replace = replaced  # type: ignore[method-assign]
        house.kube.edit(SET, lambda body: body["spec"]["template"]["spec"]["containers"][0].update(image="kvcm:by-hand"))
        for _ in range(10):
            await house.beat()
        assert next(hand) > 5
        assert deleted(house) == []
        house.kube.replace = real  # type: ignore[method-assign]
        await house.beats(partial(ready, house))
        assert deleted(house) == []

    run(story)
