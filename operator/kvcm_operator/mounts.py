"""Which volumes the manager's pods carry for file-system storages, and at which path.

Danger: a storage that is registered before its volume is mounted would mark the empty directory underneath as its own, and be refused for ever once
the volume is there. So registration waits for pods that have it.
"""

from __future__ import annotations

import hashlib
from enum import Enum

from kvcm.resources.storage import NfsBackend, StorageResource, ThreeFSBackend, Volume
from kvcm_operator.subject import mapping
from kvcm_operator.world import MANAGER_LABEL, Json, World

_HASH_CHARS = 8
_NAME_CHARS = 40


class Mounted(Enum):
    YES = 1
    NO = 2
    UNKNOWN = 3


def mount_path(storage: StorageResource) -> str | None:
    """Where the storage's bytes must appear in the manager's pod; None for kinds without a directory."""
    backend = storage.spec.backend
    if isinstance(backend, NfsBackend):
        return backend.root_path.rstrip("/")
    if isinstance(backend, ThreeFSBackend):
        return backend.mountpoint.rstrip("/")
    return None


def volume_name(storage_name: str) -> str:
    """A valid volume name that no two storages share: resource names may be longer and contain dots."""
    digest = hashlib.sha256(storage_name.encode()).hexdigest()[:_HASH_CHARS]
    readable = storage_name.replace(".", "-")[:_NAME_CHARS].strip("-")
    return f"kv-{readable}-{digest}"


def volume_source(volume: Volume) -> Json:
    if volume.pvc is not None:
        return {"persistentVolumeClaim": {"claimName": volume.pvc.claim_name}}
    if volume.nfs is not None:
        return {"nfs": {"server": volume.nfs.server, "path": volume.nfs.path}}
    assert volume.host_path is not None  # the model holds exactly one
    return {"hostPath": {"path": volume.host_path.path, "type": "Directory"}}


async def mounted(world: World, storage: StorageResource) -> Mounted:
    """Do all pods of the storage's manager have its volume, from the right source, at its root?"""
    assert storage.spec.volume is not None
    namespace, manager = storage.metadata.namespace, storage.spec.manager_ref.name
    pods = [pod for pod in await world.kube.list("Pod", namespace, {MANAGER_LABEL: manager}) if not mapping(pod.get("metadata")).get("deletionTimestamp")]
    if not pods:
        return Mounted.UNKNOWN
    path, source = mount_path(storage), volume_source(storage.spec.volume)
    return Mounted.YES if all(_has(pod, path, source) for pod in pods) else Mounted.NO


def _has(pod: Json, path: str | None, source: Json) -> bool:
    """By path and source: two storages in one directory share a mount. The API server adds defaults to a source, so ours has to be within."""
    spec = mapping(pod.get("spec"))
    mounts = [item for container in spec.get("containers") or [] for item in container.get("volumeMounts") or []]
    there = {item.get("name") for item in mounts if str(item.get("mountPath", "")).rstrip("/") == path}
    volumes = [item for item in spec.get("volumes") or [] if item.get("name") in there]
    return any(all(mapping(item.get(kind)).items() >= value.items() for kind, value in source.items()) for item in volumes)
