"""Whatever the order of applying and of passes: the same end, and nothing is written once it is reached (design D8, models of the status contract)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.client.admin_testing import FakeAdmin
from kvcm.resources.kstatus import Kstatus, kstatus
from kvcm_operator.engine import merge_patch
from kvcm_operator.subject import Subject
from kvcm_operator.testing import merge
from kvcm_operator.testing_house import House, group, manager, storage
from kvcm_operator.world import GROUP, STORAGE, Json, Ref

pytestmark = pytest.mark.property

RESOURCES = {
    "manager": manager(),
    "fast": storage("fast", name="nfs_01"),
    "slow": storage("slow", enabled=False),
    "chat": group("chat", storages=["fast", "slow"]),
    "code": group("code", storages=["slow"]),
}
STEPS = [Ref(STORAGE, "default", "fast"), Ref(STORAGE, "default", "slow"), Ref(GROUP, "default", "chat"), Ref(GROUP, "default", "code")]


def set_spec(body: Json, **fields: Any) -> None:
    body["spec"].update(fields)


def end_of(house: House) -> Any:
    facts = {ref: (house.condition(ref), house.condition(ref, "Synced"), house.condition(ref, "Stalled")[0]) for ref in STEPS}
    return facts, house.admin.storages, house.admin.groups


async def settled_house() -> House:
    house = House()
    for body in RESOURCES.values():
        house.kube.put(body)
    await house.settle()
    return house


def never_current_too_early(house: House) -> None:
    for ref, body in house.kube.statuses:
        subject = Subject(body)
        if kstatus(body) is Kstatus.CURRENT:
            ready = subject.condition("Ready")
            assert ready["status"] == "True", ref
            assert ready["observedGeneration"] == subject.status["observedGeneration"] == subject.generation, ref


@settings(deadline=None, max_examples=20)
@given(order=st.permutations(list(RESOURCES)), passes=st.lists(st.lists(st.sampled_from(STEPS), max_size=4), min_size=5, max_size=5))
def test_I_OP_1_any_order_of_apply_and_passes_has_the_same_end(order: list[str], passes: list[list[Ref]]) -> None:
    async def story() -> None:
        expected = end_of(await settled_house())
        house = House()
        for name, between in zip(order, passes, strict=True):
            house.kube.put(RESOURCES[name])
            for ref in between:
                await house.once(ref)
        await house.settle()
        assert end_of(house) == expected
        writes, calls, events = len(house.kube.writes), list(house.admin.calls), len(house.kube.events)
        for ref in STEPS:
            await house.once(ref)
        assert (len(house.kube.writes), house.admin.calls, len(house.kube.events)) == (writes, calls, events)
        never_current_too_early(house)

    asyncio.run(story())


CHANGES = st.sampled_from(["edit storage", "edit group", "wipe", "disable behind", "down", "up", "time", "pause", "resume"])


@settings(deadline=None, max_examples=20)
@given(changes=st.lists(st.tuples(CHANGES, st.lists(st.sampled_from(STEPS), max_size=3)), max_size=12))
def test_I_OP_2_no_status_of_any_history_is_current_for_an_unprocessed_generation(changes: list[tuple[str, list[Ref]]]) -> None:
    async def story() -> None:
        house = await settled_house()
        key = ("default", "demo")
        for number, (change, passes) in enumerate(changes):
            match change:
                case "edit storage":
                    house.kube.edit(STEPS[1], partial(set_spec, enabled=number % 2 == 0))
                case "edit group":
                    house.kube.edit(STEPS[2], partial(set_spec, maxInstances=number + 1))
                case "wipe":
                    house.admin = house.directory.managers[key] = FakeAdmin()
                case "disable behind" if "nfs_01" in house.admin.storages:
                    await house.admin.disable_storage("nfs_01")
                case "down":
                    house.directory.down.add(key)
                case "up":
                    house.directory.down.discard(key)
                case "time":
                    house.clock.advance_us(20_000_000)
                case "pause":
                    house.kube.annotate(STEPS[0], "kvcm.io/paused", "true")
                case "resume":
                    house.kube.annotate(STEPS[0], "kvcm.io/paused", None)
            for ref in passes:
                await house.once(ref)
        never_current_too_early(house)
        house.directory.down.discard(key)
        house.kube.annotate(STEPS[0], "kvcm.io/paused", None)
        await house.settle()
        for ref in STEPS:
            assert house.condition(ref) == ("True", "Ready")
        assert house.admin.groups["chat"].max_instance_count == house.kube.body(STEPS[2])["spec"].get("maxInstances", 100)

    asyncio.run(story())


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON_VALUES, max_size=3)


@settings(deadline=None, max_examples=100)
@given(old=OBJECTS, new=OBJECTS)
def test_I_OP_3_the_patch_turns_old_into_new_and_is_empty_only_for_equals(old: Json, new: Json) -> None:
    patch = merge_patch(old, new)
    assert merge(old, patch) == new
    assert (patch == {}) == (old == new)
