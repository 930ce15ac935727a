"""Things change behind the operator's back: it puts them right and says so once.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.cluster.waiting import eventually
from e2e.support.blocks import engine
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewOperator
from e2e.support.house import House
from e2e.support.kube import Kube
from e2e.support.operator_process import OperatorProcess
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_ALL = (("KVCacheManager", "demo"), ("Storage", "fast"), ("InstanceGroup", "chat"))
_GIB = 1024**3


def _settle(house: House) -> None:
    house.apply(manager(), storage("fast", house.root), group("chat", "fast"))
    house.wait_ready(*(f"{kind}/{name}" for kind, name in _ALL))


def _reported_once(house: House, operator: OperatorProcess, *names: str) -> None:
    """One event and one correction for each of them, none for the others; and nothing comes after it."""
    corrections = "kvcm_operator_drift_corrections_total"
    eventually(lambda: operator.metric(corrections) == len(names), "each correction is counted, after its status is written")
    # "Corrected" is news of one pass; the next one finds it in order.
    eventually(lambda: all(house.condition(kind, name, "Synced").get("reason") == "InSync" for kind, name in _ALL), "all are in sync")
    passes = {kind: operator.metric("kvcm_operator_reconcile_total", kind=kind) for kind, _ in _ALL}
    eventually(lambda: all(operator.metric("kvcm_operator_reconcile_total", kind=kind) >= passes[kind] + 2 for kind in passes), "it has looked twice more")
    told = {event["involvedObject"]["name"]: event["count"] for event in house.events("DriftCorrected")}
    assert told == dict.fromkeys(names, 1)
    assert operator.metric(corrections) == len(names)
    assert all(house.condition(kind, name, "Synced")["reason"] == "InSync" for kind, name in _ALL)


def test_a_registry_wiped_by_a_restart_is_filled_again(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    """The registry of this manager is in memory. Its blocks are gone with it; what counts is that new ones can be written."""
    with operator_for(a_house) as operator, Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house)
        a_house.manager.kill()
        a_house.manager.start()
        assert "chat" not in a_house.groups()
        eventually(lambda: "chat" in a_house.groups() and "fast" in a_house.storages(), "the registry is filled again")
        _reported_once(a_house, operator, "fast", "chat")
        assert a_house.body("KVCacheManager", "demo")["status"]["leader"]["epoch"] >= 1
        with engine(a_house.manager.meta_address, "chat") as client:
            assert client.write(1, 2, 3) == 3
            assert client.read(1, 2, 3) == 3
        record.caught_up()
        assert record.problems() == []
        assert [record.states(kind, name) for kind, name in _ALL] == [["InProgress", "Current"]] * 3


def test_changed_entries_are_put_right(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    with operator_for(a_house) as operator, Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house)
        old = a_house.groups()["chat"]
        smaller = replace(old, quota=replace(old.quota, capacity=5 * _GIB), version=old.version + 1)
        a_house.admin(lambda admin: admin.update_group(smaller, old.version))
        a_house.admin(lambda admin: admin.disable_storage("fast"))
        assert a_house.groups()["chat"].quota.capacity == 5 * _GIB
        eventually(lambda: a_house.groups()["chat"].quota.capacity == _GIB, "the quota is put right")
        eventually(lambda: a_house.storages()["fast"].enabled, "the storage is enabled again")
        _reported_once(a_house, operator, "fast", "chat")
        record.caught_up()
        assert record.problems() == []


def test_removed_entries_are_made_again(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    with operator_for(a_house) as operator, Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house)
        a_house.admin(lambda admin: admin.remove_group("chat"))
        a_house.admin(lambda admin: admin.remove_storage("fast"))
        eventually(lambda: "chat" in a_house.groups() and "fast" in a_house.storages(), "both are there again")
        _reported_once(a_house, operator, "fast", "chat")
        record.caught_up()
        assert record.problems() == []


def test_the_managers_objects_are_made_again(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    with operator_for(a_house) as operator, Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house)
        right = admin_kube.get("ConfigMap", a_house.namespace, "demo-config")
        assert right is not None
        a_house.kubectl("patch", "configmap", "demo-config", "--type=merge", "-p", '{"data": {"kvcm.conf": "nonsense"}}')

        def restored() -> bool:
            now = admin_kube.get("ConfigMap", a_house.namespace, "demo-config")
            return now is not None and now["data"] == right["data"]

        eventually(restored, "the settings are put right")
        _reported_once(a_house, operator, "demo")
        a_house.kubectl("delete", "service", "demo", "--wait=true")
        eventually(lambda: admin_kube.get("Service", a_house.namespace, "demo") is not None, "the Service is there again")
        eventually(lambda: operator.metric("kvcm_operator_drift_corrections_total") == 2, "it counts as a correction of its own")
        record.caught_up()
        assert record.problems() == []
