"""The operator is killed again and again, anywhere: what it left half done is finished, nothing is done twice, and one change is one piece of news.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS. The Lease is off, or each round would wait for the dead holder's term.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace

import pytest

from e2e.cluster.waiting import eventually
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewOperator
from e2e.support.house import House
from e2e.support.kube import OURS, Kube
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_ROUNDS = 30
_LONGEST_S = 0.9
_GIB = 1024**3


def test_thirty_kills(a_house: House, admin_kube: Kube, operator_for: NewOperator, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(20240229)
    started = time.monotonic()
    with operator_for(a_house, drift_s=1.0, at_once=False) as operator, Record(admin_kube, [a_house.namespace]) as record:
        a_house.apply(group("chat", "fast", deletionPolicy="Delete"), storage("fast", a_house.root, deletionPolicy="Delete"), manager())
        drifts = 0
        for number in range(_ROUNDS):
            drifts += _disturb(a_house, number)
            operator.start(until="/healthz")
            # From the first sign of life: sometimes before it has seen anything, sometimes in the middle, sometimes after all is done.
            time.sleep(chance.uniform(0.0, _LONGEST_S))
            operator.kill()
        operator.start()
        a_house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
        want = int(a_house.body("InstanceGroup", "chat")["spec"]["quota"]["total"].removesuffix("Gi"))
        eventually(lambda: a_house.groups()["chat"].quota.capacity == want * _GIB and a_house.storages()["fast"].enabled, "all is as it should be")
        told = [(event["involvedObject"]["name"], event["count"]) for event in a_house.events("DriftCorrected")]
        assert sorted(told) == [("chat", 1), ("fast", 1)]
        assert operator.metric("kvcm_operator_drift_corrections_total") <= 2
        a_house.kubectl("delete", "instancegroup/chat", "storage/fast", "kvcachemanager/demo", "--timeout=60s", timeout=70)
        assert "chat" not in a_house.groups()
        assert "fast" not in a_house.storages()
        assert record.problems() == []
    with capsys.disabled():
        sys.stdout.write(f"\n{_ROUNDS} kills of the operator, {drifts} changes behind its back: {time.monotonic() - started:.0f} s\n")


def test_a_kill_in_the_middle_of_a_deletion_leaves_nothing(a_house: House, operator_for: NewOperator) -> None:
    chance = random.Random(7)
    bodies = manager(), storage("fast", a_house.root, deletionPolicy="Delete"), group("chat", "fast", deletionPolicy="Delete")
    with operator_for(a_house, drift_s=1.0) as operator:
        for _ in range(3):
            a_house.apply(*bodies)
            a_house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
            a_house.kubectl("delete", "instancegroup/chat", "storage/fast", "kvcachemanager/demo", "--wait=false")
            time.sleep(chance.uniform(0.0, 0.3))
            operator.kill()
            operator.start()
            eventually(lambda: not any(a_house.kube.all(kind, a_house.namespace) for kind in OURS), "all are gone")
            assert "chat" not in a_house.groups()
            assert "fast" not in a_house.storages()


def _disturb(house: House, number: int) -> int:
    """One change a round, while no operator runs: of the spec, of the manager's entries, or of the manager itself. 1 when it is drift."""
    match number % 4:
        case 0:
            house.kube.patch("InstanceGroup", house.namespace, "chat", {"spec": {"quota": {"total": f"{number + 1}Gi"}}})
            return 0
        case 1 if "fast" in house.storages():
            house.admin(lambda admin: admin.disable_storage("fast"))
        case 2 if "chat" in house.groups():
            old = house.groups()["chat"]
            other = replace(old, quota=replace(old.quota, capacity=99 * _GIB), version=old.version + 1)
            house.admin(lambda admin: admin.update_group(other, old.version))
        case 3:
            house.manager.kill()
            house.manager.start()
        case _:
            return 0
    return 1
