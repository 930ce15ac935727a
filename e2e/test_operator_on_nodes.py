"""The quickstart as users run it: operator, manager and engine are pods on real nodes, and every step is a kubectl command.

The engine is `kvcm replay` in a pod: it reaches the manager through its Service, by name, and compares every byte that it reads.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.handle import Cluster
from e2e.support.fixtures import PROJECT_IMAGE
from e2e.support.installation import ROOT, Installation
from e2e.support.kube import OURS, Kube
from e2e.support.operator_process import NAMESPACE
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_QUICKSTART = ROOT / "manifests/quickstart"
_PLACE = "kvcm-quickstart"
_ALL = ("kvcachemanager/demo", "storage/demo", "instancegroup/demo")
_FOLDER = "/var/lib/kvcm-quickstart"
_REQUESTS = 40
_BLOCK_BYTES = 4096


@pytest.mark.usefixtures("project_on_nodes")
def test_quickstart_on_real_nodes(node_cluster: Cluster, installation: Installation, admin_kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    kubectl = node_cluster.kubectl
    installation.remove()
    installation.ensure(in_cluster=True)
    kubectl("-n", NAMESPACE, "rollout", "status", "deployment/kvcm-operator", "--timeout=90s", timeout=100)

    try:
        with Record(admin_kube, [_PLACE]) as record:
            started = time.monotonic()
            kubectl("apply", "-k", str(_QUICKSTART))
            kubectl("-n", _PLACE, "wait", "--for=condition=Ready", "--timeout=120s", *_ALL, timeout=130)
            took = time.monotonic() - started
            with capsys.disabled():
                sys.stdout.write(f"\nquickstart on nodes (operator and manager are pods): all three Ready {took:.1f} s after kubectl apply\n")

            numbers = _replay(node_cluster)
            assert numbers["written_blocks"] > 0
            assert numbers["bytes_verified"] == numbers["bytes_read"] == numbers["hit_blocks"] * _BLOCK_BYTES > 0
            assert (numbers["mismatches"], numbers["problems"]) == (0, [])
            kubectl("-n", _PLACE, "wait", "--for=jsonpath={.status.instances}=1", "instancegroup/demo", "--timeout=90s", timeout=100)

            kubectl("delete", "-k", str(_QUICKSTART), "--timeout=120s", timeout=130)
            assert kubectl("get", "namespace", _PLACE, "--ignore-not-found") == ""
            assert record.problems() == []
            for kind in OURS:
                assert record.states(kind, "demo") == ["InProgress", "Current", "Terminating", "Gone"], kind
    finally:
        kubectl("delete", "-k", str(_QUICKSTART), "--ignore-not-found", "--timeout=60s", timeout=70, check=False)

    log = kubectl("-n", NAMESPACE, "logs", "deployment/kvcm-operator")
    assert "Traceback" not in log
    installation.remove()
    assert not [name for name in kubectl("get", "crd,clusterrole,clusterrolebinding,namespace,pv", "-o", "name").split() if "kvcm" in name]
    assert any(Path(_FOLDER).rglob("*")), "the blocks stay where they are: the storage's policy is Retain"


def _replay(cluster: Cluster) -> dict[str, Any]:
    """The numbers of a replay in a pod, in the namespace of the quickstart. BedError with the pod's words when it fails."""
    replay = f"kvcm replay conversation --manager demo:6381 --group demo --limit {_REQUESTS} --block-bytes {_BLOCK_BYTES}"
    program = f"{replay} --json /tmp/numbers.json >&2 && cat /tmp/numbers.json"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "engine"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 65532, "runAsGroup": 65532},
            "containers": [
                {
                    "name": "engine",
                    "image": PROJECT_IMAGE,
                    "command": ["sh", "-c", program],
                    "volumeMounts": [{"name": "blocks", "mountPath": _FOLDER}, {"name": "tmp", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "blocks", "hostPath": {"path": _FOLDER, "type": "Directory"}}, {"name": "tmp", "emptyDir": {}}],
        },
    }
    cluster.kubectl("-n", _PLACE, "apply", "-f", "-", input=json.dumps(pod))
    ended = ("-n", _PLACE, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/engine", "--timeout=90s")
    cluster.kubectl(*ended, timeout=100)
    said = cluster.kubectl("-n", _PLACE, "logs", "engine")
    numbers: dict[str, Any] = json.loads(said[said.index("{") :])
    return numbers
