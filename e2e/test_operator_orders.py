"""Apply in any order, then again: the same end, and the second time nobody writes anything.

There are no nodes at this level: THE MANAGERS ARE LOCAL PROCESSES.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from itertools import permutations
from typing import Any

import pytest

from e2e.cluster.errors import BedError
from e2e.cluster.waiting import eventually
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewHouse, NewOperator
from e2e.support.house import House
from e2e.support.kube import OURS, Json, Kube
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_DRIFT_S = 1.0
_MADE = ("StatefulSet", "Service", "ConfigMap", "ServiceAccount", "RoleBinding")
_ELECTING: Json = {"replicas": 3, "coordination": {"type": "etcd", "etcd": {"endpoints": ["etcd.example:2379"]}}}
_WRITE = re.compile(
    r'^apiserver_request_total\{(?:[^}]*,)?resource="(?P<what>[a-z]+)"[^}]*verb="(?P<verb>POST|PUT|PATCH|APPLY|DELETE|DELETECOLLECTION)"[^}]*\} (?P<count>\S+)$'
)


def test_every_order_ends_the_same_and_a_second_apply_writes_nothing(admin_kube: Kube, new_house: NewHouse, operator_for: NewOperator) -> None:
    with ExitStack() as stack:
        houses = {order: stack.enter_context(new_house()) for order in permutations(OURS)}
        operator = stack.enter_context(operator_for(*houses.values(), drift_s=_DRIFT_S))
        record = stack.enter_context(Record(admin_kube, [house.namespace for house in houses.values()]))
        for order, house in houses.items():
            for kind in order:
                house.apply(_bodies(house)[kind])
        for house in houses.values():
            house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
        ends = {order: _end(house) for order, house in houses.items()}
        assert all(end == next(iter(ends.values())) for end in ends.values()), ends

        _quiet(admin_kube, list(houses.values()))
        before = {order: _audit(house) for order, house in houses.items()}
        assert all(house.mutations().get("AddStorage") == 1 and house.mutations().get("CreateInstanceGroup") == 1 for house in houses.values())
        calls, lines = _writes(admin_kube), len(record)
        # A disruption budget too, whichever version of its API this server has; and the operator may bind the role that it does not have.
        assert {"statefulsets", "rolebindings", "poddisruptionbudgets"} <= calls.keys(), "the API server does not count its requests"
        for order, house in houses.items():
            said = [house.apply(_bodies(house)[kind]) for kind in reversed(order)]
            assert all(line.endswith("unchanged") for text in said for line in text.splitlines()), said
        passes = operator.metric("kvcm_operator_reconcile_total")
        everything = len(OURS) * len(houses)
        eventually(lambda: operator.metric("kvcm_operator_reconcile_total") >= passes + 3 * everything, "the operator looks at everything again")
        assert {order: _audit(house) for order, house in houses.items()} == before
        assert _writes(admin_kube) == calls
        assert len(record) == lines

        # Neither does an operator that has just started: it knows nothing yet, and finds everything as it should be.
        operator.stop()
        operator.start()
        eventually(lambda: operator.metric("kvcm_operator_reconcile_total") >= 2 * everything, "the new operator looks at everything")
        assert {order: _audit(house) for order, house in houses.items()} == before
        assert _writes(admin_kube) == calls

        record.caught_up()
        assert record.problems() == []


def test_whoever_waits_says_for_what(a_house: House, operator_for: NewOperator) -> None:
    """A dependency that is not there yet is a named state, not an error."""
    bodies = _bodies(a_house)
    with operator_for(a_house):
        a_house.apply(bodies["InstanceGroup"], bodies["Storage"])
        eventually(lambda: a_house.reason("InstanceGroup", "chat") == "ManagerNotFound", "the group names what it waits for")
        eventually(lambda: a_house.reason("Storage", "fast") == "ManagerNotFound", "the storage names what it waits for")
        with pytest.raises(BedError, match="timed out"):
            a_house.wait_ready("storage/fast", seconds=1)
        a_house.kubectl("delete", "storage", "fast")
        a_house.apply(bodies["KVCacheManager"])
        eventually(lambda: a_house.reason("InstanceGroup", "chat") == "StorageNotRegistered", "the group names what it waits for now")
        a_house.apply(bodies["Storage"])
        a_house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")


def _bodies(house: House) -> dict[str, Json]:
    return {"KVCacheManager": manager(**_ELECTING), "Storage": storage("fast", house.root), "InstanceGroup": group("chat", "fast", total="2Gi")}


def _end(house: House) -> dict[str, Any]:
    """What the cluster and the manager have in the end, without what differs by nature: names of places, numbers, times."""
    found: dict[str, Any] = {"group": house.groups()["chat"], "storage": house.storages()["fast"].enabled}
    for kind in (*OURS, *_MADE):
        for body in house.kube.all(kind, house.namespace):
            conditions = {item["type"]: (item["status"], item["reason"]) for item in body.get("status", {}).get("conditions") or []}
            found[f"{kind} {body['metadata']['name']}"] = conditions
    return found


def _audit(house: House) -> dict[str, Any]:
    """The version of each object that the operator writes, and the manager's count of changes."""
    kinds = (*OURS, *_MADE, "Event")
    versions = {
        f"{kind} {body['metadata']['name']}": body["metadata"]["resourceVersion"]
        for kind in kinds
        for body in house.kube.all(kind, house.namespace)
        if kind != "Event" or body.get("source", {}).get("component") == "kvcm-operator"
    }
    return {**versions, "manager": house.mutations()}


def _writes(kube: Kube) -> dict[str, float]:
    """How many changing requests the API server has had for each resource that the operator writes."""
    wanted = {"kvcachemanagers", "storages", "instancegroups", "statefulsets", "services", "configmaps", "serviceaccounts"}
    wanted |= {"rolebindings", "poddisruptionbudgets"}
    found: dict[str, float] = {}
    for line in kube.text("/metrics").splitlines():
        match = _WRITE.match(line)
        if match and match["what"] in wanted:
            found[match["what"]] = found.get(match["what"], 0) + float(match["count"])
    return found


def _quiet(kube: Kube, houses: list[House]) -> None:
    """The controllers of the cluster, too, have ended what they began."""
    last: list[object] = [None]

    def still() -> bool:
        now = [_audit(house) for house in houses], _writes(kube)
        same = now == last[0]
        last[0] = now
        time.sleep(2 * _DRIFT_S)
        return same

    eventually(still, "nothing is written any more", seconds=60)
