"""From a cluster without our kinds to verified blocks, and back to a cluster without a trace.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS that plays the pod of KVCacheManager demo, and the engine reaches it at its own address
instead of the Service. manifests/quickstart is changed for that: the storage's folder is one of this test, so the pods that make it are left out.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from e2e.cluster.handle import Cluster
from e2e.cluster.waiting import eventually
from e2e.support.blocks import engine
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewHouse, NewOperator
from e2e.support.house import House
from e2e.support.installation import ROOT, Installation
from e2e.support.kube import OURS, Kube
from e2e.support.operator_process import NAMESPACE
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_NAMESPACE = "kvcm-quickstart"
_ALL = ("kvcachemanager/demo", "storage/demo", "instancegroup/demo")
_CHILDREN = {"StatefulSet": ["demo"], "Service": ["demo", "demo-leader", "demo-nodes"], "ConfigMap": ["demo-config"], "ServiceAccount": ["demo-manager"]}


def test_fresh_cluster_to_blocks_and_back(
    cluster: Cluster,
    installation: Installation,
    admin_kube: Kube,
    new_house: NewHouse,
    operator_for: NewOperator,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not cluster.controllers:
        pytest.skip("this API server has no controllers, so nothing is made from a StatefulSet and nothing is collected after a deletion")
    installation.remove()
    assert "kvcm.io" not in cluster.kubectl("get", "crd", "-o", "name")
    installation.ensure()
    with (
        new_house(namespace=_NAMESPACE) as house,
        operator_for(house, lease=True) as operator,
        Record(admin_kube, [_NAMESPACE]) as record,
    ):
        assert _holder(cluster)
        quickstart = _quickstart(installation, house)

        started = time.monotonic()
        cluster.kubectl("apply", "-k", str(quickstart))
        house.wait_ready(*_ALL)
        took = time.monotonic() - started
        with capsys.disabled():
            sys.stdout.write(f"\nquickstart without nodes (the manager is a local process): all three Ready {took:.1f} s after kubectl apply\n")

        assert house.groups()["demo"].quota.capacity == 4 * 1024**3
        assert "demo" in house.storages()
        with engine(house.manager.meta_address, "demo") as client:
            assert client.write(*range(1, 9)) == 8
            assert client.read(*range(1, 9)) == 8
        for kind, expected in _CHILDREN.items():
            names = {body["metadata"]["name"] for body in admin_kube.all(kind, _NAMESPACE) if body["metadata"].get("ownerReferences")}
            assert names == set(expected), kind
        eventually(lambda: house.body("InstanceGroup", "demo")["status"].get("instances") == 1, "the group's status counts the engine", seconds=10)

        cluster.kubectl("delete", "-k", str(quickstart), "--timeout=90s", timeout=100)
        assert cluster.kubectl("get", "namespace", _NAMESPACE, "--ignore-not-found") == ""
        for kind in (*OURS, *_CHILDREN):
            assert [body for body in admin_kube.all(kind, "") if body["metadata"]["namespace"] == _NAMESPACE] == [], kind
        assert record.problems() == []
        for kind in OURS:
            assert record.states(kind, "demo") == ["InProgress", "Current", "Terminating", "Gone"], kind
        assert operator.metric("kvcm_operator_drift_corrections_total") == 0
        operator.stop()
        assert _holder(cluster) == "", "the next operator need not wait for the term of this one"

    installation.remove()
    left = cluster.kubectl("get", "crd,clusterrole,clusterrolebinding,namespace", "-o", "name")
    assert not [name for name in left.split() if "kvcm" in name]


def test_the_columns_tell_people_what_is_so(a_house: House, operator_for: NewOperator) -> None:
    with operator_for(a_house):
        a_house.apply(manager(), storage("fast", a_house.root), group("chat", "fast"))
        a_house.wait_ready("kvcm/demo", "kvst/fast", "kvig/chat")
        for kind in ("kvmgr", "kvst", "kvig"):
            head, *rows = a_house.kubectl("get", kind).splitlines()
            assert {"NAME", "READY", "REASON", "SYNCED", "AGE"} <= set(head.split())
            assert len(rows) == 1
            assert {"True", "Ready"} <= set(rows[0].split())
        assert a_house.kubectl("get", "kvcm").count("Ready") >= 3


def _holder(cluster: Cluster) -> str:
    lease = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "lease", "kvcm-operator", "-o", "json"))
    return str(lease["spec"]["holderIdentity"])


def _quickstart(installation: Installation, house: House) -> Path:
    moved = {
        "apiVersion": "kvcm.io/v1alpha1",
        "kind": "Storage",
        "metadata": {"name": "demo"},
        "spec": {"nfs": {"rootPath": str(house.root)}, "volume": {"hostPath": {"path": str(house.root)}}},
    }
    made_by_us = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "demo-folder"}, "$patch": "delete"}
    return installation.overlay("quickstart", ROOT / "manifests/quickstart", [moved, made_by_us])
