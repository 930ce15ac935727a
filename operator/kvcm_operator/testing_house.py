"""A whole operator over stand-ins, without a framework: objects are applied, passes run until nothing moves, and every status that could be seen is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvcm.client.admin_testing import FakeAdmin
from kvcm.common.clock import FakeClock
from kvcm_operator import reconcile_group, reconcile_storage
from kvcm_operator.engine import Engine, Reconcile
from kvcm_operator.subject import Subject, Version
from kvcm_operator.testing import FakeDirectory, FakeKube
from kvcm_operator.testing_cluster import FakeCluster
from kvcm_operator.testing_nodes import Nodes
from kvcm_operator.world import GROUP, MANAGER, MANAGER_LABEL, STORAGE, Json, Outcome, Ref, World

MAX_ROUNDS = 30
NAMESPACE = "default"


class Silence:
    """An observer that only counts."""

    def __init__(self) -> None:
        self.passes: list[tuple[Ref, str]] = []
        self.corrections = 0

    def passed(self, ref: Ref, result: str, seconds: float, corrections: int) -> None:
        self.passes.append((ref, result))
        self.corrections += corrections

    def read(self, ref: Ref, version: Version) -> None:
        return None

    def gone(self, ref: Ref) -> None:
        return None


class House:
    def __init__(self, reconcilers: dict[str, Reconcile] | None = None) -> None:
        self.clock = FakeClock()
        self.kube = FakeKube(self.clock)
        self.admin = FakeAdmin()
        self.directory = FakeDirectory()
        self.directory.managers[NAMESPACE, "demo"] = self.admin
        self.world = World(self.kube, self.directory, self.clock, default_image="kvcm:test")
        self.cluster = FakeCluster(self.kube, self._started)
        self.observer = Silence()
        self.nodes: Nodes | None = None
        self.touched: list[Ref] = []
        self._reconcilers = reconcilers or {STORAGE: reconcile_storage.reconcile, GROUP: reconcile_group.reconcile}
        self.restart()

    def restart(self) -> None:
        """A new operator process: nothing is remembered but what the servers hold."""
        self.engine = Engine(self.world, self._reconcilers, self.observer, self.touched.append)

    async def once(self, ref: Ref) -> Outcome | None:
        """One pass; a finished deletion releases the object, as the framework does."""
        outcome = await self.engine.run(ref)
        if outcome is not None and outcome.finished and self.kube.has(ref) and Subject(self.kube.body(ref)).deleting:
            self.kube.release(ref)
        return outcome

    async def settle(self, order: Sequence[str] = (MANAGER, STORAGE, GROUP)) -> int:
        """Passes over everything until a whole round writes nothing to either server; the number of rounds."""
        for number in range(MAX_ROUNDS):
            before = (len(self.kube.writes), len(self.admin.calls), len(self.kube.events))
            for kind in order:
                if kind in self._reconcilers:
                    for ref in self.kube.refs(kind):
                        await self.once(ref)
            if before == (len(self.kube.writes), len(self.admin.calls), len(self.kube.events)):
                return number
        raise AssertionError(f"still moving after {MAX_ROUNDS} rounds")

    def _started(self, pod: Json) -> None:
        if self.nodes is not None:
            self.nodes.started(pod)
            return
        self.admin = self.directory.managers[NAMESPACE, pod["metadata"]["labels"][MANAGER_LABEL]] = FakeAdmin()

    def with_nodes(self) -> Nodes:
        """The manager `demo` has several pods, which elect a leader."""
        self.nodes = Nodes(self.kube, self.directory, self.clock, NAMESPACE, "demo")
        self.admin = self.nodes.registry
        return self.nodes

    async def beat(self, seconds: float = 1.0) -> None:
        """One moment of everything: the cluster, the election, one pass over each object."""
        self.clock.advance_us(round(seconds * 1e6))
        self.cluster.step()
        if self.nodes is not None:
            self.nodes.step()
        for kind in self._reconcilers:
            for ref in self.kube.refs(kind):
                await self.once(ref)

    async def beats(self, until: Callable[[], bool], at_most: int = 100) -> int:
        """Moments until something is so; the number of them."""
        for number in range(at_most):
            if until():
                return number
            await self.beat()
        raise AssertionError(f"not so after {at_most} moments: {[self.status(ref) for ref in self.kube.refs(MANAGER)]}")

    async def settle_cluster(self) -> None:
        """As `settle`, with the cluster's controllers and the operator taking turns, until neither does anything."""
        for _ in range(MAX_ROUNDS):
            self.cluster.step()
            before = self.kube.version
            await self.settle()
            self.cluster.step()
            if self.kube.version == before:
                return
        raise AssertionError(f"still moving after {MAX_ROUNDS} rounds")

    def condition(self, ref: Ref, kind: str = "Ready") -> tuple[str, str]:
        found = Subject(self.kube.body(ref)).condition(kind)
        return str(found.get("status")), str(found.get("reason"))

    def status(self, ref: Ref) -> Json:
        return Subject(self.kube.body(ref)).status

    def reasons(self, ref: Ref) -> list[str]:
        """Reasons of the events about one object, in order."""
        return [event.reason for event in self.kube.events if event.about == ref]


def applied_manager(name: str = "demo", /, **spec: Any) -> Json:
    """As a user applies it, for a house that reconciles managers."""
    return {"apiVersion": "kvcm.io/v1alpha1", "kind": MANAGER, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def several(replicas: int) -> Json:
    """The part of a manager's spec that lets several pods elect a leader."""
    return {"replicas": replicas, "coordination": {"type": "etcd", "etcd": {"endpoints": ["etcd:2379"]}}}


def manager(name: str = "demo", *, replicas: int = 1, available: bool = True) -> Json:
    """One that serves, for a house that does not reconcile managers."""
    status = "True" if available else "False"
    return {
        "apiVersion": "kvcm.io/v1alpha1",
        "kind": MANAGER,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": replicas},
        "status": {"observedGeneration": 1, "conditions": [{"type": "Available", "status": status, "reason": "Serving"}]},
    }


def storage(name: str = "fast", /, **spec: Any) -> Json:
    body = {"managerRef": {"name": "demo"}, "nfs": {"rootPath": f"/mnt/{name}"}, **spec}
    return {"apiVersion": "kvcm.io/v1alpha1", "kind": STORAGE, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": body}


def group(name: str = "chat", /, **spec: Any) -> Json:
    body = {"managerRef": {"name": "demo"}, "storages": ["fast"], "quota": {"total": "1Gi"}, **spec}
    return {"apiVersion": "kvcm.io/v1alpha1", "kind": GROUP, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": body}
