"""An InstanceGroup against a manager: it waits for its storages, keeps what others set, and lets go when nobody uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kvcm.client.admin_client import AdminCallFailed
from kvcm.client.admin_testing import FakeAdmin
from kvcm.client.admin_types import GroupUsage
from kvcm.common.errors import InvalidArgument
from kvcm.config.model import Instance, LocationSpecInfo, ModelDeployment
from kvcm_operator.testing_house import House, group, manager, storage
from kvcm_operator.world import FORCE_RELEASE

pytestmark = pytest.mark.scenario

SECOND = 1_000_000


def run(story: Callable[[House], Awaitable[None]]) -> None:
    async def told() -> None:
        await story(House())

    asyncio.run(told())


def instance(group_name: str) -> Instance:
    return Instance("one", group_name, "q", 16, (LocationSpecInfo("kv", 1),), ModelDeployment("m", "fp16"))


def test_it_waits_for_its_storage_and_is_registered_after_it() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(group())
        await house.once(ref)
        assert house.condition(ref) == ("False", "StorageNotRegistered")
        house.kube.put(storage())
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")
        assert house.admin.calls == ["add_storage fast", "create_group chat"]
        assert house.status(ref)["version"] == 1
        assert house.reasons(ref) == ["StorageNotRegistered", "Ready"]

    run(story)


def test_a_storage_resource_is_named_by_its_own_name_and_sent_by_its_name_on_the_server() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage("fast", name="nfs_01"))
        ref = house.kube.put(group())
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")
        assert house.admin.groups["chat"].storage_candidates == ("nfs_01",)

    run(story)


def test_the_second_pass_writes_nothing_and_usage_is_shown() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage())
        ref = house.kube.put(group())
        await house.settle()
        writes, calls = len(house.kube.writes), list(house.admin.calls)
        await house.once(ref)
        assert (len(house.kube.writes), house.admin.calls) == (writes, calls)
        house.admin.usage["chat"] = GroupUsage("chat", 2, 10, 1 << 29)
        await house.once(ref)
        status = house.status(ref)
        assert (status["instances"], status["keys"], status["usedBytes"], status["usagePercent"]) == (2, 10, 1 << 29, 50)
        house.admin.usage["chat"] = None
        await house.once(ref)
        assert "usedBytes" not in house.status(ref)

    run(story)


def test_a_changed_spec_is_one_update_that_keeps_what_it_does_not_say() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage())
        ref = house.kube.put(group())
        await house.settle()
        house.admin.groups["chat"] = replace(house.admin.groups["chat"], user_data="theirs")
        house.kube.edit(ref, lambda body: body["spec"].update(maxInstances=7))
        await house.settle()
        stored = house.admin.groups["chat"]
        assert (stored.max_instance_count, stored.user_data, stored.version) == (7, "theirs", 2)
        assert house.admin.calls[-1] == "update_group chat"
        assert house.reasons(ref) == ["Ready"]  # a change of the spec is no drift

    run(story)


def test_a_spec_changed_during_a_pass_is_never_reported_as_done() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage())
        ref = house.kube.put(group())
        await house.settle()
        house.kube.edit(ref, lambda body: body["spec"].update(maxInstances=7))

        async def meanwhile(method: str) -> None:
            if method == "update_group":
                house.directory.on_call = None
                house.kube.edit(ref, lambda body: body["spec"].update(maxInstances=8))

        house.directory.on_call = meanwhile
        await house.once(ref)
        assert house.status(ref)["observedGeneration"] == 2
        assert house.kube.body(ref)["metadata"]["generation"] == 3
        await house.settle()
        assert house.status(ref)["observedGeneration"] == 3
        assert house.admin.groups["chat"].max_instance_count == 8

    run(story)


def test_somebody_faster_is_read_again_and_not_overwritten_blindly() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage())
        ref = house.kube.put(group())
        await house.settle()
        house.kube.edit(ref, lambda body: body["spec"].update(maxInstances=7))

        async def meanwhile(method: str) -> None:
            if method == "update_group":
                house.directory.on_call = None
                house.admin.groups["chat"] = replace(house.admin.groups["chat"], user_data="faster", version=5)

        house.directory.on_call = meanwhile
        await house.once(ref)
        stored = house.admin.groups["chat"]
        assert (stored.user_data, stored.version, stored.max_instance_count) == ("faster", 6, 7)
        assert house.condition(ref) == ("True", "Ready")

    run(story)


@pytest.mark.parametrize("permanent", [True, False])
def test_a_refusal_says_whether_a_human_is_needed(permanent: bool) -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage())
        error = InvalidArgument("the quota is odd") if permanent else AdminCallFailed("CreateInstanceGroup", 3, "not now")
        for _ in range(3):
            house.admin.fail_next("create_group", error)
        ref = house.kube.put(group())
        await house.once(house.kube.refs("Storage")[0])
        await house.once(ref)
        assert house.condition(ref) == ("False", "ServerRefused")
        assert house.condition(ref, "Stalled")[0] == str(permanent)
        assert house.admin.calls.count("create_group chat") == 1
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")

    run(story)


def test_a_wiped_registry_comes_back_without_ready_ever_leaving() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        fast = house.kube.put(storage())
        ref = house.kube.put(group())
        await house.settle()
        house.admin = house.directory.managers["default", "demo"] = FakeAdmin()
        await house.once(ref)  # before its storage
        assert house.condition(ref) == ("True", "Ready")
        assert house.condition(ref, "Synced") == ("Unknown", "StorageNotRegistered")
        await house.once(fast)
        await house.settle()
        assert house.admin.calls == ["add_storage fast", "create_group chat"]
        assert house.condition(ref) == ("True", "Ready")
        assert house.reasons(ref) == ["Ready", "DriftCorrected"]
        assert house.reasons(fast) == ["Ready", "DriftCorrected"]

    run(story)


def test_delete_waits_for_instances_and_then_removes() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage())
        ref = house.kube.put(group(deletionPolicy="Delete"))
        await house.settle()
        house.admin.instances.append(instance("chat"))
        house.kube.mark_deleted(ref)
        await house.settle()
        assert house.condition(ref) == ("False", "InUse")
        house.admin.instances.clear()
        await house.settle()
        assert not house.kube.has(ref)
        assert house.admin.groups == {}

    run(story)


def test_forced_release_ends_the_wait_and_leaves_the_entry() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage())
        ref = house.kube.put(group(deletionPolicy="Delete"))
        await house.settle()
        house.admin.instances.append(instance("chat"))
        house.kube.mark_deleted(ref)
        house.kube.annotate(ref, FORCE_RELEASE, "true")
        await house.once(ref)
        assert not house.kube.has(ref)
        assert "chat" in house.admin.groups
        assert house.reasons(ref)[-1] == "ForceReleased"

    run(story)


def test_of_two_groups_for_one_name_the_older_has_it() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage())
        first = house.kube.put(group("a", name="chat"))
        second = house.kube.put(group("b", name="chat", maxInstances=3, deletionPolicy="Delete"))
        await house.settle()
        assert house.condition(first) == ("True", "Ready")
        assert house.condition(second) == ("False", "NameConflict")
        house.kube.mark_deleted(second)
        await house.settle()
        assert not house.kube.has(second)
        assert house.admin.groups["chat"].max_instance_count == 100

    run(story)


def test_a_storage_named_by_a_group_that_is_not_on_the_server_yet_is_in_use_too() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        ref = house.kube.put(storage(deletionPolicy="Delete"))
        await house.settle()
        house.kube.put(group())
        house.kube.mark_deleted(ref)
        await house.once(ref)
        assert house.condition(ref) == ("False", "InUse")
        assert "fast" in house.admin.storages

    run(story)


def test_what_was_cut_off_before_it_could_say_so_is_still_removed() -> None:
    async def story(house: House) -> None:
        house.kube.put(manager())
        house.kube.put(storage(deletionPolicy="Delete"))
        ref = house.kube.put(group(deletionPolicy="Delete"))
        await house.settle()
        for one in (ref, house.kube.refs("Storage")[0]):
            house.kube.set_status(one, {"observedGeneration": -1})
            house.kube.mark_deleted(one)
        await house.settle(("InstanceGroup", "Storage"))
        assert house.admin.groups == {}
        assert house.admin.storages == {}

    run(story)
