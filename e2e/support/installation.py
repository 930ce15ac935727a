"""The three kinds and the operator's rights on the cluster, from the project's own manifests, and the operator's kubeconfig.

In most stories the operator itself runs as a local process (operator_process.py), and its Deployment is applied with no replicas; where pods run it can
be left as the manifest has it. Danger: on a cluster of somebody else the kinds may be there already, with objects of theirs; then nothing is installed,
and nothing is removed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from e2e.cluster.handle import Cluster
from e2e.cluster.waiting import eventually
from e2e.support.kube import OURS, Kube
from e2e.support.operator_process import NAMESPACE

ROOT = Path(__file__).parents[2]
_OPERATOR = ROOT / "manifests/operator"
_TOKEN_S = 3 * 3600


class Installation:
    """`folder`: for what is generated; it must outlive this object."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._installed = False
        self.kubeconfig = folder / "operator.kubeconfig"

    def foreign(self) -> bool:
        """Are the kinds on the cluster without our doing?"""
        return not self._installed and "kvcm.io" in self._cluster.kubectl("get", "crd", "-o", "name")

    def ensure(self, *, in_cluster: bool = False) -> None:
        """Install unless that is done. Returns when the kinds are served and the operator may use them.

        in_cluster: the operator's Deployment as it is; it needs nodes that have its image. `remove` first where the other one is installed.
        """
        if self._installed:
            return
        kubectl = self._cluster.kubectl
        self._installed = True  # also half of it must be removed
        self.define()
        kubectl("apply", "-k", str(_OPERATOR if in_cluster else self._operator()))
        self.kubeconfig.write_text(json.dumps(self._config()), encoding="utf-8")
        self.kubeconfig.chmod(0o600)
        kube = Kube(self.kubeconfig)
        try:
            eventually(lambda: [kube.all(kind, "") for kind in OURS], "the operator's rights are known")
        finally:
            kube.close()

    def define(self) -> None:
        """The kinds alone. Returns when they are served."""
        kubectl = self._cluster.kubectl
        kubectl("apply", "-k", str(self._crds()))
        kubectl("wait", "--for=condition=Established", "--timeout=30s", *self._names())
        # kubectl refuses fields it does not know, and it knows those of a kind only a moment after the kind is there.
        eventually(lambda: all("managerRef" in kubectl("explain", f"{kind}.spec") for kind in OURS[1:]), "the kinds are documented")

    def undefine(self) -> None:
        """Remove the kinds and with them their objects, which an operator has to let go. Returns when they are gone."""
        self._cluster.kubectl("delete", "--timeout=60s", *self._names(), timeout=70)

    def remove(self) -> None:
        """Everything that `ensure` has made; waits until it is gone."""
        if not self._installed:
            return
        kubectl = self._cluster.kubectl
        wait = "--wait=true" if self._cluster.controllers else "--wait=false"  # without controllers a namespace never ends
        self._let_go()
        kubectl("delete", "-k", str(_OPERATOR), "--ignore-not-found", wait, timeout=120)
        kubectl("delete", "--ignore-not-found", "--timeout=60s", *self._names(), timeout=120)
        self._installed = False

    def overlay(self, name: str, base: Path, patches: Sequence[Mapping[str, object]] = (), *, images: Mapping[str, str] | None = None) -> Path:
        """A folder for `kubectl apply -k`: a base of the project with a few fields changed (strategic or merge patches).

        images: name without tag, as the base has it -> `name:tag` instead.
        """
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        body = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(base, folder.resolve())],
            "patches": [{"patch": yaml.safe_dump(dict(patch))} for patch in patches],
            "images": [_other_image(old, new) for old, new in (images or {}).items()],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
        return folder

    def _crds(self) -> Path:
        if self._cluster.cel:
            return ROOT / "manifests/crds"
        # The server is too old for the rules in the schemas; the operator checks the same rules.
        folder = self._folder / "crds"
        argv = [sys.executable, "-m", "kvcm.resources.generate", "--no-cel", "--out", str(folder)]
        subprocess.run(argv, cwd=ROOT, check=True, timeout=60, stdout=subprocess.DEVNULL)
        return folder

    def _let_go(self) -> None:
        """Objects that a story has left behind would keep their kinds for ever: soon nobody is there to take the finalizers off."""
        kube = Kube(self._cluster.kubeconfig)
        try:
            for kind in OURS:
                for body in kube.all(kind, ""):
                    where = body["metadata"]["namespace"], body["metadata"]["name"]
                    kube.delete(kind, *where)
                    kube.release(kind, *where)
        finally:
            kube.close()

    def _names(self) -> list[str]:
        return [f"crd/{plural}.kvcm.io" for plural in ("kvcachemanagers", "storages", "instancegroups")]

    def _operator(self) -> Path:
        scaled = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "kvcm-operator", "namespace": NAMESPACE},
            "spec": {"replicas": 0},
        }
        return self.overlay("operator", _OPERATOR, [scaled])

    def _config(self) -> dict[str, object]:
        """A kubeconfig with a token of the operator's own service account: it can do what its manifest allows, no more."""
        shown = yaml.safe_load(self._cluster.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "yaml"))
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/kvcm-operator/token"
        wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": _TOKEN_S}}
        got = json.loads(self._cluster.kubectl("create", "--raw", account, "-f", "-", input=json.dumps(wish)))
        shown["users"] = [{"name": "kvcm-operator", "user": {"token": got["status"]["token"]}}]
        shown["contexts"][0]["context"]["user"] = "kvcm-operator"
        found: dict[str, object] = shown
        return found


def _other_image(old: str, new: str) -> dict[str, str]:
    name, _, tag = new.rpartition(":")
    return {"name": old, "newName": name, "newTag": tag}
