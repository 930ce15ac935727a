"""The operator ends at every single point of a story where it waits for somebody, and a new one starts: the end is always the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from kvcm.client.admin_testing import FakeAdmin
from kvcm.resources.kstatus import Kstatus, kstatus
from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.testing_house import House, applied_manager, group, manager, storage
from kvcm_operator.world import GROUP, MANAGER, STORAGE, Ref

pytestmark = pytest.mark.scenario

FAST, CHAT = Ref(STORAGE, "default", "fast"), Ref(GROUP, "default", "chat")


class Cut(BaseException):
    """The process ends here."""


def cut_after(house: House, calls: int) -> None:
    numbers = count()

    async def hook(what: str) -> None:
        if next(numbers) == calls:
            raise Cut(what)

    house.kube.on_call = house.directory.on_call = hook


def heal(house: House) -> None:
    house.kube.on_call = house.directory.on_call = None
    house.restart()


async def applied(house: House) -> None:
    house.kube.put(manager())
    house.kube.put(storage(deletionPolicy="Delete", enabled=False))
    house.kube.put(group(deletionPolicy="Delete"))


async def updated(house: House) -> None:
    await applied(house)
    await house.settle()
    house.kube.edit(FAST, lambda body: body["spec"].update(enabled=True, nfs={"rootPath": "/mnt/fast", "keyCountPerFile": 4}))
    house.kube.edit(CHAT, lambda body: body["spec"].update(maxInstances=7))


async def wiped(house: House) -> None:
    await applied(house)
    await house.settle()
    house.admin = house.directory.managers["default", "demo"] = FakeAdmin()


async def deleted(house: House) -> None:
    await applied(house)
    await house.settle()
    house.kube.mark_deleted(FAST)
    house.kube.mark_deleted(CHAT)


EXPECTED_EVENTS: dict[Callable[[House], Awaitable[None]], tuple[list[str], list[str]]] = {
    applied: (["Ready"], ["Ready"]),
    updated: (["Ready"], ["Ready"]),
    wiped: (["Ready", "DriftCorrected"], ["Ready", "DriftCorrected"]),
    deleted: (["Ready", "InUse"], ["Ready"]),
}


@pytest.mark.parametrize("prepare", list(EXPECTED_EVENTS))
def test_cut_off_anywhere_it_converges_and_reports_once(prepare: Callable[[House], Awaitable[None]]) -> None:
    async def story(calls: int) -> bool:
        house = House()
        await prepare(house)
        cut_after(house, calls)
        try:
            await house.settle()
            finished = True
        except Cut:
            finished = False
        heal(house)
        await house.settle()
        storages, groups = EXPECTED_EVENTS[prepare]
        assert house.reasons(FAST) == storages, f"cut after {calls} calls"
        assert house.reasons(CHAT) == groups, f"cut after {calls} calls"
        if prepare is deleted:
            assert (house.admin.storages, house.admin.groups) == ({}, {})
            assert house.kube.refs(STORAGE) == house.kube.refs(GROUP) == []
        else:
            assert house.condition(FAST) == house.condition(CHAT) == ("True", "Ready")
            assert house.admin.storages["fast"].enabled is (prepare is updated)
            assert house.admin.groups["chat"].version == (2 if prepare is updated else 1)
        for ref, body in house.kube.statuses:
            too_early = kstatus(body) is Kstatus.CURRENT and body["status"]["observedGeneration"] != body["metadata"]["generation"]
            assert not too_early, f"{ref} after {calls} calls"
        return finished

    async def all_points() -> int:
        for calls in count():
            if await story(calls):
                return calls
        raise AssertionError("unreachable")

    assert asyncio.run(all_points()) > 10


def test_a_whole_service_cut_off_anywhere_still_comes_up_with_one_pod() -> None:
    boss = Ref(MANAGER, "default", "demo")

    async def story(calls: int) -> bool:
        house = House(dict(RECONCILERS))
        house.kube.put(applied_manager())
        house.kube.put(storage(volume={"pvc": {"claimName": "blocks"}}))
        house.kube.put(group())
        cut_after(house, calls)
        try:
            await house.settle_cluster()
            finished = True
        except Cut:
            finished = False
        heal(house)
        await house.settle_cluster()
        for ref in (boss, FAST, CHAT):
            assert house.condition(ref) == ("True", "Ready"), f"{ref} cut after {calls} calls"
            assert house.reasons(ref).count("Ready") == 1, f"{ref} cut after {calls} calls"
            assert "DriftCorrected" not in house.reasons(ref), f"{ref} cut after {calls} calls"
        assert [write for write in house.kube.writes if write.startswith("create")] == [
            "create Secret demo-admin-token",
            "create ConfigMap demo-config",
            "create ServiceAccount demo-manager",
            "create Service demo-nodes",
            "create Service demo",
            "create Service demo-leader",
            "create PodDisruptionBudget demo-manager",
            "create StatefulSet demo",
        ]
        assert house.admin.calls == ["add_storage fast", "create_group chat"]
        return finished

    async def all_points() -> int:
        for calls in count():
            if await story(calls):
                return calls
        raise AssertionError("unreachable")

    assert asyncio.run(all_points()) > 30
