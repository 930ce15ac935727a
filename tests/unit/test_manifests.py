"""The kustomize folders: complete, consistent with each other and with the code, and with no more rights than the operator uses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.parse import Resource, parse_manager, parse_resource
from kvcm.resources.schema import KINDS
from kvcm_operator.names import POD_ROLE

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
FOLDERS = ["crds", "operator", "quickstart", "quickstart-ha", "samples"]
QUICKSTARTS = ["quickstart", "quickstart-ha"]


def _documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def _listed(folder: Path) -> list[Path]:
    (kustomization,) = _documents(folder / "kustomization.yaml")
    return [(folder / name).resolve() for name in kustomization["resources"]]


def _all(folder: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in _listed(MANIFESTS / folder):
        for document in _documents(path):
            key = f"{document['kind']}/{document['metadata']['name']}"
            assert key not in found
            found[key] = document
    return found


def _pod(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = document["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


@pytest.mark.parametrize("name", FOLDERS)
def test_a_kustomization_lists_every_file_beside_it(name: str) -> None:
    folder = MANIFESTS / name
    beside = {path for path in folder.resolve().glob("*.yaml") if path.name != "kustomization.yaml"}
    listed = _listed(folder)
    assert len(set(listed)) == len(listed)
    assert beside <= set(listed)
    for path in listed:
        # Kustomize loads files from below itself only, folders from anywhere.
        assert path.is_file() if path.parent == folder.resolve() else (path / "kustomization.yaml").is_file()


def test_the_crds_come_from_the_generated_folder() -> None:
    assert _listed(MANIFESTS / "crds") == [ROOT / "crds"]
    assert [path.name for path in _listed(ROOT / "crds")] == [info.file_name for info in KINDS]


def test_the_operator_has_no_more_rights_than_it_uses() -> None:
    objects = _all("operator")
    granted: dict[str, set[str]] = {}
    for key in ("ClusterRole/kvcm-operator", "Role/kvcm-operator"):
        for rule in objects[key]["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    granted.setdefault(f"{group}/{resource}", set()).update(rule["verbs"])
    ours = {"get", "list", "watch", "patch"}
    children = {"get", "list", "watch", "create", "update"}
    assert granted == {
        "kvcm.io/kvcachemanagers": ours,
        "kvcm.io/storages": ours,
        "kvcm.io/instancegroups": ours,
        "kvcm.io/kvcachemanagers/status": {"patch"},
        "kvcm.io/storages/status": {"patch"},
        "kvcm.io/instancegroups/status": {"patch"},
        "kvcm.io/kvcachemanagers/finalizers": {"update"},
        "apps/statefulsets": children,
        "/services": children,
        "/configmaps": children,
        "/serviceaccounts": children - {"list", "watch"},
        "rbac.authorization.k8s.io/rolebindings": children - {"list", "watch"},
        "rbac.authorization.k8s.io/clusterroles": {"bind"},
        "policy/poddisruptionbudgets": children - {"list", "watch"},
        "/secrets": {"get", "create"},
        "/pods": {"get", "list", "watch", "delete"},
        "/events": {"get", "create", "patch"},
        "apiextensions.k8s.io/customresourcedefinitions": {"list", "watch"},
        "coordination.k8s.io/leases": {"get", "create", "update"},
    }
    # It hands one role out, which it has not got itself and cannot change.
    (bind,) = [rule for rule in objects["ClusterRole/kvcm-operator"]["rules"] if rule["verbs"] == ["bind"]]
    assert bind["resourceNames"] == [POD_ROLE]
    assert objects[f"ClusterRole/{POD_ROLE}"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]}]
    assert objects["Role/kvcm-operator"]["metadata"]["namespace"] == objects["Deployment/kvcm-operator"]["metadata"]["namespace"]


def test_bindings_speak_of_the_account_that_the_operator_runs_as() -> None:
    objects = _all("operator")
    account = objects["ServiceAccount/kvcm-operator"]["metadata"]
    for key in ("ClusterRoleBinding/kvcm-operator", "RoleBinding/kvcm-operator"):
        assert objects[key]["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]
        assert f"{objects[key]['roleRef']['kind']}/{objects[key]['roleRef']['name']}" in objects
    spec, _ = _pod(objects["Deployment/kvcm-operator"])
    assert spec["serviceAccountName"] == account["name"]
    assert objects["Namespace/kvcm-system"]["metadata"]["name"] == account["namespace"]


def test_the_operator_runs_once_and_restricted() -> None:
    objects = _all("operator")
    deployment = objects["Deployment/kvcm-operator"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert objects["Namespace/kvcm-system"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    spec, container = _pod(deployment)
    pod_context, context = spec["securityContext"], container["securityContext"]
    assert pod_context["runAsNonRoot"] is True
    assert pod_context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert [volume for volume in spec["volumes"] if set(volume) - {"name", "emptyDir"}] == []
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_one_image_has_both_entry_points_and_one_user() -> None:
    spec, container = _pod(_all("operator")["Deployment/kvcm-operator"])
    _, folder = _pod(_all("quickstart")["DaemonSet/demo-folder"])
    values = {item["name"]: item.get("value") for item in container["env"]}
    assert container["image"] == folder["image"] == values["KVCM_OPERATOR_MANAGER_IMAGE"]
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert 'CMD ["kvcm", "serve"]' in text
    assert f"USER {spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" in text
    # Commands that any image with the wheel in it has, whatever its Python is called.
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert [container["command"][0] in scripts, folder["command"][0]] == [True, "python3"]


def test_the_operator_knows_every_variable_that_is_set_for_it() -> None:
    _, container = _pod(_all("operator")["Deployment/kvcm-operator"])
    known = set(re.findall(r"KVCM_OPERATOR_[A-Z_]+", (ROOT / "operator/kvcm_operator/settings.py").read_text(encoding="utf-8")))
    assert {item["name"] for item in container["env"]} <= known


def _ours(folder: str) -> dict[str, Resource | KVCacheManagerResource]:
    found: dict[str, Resource | KVCacheManagerResource] = {}
    for key, document in _all(folder).items():
        if document["apiVersion"].startswith("kvcm.io/"):
            found[key] = parse_manager(document) if document["kind"] == "KVCacheManager" else parse_resource(document)
    return found


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_the_quickstart_is_one_of_each_and_they_belong_together(name: str) -> None:
    resources = _ours(name)
    assert sorted(resources) == ["InstanceGroup/demo", "KVCacheManager/demo", "Storage/demo"]
    documents = _all(name)
    storage, group = documents["Storage/demo"]["spec"], documents["InstanceGroup/demo"]["spec"]
    assert storage["managerRef"] == group["managerRef"] == {"name": "demo"}
    assert group["storages"] == ["demo"]


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_the_quickstart_s_folder_is_at_one_path_everywhere(name: str) -> None:
    documents = _all(name)
    storage = documents["Storage/demo"]["spec"]
    spec, container = _pod(documents["DaemonSet/demo-folder"])
    (volume,) = spec["volumes"]
    assert storage["nfs"]["rootPath"] == storage["volume"]["hostPath"]["path"] == volume["hostPath"]["path"]
    assert volume["hostPath"]["type"] == "DirectoryOrCreate"
    (mount,) = container["volumeMounts"]
    assert f"'{mount['mountPath']}'" in container["command"][-1]
    compile(container["command"][-1], "folder", "exec")


def test_the_two_quickstarts_can_stand_side_by_side() -> None:
    folders, images = set(), set()
    for name in QUICKSTARTS:
        documents = _all(name)
        folders.add(documents["Storage/demo"]["spec"]["nfs"]["rootPath"])
        images.add(_pod(documents["DaemonSet/demo-folder"])[1]["image"])
        (kustomization,) = _documents(MANIFESTS / name / "kustomization.yaml")
        assert f"Namespace/{kustomization['namespace']}" in documents
    assert len(folders) == 2, "one folder belongs to one storage of one manager"
    assert len(images) == 1


def test_the_managers_reach_the_stores_that_stand_beside_them() -> None:
    documents = _all("quickstart-ha")
    spec = documents["KVCacheManager/demo"]["spec"]
    assert spec["replicas"] == 3
    named = [*spec["coordination"]["etcd"]["endpoints"], spec["metadataBackend"]["redis"]["address"]]
    for address in named:
        name, _, port = address.partition(":")
        service, (_, container) = documents[f"Service/{name}"], _pod(documents[f"StatefulSet/{name}"])
        assert service["spec"]["selector"].items() <= documents[f"StatefulSet/{name}"]["spec"]["template"]["metadata"]["labels"].items()
        assert [entry["port"] for entry in service["spec"]["ports"]] == [int(port)] == [entry["containerPort"] for entry in container["ports"]]


def test_the_stores_run_restricted_and_from_pinned_images() -> None:
    documents = _all("quickstart-ha")
    (kustomization,) = _documents(MANIFESTS / "quickstart-ha/kustomization.yaml")
    pinned = {entry["name"]: entry["newTag"] for entry in kustomization["images"]}
    for name in ("etcd", "redis"):
        spec, container = _pod(documents[f"StatefulSet/{name}"])
        assert container["image"] == name
        assert re.fullmatch(r"v?[0-9]+\.[0-9]+\.[0-9]+", pinned[name])
        assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert {"readinessProbe", "resources"} <= container.keys()
