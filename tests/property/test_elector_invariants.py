"""Thousands of random schedules of several electors. `World` checks I-LE-1, I-LE-2, I-LE-3, I-LE-7, I-LE-8 and I-LE-9 after every step of each of them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.coordination.elector import ElectorSettings, Role
from kvcm.coordination.testing_world import World

pytestmark = pytest.mark.property

NAMES = ("a", "b", "c")
LEASE_MS, INTERVAL_MS = 1000, 100
STEPS = (
    *("tick", "reach", "answer") * 6,
    *("fail", "late", "good", "good", "bad", "demote", "pause", "resume", "resume", "write", "write", "land", "land", "pass", "pass", "pass"),
)


def house(ban_ms: int = 0) -> World:
    world = World()
    for name in NAMES:
        world.add(ElectorSettings(name, LEASE_MS, INTERVAL_MS, ban_ms, promote_backoff_ms=300, promote_backoff_max_ms=1000, campaign_retry_max_ms=500))
    return world


def step(world: World, what: str, name: str, amount: int) -> None:
    """`amount` from 0 to 9: how much time, or which way."""
    match what:
        case "tick":
            world.tick(name)
        case "reach":
            world.reach(name)
        case "answer":
            world.answer(name)
        case "fail":
            world.fail(name)
        case "late":
            world.arrive_late()
        case "good":
            world.finish(name, True)
        case "bad":
            world.finish(name, False)
        case "demote" if amount < 3:
            world.demote(name)
        case "stop":
            world.stop(name)
        case "lose":
            world.lose_lock()
        case "pause" if amount < 3:
            world.nodes[name].paused = True
        case "resume":
            world.nodes[name].paused = False
        case "write":
            world.write(name)
        case "land":
            world.land(name)
        case "pass":
            world.advance((10_000, 20_000, 50_000, 90_000, 100_000, 100_000, 150_000, 300_000, 900_000, 1_200_000)[amount])


def play(world: World, luck: Random, steps: int, more: tuple[str, ...] = ()) -> None:
    choices = STEPS + more
    for _ in range(steps):
        step(world, luck.choice(choices), luck.choice(NAMES), luck.randrange(10))


def go_well(world: World, us: int, promotions: bool = True) -> None:
    """From here on everything works, or every promotion fails."""
    end = world.now + us
    for node in world.nodes.values():
        node.paused = False
    while world.now < end:
        world.advance(INTERVAL_MS * 1000)
        for name in NAMES:
            world.tick(name)
            world.reach(name)
            world.answer(name)
            node = world.nodes[name]
            world.finish(name, promotions or node.running == "demote")


def roles(world: World) -> list[Role]:
    return [node.elector.role for node in world.nodes.values()]


@pytest.mark.parametrize("block", range(4))
def test_I_LE_1_2_3_7_8_9_hold_and_I_LE_5_a_leader_serves_in_the_end(block: int) -> None:
    led, refused = 0, 0
    for seed in range(block * 350, block * 350 + 350):
        luck = Random(seed)
        world = house(ban_ms=luck.choice((0, 0, 250, 1000)))
        play(world, luck, 180)
        led += len(world.written)
        refused += sum(len(node.held_writes) for node in world.nodes.values())
        go_well(world, 5_000_000)
        assert sorted(role.value for role in roles(world)) == ["follower", "follower", "leader"], "I-LE-5"
        assert len(world.may_serve()) == 1, "I-LE-5"
    assert led > 0, "the schedules are of no use when nothing is ever written"
    assert refused > 0


def test_I_LE_4_without_the_lock_every_node_ends_as_a_follower() -> None:
    for seed in range(250):
        luck = Random(seed)
        world = house()
        play(world, luck, 200)
        # Somebody else has it for good, e.g. a manager of another make.
        world.lose_lock()
        world.add(ElectorSettings("foreign", lease_ms=3_600_000))
        world.tick("foreign")
        world.reach("foreign")
        go_well(world, 4_000_000)
        assert [world.nodes[name].elector.role for name in NAMES] == [Role.FOLLOWER] * 3, "I-LE-4"
        assert world.may_serve() == []
        assert not any(world.nodes[name].elector.held for name in NAMES)


def test_I_LE_6_a_promotion_that_fails_gives_the_lease_back() -> None:
    for seed in range(250):
        luck = Random(seed)
        world = house()
        play(world, luck, 100)
        go_well(world, 4_000_000, promotions=False)
        # Whoever leads by now was promoted before; a demotion, and from then on no promotion goes well.
        for name in NAMES:
            world.demote(name)
        go_well(world, 4_000_000, promotions=False)
        assert world.may_serve() == []
        assert Role.LEADER not in roles(world)
        for name in NAMES:
            world.stop(name)
        go_well(world, 1_500_000, promotions=False)
        assert world.holder() == "", "I-LE-6"
        assert roles(world) == [Role.FOLLOWER] * 3


def test_I_LE_1_after_the_coordinator_forgot_who_leads_at_most_one_renewal_goes_by() -> None:
    for seed in range(250):
        luck = Random(seed)
        world = house()
        play(world, luck, 180, more=("lose",))
        go_well(world, 5_000_000)
        assert len(world.may_serve()) == 1


def test_stopping_ends_every_node_with_the_lease_given_back() -> None:
    for seed in range(250):
        luck = Random(seed)
        world = house()
        play(world, luck, 150, more=("stop",))
        for name in NAMES:
            world.nodes[name].paused = False
            world.stop(name)
        go_well(world, 2_000_000)
        assert all(node.elector.stopped for node in world.nodes.values())
        assert roles(world) == [Role.FOLLOWER] * 3
        assert all(node.running == "" for node in world.nodes.values())


SCHEDULE = st.lists(st.tuples(st.sampled_from(sorted({*STEPS, "lose", "stop"})), st.sampled_from(NAMES), st.integers(0, 9)), max_size=80)


@settings(deadline=None, max_examples=150)
@given(SCHEDULE)
def test_I_LE_1_2_3_7_8_9_hold_under_any_schedule(schedule: list[tuple[str, str, int]]) -> None:
    """The same by hypothesis, which makes a schedule that breaks something short."""
    world = house(ban_ms=250)
    for what, name, amount in schedule:
        step(world, what, name, amount)
    assert len(world.may_serve()) <= len(NAMES)
