"""The test bed itself: a cluster that the other end-to-end tests can lean on."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from e2e.cluster.errors import BedError
from e2e.cluster.handle import Cluster
from e2e.cluster.waiting import eventually

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[1]


def test_the_api_answers(cluster: Cluster) -> None:
    version = json.loads(cluster.kubectl("get", "--raw", "/version"))
    assert (int(version["major"]), int(version["minor"].rstrip("+"))) == cluster.version
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"


def test_a_failing_command_says_why(cluster: Cluster) -> None:
    with pytest.raises(BedError, match="not found"):
        cluster.kubectl("get", "configmap", "there-is-none")


def test_helm_talks_to_the_cluster(cluster: Cluster, namespace: str) -> None:
    assert json.loads(cluster.helm("list", "-n", namespace, "-o", "json")) == []


def test_a_config_map_comes_back_as_it_went(cluster: Cluster, namespace: str) -> None:
    sent = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "facts", "namespace": namespace},
        "data": {"colour": "grün", "lines": "one\ntwo\n"},
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(sent))
    got = json.loads(cluster.kubectl("-n", namespace, "get", "configmap", "facts", "-o", "json"))
    assert got["data"] == sent["data"]
    cluster.kubectl("-n", namespace, "delete", "configmap", "facts")
    assert cluster.kubectl("-n", namespace, "get", "configmap", "facts", "--ignore-not-found") == ""


def test_the_newer_api_versions_are_served(cluster: Cluster) -> None:
    served = cluster.kubectl("api-versions").split()
    assert {"policy/v1", "autoscaling/v2", "batch/v1", "apps/v1"} <= set(served)
    assert "cronjobs" in [item["name"] for item in json.loads(cluster.kubectl("get", "--raw", "/apis/batch/v1"))["resources"]]


def test_the_crds_are_accepted_and_established(cluster: Cluster, tmp_path: Path) -> None:
    folder = _ROOT / "crds"
    if not cluster.cel:  # the server is too old for the rules in them; the models check the same rules
        subprocess.run([sys.executable, "-m", "kvcm.resources.generate", "--no-cel", "--out", str(tmp_path)], cwd=_ROOT, check=True, timeout=60)
        folder = tmp_path
    paths = sorted(path for path in folder.glob("*.yaml") if "kind: CustomResourceDefinition\n" in path.read_text(encoding="utf-8"))
    assert paths
    names = [yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"] for path in paths]
    before = set(cluster.kubectl("get", "crd", "-o", "name").split())
    for path in paths:
        cluster.kubectl("apply", "-f", str(path))
    try:
        for name in names:
            _established(cluster, name)
    finally:
        for name in names:  # leave the cluster as it was: another test may install its own version of them
            if f"customresourcedefinition.apiextensions.k8s.io/{name}" not in before:
                cluster.kubectl("delete", "crd", name, "--timeout=60s", timeout=70)


def _established(cluster: Cluster, name: str) -> None:
    """kubectl gives up on a CRD that has no conditions yet, and discovery shows the kind a moment after it is served."""

    def served() -> bool:
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=10s")
        cluster.kubectl("get", name, "-A")
        return True

    assert eventually(served, f"{name} is served", seconds=60)


_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trials.bed.example"},
    "spec": {
        "group": "bed.example",
        "scope": "Namespaced",
        "names": {"kind": "Trial", "listKind": "TrialList", "plural": "trials", "singular": "trial"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "note": {"type": "string", "default": ""},
                            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                        },
                    }
                },
            }
        ],
    },
}


def test_an_empty_string_is_a_string(cluster: Cluster, namespace: str) -> None:
    """A server of 2021 built by a Go of 2023 takes "" for null, unless the build mends it."""
    cluster.kubectl("apply", "-f", "-", input=json.dumps(_CRD))
    try:
        _established(cluster, "trials.bed.example")
        trial = {"apiVersion": "bed.example/v1", "kind": "Trial", "metadata": {"name": "t", "namespace": namespace}, "labels": {"a": ""}}
        eventually(lambda: cluster.kubectl("apply", "-f", "-", input=json.dumps(trial)), "the server takes the new kind")
        got = json.loads(cluster.kubectl("-n", namespace, "get", "trial", "t", "-o", "json"))
        assert (got["note"], got["labels"]) == ("", {"a": ""})
    finally:
        cluster.kubectl("delete", "crd", "trials.bed.example", "--wait=false")


def test_a_pod_becomes_ready_and_is_reached(node_cluster: Cluster, namespace: str) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": namespace, "labels": {"app": "web"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "web",
                    "image": "local/python:3.11",
                    "command": ["sh", "-c", "mkdir /tmp/w && cd /tmp/w && echo here >index.html && exec python3 -m http.server 8080"],
                    "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
                }
            ],
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "front", "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    node_cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod, service]}))
    node_cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/web", "--timeout=90s", timeout=100)
    read = "import urllib.request; print(urllib.request.urlopen('http://front', timeout=10).read().decode().strip())"
    command = ("-n", namespace, "exec", "web", "--", "python3", "-c", read)
    assert eventually(lambda: node_cluster.kubectl(*command), "the pod reaches its Service by name").strip() == "here"
    if node_cluster.run is not None:  # only our own bed gives the host a way to the addresses of Services
        address = node_cluster.kubectl("-n", namespace, "get", "service", "front", "-o", "jsonpath={.spec.clusterIP}")
        assert eventually(lambda: _read(f"http://{address}/"), "the host reaches the Service by its address") == "here"


def _read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode().strip())
