"""A KVCacheManager from apply to delete, with a cluster that makes its pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.resources.kstatus import Kstatus, kstatus
from kvcm.resources.manager import KVCacheManagerStatus
from kvcm_operator.children import DESIRED_HASH
from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.subject import Subject
from kvcm_operator.testing_house import House, applied_manager, group, storage
from kvcm_operator.world import FORCE_RELEASE, MANAGER, PAUSED, KubeForbidden, Ref

pytestmark = pytest.mark.scenario

BOSS = Ref(MANAGER, "default", "demo")
POD = Ref("Pod", "default", "demo-0")
SET = Ref("StatefulSet", "default", "demo")
CONFIG = Ref("ConfigMap", "default", "demo-config")
VOLUME = {"pvc": {"claimName": "blocks"}}


def run(story: Callable[[House], Awaitable[None]]) -> None:
    async def told() -> None:
        house = House(dict(RECONCILERS))
        house.directory.managers.clear()
        await story(house)
        for ref, body in house.kube.statuses:
            if ref.kind in RECONCILERS and kstatus(body) is Kstatus.CURRENT:
                assert body["status"]["observedGeneration"] == body["metadata"]["generation"], ref

    asyncio.run(told())


def set_spec(house: House, ref: Ref, **fields: Any) -> None:
    house.kube.edit(ref, lambda body: body["spec"].update(fields))


def test_three_resources_become_a_running_service_and_then_nothing_moves() -> None:
    async def story(house: House) -> None:
        fast, chat = house.kube.put(storage()), house.kube.put(group())
        house.kube.put(applied_manager())
        await house.settle_cluster()
        for ref in (BOSS, fast, chat):
            assert house.condition(ref) == ("True", "Ready"), ref
        assert house.condition(BOSS, "Available") == ("True", "Serving")
        assert house.condition(BOSS, "Progressing") == ("False", "Complete")
        status = house.status(BOSS)
        KVCacheManagerStatus.model_validate(status)
        assert (status["replicas"], status["readyReplicas"], status["version"]) == (1, 1, "kvcm:test")
        assert status["counts"] == {"storages": 1, "groups": 1, "instances": 0}
        assert status["endpoints"]["metaGrpc"] == "demo.default.svc:6381"
        assert house.admin.calls == ["add_storage fast", "create_group chat"]
        before = house.kube.version
        house.restart()
        await house.settle_cluster()
        assert house.kube.version == before

    run(story)


def test_a_leader_that_wins_again_is_a_new_leader() -> None:
    """A pod that has started anew has its old name; its epoch tells."""

    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        first = house.status(BOSS)["leader"]
        assert (first["nodeId"], first["epoch"]) == ("node-1", 1)
        house.clock.advance_us(60_000_000)
        await house.settle_cluster()
        assert house.status(BOSS)["leader"] == first
        house.admin.epoch = 2
        house.clock.advance_us(60_000_000)
        await house.settle_cluster()
        second = house.status(BOSS)["leader"]
        assert (second["nodeId"], second["epoch"]) == ("node-1", 2)
        assert second["since"] > first["since"]

    run(story)


def test_what_a_newer_operator_adds_is_no_drift_and_what_somebody_removes_is() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        # As an operator left it that knew neither of the two, and whose wish for the StatefulSet was another.
        added = [Ref("Service", "default", "demo-leader"), Ref("PodDisruptionBudget", "default", "demo-manager")]
        for ref in added:
            house.kube.mark_deleted(ref)
        house.kube.edit(Ref("StatefulSet", "default", "demo"), lambda body: body["metadata"]["annotations"].update({DESIRED_HASH: "older"}))
        await house.settle_cluster()
        assert all(house.kube.has(ref) for ref in added)
        assert "DriftCorrected" not in house.reasons(BOSS)
        house.kube.mark_deleted(added[0])
        await house.settle_cluster()
        assert house.kube.has(added[0])
        assert "DriftCorrected" in house.reasons(BOSS)

    run(story)


def test_everything_is_owned_and_goes_with_the_manager() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        house.kube.mark_deleted(BOSS)
        await house.settle_cluster()
        for kind in ("KVCacheManager", "StatefulSet", "Service", "ConfigMap", "ServiceAccount", "PodDisruptionBudget", "Pod"):
            assert house.kube.refs(kind) == [], kind

    run(story)


def test_a_manager_on_its_way_out_lets_its_resources_be_removed_first() -> None:
    async def story(house: House) -> None:
        fast = house.kube.put(storage(deletionPolicy="Delete"))
        chat = house.kube.put(group(deletionPolicy="Delete"))
        house.kube.put(applied_manager())
        await house.settle_cluster()
        admin = house.admin
        for ref in (BOSS, fast, chat):
            house.kube.mark_deleted(ref)
        await house.once(BOSS)
        assert house.condition(BOSS) == ("False", "Deleting")
        await house.settle_cluster()
        assert (admin.storages, admin.groups) == ({}, {})
        assert house.kube.refs(MANAGER) == house.kube.refs("Storage") == house.kube.refs("InstanceGroup") == []

    run(story)


def test_nobody_waits_for_a_paused_dependent_or_after_a_forced_release() -> None:
    async def story(house: House) -> None:
        fast = house.kube.put(storage(deletionPolicy="Delete"))
        house.kube.put(applied_manager())
        await house.settle_cluster()
        house.kube.annotate(fast, PAUSED, "true")
        house.kube.mark_deleted(fast)
        house.kube.mark_deleted(BOSS)
        await house.once(BOSS)
        assert not house.kube.has(BOSS)
        await house.once(fast)
        house.kube.annotate(fast, FORCE_RELEASE, "true")
        await house.once(fast)
        assert not house.kube.has(fast)

    run(story)


@pytest.mark.parametrize(
    "change",
    [{"coordination": {"leaseDuration": "5s"}}, {"image": "kvcm:2"}, {"service": {"ports": {"adminGrpc": 7000}}}],
)
def test_a_new_spec_replaces_the_pod_and_is_not_ready_before(change: dict[str, Any]) -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        old = house.kube.body(POD)["metadata"]["uid"]
        set_spec(house, BOSS, **change)
        house.cluster.sleeping.add("StatefulSet")
        await house.once(BOSS)
        assert house.condition(BOSS) == ("False", "RollingOut")
        assert house.condition(BOSS, "Available") == ("True", "Serving")
        assert house.kube.body(POD)["metadata"]["uid"] == old  # the set's controller has not seen the template yet
        house.cluster.sleeping.clear()
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")
        assert house.kube.body(POD)["metadata"]["uid"] != old
        assert house.kube.writes.count("delete Pod demo-0") == 1

    run(story)


def test_a_storages_volume_restarts_the_pod_and_then_the_storage_is_registered() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        fast = house.kube.put(storage(volume=VOLUME))
        await house.once(fast)
        assert house.condition(fast) == ("False", "VolumePending")
        await house.settle_cluster()
        assert house.condition(fast) == ("True", "Ready")
        assert house.condition(BOSS) == ("True", "Ready")
        mounts = house.kube.body(POD)["spec"]["containers"][0]["volumeMounts"]
        assert "/mnt/fast" in [mount["mountPath"] for mount in mounts]
        assert "DriftCorrected" not in house.reasons(BOSS)  # a new wish of ours is no drift

    run(story)


def test_a_storage_that_is_broken_for_a_moment_keeps_its_volume() -> None:
    async def story(house: House) -> None:
        fast = house.kube.put(storage(volume=VOLUME))
        house.kube.put(applied_manager())
        await house.settle_cluster()
        pod = house.kube.body(POD)["metadata"]["uid"]
        set_spec(house, fast, surprise=1)
        await house.settle_cluster()
        assert house.condition(fast) == ("False", "InvalidSpec")
        assert house.kube.body(POD)["metadata"]["uid"] == pod

    run(story)


def test_two_volumes_at_one_path_give_it_to_the_older_and_say_so() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        house.kube.put(storage("old", nfs={"rootPath": "/mnt/x"}, volume=VOLUME))
        young = house.kube.put(storage("young", nfs={"rootPath": "/mnt/x"}, volume={"pvc": {"claimName": "other"}}))
        same = house.kube.put(storage("same", nfs={"rootPath": "/mnt/x"}, volume=VOLUME))
        await house.settle_cluster()
        assert house.condition(young) == ("False", "VolumeConflict")
        assert house.condition(young, "Stalled")[0] == "True", "no time that passes would help"
        assert house.condition(same) == ("True", "Ready")
        progressing = next(item for item in house.status(BOSS)["conditions"] if item["type"] == "Progressing")
        assert progressing["message"] == "not mounted, because the path is taken or cannot have a volume: young"
        for ref in house.kube.refs("Storage")[:]:
            if ref != young:
                house.kube.mark_deleted(ref)
        await house.settle_cluster()
        assert house.condition(young) == ("True", "Ready"), "the path is free"

    run(story)


@pytest.mark.parametrize("damage", ["config", "service", "set"])
def test_an_object_changed_or_removed_by_somebody_is_put_right_and_reported_once(damage: str) -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        match damage:
            case "config":
                house.kube.edit(CONFIG, lambda body: body["data"].update({"kvcm.conf": "broken"}))
            case "service":
                house.kube.mark_deleted(Ref("Service", "default", "demo"))
            case _:
                house.kube.edit(SET, lambda body: body["spec"].update(replicas=3))
        await house.settle_cluster()
        assert house.kube.body(CONFIG)["data"]["kvcm.conf"] != "broken"
        assert house.kube.has(Ref("Service", "default", "demo"))
        assert house.kube.body(SET)["spec"]["replicas"] == 1
        assert house.reasons(BOSS).count("DriftCorrected") == 1
        assert house.condition(BOSS) == ("True", "Ready")
        assert house.condition(BOSS, "Synced") == ("True", "InSync")

    run(story)


def test_scaled_to_zero_is_said_by_all_and_undone_by_all() -> None:
    async def story(house: House) -> None:
        fast = house.kube.put(storage())
        house.kube.put(applied_manager())
        await house.settle_cluster()
        set_spec(house, BOSS, replicas=0)
        await house.settle_cluster()
        assert house.kube.refs("Pod") == []
        assert house.condition(BOSS) == ("False", "ScaledToZero")
        assert house.condition(BOSS, "Available") == ("False", "ScaledToZero")
        assert house.condition(fast) == ("False", "ManagerScaledToZero")
        set_spec(house, BOSS, replicas=1)
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")
        assert house.condition(fast) == ("True", "Ready")
        assert "fast" in house.admin.storages

    run(story)


def test_a_pod_that_dies_comes_back_with_its_registry() -> None:
    async def story(house: House) -> None:
        fast, chat = house.kube.put(storage()), house.kube.put(group())
        house.kube.put(applied_manager())
        await house.settle_cluster()
        house.kube.mark_deleted(POD)
        house.cluster.sleeping.add("kubelet")
        house.cluster.step()
        await house.settle()
        assert house.condition(BOSS) == ("False", "PodsStarting")
        assert house.condition(fast) == ("True", "Ready")  # for the grace period
        assert house.condition(fast, "Synced") == ("Unknown", "ManagerNotReady")
        house.cluster.sleeping.clear()
        await house.settle_cluster()
        assert house.admin.calls == ["add_storage fast", "create_group chat"]
        for ref in (BOSS, fast, chat):
            assert house.condition(ref) == ("True", "Ready"), ref
        assert house.reasons(fast).count("DriftCorrected") == house.reasons(chat).count("DriftCorrected") == 1

    run(story)


def test_an_object_of_somebody_else_is_never_touched() -> None:
    async def story(house: House) -> None:
        foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo-config", "namespace": "default"}, "data": {"a": "b"}}
        house.kube.put(foreign)
        house.kube.put(applied_manager())
        await house.settle_cluster()
        assert house.condition(BOSS) == ("False", "ObjectConflict")
        assert house.condition(BOSS, "Stalled")[0] == "True"
        assert house.kube.body(CONFIG)["data"] == {"a": "b"}
        assert house.kube.refs("StatefulSet") == []
        house.kube.mark_deleted(CONFIG)
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")

    run(story)


def test_an_invalid_spec_changes_nothing_and_what_runs_stays_available() -> None:
    async def story(house: House) -> None:
        fast = house.kube.put(storage())
        house.kube.put(applied_manager())
        await house.settle_cluster()
        before = house.kube.body(SET)
        set_spec(house, BOSS, settings={"kvcm.unknown": "1"})
        await house.settle_cluster()
        assert house.condition(BOSS) == ("False", "InvalidSpec")
        assert house.condition(BOSS, "Available") == ("True", "Serving")
        assert house.kube.body(SET) == before
        assert house.condition(fast) == ("True", "Ready")

    run(story)


def test_without_any_image_a_person_has_to_help() -> None:
    async def story(house: House) -> None:
        import dataclasses

        house.world = dataclasses.replace(house.world, default_image="")
        house.restart()
        house.kube.put(applied_manager())
        await house.settle_cluster()
        assert house.condition(BOSS) == ("False", "InvalidSpec")
        set_spec(house, BOSS, image="kvcm:3")
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")

    run(story)


def test_what_the_api_server_refuses_is_said_and_tried_again() -> None:
    async def story(house: House) -> None:
        async def refuse(what: str) -> None:
            if what == "create StatefulSet":
                raise InvalidArgument("spec.template is odd")

        house.kube.on_call = refuse
        house.kube.put(applied_manager())
        await house.once(BOSS)
        assert house.condition(BOSS) == ("False", "ClusterRefused")
        house.kube.on_call = None
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")

    run(story)


def test_a_quota_or_a_missing_right_is_said_and_tried_again() -> None:
    """A refusal of the operator itself, and not of the object's content: without a word in the status nobody would look for it in the operator's log."""

    async def story(house: House) -> None:
        forbidden = "create StatefulSet"

        async def refuse(what: str) -> None:
            if what == forbidden:
                raise KubeForbidden('statefulsets.apps "demo" is forbidden: exceeded quota: small')

        house.kube.on_call = refuse
        house.kube.put(applied_manager())
        await house.once(BOSS)
        assert house.condition(BOSS) == ("False", "ClusterRefused")
        assert "exceeded quota: small" in Subject(house.kube.body(BOSS)).condition("Ready")["message"]
        forbidden = ""
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")

    run(story)


@pytest.mark.parametrize("forbidden", ["get Secret", "list Pod", "get Service"])
def test_what_the_operator_may_not_see_any_more_is_unknown_after_the_grace_period(forbidden: str) -> None:
    async def story(house: House) -> None:
        fast, chat = house.kube.put(storage(volume=VOLUME)), house.kube.put(group())
        house.kube.put(applied_manager())
        await house.settle_cluster()

        async def refuse(what: str) -> None:
            if what == forbidden:
                raise KubeForbidden("the service account cannot do this")

        house.kube.on_call = refuse
        await house.settle()
        for ref in (BOSS, fast, chat):
            assert house.condition(ref) == ("True", "Ready"), "nothing is known to be wrong"
        assert house.condition(BOSS, "Synced") == ("Unknown", "ClusterRefused")
        house.clock.advance_us(61_000_000)
        await house.settle()
        assert house.condition(BOSS) == ("Unknown", "ClusterRefused")
        assert house.condition(BOSS, "Reconciling")[0] == "True"
        house.kube.on_call = None
        await house.settle_cluster()
        for ref in (BOSS, fast, chat):
            assert house.condition(ref) == ("True", "Ready"), ref

    run(story)


def test_a_successor_waits_for_what_its_predecessor_left() -> None:
    """Deleted and applied again at once: the cluster's garbage collector takes its time, which is nothing that a person has to help with."""

    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        house.kube.mark_deleted(BOSS)
        await house.settle()
        house.kube.put(applied_manager())
        await house.settle()
        assert house.condition(BOSS) == ("False", "Reconciling")
        assert house.condition(BOSS, "Stalled")[0] == "False"
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")
        states = [kstatus(body) for ref, body in house.kube.statuses if ref == BOSS]
        assert Kstatus.FAILED not in states

    run(story)


def test_a_write_that_loses_against_others_is_compared_again() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        set_spec(house, BOSS, image="kvcm:2")
        house.kube.conflict_next(SET, times=2)
        await house.settle_cluster()
        assert house.kube.body(SET)["spec"]["template"]["spec"]["containers"][0]["image"] == "kvcm:2"
        house.kube.conflict_next(SET, times=9)
        set_spec(house, BOSS, image="kvcm:4")
        await house.once(BOSS)
        assert house.condition(BOSS) == ("False", "Reconciling")
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")

    run(story)


def test_a_manager_outside_the_cluster_is_judged_by_its_own_words() -> None:
    async def story(house: House) -> None:
        from kvcm.client.admin_testing import FakeAdmin

        house.directory.overrides.add(("default", "demo"))
        house.cluster.sleeping |= {"kubelet", "StatefulSet"}
        house.kube.put(applied_manager())
        fast = house.kube.put(storage(volume=VOLUME))
        await house.settle_cluster()
        assert house.condition(BOSS) == ("False", "ServerUnreachable")
        house.admin = house.directory.managers["default", "demo"] = FakeAdmin()
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")
        assert "outside the cluster" in str(house.status(BOSS)["conditions"][0]["message"])
        assert "pod" not in house.status(BOSS)["leader"]
        assert house.condition(fast) == ("True", "Ready")

    run(story)


def test_paused_by_spec_or_annotation_changes_nothing() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        set_spec(house, BOSS, paused=True, image="kvcm:9")
        await house.settle_cluster()
        assert house.condition(BOSS) == ("Unknown", "Paused")
        assert house.kube.body(SET)["spec"]["template"]["spec"]["containers"][0]["image"] == "kvcm:test"
        set_spec(house, BOSS, paused=False)
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")

    run(story)
