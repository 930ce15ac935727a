"""What only a person can help with is said so, and is tried again when the world has changed, without a change of the spec, and after a restart.

The framework would count such an error as handled and never call again. There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS.
"""

from __future__ import annotations

import pytest

from e2e.cluster.handle import Cluster
from e2e.cluster.waiting import eventually
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewOperator
from e2e.support.house import House
from e2e.support.kube import Kube
from e2e.support.record import Record
from kvcm.data_storage.model import DummySpec, Storage, StorageType

pytestmark = pytest.mark.e2e

# Longer than any story: what happens is not the drift timer's doing.
_NEVER_S = 3600.0


def _other_kind(house: House) -> Storage:
    return Storage(name="fast", type=StorageType.DUMMY, spec=DummySpec(root_path=f"{house.root}/other/"))


def _stalled(house: House, kind: str, name: str, reason: str) -> None:
    eventually(lambda: house.reason(kind, name) == reason, f"{kind} {name} says {reason}")
    assert house.condition(kind, name, "Stalled")["status"] == "True"
    assert house.condition(kind, name, "Reconciling")["status"] == "False"


def test_a_name_taken_by_another_kind_on_the_manager(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    """Only a look at the manager can show that the name is free: the drift timer's."""
    (a_house.root / "other").mkdir()
    a_house.admin(lambda admin: admin.add_storage(_other_kind(a_house)))
    with operator_for(a_house), Record(admin_kube, [a_house.namespace]) as record:
        a_house.apply(manager(), storage("fast", a_house.root / "mine"))
        _stalled(a_house, "Storage", "fast", "KindConflict")
        generation = a_house.body("Storage", "fast")["metadata"]["generation"]
        a_house.admin(lambda admin: admin.remove_storage("fast"))
        a_house.wait_ready("storage/fast")
        assert a_house.body("Storage", "fast")["metadata"]["generation"] == generation
        assert a_house.storages()["fast"].type is StorageType.NFS
        record.caught_up()
        assert record.problems() == []
        assert [state for state in record.states("Storage", "fast") if state != "InProgress"] == ["Failed", "Current"]


def test_the_world_changes_while_no_operator_runs(a_house: House, operator_for: NewOperator) -> None:
    """The restarted operator looks at everything at once, also at what an earlier one had given up."""
    (a_house.root / "other").mkdir()
    a_house.admin(lambda admin: admin.add_storage(_other_kind(a_house)))
    with operator_for(a_house, drift_s=_NEVER_S) as operator:
        a_house.apply(manager(), storage("fast", a_house.root / "mine"))
        _stalled(a_house, "Storage", "fast", "KindConflict")
        operator.stop()
        a_house.admin(lambda admin: admin.remove_storage("fast"))
        operator.start()
        a_house.wait_ready("storage/fast")


def test_an_operator_that_knows_more(a_house: House, operator_for: NewOperator) -> None:
    """A manager without an image is a mistake for an operator that was given none, and none for one that was."""
    with operator_for(a_house, drift_s=_NEVER_S, image="") as operator:
        a_house.apply(manager())
        _stalled(a_house, "KVCacheManager", "demo", "InvalidSpec")
        assert "spec.image" in a_house.condition("KVCacheManager", "demo")["message"]
        operator.stop()
    with operator_for(a_house, drift_s=_NEVER_S):
        a_house.wait_ready("kvcachemanager/demo")


def test_an_object_of_somebody_else_is_in_the_way(a_house: House, operator_for: NewOperator) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo"}, "spec": {"ports": [{"port": 1}], "selector": {"app": "theirs"}}}
    a_house.apply(service)
    with operator_for(a_house):
        a_house.apply(manager())
        _stalled(a_house, "KVCacheManager", "demo", "ObjectConflict")
        found = a_house.kube.get("Service", a_house.namespace, "demo")
        assert found is not None
        assert found["spec"]["selector"] == {"app": "theirs"}
        a_house.kubectl("delete", "service", "demo")
        a_house.wait_ready("kvcachemanager/demo")


def test_an_adoption_that_was_refused(a_house: House, operator_for: NewOperator) -> None:
    """The manager has a group of this name with another quota, and the resource may adopt only an equal one."""
    with operator_for(a_house) as operator:
        a_house.apply(manager(), storage("fast", a_house.root / "one"))
        a_house.wait_ready("storage/fast")
        a_house.kubectl("delete", "storage", "fast")  # its entry stays, and is nobody's
        a_house.apply(storage("fast", a_house.root / "one", enabled=False, adoptionPolicy="AdoptIfEqual"))
        _stalled(a_house, "Storage", "fast", "AdoptionRefused")
        assert a_house.storages()["fast"].enabled, "it was refused, so it was not touched"
        a_house.admin(lambda admin: admin.disable_storage("fast"))
        a_house.wait_ready("storage/fast")
        assert operator.metric("kvcm_operator_drift_corrections_total") == 0


def test_a_spec_that_means_nothing_until_it_is_corrected(cluster: Cluster, a_house: House, operator_for: NewOperator) -> None:
    if cluster.cel:
        pytest.skip("this API server refuses such a spec at once, by the rules in the schema")
    with operator_for(a_house, drift_s=_NEVER_S):
        a_house.apply(manager(), storage("fast", a_house.root), group("chat", "fast", "fast"))
        a_house.wait_ready("storage/fast")
        _stalled(a_house, "InstanceGroup", "chat", "InvalidSpec")
        assert "chat" not in a_house.groups()
        a_house.apply(group("chat", "fast"))
        a_house.wait_ready("instancegroup/chat")
        assert "chat" in a_house.groups()


def test_a_quota_that_is_used_up(a_house: House, operator_for: NewOperator) -> None:
    """A server says this with the status of a missing right, and means somebody who looks at the resource, not at the operator's log."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"count/statefulsets.apps": "0"}}}
    a_house.apply(quota)
    eventually(lambda: "hard" in a_house.kubectl("get", "quota", "none", "-o", "jsonpath={.status}"), "the quota counts")
    with operator_for(a_house):
        a_house.apply(manager())
        eventually(lambda: a_house.reason("KVCacheManager", "demo") == "ClusterRefused", "the manager says that the cluster refuses")
        assert "exceeded quota" in a_house.condition("KVCacheManager", "demo")["message"]
        a_house.kubectl("delete", "quota", "none")
        a_house.wait_ready("kvcachemanager/demo")


def test_an_object_with_large_annotations_of_its_own(a_house: House, operator_for: NewOperator) -> None:
    """All annotations of an object share one limit, and a copy of these would not fit."""
    big = storage("fast", a_house.root)
    big["metadata"]["annotations"] = {"users.own": "x" * 140_000}
    with operator_for(a_house) as operator:
        a_house.apply(manager())
        a_house.kube.create("Storage", a_house.namespace, big)
        a_house.wait_ready("kvcachemanager/demo", "storage/fast")
        a_house.kubectl("patch", "storage", "fast", "--type=merge", "-p", '{"spec":{"enabled":false}}')
        eventually(lambda: not a_house.storages()["fast"].enabled, "a later change is seen")
        a_house.kubectl("delete", "storage/fast", "--timeout=20s")
        assert "Too long" not in operator.log
