"""A manager, its storage and its group deleted at once, the passes over them interleaved at every call: nothing is left behind, and nothing waits for ever."""

from __future__ import annotations

import asyncio
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm_operator import reconcile_group, reconcile_manager, reconcile_storage
from kvcm_operator.engine import Reconcile
from kvcm_operator.testing_house import House, group, manager, storage
from kvcm_operator.world import GROUP, MANAGER, STORAGE, Ref

pytestmark = pytest.mark.property

MAX_PASSES = 400


@settings(deadline=None, max_examples=150)
@given(order=st.permutations(range(3)), waits=st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_I_OP_4_all_deleted_at_once_go_with_their_entries_whatever_the_interleaving(order: list[int], waits: list[int]) -> None:
    async def story() -> None:
        reconcilers: dict[str, Reconcile] = {STORAGE: reconcile_storage.reconcile, GROUP: reconcile_group.reconcile}
        house = House(reconcilers)
        refs = [house.kube.put(body) for body in (manager(), storage(deletionPolicy="Delete"), group(deletionPolicy="Delete"))]
        await house.settle()
        reconcilers[MANAGER] = reconcile_manager.reconcile
        house.restart()
        turns = cycle(waits)

        async def yields(_: str) -> None:
            for _turn in range(next(turns)):
                await asyncio.sleep(0)

        house.kube.on_call = house.directory.on_call = yields
        for ref in refs:
            house.kube.mark_deleted(ref)

        async def passes(ref: Ref) -> None:
            for _ in range(MAX_PASSES):
                await house.once(ref)
                if not house.kube.has(ref):
                    return
                await asyncio.sleep(0)

        await asyncio.gather(*(passes(refs[number]) for number in order))
        assert [ref for ref in refs if house.kube.has(ref)] == []
        assert (house.admin.storages, house.admin.groups) == ({}, {})
        assert [event.reason for event in house.kube.events if event.reason == "OrphanedOnDelete"] == []

    asyncio.run(story())


def test_a_manager_that_is_deleted_first_waits_once_for_what_may_be_deleted_next() -> None:
    async def story() -> None:
        reconcilers: dict[str, Reconcile] = {STORAGE: reconcile_storage.reconcile, GROUP: reconcile_group.reconcile}
        house = House(reconcilers)
        boss, fast, chat = (house.kube.put(body) for body in (manager(), storage(deletionPolicy="Delete"), group(deletionPolicy="Delete")))
        await house.settle()
        reconcilers[MANAGER] = reconcile_manager.reconcile
        house.restart()
        house.kube.mark_deleted(boss)
        await house.once(boss)
        assert house.kube.has(boss)
        house.kube.mark_deleted(fast)
        await house.once(fast)
        assert house.condition(fast) == ("False", "InUse")
        house.kube.mark_deleted(chat)
        await house.settle()
        assert not any(house.kube.has(ref) for ref in (boss, fast, chat))
        assert (house.admin.storages, house.admin.groups) == ({}, {})
        assert house.reasons(fast)[-1] == "InUse"

    asyncio.run(story())


def test_a_manager_that_alone_is_deleted_waits_no_longer_than_that() -> None:
    async def story() -> None:
        reconcilers: dict[str, Reconcile] = {STORAGE: reconcile_storage.reconcile}
        house = House(reconcilers)
        boss, fast = house.kube.put(manager()), house.kube.put(storage(deletionPolicy="Delete"))
        await house.settle()
        reconcilers[MANAGER] = reconcile_manager.reconcile
        house.restart()
        house.kube.mark_deleted(boss)
        await house.once(boss)
        await house.once(boss)
        assert not house.kube.has(boss)
        assert house.kube.has(fast)

    asyncio.run(story())


def test_a_storage_waits_once_for_its_group_on_a_manager_that_is_being_deleted() -> None:
    async def story() -> None:
        house = House()
        boss, fast, chat = (house.kube.put(body) for body in (manager(), storage(deletionPolicy="Delete"), group(deletionPolicy="Delete")))
        await house.settle()
        house.kube.mark_deleted(boss)
        house.kube.mark_deleted(fast)
        await house.once(fast)
        assert house.condition(fast) == ("False", "InUse")
        await house.once(fast)
        assert not house.kube.has(fast)
        assert house.reasons(fast)[-1] == "OrphanedOnDelete"
        assert house.kube.has(chat)
        assert "fast" in house.admin.storages

    asyncio.run(story())


def test_one_call_that_fails_leaves_no_entry_on_a_manager_that_is_being_deleted() -> None:
    async def story() -> None:
        house = House()
        boss, fast = house.kube.put(manager()), house.kube.put(storage(deletionPolicy="Delete"))
        await house.settle()
        house.kube.mark_deleted(boss)
        house.kube.mark_deleted(fast)
        house.directory.down.add(("default", "demo"))
        await house.once(fast)
        assert house.condition(fast) == ("False", "Deleting")
        house.directory.down.clear()
        await house.once(fast)
        assert not house.kube.has(fast)
        assert house.admin.storages == {}
        assert "OrphanedOnDelete" not in house.reasons(fast)

    asyncio.run(story())
