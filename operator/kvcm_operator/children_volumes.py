"""Which storages' volumes a manager's pods must carry. Pure.

Dangers: two storages at one path would be refused by the API server together with the whole roll-out, so the oldest has the path; and a storage whose
spec is broken for a moment must not take its volume out of running pods, so its volume stays as the set has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvcm.resources.errors import ResourceError
from kvcm.resources.parse import parse_resource
from kvcm.resources.storage import StorageResource
from kvcm_operator.children_pods import OWN_PATHS, Mount
from kvcm_operator.mounts import mount_path, volume_name, volume_source
from kvcm_operator.subject import Subject, mapping
from kvcm_operator.world import Json


@dataclass(frozen=True, slots=True)
class Volumes:
    """`refused`: names of Storage resources whose path is taken by an older one or by the manager itself."""

    mounts: tuple[Mount, ...]
    refused: tuple[str, ...]


def volumes(manager: str, storages: Iterable[Json], existing: Json | None) -> Volumes:
    """`storages`: all of the namespace; `existing`: the StatefulSet as it is."""
    taken: dict[str, Mount | None] = dict.fromkeys(OWN_PATHS)
    refused = []
    mine = [subject for subject in map(Subject, storages) if subject.manager_name == manager]
    for subject in sorted(mine, key=lambda one: one.age):
        mount = _mount(subject, existing)
        if mount is None:
            continue
        holder = taken.setdefault(mount.path, mount)
        # The same directory twice needs one mount only.
        if holder is None or (holder is not mount and holder.source != mount.source):
            refused.append(subject.ref.name)
    found = sorted((mount for mount in taken.values() if mount is not None), key=lambda mount: mount.name)
    return Volumes(tuple(found), tuple(sorted(refused)))


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
