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
from e2e.support.operator_process import OperatorProcess
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_ROUNDS = 30
_NEW = 6
_EACH = 8
_LONGEST_S = 0.9
_GIB = 1024**3


def test_thirty_kills(a_house: House, admin_kube: Kube, operator_for: NewOperator, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(20240229)
    started = time.monotonic()
    names = [f"chat{number}" for number in range(_EACH)], [f"fast{number}" for number in range(_EACH)]
    groups, storages = [f"instancegroup/{name}" for name in names[0]], [f"storage/{name}" for name in names[1]]
    with operator_for(a_house, drift_s=1.0, at_once=False) as operator, Record(admin_kube, [a_house.namespace]) as record:

        def killed() -> None:
            operator.start(until="/healthz")
            # From the first sign of life: sometimes before it has seen anything, sometimes in the middle, sometimes after all is done.
            time.sleep(chance.uniform(0.0, _LONGEST_S))
            operator.kill()

        # 1. Everything is new.
        a_house.apply(
            *(group(chat, fast, deletionPolicy="Delete") for chat, fast in zip(*names, strict=True)),
            *(storage(fast, a_house.root / fast, deletionPolicy="Delete") for fast in names[1]),
            manager(),
        )
        for _ in range(_NEW):
            killed()
        operator.start()
        a_house.wait_ready("kvcachemanager/demo", *storages, *groups)
        assert a_house.events("DriftCorrected") == [], "what an operator left half done is no drift"
        operator.kill()

        # 2. One entry a round is changed behind the operator's back: each is news exactly once, wherever the operator was killed.
        for chat, fast in zip(*names, strict=True):
            old = a_house.groups()[chat]
            other = replace(old, quota=replace(old.quota, capacity=99 * _GIB), version=old.version + 1)
            a_house.admin(lambda admin, old=old, other=other: admin.update_group(other, old.version))  # type: ignore[misc]  # bound now
            killed()
            a_house.admin(lambda admin, fast=fast: admin.disable_storage(fast))  # type: ignore[misc]  # bound now
            killed()
        operator.start()
        eventually(lambda: all(a_house.groups()[name].quota.capacity == _GIB for name in names[0]), "the quotas are put right")
        eventually(lambda: all(a_house.storages()[name].enabled for name in names[1]), "the storages are enabled again")
        _quiet(operator, 2 * (1 + 2 * _EACH))
        told = sorted((event["involvedObject"]["name"], event["count"]) for event in a_house.events("DriftCorrected"))
        assert told == sorted((name, 1) for name in (*names[0], *names[1]))
        operator.kill()

        # 3. Specs change, and the manager forgets everything.
        for number in range(_ROUNDS - _NEW - 2 * _EACH):
            for name in names[0]:
                admin_kube.patch("InstanceGroup", a_house.namespace, name, {"spec": {"quota": {"total": f"{number + 2}Gi"}}})
            if number % 2:
                a_house.manager.kill()
                a_house.manager.start()
            killed()
        operator.start()
        a_house.wait_ready("kvcachemanager/demo", *storages, *groups)
        assert {a_house.groups()[name].quota.capacity for name in names[0]} == {(_ROUNDS - _NEW - 2 * _EACH + 1) * _GIB}

        a_house.kubectl("delete", *groups, *storages, "kvcachemanager/demo", "--timeout=60s", timeout=70)
        assert not {*names[0], *names[1]} & {*a_house.groups(), *a_house.storages()}
        eventually(lambda: record.states("KVCacheManager", "demo")[-1] == "Gone", "the watch has shown the end of it")
        assert record.problems() == []
    with capsys.disabled():
        sys.stdout.write(f"\n{_ROUNDS} kills of the operator: {time.monotonic() - started:.0f} s\n")


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


def _quiet(operator: OperatorProcess, passes: int) -> None:
    """So many more passes end: whatever it had to say about what it has done, it has said."""
    before = operator.metric("kvcm_operator_reconcile_total")
    eventually(lambda: operator.metric("kvcm_operator_reconcile_total") >= before + passes, "the operator looks again")
