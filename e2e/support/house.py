"""One namespace with three resources and a manager for them, and the hands to change things behind the operator's back.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS, and the operator is told its address (KVCM_OPERATOR_ADMIN_OVERRIDE). The pods that the
StatefulSet's controller makes stay Pending and tell nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from e2e.cluster.handle import Cluster
from e2e.support.bodies import MANAGER_NAME
from e2e.support.kube import OURS, Json, Kube
from kvcm.client.admin_client import AdminClient
from kvcm.common.testing_ports import free_port
from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import Storage
from kvcm.service.testing import ManagerProcess

T = TypeVar("T")

_READS = ("List", "Get", "Check")


class House:
    """`root`: folder of the storages; `manager`: the local process. `kube` is the administrator's."""

    def __init__(self, cluster: Cluster, kube: Kube, namespace: str, root: Path, manager: ManagerProcess) -> None:
        self.cluster = cluster
        self.kube = kube
        self.namespace = namespace
        self.root = root
        self.manager = manager

    # -- what users do -------------------------------------------------------------------------------------------------------------------------

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60.0) -> str:
        return self.cluster.kubectl("-n", self.namespace, *args, input=input, timeout=timeout)

    def apply(self, *bodies: Json) -> str:
        """`kubectl apply`, all in one call and in this order; what it said."""
        return self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))

    def wait_ready(self, *names: str, seconds: int = 60) -> None:
        """`kubectl wait` for `kind/name`."""
        self.kubectl("wait", "--for=condition=Ready", f"--timeout={seconds}s", *names, timeout=seconds + 10)

    # -- what is there -------------------------------------------------------------------------------------------------------------------------

    def body(self, kind: str, name: str) -> Json:
        found = self.kube.get(kind, self.namespace, name)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def condition(self, kind: str, name: str, condition: str = "Ready") -> Json:
        """{} for one that is not there."""
        found = self.kube.get(kind, self.namespace, name) or {}
        conditions: list[Json] = found.get("status", {}).get("conditions") or []
        return next((item for item in conditions if item["type"] == condition), {})

    def reason(self, kind: str, name: str) -> str:
        """Of the Ready condition that speaks about the newest generation; empty for an older one."""
        ready = self.condition(kind, name)
        found = self.kube.get(kind, self.namespace, name) or {}
        current = ready.get("observedGeneration") == found.get("metadata", {}).get("generation")
        return str(ready.get("reason") or "") if current else ""

    def events(self, reason: str, name: str = "") -> list[Json]:
        found = self.kube.all("Event", self.namespace)
        return [event for event in found if event["reason"] == reason and name in ("", event["involvedObject"]["name"])]

    # -- the manager ---------------------------------------------------------------------------------------------------------------------------

    def admin(self, call: Callable[[AdminClient], Awaitable[T]]) -> T:
        """One call on the manager's admin API."""

        async def made() -> T:
            async with AdminClient(self.manager.admin_address, timeout_s=10.0, trace_id="story") as admin:
                return await call(admin)

        return asyncio.run(made())

    def storages(self) -> dict[str, Storage]:
        return {item.name: item for item in self.admin(lambda admin: admin.list_storages())}

    def groups(self) -> dict[str, InstanceGroup]:
        return {view.group.name: view.group for view in self.admin(lambda admin: admin.describe_groups())}

    def remove_instance(self, instance: str) -> None:
        self.admin(lambda admin: admin.remove_instance(instance))

    def mutations(self) -> dict[str, float]:
        """How often each admin call that changes something was answered."""
        calls = {sample.labels["api_name"]: sample.value for sample in self._samples("kvcm_service_query_counter")}
        assert calls, "the manager does not count its calls"
        return {name: value for name, value in calls.items() if not name.startswith(_READS)}

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        return sum(sample.value for sample in self._samples(name))

    def _samples(self, name: str) -> list[Sample]:
        with urllib.request.urlopen(f"{self.manager.admin_http_url}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        # The parser gives every counter the ending that newer formats want.
        return [sample for sample in samples if sample.name in (name, f"{name}_total")]

    def address(self) -> dict[str, str]:
        """For the operator's overrides."""
        return {f"{self.namespace}/{MANAGER_NAME}": self.manager.admin_address}


@contextmanager
def house(cluster: Cluster, kube: Kube, folder: Path, namespace: str = "", settings: dict[str, str] | None = None) -> Iterator[House]:
    """A new namespace (or the given one, which is then not made and not removed) and a manager that keeps its address over restarts.

    At the end nothing of ours may hold an object back, whatever happened: finalizers are taken off.
    """
    name = namespace or f"e2e-{secrets.token_hex(4)}"
    root = folder / name
    root.mkdir()
    port = str(free_port())
    ports = {"kvcm.service.rpc_port": port, "kvcm.service.admin_rpc_port": port, "kvcm.service.admin_http_port": str(free_port())}
    with ManagerProcess(ports | (settings or {})) as manager:
        if not namespace:
            cluster.kubectl("create", "namespace", name)
        try:
            yield House(cluster, kube, name, root, manager)
        finally:
            _let_go(kube, name)
            if not namespace:
                cluster.kubectl("delete", "namespace", name, "--wait=false", check=False)


def _let_go(kube: Kube, namespace: str) -> None:
    for kind in OURS:
        for body in kube.all(kind, namespace):
            name = body["metadata"]["name"]
            kube.delete(kind, namespace, name)
            if body["metadata"].get("finalizers"):
                kube.release(kind, namespace, name)
