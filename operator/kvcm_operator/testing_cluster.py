"""The controllers of a cluster, as far as a KVCacheManager needs them: StatefulSets make pods, pods become ready, owners take their objects along.

Each step is one look of every controller. A new pod is a new manager process: its memory is empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from kvcm_operator.subject import Subject, mapping
from kvcm_operator.testing import FakeKube
from kvcm_operator.world import Json, Ref

OWNED = ("StatefulSet", "Service", "ConfigMap", "ServiceAccount", "RoleBinding", "PodDisruptionBudget", "Secret", "Pod")
STOPS_SLOWLY = ("test/kubelet",)


class FakeCluster:
    """`sleeping`: controllers that do not look (`StatefulSet`, `kubelet`). `on_pod`: a pod has started. `missing_images`: what no node can fetch.

    `slow_stop`: pods that are deleted stay for a moment. `network`: how addresses of pods begin.
    """

    def __init__(self, kube: FakeKube, on_pod: Callable[[Json], None]) -> None:
        self._kube = kube
        self._on_pod = on_pod
        self.sleeping: set[str] = set()
        self.missing_images: set[str] = set()
        self.slow_stop = False
        self.network = "10.0.0."
        self._addresses = 0

    def step(self) -> None:
        self._collect_garbage()
        for ref in self._kube.refs("Pod"):
            if "deletionTimestamp" in self._kube.body(ref)["metadata"]:
                self._kube.release(ref)
        if "StatefulSet" not in self.sleeping:
            for ref in self._kube.refs("StatefulSet"):
                self._scale(ref)
        if "kubelet" not in self.sleeping:
            for ref in self._kube.refs("Pod"):
                self._start(ref)

    def _collect_garbage(self) -> None:
        alive = {Subject(self._kube.body(ref)).uid for kind in ("KVCacheManager", "StatefulSet") for ref in self._kube.refs(kind)}
        for kind in OWNED:
            for ref in self._kube.refs(kind):
                owners = mapping(self._kube.body(ref)["metadata"]).get("ownerReferences") or []
                if owners and not any(owner["uid"] in alive for owner in owners):
                    self._kube.mark_deleted(ref)

    def _scale(self, ref: Ref) -> None:
        body = self._kube.body(ref)
        status = {"observedGeneration": body["metadata"]["generation"], "replicas": body["spec"]["replicas"], "updateRevision": _revision(body)}
        if body.get("status") != status:
            self._kube.set_status(ref, status)
        for number in range(body["spec"]["replicas"]):
            if not self._kube.has(Ref("Pod", ref.namespace, f"{ref.name}-{number}")):
                self._kube.put(_pod(body, number, STOPS_SLOWLY if self.slow_stop else ()))
        for pod in self._kube.refs("Pod"):
            number = int(pod.name.rpartition("-")[2])
            if pod.name.startswith(ref.name) and number >= body["spec"]["replicas"]:
                self._kube.mark_deleted(pod)

    def _start(self, ref: Ref) -> None:
        body = self._kube.body(ref)
        status = mapping(body.get("status"))
        if status.get("phase") == "Running" or "deletionTimestamp" in body["metadata"]:
            return
        if body["spec"]["containers"][0]["image"] in self.missing_images:
            stuck = {"phase": "Pending", "containerStatuses": [{"name": "manager", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
            if status != stuck:
                self._kube.set_status(ref, stuck)
            return
        self._addresses += 1
        address = f"{self.network}{self._addresses}"
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": self._kube.now()}
        self._kube.set_status(ref, {"phase": "Running", "podIP": address, "conditions": [ready]})
        self._on_pod(body)


def _revision(stateful_set: Json) -> str:
    return f"{stateful_set['metadata']['name']}-{hashlib.sha256(json.dumps(stateful_set['spec']['template'], sort_keys=True).encode()).hexdigest()[:10]}"


def _pod(stateful_set: Json, number: int, finalizers: Sequence[str]) -> Json:
    meta, template = stateful_set["metadata"], stateful_set["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-{number}",
            "namespace": meta["namespace"],
            "labels": {**template["metadata"]["labels"], "controller-revision-hash": _revision(stateful_set)},
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": [owner],
            "finalizers": list(finalizers),
        },
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
