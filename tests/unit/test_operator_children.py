"""The objects of a manager: goldens, and what counts as a difference. Rewrite the goldens with KVCM_WRITE_GOLDENS=1 and read the diff."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcm.resources.parse import parse_manager
from kvcm.service.pod_label import LEADER, ROLE_LABEL
from kvcm_operator import names
from kvcm_operator.children import build
from kvcm_operator.children_apply import Applied, ChildLeaving, NotOurs, need
from kvcm_operator.children_diff import differences, overlay
from kvcm_operator.children_pods import CONFIG_HASH, Mount
from kvcm_operator.children_secret import wanted_entries
from kvcm_operator.children_volumes import volumes
from kvcm_operator.mounts import volume_name
from kvcm_operator.testing_house import applied_manager, storage
from kvcm_operator.world import Json

pytestmark = pytest.mark.unit

GOLDENS = Path(__file__).parents[1] / "goldens" / "operator"
FULL = {
    "image": "registry.example/kvcm:1.0",
    "imagePullPolicy": "Always",
    "registry": {"type": "file", "path": "state/registry.json", "volume": {"pvc": {"claimName": "registry"}}},
    "service": {"ports": {"metaGrpc": 7001, "metaHttp": 7002, "adminGrpc": 7003, "adminHttp": 7004}},
    "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "coordination": {"leaseDuration": "5s"},
    "settings": {"kvcm.logger.log_level": "3"},
    "podLabels": {"team": "cache"},
    "podAnnotations": {"example.com/note": "hello"},
}
GUARDED = {"adminToken": {"type": "secret", "secret": {"name": "ours", "key": "admin"}}, "tls": {"secretName": "demo-tls"}}
SEVERAL = {
    "replicas": 3,
    "coordination": {
        "type": "etcd",
        "etcd": {
            "endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"],
            "credentials": {"secretName": "etcd-login"},
            "tls": {"secretName": "etcd-tls", "clientCertificate": True},
        },
    },
    "metadataBackend": {"type": "redis", "redis": {"address": "redis:6379", "credentials": {"secretName": "redis-login"}}},
    "tls": {"secretName": "demo-tls"},
}
MOUNTS = [Mount(volume_name("fast"), "/mnt/fast", {"nfs": {"server": "nfs.example", "path": "/export"}})]


def made(spec: Json | None = None, mounts: list[Mount] | None = None, image: str = "kvcm:1") -> list[Json]:
    resource = parse_manager(applied_manager("demo", **(spec or {})))
    return build(resource, "uid-1", resource.spec.image or image, mounts or [])


def stateful_set(spec: Json | None = None, mounts: list[Mount] | None = None, image: str = "kvcm:1") -> Json:
    return made(spec, mounts, image)[-1]


@pytest.mark.parametrize(
    ("name", "spec", "mounts"),
    [("plain", {}, []), ("full", FULL, MOUNTS), ("stopped", {"replicas": 0}, []), ("guarded", GUARDED, []), ("several", SEVERAL, [])],
)
def test_goldens(name: str, spec: Json, mounts: list[Mount]) -> None:
    text = yaml.safe_dump_all(made(spec, mounts), sort_keys=True, width=120)
    path = GOLDENS / f"{name}.yaml"
    if os.environ.get("KVCM_WRITE_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_pods_meet_the_restricted_standard() -> None:
    pod = stateful_set(FULL, MOUNTS)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def config_hash(body: Json) -> str:
    return str(body["spec"]["template"]["metadata"]["annotations"][CONFIG_HASH])


@pytest.mark.parametrize(
    ("spec", "mounts", "image"),
    [
        ({"settings": {"kvcm.logger.log_level": "3"}}, [], "kvcm:1"),
        ({"coordination": {"leaseDuration": "5s"}}, [], "kvcm:1"),
        ({"coordination": SEVERAL["coordination"]}, [], "kvcm:1"),
        ({}, MOUNTS, "kvcm:1"),
        ({}, [], "kvcm:2"),
        ({"podLabels": {"a": "b"}}, [], "kvcm:1"),
        ({"resources": {"limits": {"memory": "1Gi"}}}, [], "kvcm:1"),
    ],
)
def test_the_hash_moves_with_whatever_a_running_pod_cannot_take_over(spec: Json, mounts: list[Mount], image: str) -> None:
    assert config_hash(stateful_set(spec, mounts, image)) != config_hash(stateful_set())


def test_the_hash_does_not_move_with_the_number_of_pods() -> None:
    assert config_hash(stateful_set({"replicas": 0})) == config_hash(stateful_set())


def test_the_hash_does_not_move_between_one_manager_that_elects_and_several() -> None:
    """Scaling restarts nobody."""
    one, three = stateful_set(SEVERAL | {"replicas": 1}), stateful_set(SEVERAL)
    assert config_hash(one) == config_hash(three)
    assert (one["spec"]["replicas"], three["spec"]["replicas"]) == (1, 3)


def test_several_managers_may_label_their_leader_and_the_leader_service_selects_it() -> None:
    bodies = {(body["kind"], body["metadata"]["name"]): body for body in made(SEVERAL)}
    selector = bodies["Service", "demo-leader"]["spec"]["selector"]
    assert selector == {**bodies["Service", "demo"]["spec"]["selector"], "kvcm.io/role": "leader"}
    binding = bodies["RoleBinding", "demo-manager"]
    pod = bodies["StatefulSet", "demo"]["spec"]["template"]["spec"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "default"}]
    assert pod["automountServiceAccountToken"] is True
    assert "kvcm.kubernetes.label_pod=true\n" in bodies["ConfigMap", "demo-config"]["data"]["kvcm.conf"]


def test_one_alone_needs_no_label_and_no_right() -> None:
    bodies = {(body["kind"], body["metadata"]["name"]): body for body in made()}
    assert bodies["Service", "demo-leader"]["spec"]["selector"] == bodies["Service", "demo"]["spec"]["selector"]
    assert "RoleBinding" not in {kind for kind, _ in bodies}
    assert bodies["StatefulSet", "demo"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_the_label_is_the_one_that_managers_put_on() -> None:
    assert (names.ROLE_LABEL, names.LEADER) == (ROLE_LABEL, LEADER)


def test_what_the_secrets_of_stores_hold_is_nowhere_but_in_mounted_files() -> None:
    bodies = {body["kind"]: body for body in made(SEVERAL)}
    pod = bodies["StatefulSet"]["spec"]["template"]["spec"]
    mounted = {item["name"]: item["mountPath"] for item in pod["containers"][0]["volumeMounts"]}
    secrets = {item["name"]: item["secret"]["secretName"] for item in pod["volumes"] if "secret" in item}
    assert secrets.items() >= {"coordination-login": "etcd-login", "coordination-tls": "etcd-tls", "metadata-login": "redis-login"}.items()
    settings = bodies["ConfigMap"]["data"]["kvcm.conf"]
    for name in ("coordination-login", "coordination-tls", "metadata-login"):
        assert f"{mounted[name]}/" in settings
    assert not any("secretKeyRef" in str(item) for item in pod["containers"][0]["env"])


def test_every_secret_of_a_store_is_waited_for_with_its_entries() -> None:
    wanted = wanted_entries(parse_manager(applied_manager("demo", **SEVERAL)))
    assert {ref.name: keys for ref, keys in wanted.items()} == {
        "demo-tls": ("tls.crt", "tls.key", "ca.crt"),
        "etcd-login": ("username", "password"),
        "etcd-tls": ("ca.crt", "tls.crt", "tls.key"),
        "redis-login": ("password",),
    }


def test_managers_keep_apart_unless_the_spec_says_where_they_go() -> None:
    affinity = stateful_set()["spec"]["template"]["spec"]["affinity"]
    (apart,) = affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    zones: Json = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert stateful_set({"affinity": zones})["spec"]["template"]["spec"]["affinity"] == zones
    nodes: Json = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert stateful_set({"affinity": nodes})["spec"]["template"]["spec"]["affinity"] == {**affinity, **nodes}


def as_stored(body: Json) -> Json:
    """As an API server returns it: with defaults, canonical quantities and the bookkeeping of others."""
    stored = copy.deepcopy(body)
    stored["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 1, "managedFields": [{}]}
    stored["metadata"]["annotations"]["else.example/x"] = "1"
    stored["metadata"]["labels"]["else.example/y"] = "2"
    stored["spec"] |= {"revisionHistoryLimit": 10}
    stored["spec"]["template"]["metadata"]["creationTimestamp"] = None
    pod = stored["spec"]["template"]["spec"]
    pod |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    for empty in ("nodeSelector", "tolerations"):
        if not pod[empty]:
            del pod[empty]
    pod["volumes"][0]["configMap"]["defaultMode"] = 420
    container = pod["containers"][0]
    container |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
    container["readinessProbe"] |= {"successThreshold": 1}
    container["readinessProbe"]["httpGet"]["scheme"] = "HTTP"
    container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    if not container["resources"]["requests"]:
        container["resources"] = {}
    else:
        container["resources"]["requests"]["cpu"] = "0.5"
        container["resources"]["limits"]["memory"] = "2048Mi"
    return stored


@pytest.mark.parametrize("spec", [{}, FULL])
def test_what_the_api_server_fills_in_is_no_difference(spec: Json) -> None:
    body = stateful_set(spec, MOUNTS)
    assert differences(body, as_stored(body)) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda body: body["spec"].update(replicas=5), "spec.replicas"),
        (lambda body: body["spec"]["template"]["spec"]["containers"].append({"name": "guest"}), "spec.template.spec.containers"),
        (lambda body: body["spec"]["template"]["spec"].update(nodeSelector={"disk": "slow"}), "spec.template.spec.nodeSelector.disk"),
        (lambda body: body["spec"]["template"]["metadata"]["labels"].update(extra="1"), "spec.template.metadata.labels.extra"),
        (lambda body: body["metadata"]["labels"].pop("kvcm.io/manager"), "metadata.labels.kvcm.io/manager"),
        (
            lambda body: body["spec"]["template"]["spec"]["containers"][0]["resources"].update(limits={"cpu": "1"}),
            "spec.template.spec.containers[0].resources.limits",
        ),
    ],
)
def test_a_change_by_somebody_is_a_difference_and_writing_removes_it(change: Any, path: str) -> None:
    body = stateful_set()
    stored = as_stored(body)
    change(stored)
    assert differences(body, stored) == [path]
    written = overlay(body, stored)
    assert differences(body, written) == []
    assert written["metadata"]["resourceVersion"] == "7"
    assert written["metadata"]["labels"]["else.example/y"] == "2"


def test_writing_keeps_what_is_not_ours_in_a_service() -> None:
    body = made()[3]
    stored = copy.deepcopy(body)
    stored["spec"] |= {"clusterIP": "10.0.0.9", "sessionAffinity": "None"}
    stored["spec"]["ports"] = stored["spec"]["ports"][:1]
    written = overlay(body, stored)
    assert written["spec"]["clusterIP"] == "10.0.0.9"
    assert len(written["spec"]["ports"]) == 4


def test_a_new_wish_is_no_drift_and_a_strangers_object_is_not_touched() -> None:
    old, new = stateful_set(), stateful_set({"image": "kvcm:2"})
    assert need(new, as_stored(old), expected=True).result is Applied.WRITTEN
    changed = as_stored(old)
    changed["spec"]["replicas"] = 9
    assert need(old, changed, expected=True).result is Applied.CORRECTED
    assert need(old, as_stored(old), expected=True).result is Applied.UNCHANGED
    assert need(old, None, expected=True).result is Applied.CORRECTED
    assert need(old, None, expected=False).result is Applied.WRITTEN
    foreign = as_stored(old)
    foreign["metadata"]["ownerReferences"][0] |= {"uid": "other", "name": "other"}
    with pytest.raises(NotOurs, match="belongs to somebody else"):
        need(old, foreign, expected=False)
    foreign["metadata"]["ownerReferences"] = []
    with pytest.raises(NotOurs, match="belongs to somebody else"):
        need(old, foreign, expected=False)
    inherited = as_stored(old)
    inherited["metadata"]["ownerReferences"][0]["uid"] = "of the manager before"
    with pytest.raises(ChildLeaving, match="was deleted"):
        need(old, inherited, expected=False)
    leaving = as_stored(old)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with pytest.raises(ChildLeaving):
        need(old, leaving, expected=False)


def test_volumes_never_collide_with_the_managers_own_paths() -> None:
    bodies = [storage("a", nfs={"rootPath": "/etc/kvcm"}, volume={"hostPath": {"path": "/x"}}), storage("b", volume={"hostPath": {"path": "/x"}})]
    for number, body in enumerate(bodies):
        body["metadata"] |= {"uid": f"u{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = volumes("demo", bodies, None)
    assert found.refused == ("a",)
    assert [mount.path for mount in found.mounts] == ["/mnt/b"]
    assert volumes("another", bodies, None).mounts == ()


@pytest.mark.parametrize("path", ["/proc/kv", "/dev/shm", "/sys", "/etc/kvcm/blocks", "/etc/kvcm-tls/x", "/etc/kvcm-stores/metadata-login"])
def test_a_volume_that_no_container_can_have_does_not_reach_the_pods(path: str) -> None:
    """One storage of this kind would keep the manager from ever starting again, for all the others too."""
    body = storage("a", nfs={"rootPath": path}, volume={"hostPath": {"path": "/x"}})
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = volumes("demo", [body], None)
    assert (found.mounts, found.refused) == ((), ("a",))


def test_volume_names_are_valid_and_distinct() -> None:
    names = {volume_name(name) for name in ("a.b", "a-b", "x" * 253, "x" * 252)}
    assert len(names) == 4
    assert all(len(name) <= 63 and "." not in name for name in names)


def test_one_that_elects_no_more_loses_its_right_to_pods() -> None:
    resource = parse_manager(applied_manager())
    bindings = [body for body in build(resource, "uid-1", "kvcm:1", [], bound=True) if body["kind"] == "RoleBinding"]
    assert [body["subjects"] for body in bindings] == [[]]
    before = next(body for body in made(SEVERAL) if body["kind"] == "RoleBinding")
    assert differences(bindings[0], before) == ["metadata.annotations.kvcm.io/desired-hash", "subjects"]
    assert not differences(bindings[0], {name: value for name, value in bindings[0].items() if name != "subjects"}), "as the API server stores it"
