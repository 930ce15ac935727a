"""The three resources as a user would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.support.kube import Json

MANAGER_NAME = "demo"
API = "kvcm.io/v1alpha1"


def manager(name: str = MANAGER_NAME, **spec: Any) -> Json:
    return {"apiVersion": API, "kind": "KVCacheManager", "metadata": {"name": name}, "spec": {"replicas": 1, **spec}}


def storage(name: str, root: Path | str, /, **spec: Any) -> Json:
    content = {"managerRef": {"name": MANAGER_NAME}, "nfs": {"rootPath": str(root)}, **spec}
    return {"apiVersion": API, "kind": "Storage", "metadata": {"name": name}, "spec": content}


def group(name: str, /, *storages: str, total: str = "1Gi", **spec: Any) -> Json:
    content = {"managerRef": {"name": MANAGER_NAME}, "storages": list(storages), "quota": {"total": total}, **spec}
    return {"apiVersion": API, "kind": "InstanceGroup", "metadata": {"name": name}, "spec": content}
