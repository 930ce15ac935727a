"""A spec changes while it is being worked on: the last word wins, and nobody who waits is told too early.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS.
"""

from __future__ import annotations

import signal

import pytest

from e2e.cluster.errors import BedError
from e2e.cluster.waiting import eventually
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewOperator
from e2e.support.house import House
from e2e.support.kube import Kube
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_GIB = 1024**3


def _settle(house: House) -> None:
    house.apply(manager(), storage("fast", house.root), group("chat", "fast"))
    house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")


def _set_quota(house: House, gib: int) -> None:
    house.kube.patch("InstanceGroup", house.namespace, "chat", {"spec": {"quota": {"total": f"{gib}Gi"}}})


def test_whoever_waits_after_a_change_finds_the_change(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    """`kubectl wait` right after a change: when it returns, the manager has the newest quota, however fast the changes came."""
    with operator_for(a_house) as operator, Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house)
        for number in range(2, 12):
            _set_quota(a_house, number)
            if number % 3 == 0:
                continue  # the next change comes while this one is worked on
            a_house.wait_ready("instancegroup/chat")
            assert a_house.groups()["chat"].quota.capacity == number * _GIB
        assert operator.metric("kvcm_operator_drift_corrections_total") == 0
        assert a_house.events("DriftCorrected") == []
        record.caught_up()
        assert record.problems() == []


def test_a_change_in_the_middle_of_a_pass_is_not_lost(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    """The manager is stopped (SIGSTOP), so the pass for the second generation hangs while the third one comes."""
    with operator_for(a_house) as operator, Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house)
        a_house.manager.send(signal.SIGSTOP)
        try:
            _set_quota(a_house, 2)
            with pytest.raises(BedError, match="timed out"):
                a_house.wait_ready("instancegroup/chat", seconds=2)
            _set_quota(a_house, 3)
            with pytest.raises(BedError, match="timed out"):
                a_house.wait_ready("instancegroup/chat", seconds=1)
        finally:
            a_house.manager.send(signal.SIGCONT)
        a_house.wait_ready("instancegroup/chat")
        assert a_house.groups()["chat"].quota.capacity == 3 * _GIB
        assert operator.metric("kvcm_operator_drift_corrections_total") == 0
        record.caught_up()
        assert record.problems() == []


def test_a_change_while_the_manager_is_away_is_not_called_done(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    """Ready may be kept through a silence, but never for a generation that was not brought to the manager."""
    with operator_for(a_house), Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house)
        a_house.manager.kill()
        _set_quota(a_house, 2)
        eventually(lambda: a_house.reason("InstanceGroup", "chat") != "", "the status speaks about the new generation")
        with pytest.raises(BedError, match="timed out"):
            a_house.wait_ready("instancegroup/chat", seconds=2)
        assert a_house.condition("InstanceGroup", "chat")["status"] == "False"
        assert a_house.condition("Storage", "fast")["status"] == "True", "nothing new was asked of it"
        a_house.manager.start()
        a_house.wait_ready("instancegroup/chat")
        assert a_house.groups()["chat"].quota.capacity == 2 * _GIB
        record.caught_up()
        assert record.problems() == []


def test_a_manager_away_for_long_becomes_unknown_and_comes_back(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    """Within the grace period Ready stays; after it nobody pretends to know. The outage is one dip, not many."""
    with operator_for(a_house, grace_s=3.0) as operator, Record(admin_kube, [a_house.namespace]) as record:
        _settle(a_house)
        a_house.manager.kill()
        for kind, name in (("KVCacheManager", "demo"), ("Storage", "fast"), ("InstanceGroup", "chat")):
            eventually(lambda kind=kind, name=name: a_house.condition(kind, name).get("status") == "Unknown", f"{kind} is unknown", seconds=40)  # type: ignore[misc]  # bound now
        assert a_house.condition("KVCacheManager", "demo", "Available")["status"] == "False"
        a_house.manager.start()
        a_house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
        assert {"fast", "chat"} <= {*a_house.storages(), *a_house.groups()}
        assert operator.metric("kvcm_operator_reconcile_total", result="error") == 0
        record.caught_up()
        assert record.problems(dips=1) == []
