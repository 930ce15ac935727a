"""Try a running cluster: what the end-to-end tests will lean on, in well under a minute."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.errors import BedError
from e2e.cluster.handle import Cluster
from e2e.cluster.waiting import eventually

_MANIFEST = Path(__file__).with_name("smoke.yaml")


def smoke(cluster: Cluster, say: Callable[[str], None]) -> None:
    """BedError with the first thing that does not work."""
    space = f"smoke-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", space)
    try:
        _objects(cluster, space)
        say("objects: written, read, deleted")
        if cluster.level == "node":
            _pods(cluster, space, say)
    finally:
        cluster.kubectl("delete", "namespace", space, "--wait=false", check=False)
    say(f"smoke passed at level {cluster.level}")


def _objects(cluster: Cluster, space: str) -> None:
    cluster.kubectl("-n", space, "create", "configmap", "facts", "--from-literal=colour=green")
    found = json.loads(cluster.kubectl("-n", space, "get", "configmap", "facts", "-o", "json"))
    if found["data"] != {"colour": "green"}:
        raise BedError(f"a ConfigMap came back changed: {found['data']}")
    cluster.kubectl("-n", space, "delete", "configmap", "facts")


def _read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode().strip())


def _pods(cluster: Cluster, space: str, say: Callable[[str], None]) -> None:
    def kubectl(*args: str, stdin: str | None = None) -> str:
        return cluster.kubectl("-n", space, *args, input=stdin, timeout=120)

    if cluster.controllers:
        cluster.kubectl("-n", space, "wait", "--for=create", "serviceaccount/default", "--timeout=30s")
    kubectl("apply", "-f", str(_MANIFEST))
    kubectl("rollout", "status", "deployment/smoke", "--timeout=90s")
    kubectl("wait", "--for=condition=Ready", "pod/box", "--timeout=60s")
    say("pods: a Deployment of 3 with a probe is ready")
    address = kubectl("get", "service", "smoke", "-o", "jsonpath={.spec.clusterIP}")
    from_host = eventually(lambda: _read(f"http://{address}/"), "the host reaches the Service")
    from_pod = eventually(lambda: kubectl("exec", "box", "--", "wget", "-qO-", "http://smoke").strip(), "a pod reaches the Service")
    if not from_host.startswith("smoke-") or not from_pod.startswith("smoke-"):
        raise BedError(f"the Service answered {from_host!r} to the host and {from_pod!r} to a pod")
    say(f"network: the host reached {from_host} by its Service's address, a pod reached {from_pod} by its name")
    if "GET /" not in kubectl("logs", "deployment/smoke", "--tail=20"):
        raise BedError("the log of a pod does not come through")
    pod = kubectl("get", "pod", "-l", "app=smoke", "-o", "jsonpath={.items[0].metadata.name}")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": space}}
    kubectl("create", "--raw", f"/api/v1/namespaces/{space}/pods/{pod}/eviction", "-f", "-", stdin=json.dumps(eviction))
    kubectl("set", "env", "deployment/smoke", "ROUND=2")
    kubectl("rollout", "status", "deployment/smoke", "--timeout=90s")
    say("life: logs, exec, a policy/v1 eviction and a rolling update work")
