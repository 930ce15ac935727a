"""A Storage against a manager: from apply to release, with the world going wrong in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kvcm.client.admin_testing import FakeAdmin
from kvcm.client.admin_types import StorageState
from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.data_storage.model import NfsSpec, Storage, StorageType
from kvcm_operator.testing_house import House, group, manager, storage
from kvcm_operator.world import FORCE_RELEASE, PAUSED, Ref

pytestmark = pytest.mark.scenario

SECOND = 1_000_000


def run(story: Callable[[House], Awaitable[None]]) -> House:
    house = House()

    async def told() -> None:
        await story(house)

    asyncio.run(told())
    return house


def set_spec(house: House, ref: Ref, **fields: Any) -> None:
    house.kube.edit(ref, lambda body: body["spec"].update(fields))


def server_storage(name: str = "fast", root: str = "/mnt/fast/", *, enabled: bool = True) -> Storage:
    return Storage(name, StorageType.NFS, NfsSpec(root), enabled=enabled)


def test_it_is_registered_and_the_second_pass_writes_nothing() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage())
        await house.once(ref)
        writes, calls = list(house.kube.writes), list(house.admin.calls)
        assert house.condition(ref) == ("True", "Ready")
        await house.once(ref)
        assert (house.kube.writes, house.admin.calls) == (writes, calls)
        assert calls == ["add_storage fast"]
        assert writes == ["status Storage fast"]
        assert house.status(ref)["observedGeneration"] == 1
        assert house.status(ref)["type"] == "nfs"
        assert house.status(ref)["rootVerified"] is True
        assert house.reasons(ref) == ["Ready"]

    run(story)


def test_disabled_means_added_and_switched_off_and_on_again() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage(enabled=False))
        await house.settle()
        assert house.admin.storages["fast"].enabled is False
        assert house.status(ref)["enabled"] is False
        set_spec(house, ref, enabled=True)
        await house.settle()
        assert house.admin.calls == ["add_storage fast", "disable_storage fast", "enable_storage fast"]
        assert house.condition(ref) == ("True", "Ready")

    run(story)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"nfs": {"rootPath": "relative"}}, "InvalidSpec"),
        ({"surprise": 1}, "InvalidSpec"),
        ({"nfs": None, "tairMemPool": {"domain": "pool"}}, "Unsupported"),
    ],
)
def test_a_spec_that_cannot_work_is_an_outcome_and_is_retried_when_it_changes(spec: dict[str, Any], reason: str) -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        body = storage(**spec)
        body["spec"] = {name: value for name, value in body["spec"].items() if value is not None}
        ref = house.kube.put(body)
        await house.settle()
        assert house.condition(ref) == ("False", reason)
        assert house.condition(ref, "Stalled") == ("True", reason)
        assert house.admin.calls == []
        house.kube.edit(ref, lambda found: found.update(spec=storage()["spec"]))
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")
        assert house.condition(ref, "Stalled")[0] == "False"

    run(story)


def test_an_error_of_the_server_is_retried_after_a_restart_though_nothing_in_the_spec_changed() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.admin.fail_next("add_storage", StorageError("the directory is not there"))
        ref = house.kube.put(storage())
        await house.once(ref)
        assert house.condition(ref) == ("False", "ServerRefused")
        assert house.condition(ref, "Synced") == ("False", "ServerRefused")
        house.restart()
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")

    run(story)


def test_a_lost_answer_is_looked_up_and_never_repeated_blindly() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.admin.fail_next("add_storage", OutcomeUnknown("no answer"), carried_out=True)
        ref = house.kube.put(storage())
        await house.settle()
        assert house.admin.calls == ["add_storage fast"]
        assert house.condition(ref) == ("True", "Ready")

    run(story)


def test_waiting_for_a_manager_is_a_named_state_in_each_case() -> None:
    async def story(house: House) -> None:
        ref = house.kube.put(storage())
        await house.once(ref)
        assert house.condition(ref) == ("False", "ManagerNotFound")
        boss = house.kube.put(manager(replicas=0, available=False))
        await house.once(ref)
        assert house.condition(ref) == ("False", "ManagerScaledToZero")
        house.kube.edit(boss, lambda body: body["spec"].update(replicas=1))
        await house.once(ref)
        assert house.condition(ref) == ("False", "ManagerNotReady")
        house.kube.set_status(boss, manager()["status"])
        house.directory.down.add(("default", "demo"))
        await house.once(ref)
        assert house.condition(ref) == ("False", "ServerUnreachable")
        assert house.condition(ref, "Synced") == ("Unknown", "ServerUnreachable")
        assert house.condition(ref, "Reconciling")[0] == "True"
        house.directory.down.clear()
        await house.once(ref)
        assert house.condition(ref) == ("True", "Ready")

    run(story)


def test_ready_survives_a_short_silence_and_turns_unknown_after_the_grace_period() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage())
        await house.settle()
        house.directory.down.add(("default", "demo"))
        await house.once(ref)
        assert house.condition(ref) == ("True", "Ready")
        assert house.condition(ref, "Synced") == ("Unknown", "ServerUnreachable")
        writes = len(house.kube.writes)
        house.clock.advance_us(29 * SECOND)
        await house.once(ref)
        assert len(house.kube.writes) == writes
        house.clock.advance_us(2 * SECOND)
        await house.once(ref)
        assert house.condition(ref) == ("Unknown", "ServerUnreachable")
        house.directory.down.clear()
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")
        assert "add_storage fast" not in house.admin.calls[1:]

    run(story)


def test_a_new_generation_is_never_ready_while_the_server_is_silent() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage())
        await house.settle()
        house.directory.down.add(("default", "demo"))
        set_spec(house, ref, enabled=False)
        await house.once(ref)
        assert house.condition(ref) == ("False", "ServerUnreachable")
        assert house.status(ref)["observedGeneration"] == 2

    run(story)


@pytest.mark.parametrize("damage", ["removed", "changed", "disabled", "wiped"])
def test_what_changes_behind_the_operators_back_is_put_right_and_reported_once(damage: str) -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage())
        await house.settle()
        before = house.admin.storages["fast"]
        match damage:
            case "removed":
                del house.admin.storages["fast"]
            case "changed":
                house.admin.storages["fast"] = server_storage(root="/mnt/elsewhere/")
            case "disabled":
                house.admin.storages["fast"] = replace(before, enabled=False)
            case _:
                house.admin = house.directory.managers["default", "demo"] = FakeAdmin()
        await house.once(ref)
        assert house.admin.storages["fast"] == before
        assert house.condition(ref) == ("True", "Ready")
        assert house.condition(ref, "Synced") == ("True", "DriftCorrected")
        await house.settle()
        assert house.condition(ref, "Synced") == ("True", "InSync")
        assert house.reasons(ref) == ["Ready", "DriftCorrected"]
        assert house.observer.corrections == 1

    run(story)


def test_somebody_who_keeps_changing_it_is_reported_once_and_corrected_every_time() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage())
        await house.settle()
        for _ in range(5):
            house.admin.storages["fast"] = server_storage(enabled=False)
            await house.once(ref)
            assert house.admin.storages["fast"].enabled
        assert house.reasons(ref).count("DriftCorrected") == 1
        assert house.observer.corrections == 5

    run(story)


def test_adoption_takes_over_or_refuses_as_the_policy_says() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.admin.storages["fast"] = server_storage(root="/mnt/other/")
        ref = house.kube.put(storage(adoptionPolicy="AdoptIfEqual", deletionPolicy="Delete"))
        await house.settle()
        assert house.condition(ref) == ("False", "AdoptionRefused")
        assert house.condition(ref, "Stalled")[0] == "True"
        house.kube.mark_deleted(ref)
        await house.settle()
        assert not house.kube.has(ref)
        assert house.admin.calls == []  # what was never its own is not removed
        ref = house.kube.put(storage(adoptionPolicy="Adopt"))
        await house.settle()
        assert house.admin.calls == ["update_storage fast"]
        assert house.condition(ref) == ("True", "Ready")

    run(story)


def test_an_equal_entry_is_adopted_without_a_call_and_its_drift_is_repaired_later() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.admin.storages["fast"] = server_storage()
        ref = house.kube.put(storage(adoptionPolicy="AdoptIfEqual"))
        await house.settle()
        assert house.admin.calls == []
        assert house.status(ref)["registered"] is True
        house.admin.storages["fast"] = server_storage(root="/mnt/moved/")
        await house.settle()
        assert house.admin.calls == ["update_storage fast"]

    run(story)


def test_another_kind_on_the_server_is_left_alone() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.admin.storages["fast"] = server_storage()
        body = storage()
        body["spec"] = {"managerRef": {"name": "demo"}, "dummy": {"rootPath": "/mnt/fast"}}
        ref = house.kube.put(body)
        await house.settle()
        assert house.condition(ref) == ("False", "KindConflict")
        assert house.admin.calls == []

    run(story)


def test_of_two_resources_for_one_name_the_older_has_it_and_the_younger_deletes_nothing() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        first = house.kube.put(storage("one", name="shared", deletionPolicy="Delete"))
        second = house.kube.put(storage("two", name="shared", deletionPolicy="Delete"))
        await house.settle()
        assert house.condition(first) == ("True", "Ready")
        assert house.condition(second) == ("False", "NameConflict")
        house.kube.mark_deleted(second)
        await house.settle()
        assert not house.kube.has(second)
        assert house.admin.calls == ["add_storage shared"]
        third = house.kube.put(storage("three", name="shared"))
        await house.settle()
        house.kube.mark_deleted(first)
        await house.settle()
        assert house.condition(third) == ("True", "Ready")
        assert house.admin.calls == ["add_storage shared", "remove_storage shared", "add_storage shared"]

    run(story)


def test_the_default_policy_leaves_the_entry() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage())
        await house.settle()
        house.kube.mark_deleted(ref)
        await house.settle()
        assert not house.kube.has(ref)
        assert "fast" in house.admin.storages

    run(story)


def test_delete_waits_while_a_group_uses_it_and_can_be_forced() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage(deletionPolicy="Delete"))
        user = house.kube.put(group(deletionPolicy="Delete"))
        await house.settle()
        house.kube.mark_deleted(ref)
        await house.settle()
        assert house.condition(ref) == ("False", "InUse")
        house.kube.mark_deleted(user)
        await house.settle()
        assert not house.kube.has(ref)
        assert not house.kube.has(user)
        assert house.admin.storages == {}
        assert house.admin.groups == {}

        stuck = house.kube.put(storage(deletionPolicy="Delete"))
        house.kube.put(group())
        await house.settle()
        house.kube.mark_deleted(stuck)
        house.kube.annotate(stuck, FORCE_RELEASE, "true")
        await house.once(stuck)
        assert not house.kube.has(stuck)
        assert "fast" in house.admin.storages
        assert house.reasons(stuck)[-1] == "ForceReleased"

    run(story)


def test_delete_keeps_trying_while_the_server_is_away_and_gives_up_when_the_manager_is_gone() -> None:
    async def story(house: House) -> None:
        boss = house.kube.put(manager())
        ref = house.kube.put(storage(deletionPolicy="Delete"))
        await house.settle()
        house.directory.down.add(("default", "demo"))
        house.kube.mark_deleted(ref)
        outcome = await house.once(ref)
        assert outcome is not None
        assert outcome.requeue_after
        assert house.condition(ref) == ("False", "Deleting")
        house.clock.advance_us(3600 * SECOND)
        await house.once(ref)
        assert house.kube.has(ref)
        house.kube.release(boss)
        await house.once(ref)
        assert not house.kube.has(ref)
        assert house.reasons(ref)[-1] == "OrphanedOnDelete"

    run(story)


@pytest.mark.parametrize("answering", [True, False])
def test_a_manager_that_is_being_deleted_is_told_if_it_still_listens(answering: bool) -> None:
    async def story(house: House) -> None:
        boss = house.kube.put(manager())
        ref = house.kube.put(storage(deletionPolicy="Delete"))
        await house.settle()
        house.kube.mark_deleted(boss)
        if not answering:
            house.directory.down.add(("default", "demo"))
        house.kube.mark_deleted(ref)
        await house.once(ref)
        if not answering:  # one call may fail for reasons that pass
            assert house.condition(ref) == ("False", "Deleting")
            await house.once(ref)
        assert not house.kube.has(ref)
        assert ("fast" in house.admin.storages) is not answering
        assert ("OrphanedOnDelete" in house.reasons(ref)) is not answering

    run(story)


def test_scaled_to_zero_releases_too() -> None:
    async def story(house: House) -> None:
        boss = house.kube.put(manager())
        ref = house.kube.put(storage(deletionPolicy="Delete"))
        await house.settle()
        house.kube.edit(boss, lambda body: body["spec"].update(replicas=0))
        house.kube.mark_deleted(ref)
        await house.once(ref)
        assert not house.kube.has(ref)
        assert house.reasons(ref)[-1] == "OrphanedOnDelete"

    run(story)


def test_paused_touches_nothing_and_says_so() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage())
        await house.settle()
        house.kube.annotate(ref, PAUSED, "true")
        set_spec(house, ref, enabled=False)
        await house.settle()
        assert house.condition(ref) == ("Unknown", "Paused")
        assert house.admin.calls == ["add_storage fast"]
        house.kube.annotate(ref, PAUSED, None)
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")
        assert house.admin.storages["fast"].enabled is False

    run(story)


def test_an_unverified_root_is_not_ready_and_nothing_is_deleted() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.admin.states["fast"] = StorageState("fast", StorageType.NFS, True, available=False, root_verified=False, problem="no mark")
        ref = house.kube.put(storage())
        await house.settle()
        assert house.condition(ref) == ("False", "RootNotVerified")
        assert house.condition(ref, "Synced") == ("True", "InSync")
        assert house.status(ref)["rootVerified"] is False
        assert house.admin.calls == ["add_storage fast"]

    run(story)


def test_a_volume_must_be_in_the_managers_pod_before_the_storage_is_registered() -> None:
    from kvcm_operator.mounts import volume_name

    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage(volume={"pvc": {"claimName": "blocks"}}))
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "demo-0", "namespace": "default", "labels": {"kvcm.io/manager": "demo"}},
            "spec": {"containers": [{"name": "manager"}]},
        }
        house.kube.put(pod)
        await house.once(ref)
        assert house.condition(ref) == ("False", "VolumePending")
        assert house.admin.calls == []
        house.kube.mark_deleted(Ref("Pod", "default", "demo-0"))
        pod["spec"] = {
            "containers": [{"name": "manager", "volumeMounts": [{"name": volume_name("fast"), "mountPath": "/mnt/fast"}]}],
            "volumes": [{"name": volume_name("fast"), "persistentVolumeClaim": {"claimName": "blocks"}}],
        }
        house.kube.put(pod)
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")

    run(story)


def test_nothing_is_done_before_the_finalizer_is_there() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage(), held=False)
        assert await house.once(ref) is None
        assert house.admin.calls == []
        assert house.kube.writes == []

    run(story)


def test_a_successor_of_the_same_name_never_inherits_a_status() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage())

        async def replaced(method: str) -> None:
            if method == "add_storage":
                house.kube.release(ref)
                house.kube.put(storage(enabled=False))

        house.directory.on_call = replaced
        await house.once(ref)
        house.directory.on_call = None
        assert house.status(ref) == {"observedGeneration": -1}
        await house.settle()
        assert house.admin.storages["fast"].enabled is False

    run(story)
