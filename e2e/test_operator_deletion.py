"""Deleting: what stays, what goes, what waits for what, and how a wait is ended by hand.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS.
"""

from __future__ import annotations

import json

import pytest

from e2e.cluster.waiting import eventually
from e2e.support.blocks import engine
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewOperator
from e2e.support.house import House
from e2e.support.kube import Kube
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_GONE = {"deletionPolicy": "Delete"}


def _settle(house: House, **policy: str) -> None:
    house.apply(manager(), storage("fast", house.root, **policy), group("chat", "fast", **policy))
    house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")


def _delete(house: House, *names: str) -> None:
    """Ask, and do not wait."""
    house.kubectl("delete", "--wait=false", *names)


def _gone(house: House, kind: str, name: str) -> bool:
    return house.kube.get(kind, house.namespace, name) is None


def test_by_default_the_entries_stay(a_house: House, operator_for: NewOperator) -> None:
    with operator_for(a_house):
        _settle(a_house)
        a_house.kubectl("delete", "storage/fast", "instancegroup/chat", "--timeout=20s")
        assert "fast" in a_house.storages()
        assert "chat" in a_house.groups()
        a_house.kubectl("delete", "kvcachemanager/demo", "--timeout=20s")


def test_entries_that_are_to_go_go_in_their_order(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    """All at once, the storage first: it waits for its group, and the manager for both."""
    with operator_for(a_house), Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house, **_GONE)
        a_house.kubectl("delete", "kvcachemanager/demo", "storage/fast", "instancegroup/chat", "--timeout=40s", timeout=50)
        assert "fast" not in a_house.storages()
        assert "chat" not in a_house.groups()
        assert a_house.events("OrphanedOnDelete") == []
        record.caught_up()
        assert record.problems() == []


def test_a_storage_in_use_waits_for_its_group(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    with operator_for(a_house), Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house, **_GONE)
        _delete(a_house, "storage/fast")
        eventually(lambda: a_house.condition("Storage", "fast")["reason"] == "InUse", "the storage says that it is in use")
        assert "chat" in a_house.condition("Storage", "fast")["message"]
        assert "fast" in a_house.storages()
        a_house.kubectl("delete", "instancegroup/chat", "--timeout=40s", timeout=50)
        eventually(lambda: _gone(a_house, "Storage", "fast"), "the storage is gone")
        assert "fast" not in a_house.storages()
        record.caught_up()
        assert record.problems() == []
        assert [state for state in record.states("Storage", "fast") if state != "InProgress"] == ["Current", "Terminating", "Gone"]


def test_a_group_in_use_waits_for_its_instances(a_house: House, operator_for: NewOperator) -> None:
    with operator_for(a_house):
        _settle(a_house, **_GONE)
        with engine(a_house.manager.meta_address, "chat") as client:
            assert client.write(1) == 1
        _delete(a_house, "instancegroup/chat")
        eventually(lambda: a_house.condition("InstanceGroup", "chat")["reason"] == "InUse", "the group says that it is in use")
        assert "chat" in a_house.groups()
        a_house.remove_instance("engine")
        eventually(lambda: _gone(a_house, "InstanceGroup", "chat"), "the group is gone", seconds=40)
        assert "chat" not in a_house.groups()


def test_an_administrator_ends_a_wait(a_house: House, operator_for: NewOperator) -> None:
    with operator_for(a_house):
        _settle(a_house, **_GONE)
        with engine(a_house.manager.meta_address, "chat"):
            pass
        _delete(a_house, "instancegroup/chat", "storage/fast")
        eventually(lambda: a_house.condition("InstanceGroup", "chat")["reason"] == "InUse", "the group says that it is in use")
        a_house.kubectl("annotate", "instancegroup/chat", "storage/fast", "kvcm.io/force-release=true")
        eventually(lambda: _gone(a_house, "InstanceGroup", "chat") and _gone(a_house, "Storage", "fast"), "both are released", seconds=40)
        assert {event["involvedObject"]["name"] for event in a_house.events("ForceReleased")} == {"chat", "fast"}
        assert "chat" in a_house.groups()
        assert "fast" in a_house.storages()


def test_a_manager_that_is_away_is_waited_for(a_house: House, operator_for: NewOperator) -> None:
    """Silence is not absence: the entry would come back with the manager."""
    with operator_for(a_house):
        _settle(a_house, **_GONE)
        a_house.manager.kill()
        _delete(a_house, "instancegroup/chat")
        eventually(lambda: a_house.condition("InstanceGroup", "chat")["reason"] == "Deleting", "the group says that it waits", seconds=40)
        assert not _gone(a_house, "InstanceGroup", "chat")
        a_house.manager.start()
        eventually(lambda: _gone(a_house, "InstanceGroup", "chat"), "the group is gone", seconds=60)
        assert "chat" not in a_house.groups()


def test_a_manager_that_is_gone_is_not_waited_for(a_house: House, operator_for: NewOperator) -> None:
    with operator_for(a_house):
        _settle(a_house, **_GONE)
        a_house.kubectl("delete", "kvcachemanager/demo", "--timeout=20s")
        a_house.kubectl("delete", "instancegroup/chat", "storage/fast", "--timeout=40s", timeout=50)
        assert {event["involvedObject"]["name"] for event in a_house.events("OrphanedOnDelete")} == {"chat", "fast"}


def test_of_two_resources_for_one_name_the_older_has_it(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    with operator_for(a_house), Record(admin_kube, [a_house.namespace]) as record:
        a_house.apply(manager(), storage("older", a_house.root / "a", name="fast"))
        a_house.wait_ready("storage/older")
        born = a_house.body("Storage", "older")["metadata"]["creationTimestamp"]

        def later() -> bool:
            """Ages are whole seconds of the API server, and within one of them the uid would decide."""
            trial = json.loads(a_house.kubectl("create", "configmap", "clock", "--dry-run=server", "-o", "json"))
            return bool(trial["metadata"]["creationTimestamp"] > born)

        eventually(later, "another second has begun")
        a_house.apply(storage("younger", a_house.root / "b", name="fast", enabled=False, **_GONE))
        eventually(lambda: a_house.reason("Storage", "younger") == "NameConflict", "the younger one says that the name is taken")
        assert a_house.condition("Storage", "younger", "Stalled")["status"] == "True"
        assert a_house.reason("Storage", "older") == "Ready"
        assert a_house.storages()["fast"].enabled, "the loser changes nothing"

        a_house.kubectl("delete", "storage/younger", "--timeout=20s")
        assert "fast" in a_house.storages(), "the loser deletes nothing, though its policy is Delete"

        a_house.apply(storage("younger", a_house.root / "a", name="fast", enabled=False, **_GONE))
        eventually(lambda: a_house.reason("Storage", "younger") == "NameConflict", "the next one says so, too")
        a_house.kubectl("delete", "storage/older", "--timeout=20s")
        a_house.wait_ready("storage/younger")
        assert not a_house.storages()["fast"].enabled, "now it is the younger one's"
        a_house.kubectl("delete", "storage/younger", "--timeout=40s", timeout=50)
        assert "fast" not in a_house.storages()
        record.caught_up()
        assert record.problems() == []
