"""Whatever pods, elections and users do meanwhile: the operator takes one pod at a time, never a leader, and gets there when they stop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm_operator.testing_rollout import ModelCluster

pytestmark = pytest.mark.property

REPLICAS = st.integers(1, 5)
ORDINAL = st.integers(0, 4)
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["crash", "remove", "elect", "silent", "lagging", "follows", "unready", "cold", "stuck"]), ORDINAL),
    st.tuples(st.just("scale"), st.integers(0, 5)),
    st.tuples(
        st.sampled_from(["change", "change to a bad one", "depose", "step", "operate", "operate", "operate and forget", "lose the demotion"]), st.just(0)
    ),
)


def happen(model: ModelCluster, what: str, number: int) -> None:
    pod = model.pods.get(number)
    match what:
        case "change":
            model.change()
        case "change to a bad one":
            model.change()
            model.bad.add(model.revision)
        case "depose":
            model.depose()
        case "scale":
            model.wanted = number
        case "step":
            model.step(7.0)
        case "operate":
            model.operate()
        case "operate and forget":
            model.operate(forgets=True)
        case "lose the demotion":
            model.operate(demotion_lost=True)
        case _ if pod is None or pod.stopping:
            return
        case "crash":
            model.crash(number)
        case "remove":
            model.remove(number)
        case "elect" if pod.ready:
            model.elect(number)
        case "silent":
            pod.silent = not pod.silent
        case "lagging":
            pod.lagging = not pod.lagging
        case "follows":
            pod.follows = not pod.follows
        case "cold":
            pod.cold = not pod.cold
        case "stuck":
            pod.stuck = not pod.stuck
        case "unready":
            pod.ready = False


def come_to_rest(model: ModelCluster, rounds: int = 80) -> None:
    for pod in model.pods.values():
        pod.silent = pod.lagging = pod.follows = pod.broken = pod.cold = False
        pod.stuck = pod.stuck and pod.revision != model.revision
    if model.revision in model.bad:
        model.change()
    for _ in range(rounds):
        model.step(10.0)
        for _ in range(2):
            model.operate()
        if model.done():
            return
    raise AssertionError(f"still at {model.plan} with {model.pods}")


@settings(deadline=None, max_examples=80)
@given(replicas=REPLICAS, events=st.lists(EVENTS, max_size=40))
def test_I_OP_4_one_pod_at_a_time_never_the_leader_and_it_converges(replicas: int, events: list[tuple[str, int]]) -> None:
    model = ModelCluster.settled(replicas)
    for what, number in events:
        happen(model, what, number)
    assert model.violations == []
    come_to_rest(model)
    assert model.violations == []


@settings(deadline=None, max_examples=40)
@given(replicas=st.integers(2, 6), leader=st.integers(0, 5), passes=st.lists(st.integers(0, 3), min_size=1, max_size=60), forgets=st.booleans())
def test_I_OP_5_every_pod_goes_once_and_the_leader_last(replicas: int, leader: int, passes: list[int], forgets: bool) -> None:
    model = ModelCluster.settled(replicas, leader % replicas)
    first = model.leader
    model.change()
    for number in passes:
        for _ in range(number):
            model.operate(forgets=forgets)
        model.step()
    come_to_rest(model)
    names = [name for name, _ in model.deleted]
    assert model.violations == []
    assert sorted(names) == sorted(f"demo-{number}" for number in range(replicas))
    assert names[-1] == first
    assert set(model.demoted) == {first}
    assert model.leader != first


@settings(deadline=None, max_examples=40)
@given(before=st.integers(2, 6), after=st.integers(1, 5), leader=st.integers(0, 5), favourites=st.lists(ORDINAL, max_size=4), change=st.booleans())
def test_I_OP_6_a_leader_that_has_to_go_hands_over_before(before: int, after: int, leader: int, favourites: list[int], change: bool) -> None:
    """Also when another one that has to go wins first."""
    model = ModelCluster.settled(before, leader % before)
    model.wanted = min(after, before)
    if change:
        model.change()
    for number in favourites:
        model.operate()
        model.step()
        pod = model.pods.get(number)
        if pod is not None and pod.ready and model.wall_us >= pod.kept_out_until_us:
            model.elect(number)
    come_to_rest(model)
    assert model.violations == []
    assert int(model.leader.rpartition("-")[2]) < model.wanted
