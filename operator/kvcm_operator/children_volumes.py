"""Which storages' volumes a manager's pods must carry. Pure.

Dangers: two storages at one path would be refused by the API server together with the whole roll-out, so the oldest has the path; a volume where no
container can have one would keep every pod from starting, so it is refused; and a storage whose spec is broken for a moment must not take its volume
out of running pods, so its volume stays as the set has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvcm.resources.errors import ResourceError
from kvcm.resources.manager_settings import ADMIN_TOKEN_MOUNT, TLS_MOUNT
from kvcm.resources.manager_uris import STORES_MOUNT
from kvcm.resources.parse import parse_resource
from kvcm.resources.storage import StorageResource
from kvcm_operator.children_pods import CONFIG_MOUNT, OWN_PATHS, Mount
from kvcm_operator.mounts import mount_path, volume_name, volume_source
from kvcm_operator.subject import Subject, mapping
from kvcm_operator.world import Json

# Nothing can be mounted at or below these: the kernel's own, and the manager's that are mounted read-only, where no directory can be made.
_CLOSED = ("/proc", "/sys", "/dev", CONFIG_MOUNT, ADMIN_TOKEN_MOUNT, TLS_MOUNT, STORES_MOUNT)


@dataclass(frozen=True, slots=True)
class Volumes:
    """`refused`: names of Storage resources whose path is taken by an older one or by the container itself."""

    mounts: tuple[Mount, ...]
    refused: tuple[str, ...]


def volumes(manager: str, storages: Iterable[Json], existing: Json | None) -> Volumes:
    """`storages`: all of the namespace; `existing`: the StatefulSet as it is."""
    taken: dict[str, Mount | None] = dict.fromkeys(OWN_PATHS)
    refused: list[str] = []
    mine = [subject for subject in map(Subject, storages) if subject.manager_name == manager]
    for subject in sorted(mine, key=lambda one: one.age):
        mount = _mount(subject, existing)
        if mount is None:
            continue
        holder = taken.setdefault(mount.path, None if _closed(mount.path) else mount)
        # The same directory twice needs one mount only.
        if holder is None or (holder is not mount and holder.source != mount.source):
            refused.append(subject.ref.name)
    found = sorted((mount for mount in taken.values() if mount is not None), key=lambda mount: mount.name)
    return Volumes(tuple(found), tuple(sorted(refused)))


def _closed(path: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in _CLOSED)


def _mount(subject: Subject, existing: Json | None) -> Mount | None:
    name = volume_name(subject.ref.name)
    try:
        storage = parse_resource(subject.document())
    except ResourceError:
        return _present(name, existing)
    assert isinstance(storage, StorageResource)
    path = mount_path(storage)
    if storage.spec.volume is None or path is None:
        return None
    return Mount(name, path, volume_source(storage.spec.volume))


def _present(name: str, existing: Json | None) -> Mount | None:
    pod = mapping(mapping(mapping(mapping(existing).get("spec")).get("template")).get("spec"))
    source = next((volume for volume in pod.get("volumes") or [] if volume.get("name") == name), None)
    containers = pod.get("containers") or []
    path = next((item.get("mountPath") for one in containers for item in one.get("volumeMounts") or [] if item.get("name") == name), None)
    if source is None or path is None:
        return None
    return Mount(name, str(path), {kind: value for kind, value in source.items() if kind != "name"})
