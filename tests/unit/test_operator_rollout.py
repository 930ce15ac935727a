"""What is read off pods, who leads by their word, when a leader may be asked, how many pods there may be, and the one next step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from kvcm.client.admin_types import ClusterInfo, CopyState, NodeCopies, NodeEndpoint, NodeRole, NodeState
from kvcm.resources.conditions import Reason
from kvcm_operator.children_pods import CONFIG_HASH
from kvcm_operator.move import moving_verdict
from kvcm_operator.rollout import plan
from kvcm_operator.rollout_fleet import Fleet, Node, fleet_of
from kvcm_operator.rollout_handover import Handover, remembered, turn
from kvcm_operator.rollout_leader import CONTESTED, SILENT, Leadership, aged, leadership
from kvcm_operator.rollout_warm import cold
from kvcm_operator.scale import Size, size
from kvcm_operator.subject import timestamp
from kvcm_operator.world import Json

pytestmark = pytest.mark.unit

NOW = 1_800_000_000_000_000
LEADS_0 = Leadership(known=True, pod="demo-0", epoch=4, serves=True)


# -- pods -----------------------------------------------------------------------------------------------------------------------------------------


def pod(name: str, config: str = "new", *, ready: bool = True, leaving: bool = False, **status: Any) -> Json:
    meta: Json = {"name": name, "uid": name, "annotations": {CONFIG_HASH: config}, "creationTimestamp": timestamp(NOW - 60_000_000)}
    if leaving:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": str(ready)}, *status.pop("more", [])]
    return {"metadata": meta, "spec": {"containers": [{"name": "manager", "image": f"kvcm:{config}"}]}, "status": {"conditions": conditions, **status}}


def the_set(observed: int | None = 2, replicas: int = 3) -> Json:
    return {
        "metadata": {"name": "demo", "generation": 2},
        "spec": {"replicas": replicas, "template": {"metadata": {"annotations": {CONFIG_HASH: "new"}}}},
        "status": {"observedGeneration": observed} if observed is not None else {},
    }


def test_pods_are_read_in_the_order_of_their_numbers_and_strangers_are_left_out() -> None:
    strangers = [pod("demo-copy"), pod("demo-01"), pod("demo-0-debug"), pod("other-1"), pod("demo-")]
    found = fleet_of(the_set(), [pod("demo-10"), pod("demo-2", "old", ready=False, podIP="10.0.0.7"), pod("demo-0", leaving=True), *strangers], NOW)
    assert [node.name for node in found.nodes] == ["demo-0", "demo-2", "demo-10"]
    assert [node.name for node in found.living] == ["demo-2", "demo-10"]
    assert (found.size, found.seen, found.ready, found.updated, found.image) == (3, True, 1, 1, None)
    assert (found.nodes[1].outdated, found.nodes[1].host) == (True, "10.0.0.7")


@pytest.mark.parametrize(("observed", "seen"), [(2, True), (3, True), (1, False), (None, False)])
def test_the_set_has_seen_a_template_when_it_says_so(observed: int | None, seen: bool) -> None:
    assert fleet_of(the_set(observed), [], NOW).seen is seen


def waiting(reason: str) -> Json:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({}, ""),
        (waiting("ContainerCreating"), ""),
        (waiting("ErrImagePull"), "its image cannot be fetched"),
        (waiting("ImagePullBackOff"), "its image cannot be fetched"),
        (waiting("CrashLoopBackOff"), "its container keeps ending"),
        ({"containerStatuses": [{"restartCount": 4, "state": {"running": {}}}]}, "its container keeps ending"),
        ({"containerStatuses": [{"restartCount": 1, "state": {"running": {}}}]}, ""),
        ({"initContainerStatuses": [{"state": {"waiting": {"reason": "CreateContainerConfigError"}}}]}, "its container cannot be made"),
        ({"more": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}, "no node can take it"),
        ({"phase": "Failed"}, "it was ended"),
    ],
)
def test_what_keeps_a_pod_from_being_ready_is_said_in_words_that_stay(status: Json, trouble: str) -> None:
    (node,) = fleet_of(the_set(), [pod("demo-0", ready=False, **status)], NOW).nodes
    assert node.trouble == trouble
    (late,) = fleet_of(the_set(), [pod("demo-0", ready=False, **status)], NOW + 400_000_000).nodes
    assert late.trouble == (trouble or "it takes unusually long; its log may tell why")
    (ready,) = fleet_of(the_set(), [pod("demo-0", ready=True, **status)], NOW).nodes
    assert ready.trouble == ""


def test_a_pod_that_does_not_stop_is_named() -> None:
    pods = [pod("demo-0", "old"), pod("demo-1", "old", leaving=True)]
    pods[1]["metadata"]["deletionTimestamp"] = timestamp(NOW)
    now, later = (fleet_of(the_set(replicas=2), pods, NOW + seconds * 1_000_000) for seconds in (10, 70))
    assert plan(2, now, LEADS_0, None, NOW).reason is Reason.ROLLING_OUT
    found = plan(2, later, LEADS_0, None, NOW)
    assert found.reason is Reason.ROLL_OUT_HALTED
    assert found.message == "pod demo-1 does not stop: its end is overdue; its node may be away; no other pod is replaced before it does"


# -- who leads ------------------------------------------------------------------------------------------------------------------------------------


def node(number: int, *, ready: bool = True, outdated: bool = False, stopping: bool = False, trouble: str = "") -> Node:
    return Node(f"demo-{number}", number, f"uid-{number}", f"10.0.0.{number}", "", ready, outdated, stopping, trouble)


def fleet(*nodes: Node, size: int | None = None, seen: bool = True) -> Fleet:
    return Fleet(exists=True, size=len(nodes) if size is None else size, seen=seen, nodes=nodes)


def word(number: int, leader: str = "", epoch: int = 0, role: NodeRole = NodeRole.FOLLOWER) -> ClusterInfo:
    name = f"demo-{number}"
    own = NodeState(NodeEndpoint(name, "", 0, 0, 0, 0, ""), role, epoch if leader == name else 0)
    return ClusterInfo(name, leader, -1, None, epoch, (own,))


THREE = fleet(node(0), node(1), node(2))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([word(0, "demo-0", 4, NodeRole.LEADER), word(1, "demo-0", 4), word(2, "demo-0", 4)], LEADS_0),
        # One that was overtaken still believes in itself.
        ([word(0, "demo-0", 4, NodeRole.LEADER), word(1, "demo-1", 3, NodeRole.LEADER), word(2)], LEADS_0),
        ([word(0, "demo-0", 4, NodeRole.PROMOTING), word(1), word(2)], Leadership(known=True, pod="demo-0", epoch=4)),
        # What others say of a leader that does not answer itself may be old.
        ([word(1, "demo-0", 4), word(2, "demo-0", 4)], Leadership(known=True, pod="demo-0", epoch=4)),
        ([word(0), word(1), word(2)], Leadership(known=True)),
        ([word(0), word(2)], Leadership(known=False, why=SILENT)),
        ([], Leadership(known=False, why=SILENT)),
        ([word(0, "demo-0", 4), word(1, "demo-1", 4), word(2)], Leadership(known=False, why=CONTESTED)),
    ],
)
def test_the_newest_epoch_leads_and_silence_is_not_absence(words: list[ClusterInfo], expected: Leadership) -> None:
    assert leadership(THREE, {info.self_node_id: info for info in words}) == expected


def test_when_the_spec_names_another_place_for_leases_the_one_of_the_newest_template_counts() -> None:
    pods = fleet(node(0, outdated=True), node(1))
    words = {"demo-0": word(0, "demo-0", 1, NodeRole.LEADER), "demo-1": word(1, "demo-1", 1, NodeRole.LEADER)}
    assert leadership(pods, words) == Leadership(known=True, pod="demo-1", epoch=1, serves=True)


def test_a_pod_that_is_not_ready_need_not_answer() -> None:
    assert leadership(fleet(node(0), node(1, ready=False)), {"demo-0": word(0)}) == Leadership(known=True)


@pytest.mark.parametrize(
    ("told", "led_for_s"),
    [
        ({"pod": "demo-0", "epoch": 4, "since": timestamp(NOW - 9_000_000)}, 9.0),
        ({"pod": "demo-0", "epoch": 3, "since": timestamp(NOW - 9_000_000)}, 0.0),
        ({"pod": "demo-1", "epoch": 4, "since": timestamp(NOW - 9_000_000)}, 0.0),
        ({"pod": "demo-0", "epoch": 4, "since": "long ago"}, 0.0),
        (None, 0.0),
    ],
)
def test_how_long_a_leader_leads_is_read_off_the_status(told: Json | None, led_for_s: float) -> None:
    assert aged(LEADS_0, {"leader": told}, NOW).led_for_s == led_for_s


# -- asking ---------------------------------------------------------------------------------------------------------------------------------------


def asked(seconds_ago: float, attempts: int = 1, pod_name: str = "demo-0", epoch: int = 4) -> Handover:
    return Handover(pod_name, epoch, timestamp(NOW - round(seconds_ago * 1e6)), attempts)


@pytest.mark.parametrize(
    ("before", "ask", "failed"),
    [
        (None, True, False),
        (asked(5), False, False),
        (asked(5, epoch=3), False, True),  # it won again at once
        (asked(29), False, False),
        (asked(31), True, True),
        (asked(31, attempts=2), False, True),
        (asked(61, attempts=2), True, True),
        (asked(3599, attempts=9), False, True),
        (asked(3601, attempts=900), True, True),
        (asked(5, pod_name="demo-1"), False, False),
        (asked(-3600, attempts=2), True, True),  # the clock went back
        (Handover("demo-0", 4, "yesterday", 1), True, True),
    ],
)
def test_a_leader_is_asked_again_after_ever_longer_pauses(before: Handover | None, ask: bool, failed: bool) -> None:
    found = turn(LEADS_0, before, NOW, quick=1)
    assert (found.ask, found.failed) == (ask, failed)
    if ask:
        assert found.next == Handover("demo-0", 4, timestamp(NOW), before.attempts + 1 if before else 1)
    else:
        assert found.next == before
        assert 1 <= found.again_s <= 3600


def test_another_one_that_has_to_go_is_asked_at_once_but_not_for_ever() -> None:
    assert turn(LEADS_0, asked(1, pod_name="demo-1"), NOW, quick=2).ask
    assert not turn(LEADS_0, asked(1, attempts=2, pod_name="demo-1"), NOW, quick=2).ask


@pytest.mark.parametrize("fact", [None, {}, {"pod": 1}, {"pod": "demo-0", "epoch": "x", "askedAt": "", "attempts": 1}, "text"])
def test_a_memory_that_cannot_be_read_is_none(fact: object) -> None:
    assert remembered({"handover": fact}) is None


def test_a_memory_survives_the_status() -> None:
    before = asked(3, attempts=7)
    assert remembered({"handover": before.fact()}) == before


# -- copies ---------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "ready_for_s", "is_cold"),
    [
        (CopyState.COLD, 1.0, True),
        (CopyState.LOADING, 599.0, True),
        (CopyState.LOADING, 601.0, False),
        (CopyState.LOADING, math.inf, False),
        (CopyState.WARM, 0.0, False),
        (CopyState.UNKNOWN, 0.0, False),
        (None, 0.0, False),
    ],
)
def test_a_pod_that_still_reads_is_cold_for_a_while(state: CopyState | None, ready_for_s: float, is_cold: bool) -> None:
    pods = fleet(replace(node(0), ready_for_s=ready_for_s), replace(node(1), ready=False), replace(node(2), stopping=True))
    copies = {0: NodeCopies(state) if state is not None else None, 1: NodeCopies(CopyState.COLD), 2: NodeCopies(CopyState.COLD)}
    words = {info.self_node_id: replace(info, nodes=(replace(info.nodes[0], copies=copies[number]),)) for number, info in enumerate(map(word, range(3)))}
    assert cold(pods, words) == ({"demo-0"} if is_cold else set())


@pytest.mark.parametrize(("names", "replaced"), [((), "demo-1"), (("demo-2",), None), (("demo-0",), "demo-1"), (("demo-1",), "demo-1")])
def test_the_next_pod_goes_when_those_before_could_take_over(names: tuple[str, ...], replaced: str | None) -> None:
    found = plan(3, fleet(node(0, outdated=True), node(1, outdated=True), node(2)), LEADS_0, None, NOW, names)
    assert (found.replace.name if found.replace else None) == replaced
    assert found.reason is Reason.ROLLING_OUT


def test_how_long_a_pod_has_been_ready_is_read_off_its_condition() -> None:
    body = pod("demo-0")
    assert fleet_of(the_set(), [body], NOW).nodes[0].ready_for_s == math.inf
    body["status"]["conditions"][0]["lastTransitionTime"] = timestamp(NOW - 7_000_000)
    assert fleet_of(the_set(), [body], NOW).nodes[0].ready_for_s == 7.0


# -- sizes ----------------------------------------------------------------------------------------------------------------------------------------

FIVE = fleet(*(node(number) for number in range(5)))


@pytest.mark.parametrize(
    ("wanted", "pods", "leader", "expected"),
    [
        (7, FIVE, LEADS_0, Size(7)),
        (3, FIVE, LEADS_0, Size(3)),
        (3, FIVE, Leadership(known=True, pod="demo-4", epoch=1, serves=True), Size(5, held=True)),
        (3, FIVE, Leadership(known=True, pod="demo-3", epoch=1, serves=True), Size(4, held=True)),
        (3, FIVE, Leadership(known=True, pod="demo-2", epoch=1), Size(3)),
        (3, FIVE, Leadership(known=True), Size(5, held=True)),
        (3, FIVE, Leadership(known=False), Size(5, held=True)),
        (0, FIVE, Leadership(known=False), Size(0)),
        (3, FIVE, None, Size(3)),
        (3, fleet(*(node(number, ready=False) for number in range(5))), Leadership(known=True), Size(3)),
        (3, fleet(node(0), size=5), Leadership(known=False), Size(3)),
        (3, Fleet(exists=False, size=0, seen=False, nodes=()), Leadership(known=True), Size(3)),
    ],
)
def test_the_size_shrinks_only_past_pods_that_do_not_lead(wanted: int, pods: Fleet, leader: Leadership | None, expected: Size) -> None:
    assert size(wanted, pods, leader) == expected


# -- the next step --------------------------------------------------------------------------------------------------------------------------------


def old(number: int, *, ready: bool = True) -> Node:
    return node(number, ready=ready, outdated=True)


@pytest.mark.parametrize(
    ("pods", "leader", "reason", "replace", "demote"),
    [
        (THREE, LEADS_0, None, None, None),
        (fleet(old(0), old(1), old(2)), LEADS_0, Reason.ROLLING_OUT, "demo-2", None),
        (fleet(old(0), old(1), old(2), seen=False), LEADS_0, Reason.ROLLING_OUT, None, None),
        (fleet(old(0), old(1), node(2, stopping=True)), LEADS_0, Reason.ROLLING_OUT, None, None),
        (fleet(old(0), old(1), size=3), LEADS_0, Reason.ROLLING_OUT, None, None),
        (fleet(old(0), old(1), node(2, ready=False)), LEADS_0, Reason.ROLLING_OUT, None, None),
        (fleet(old(0), old(1), node(2, ready=False, trouble="x")), LEADS_0, Reason.ROLL_OUT_HALTED, None, None),
        (fleet(old(0), old(1, ready=False), old(2)), LEADS_0, Reason.ROLLING_OUT, "demo-1", None),
        # One that is not ready is repaired even when nobody knows who leads; but not the leader.
        (fleet(old(0), old(1, ready=False)), Leadership(known=False), Reason.ROLLING_OUT, "demo-1", None),
        (fleet(old(0, ready=False), old(1)), Leadership(True, "demo-0", 4), Reason.ROLLING_OUT, None, None),
        (fleet(old(0), node(1), node(2)), LEADS_0, Reason.HANDING_OVER, None, "demo-0"),
        (fleet(old(0), node(1), node(2)), Leadership(True, "demo-1", 5, serves=True), Reason.ROLLING_OUT, "demo-0", None),
        (fleet(old(0), node(1), node(2)), Leadership(True, "demo-1", 5), Reason.ROLLING_OUT, None, None),
        (fleet(old(0), node(1), node(2)), Leadership(True), Reason.ROLLING_OUT, None, None),
        # A leader that has to go is waited for a while, one that stays for as long as it takes.
        (fleet(old(0), node(1), node(2)), Leadership(True, "demo-0", 5, led_for_s=59), Reason.ROLLING_OUT, None, None),
        (fleet(old(0), node(1), node(2)), Leadership(True, "demo-0", 5, led_for_s=61), Reason.HANDING_OVER, None, "demo-0"),
        (fleet(old(0), node(1), node(2)), Leadership(True, "demo-1", 5, led_for_s=900), Reason.ROLLING_OUT, None, None),
        (fleet(old(0), node(1), node(2)), Leadership(False, why="?"), Reason.ROLLING_OUT, None, None),
        (fleet(old(0)), Leadership(False), Reason.ROLLING_OUT, "demo-0", None),
        (fleet(old(0), old(1)), None, Reason.ROLLING_OUT, "demo-1", None),
        (fleet(node(0), node(1, ready=False)), LEADS_0, Reason.PODS_STARTING, None, None),
        (fleet(node(0), size=2), LEADS_0, Reason.PODS_STARTING, None, None),
    ],
)
def test_one_step_at_a_time(pods: Fleet, leader: Leadership | None, reason: Reason | None, replace: str | None, demote: str | None) -> None:
    found = plan(pods.size, pods, leader, None, NOW)
    assert found.reason is reason
    assert (found.replace.name if found.replace else None) == replace
    assert (found.demote.name if found.demote else None) == demote


def test_what_was_asked_is_remembered_until_another_one_leads() -> None:
    pods = fleet(node(0, outdated=True), node(1), node(2))
    before = asked(3)
    assert plan(3, pods, Leadership(True), before, NOW).handover == before
    assert plan(3, pods, Leadership(False, why="?"), before, NOW).handover == before
    assert plan(3, pods, Leadership(True, "demo-1", 5, serves=True), before, NOW).handover is None
    assert plan(3, THREE, LEADS_0, before, NOW).handover is None


def test_a_smaller_size_asks_the_leader_that_has_to_go() -> None:
    leads_4 = Leadership(True, "demo-4", 2, serves=True)
    found = plan(3, FIVE, leads_4, None, NOW)
    assert (found.reason, found.demote) == (Reason.HANDING_OVER, FIVE.nodes[4])
    # Pods that go are not replaced before, and need not be ready.
    mixed = fleet(*(node(number, outdated=number > 2, ready=number != 3) for number in range(5)))
    assert plan(3, mixed, leads_4, None, NOW).demote == mixed.nodes[4]
    # One that stays and is not ready cannot take over.
    weak = fleet(*(node(number, ready=number > 2) for number in range(5)))
    assert plan(3, weak, leads_4, None, NOW).demote is None


def test_a_pod_that_does_not_stop_is_named_whatever_it_is_stopped_for() -> None:
    pods = [pod("demo-0"), pod("demo-1"), pod("demo-2", leaving=True, ready=False)]
    found = plan(2, fleet_of(the_set(replicas=2), pods, NOW), LEADS_0, None, NOW)
    assert (found.reason, found.replace) == (Reason.SCALING_DOWN, None)
    assert found.message.endswith("; pod demo-2 does not stop: its end is overdue; its node may be away")
    assert moving_verdict(fleet_of(the_set(), pods, NOW)).message.endswith("; pod demo-2 does not stop: its end is overdue; its node may be away")


def test_a_pod_that_was_made_from_a_changed_set_is_an_old_one_once_the_sets_controller_tells() -> None:
    body, one = the_set(), pod("demo-0")
    for revision, label, outdated in [("", "a", False), ("a", "", False), ("a", "a", False), ("a", "b", True)]:
        body["status"]["updateRevision"], one["metadata"]["labels"] = revision, {"controller-revision-hash": label}
        assert fleet_of(body, [one], NOW).nodes[0].outdated is outdated
