"""Three managers on real nodes, as users run them: manifests/quickstart-ha, with operator, etcd, Redis, managers and an engine as pods.

The engine (support/checker.py) writes and reads all the time, by way of the leader Service and by way of the headless Service's names, and remembers
every block that was acknowledged. Meanwhile leaders go, with the operator and without it, the image changes, and managers come and go. After each of
these the leader Service must have followed the election within a second, and every block must be there. Times are printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from e2e.cluster.cache import Cache
from e2e.cluster.handle import Cluster
from e2e.cluster.settings import from_environment
from e2e.cluster.store_images import ETCD, REDIS, STORES, store_image
from e2e.cluster.waiting import eventually
from e2e.support.installation import ROOT, Installation
from e2e.support.kube import Json, Kube
from e2e.support.leadership import Leadership, Term
from e2e.support.operator_process import NAMESPACE
from e2e.support.record import Record

pytestmark = pytest.mark.e2e

_PLACE = "kvcm-quickstart-ha"
_FOLDER = "/var/lib/kvcm-quickstart-ha"
_ALL = ("kvcachemanager/demo", "storage/demo", "instancegroup/demo")
_SELECTOR = {"kvcm.io/manager": "demo", "app.kubernetes.io/component": "manager"}
_NEXT_IMAGE = "kvcm:dev-next"
_OTHERS = {"quay.io/coreos/etcd": ETCD.image, "redis": REDIS.image}
_CHECKER = ROOT / "e2e/support/checker.py"
_CHECKER_PORT = 8099
_FOLLOWS_S, _AT_WORST_S = 1.0, 5.0
"""How soon the leader Service leads to the winner: usually, once it has recovered and serves; and after its election, when this machine is busy."""
_ELECTION_S = 60.0
_READY_S = 120


@pytest.fixture
def stores_on_nodes(node_cluster: Cluster, project_on_nodes: str) -> None:
    cache = Cache(from_environment().cache, lambda _: None)
    for store in STORES:
        node_cluster.load_image(store_image(cache, store))
    node_cluster.tag_image(project_on_nodes, _NEXT_IMAGE)


@dataclass(frozen=True, slots=True)
class House:
    """The installed sample, and what was said about it."""

    cluster: Cluster
    kube: Kube
    leadership: Leadership
    say: Callable[[str], None]
    image: str
    terms: list[Term] = field(default_factory=list)

    def kubectl(self, *args: str, timeout: float = 60.0) -> str:
        return self.cluster.kubectl("-n", _PLACE, *args, timeout=timeout)

    def pods(self) -> list[Json]:
        """The managers' pods that are not on their way out."""
        pods = self.kube.all("Pod", _PLACE)
        return [pod for pod in pods if _SELECTOR.items() <= pod["metadata"].get("labels", {}).items() and "deletionTimestamp" not in pod["metadata"]]

    def settled(self, replicas: int, image: str | None = None) -> bool:
        """So many managers and no more, all ready, all of this image."""
        pods = self.pods()
        images = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
        return len(pods) == replicas and all(map(_ready, pods)) and images == {image or self.image}

    def wait_settled(self, replicas: int, image: str | None = None, *, seconds: float = _READY_S) -> None:
        eventually(lambda: self.settled(replicas, image), f"{replicas} managers are ready", seconds=seconds)
        self.kubectl("wait", "--for=condition=Ready", f"--timeout={_READY_S}s", *_ALL, timeout=_READY_S + 10)

    def ask(self, path: str) -> Any:
        """The checker. It is a pod of its own, which the host reaches."""
        pod = self.kube.get("Pod", _PLACE, "checker") or {}
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{_CHECKER_PORT}{path}", timeout=120) as answer:
            return json.loads(answer.read())


def test_three_managers_on_real_nodes(
    node_cluster: Cluster,
    stores_on_nodes: None,
    project_on_nodes: str,
    installation: Installation,
    admin_kube: Kube,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def say(sentence: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\nthree managers on nodes: {sentence}")
            sys.stdout.flush()

    installation.remove()
    installation.ensure(in_cluster=True)
    _operator(node_cluster, 1)
    sample = installation.overlay("quickstart-ha", ROOT / "manifests/quickstart-ha", images=_OTHERS)
    kubectl = node_cluster.kubectl
    began = time.monotonic()
    try:
        with Record(admin_kube, [_PLACE]) as record, Leadership(node_cluster, admin_kube, _PLACE, "demo-leader", _SELECTOR) as leadership:
            house = House(node_cluster, admin_kube, leadership, say, project_on_nodes)
            kubectl("apply", "-k", str(sample))
            kubectl("-n", _PLACE, "wait", "--for=condition=Ready", f"--timeout={_READY_S}s", *_ALL, timeout=_READY_S + 10)
            say(f"all three resources Ready {time.monotonic() - began:.1f} s after kubectl apply")
            house.wait_settled(3)
            assert len(leadership.epochs()) == 1
            _start_checker(house)

            _leader_deleted(house, "the leader's pod deleted")
            _operator(node_cluster, 0)
            _leader_deleted(house, "the leader's pod deleted while no operator runs")
            _operator(node_cluster, 1)
            _leader_killed(house)
            _image_changed(house)
            _scaled(house)

            assert leadership.broken == []
            assert median(term.service_at - term.serving_at for term in house.terms) <= _FOLLOWS_S, house.terms
            assert max(term.service_at - term.won_at for term in house.terms) <= _AT_WORST_S, house.terms
            assert record.problems(dips=8) == []
            _removed(node_cluster, sample)
    finally:
        _operator(node_cluster, 1)
        kubectl("delete", "-k", str(sample), "--ignore-not-found", "--timeout=90s", timeout=100, check=False)
        say(f"the story took {time.monotonic() - began:.0f} s\n")

    assert "Traceback" not in kubectl("-n", NAMESPACE, "logs", "deployment/kvcm-operator")
    installation.remove()
    assert not [name for name in kubectl("get", "crd,clusterrole,clusterrolebinding,namespace,pv", "-o", "name").split() if "kvcm" in name]
    assert any(Path(_FOLDER).rglob("*")), "the blocks stay where they are: the storage's policy is Retain"


# --- what happens to them -----------------------------------------------------------------------------------------------------------------------------------


def _leader_deleted(house: House, what: str) -> None:
    with _disturbed(house, what) as old:
        house.kubectl("delete", "pod", old.pod, "--wait=false")
        new = house.leadership.term_after(old.epoch, seconds=_ELECTION_S)
        assert new.uid != old.uid
        house.wait_settled(3)
        assert house.leadership.epochs()[-2:] == [old.epoch, new.epoch], "one leader followed the other, and no third one"


def _leader_killed(house: House) -> None:
    """Its process alone, as by a crash: the kubelet starts it again in the same pod, which bears the label until another one wins."""
    with _disturbed(house, "the leader's process killed") as old:
        began = time.time()
        os.kill(_process_of(old.uid), signal.SIGKILL)
        new = house.leadership.term_after(old.epoch, seconds=_ELECTION_S)
        house.say(f"  another one was elected {new.won_at - began:.1f} s after the kill, with leases of 5 s")
        assert new.uid != old.uid, "whoever has died leaves the lease to others"
        house.wait_settled(3)


def _image_changed(house: House) -> None:
    with _disturbed(house, "the image changed") as old:
        before, began = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in house.pods()}, time.time()
        house.kubectl("patch", "kvcachemanager", "demo", "--type=merge", "-p", json.dumps({"spec": {"image": _NEXT_IMAGE}}))
        house.wait_settled(3, _NEXT_IMAGE, seconds=3 * _READY_S)
        house.say(f"  three pods of another image after {time.time() - began:.1f} s")
        new = house.leadership.term_after(old.epoch, seconds=_ELECTION_S)
        gone = [(event.name, event.uid) for event in house.leadership.pods_since(began, "DELETED")]
        assert sorted(gone) == sorted(before.items()), "each pod was replaced once"
        assert gone[-1] == (old.pod, old.uid), "the leader was replaced last"
        assert house.leadership.epochs()[-2:] == [old.epoch, new.epoch], "leadership changed once"


def _scaled(house: House) -> None:
    """To five, and back while one of the two that have to go leads."""
    with _disturbed(house, "scaled to five, the first three pods deleted at once"):
        house.kubectl("scale", "kvcachemanager/demo", "--replicas=5")
        house.wait_settled(5, _NEXT_IMAGE)
        house.kubectl("delete", "pod", "demo-0", "demo-1", "demo-2", "--wait=false")
        eventually(lambda: _leader(house).pod in ("demo-3", "demo-4"), "one of the new managers leads", seconds=_ELECTION_S)
        house.wait_settled(5, _NEXT_IMAGE)
    with _disturbed(house, "scaled back to three, away from the leader") as old:
        began = time.time()
        house.kubectl("scale", "kvcachemanager/demo", "--replicas=3")
        house.wait_settled(3, _NEXT_IMAGE)
        new = house.leadership.term_after(old.epoch, seconds=_ELECTION_S)
        assert new.pod in ("demo-0", "demo-1", "demo-2")
        gone = [event.name for event in house.leadership.pods_since(began, "DELETED")]
        assert sorted(gone) == ["demo-3", "demo-4"]
        between = [epoch for epoch in house.leadership.epochs() if old.epoch < epoch < new.epoch]
        assert len(between) <= 1, "only the other one that had to go may have led for a moment"


@contextmanager
def _disturbed(house: House, what: str) -> Iterator[Term]:
    """Yields the leader of before. Afterwards: who leads now, how soon the Service knew, what the engine met, and whether every block is there."""
    house.ask("/lap")
    old = _leader(house)
    began = time.time()
    yield old
    new = _leader(house)
    assert new.epoch > old.epoch
    house.say(f"{what}: {time.time() - began:.1f} s until all was well again; {new}")
    house.terms.append(new)
    for route, lap in house.ask("/lap").items():
        failed = ", ".join(f"{count} {kind}" for kind, count in lap["failed"].items()) or "none"
        house.say(f"  by {route}: {lap['acknowledged']} blocks acknowledged, none for {lap['refused_s']:.2f} s at most; failed calls: {failed}")
        assert lap["acknowledged"] > 0
    found = house.ask("/verify")
    assert found["problems"] == []
    house.say(f"  {found['blocks']} acknowledged blocks read again, none lost")


def _leader(house: House) -> Term:
    newest = house.leadership.epochs()[-1]
    return house.leadership.term_after(newest - 1, seconds=_ELECTION_S)


def _removed(cluster: Cluster, sample: Path) -> None:
    cluster.kubectl("delete", "-k", str(sample), "--timeout=120s", timeout=130)
    assert cluster.kubectl("get", "namespace", _PLACE, "--ignore-not-found") == ""


# --- pods -------------------------------------------------------------------------------------------------------------------------------------------------


def _operator(cluster: Cluster, replicas: int) -> None:
    """Returns when so many operators run, and no other ones."""
    kubectl = cluster.kubectl
    kubectl("-n", NAMESPACE, "scale", "deployment/kvcm-operator", f"--replicas={replicas}")
    kubectl("-n", NAMESPACE, "rollout", "status", "deployment/kvcm-operator", "--timeout=90s", timeout=100)
    if replicas == 0:
        eventually(lambda: not kubectl("-n", NAMESPACE, "get", "pods", "-o", "name"), "the operator is gone", seconds=60)


def _start_checker(house: House) -> None:
    house.kubectl("create", "configmap", "checker", f"--from-file={_CHECKER}")
    where = f"{_PLACE}.svc.cluster.local:6381"
    routes = [f"Service=demo-leader.{where}", f"names=dns://demo-nodes.{where}"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "checker", "namespace": _PLACE},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 65532, "runAsGroup": 65532},
            "containers": [
                {
                    "name": "checker",
                    "image": house.image,
                    "command": ["python3", "/checker/checker.py", "demo", str(_CHECKER_PORT), *routes],
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": _CHECKER_PORT}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "blocks", "mountPath": _FOLDER}, {"name": "program", "mountPath": "/checker"}],
                }
            ],
            "volumes": [{"name": "blocks", "hostPath": {"path": _FOLDER, "type": "Directory"}}, {"name": "program", "configMap": {"name": "checker"}}],
        },
    }
    house.kube.create("Pod", _PLACE, pod)
    house.kubectl("wait", "--for=condition=Ready", "pod/checker", "--timeout=90s", timeout=100)


def _process_of(uid: str) -> int:
    """The manager in this pod. Its namespaces lie within this machine's, so it can be seen and signalled from here."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inside = f"pod{uid}" in (folder / "cgroup").read_text(encoding="utf-8")
            if inside and b"serve" in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue  # it ended meanwhile
    raise AssertionError(f"no manager runs in the pod {uid}")


def _ready(pod: Json) -> bool:
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in pod["status"].get("conditions", []))
