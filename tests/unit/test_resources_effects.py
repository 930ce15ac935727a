"""Design D10: no field of a resource is ignored. Each one changes what the manager is told, concerns the operator, or is refused."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.config.model import InstanceGroup, MetaBackendConfig, ReclaimPolicy, TriggerStrategy
from kvcm.config.registry_entities import MAX_INSTANCES as REGISTRY_MAX_INSTANCES
from kvcm.config.startup import default_group
from kvcm.data_storage.factory import BUILT_TYPES
from kvcm.data_storage.model import StorageType
from kvcm.data_storage.naming import MAX_KEYS_PER_FILE
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta.open_backend import open_backend
from kvcm.meta.record import RecordCodec
from kvcm.protocol.location_encoder import ProtoLocationEncoder
from kvcm.resources.errors import ResourceError, UnsupportedResource
from kvcm.resources.group import MAX_INSTANCES, InstanceGroupResource, InstanceGroupSpec
from kvcm.resources.normalise import diff
from kvcm.resources.parse import parse_model
from kvcm.resources.schema import KINDS as KIND_INFOS
from kvcm.resources.schema import node_at, root_schema, structural
from kvcm.resources.storage import StorageResource, StorageSpec
from kvcm.resources.translate import check_built, group_from_resource, storage_from_resource

pytestmark = pytest.mark.unit

Json = dict[str, Any]

# A field -> another valid value. The value in the base documents below must differ, so that both runs say something.
FOLDER = {"rootPath": "/other", "keyCountPerFile": 2}
THREE_FS = {"mountpoint": "/other", "rootDir": "other", "clusterName": "other", "keyCountPerFile": 2, "touchFileWhenCreate": True}
VCNS = {**THREE_FS, "remoteHost": "other", "remotePort": 2, "metaStorageUri": "redis://other"}
STORAGE_CHANGES: dict[str, Any] = {
    "name": "other",
    "enabled": False,
    **{f"nfs.{name}": value for name, value in FOLDER.items()},
    **{f"dummy.{name}": value for name, value in FOLDER.items()},
    **{f"threeFS.{name}": value for name, value in THREE_FS.items()},
    **{f"vcnsThreeFS.{name}": value for name, value in VCNS.items()},
}
GROUP_CHANGES: dict[str, Any] = {
    "name": "other",
    "storages": ["b", "a"],
    "quota.total": "2Gi",
    "quota.byType.nfs": "2Mi",
    "quota.byType.threeFS": "2Mi",
    "quota.byType.dummy": "2Mi",
    "maxInstances": 7,
    "placement.preference": "AlwaysVcnsThreeFS",
    "reclaim.delayBeforeDelete": "5s",
    "metadataIndex.maxKeys": 7,
    "metadataIndex.backend.type": "local",
    "metadataIndex.backend.uri": "file:///other",
    "metadataIndex.backend.writeMode": "WriteBehind",
}
# Which manager, when to take over or to delete, and what to mount: for whoever applies a resource, never sent to the manager.
FOR_THE_APPLIER = {
    "Storage": ("managerRef.name", "adoptionPolicy", "deletionPolicy", "volume.pvc.claimName", "volume.nfs.server", "volume.nfs.path", "volume.hostPath.path"),
    "InstanceGroup": ("managerRef.name", "deletionPolicy"),
}
NOT_BUILT = {
    "Storage": ("mooncake.", "tairMemPool."),
    "InstanceGroup": ("quota.byType.mooncake", "quota.byType.tairMemPool", "quota.byType.tairMemPoolSSD"),
}


def _leaves(schema: Json, path: str = "") -> Iterator[str]:
    for name, child in schema["properties"].items():
        if "properties" in child:
            yield from _leaves(child, f"{path}{name}.")
        else:
            yield path + name


def _with(document: Json, path: str, value: Any) -> Json:
    changed = copy.deepcopy(document)
    node = changed["spec"]
    *steps, last = path.split(".")
    for step in steps:
        node = node.setdefault(step, {})
    node[last] = value
    return changed


def _resource(kind: str, spec: Json) -> Json:
    return {"apiVersion": "kvcm.io/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": {"managerRef": {"name": "m"}, **spec}}


def _storage_base(path: str) -> Json:
    place = {"mountpoint": "/mnt", "rootDir": "kv"}
    backends: Json = {
        "nfs": {"rootPath": "/data"},
        "dummy": {"rootPath": "/data"},
        "threeFS": place,
        "vcnsThreeFS": {**place, "remoteHost": "h", "remotePort": 1, "metaStorageUri": "redis://h"},
    }
    kind = path.partition(".")[0]
    kind = kind if kind in backends else "nfs"
    return _resource("Storage", {kind: backends[kind]})


def _group_base(path: str = "") -> Json:
    spec: Json = {"storages": ["a", "b"], "quota": {"total": "1Gi"}}
    if path == "metadataIndex.backend.writeMode":
        spec["metadataIndex"] = {"backend": {"type": "redis"}}
    elif path.startswith("metadataIndex.backend"):
        spec["metadataIndex"] = {"backend": {"type": "file", "uri": "file:///x"}}
    return _resource("InstanceGroup", spec)


def _group(document: Json) -> InstanceGroup:
    return group_from_resource(parse_model(InstanceGroupResource, document))


@pytest.mark.parametrize(("kind", "spec", "changes"), [("Storage", StorageSpec, STORAGE_CHANGES), ("InstanceGroup", InstanceGroupSpec, GROUP_CHANGES)])
def test_every_field_is_sent_or_for_the_applier_or_refused(kind: str, spec: type[Any], changes: Json) -> None:
    left = set(_leaves(structural(spec))) - set(changes) - set(FOR_THE_APPLIER[kind])
    assert {path for path in left if not path.startswith(NOT_BUILT[kind])} == set()
    assert set(changes) | set(FOR_THE_APPLIER[kind]) <= set(_leaves(structural(spec)))


@pytest.mark.parametrize("path", STORAGE_CHANGES)
def test_every_field_of_a_storage_changes_what_the_manager_is_told(path: str) -> None:
    base = _storage_base(path)
    before = storage_from_resource(parse_model(StorageResource, base))
    after = storage_from_resource(parse_model(StorageResource, _with(base, path, STORAGE_CHANGES[path])))
    assert after != before
    assert path == "name" or [change.path for change in diff(after, before)] == [path]


@pytest.mark.parametrize("path", GROUP_CHANGES)
def test_every_field_of_a_group_changes_what_the_manager_is_told(path: str) -> None:
    base = _group_base(path)
    changed = _with(base, path, GROUP_CHANGES[path])
    if path == "metadataIndex.backend.type":
        del changed["spec"]["metadataIndex"]["backend"]["uri"]
    before, after = _group(base), _group(changed)
    assert after != before
    assert path == "name" or path in [change.path for change in diff(after, before)]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((path, 0) for path in NOT_BUILT["InstanceGroup"]),
        *(("placement.preference", word + kind) for word in ("Prefer", "Always") for kind in ("Mooncake", "TairMemPool", "TairMemPoolSSD")),
    ],
)
def test_what_a_group_says_about_kinds_that_are_not_built_is_refused(path: str, value: Any) -> None:
    resource = parse_model(InstanceGroupResource, _with(_group_base(), path, value))
    for refuse in (check_built, group_from_resource):
        with pytest.raises(UnsupportedResource, match=rf"^InstanceGroup x: spec\.{path}: such storages are not built in this version, .*; remove it"):
            refuse(resource)


def test_the_kinds_that_are_refused_are_those_that_the_manager_does_not_build() -> None:
    quotas = {"nfs": StorageType.NFS, "threeFS": StorageType.HF3FS, "dummy": StorageType.DUMMY}
    assert {kind.quota_type for kind in BUILT_TYPES if kind.allocatable} == set(quotas.values())
    assert set(quotas) == {path.rpartition(".")[2] for path in GROUP_CHANGES if path.startswith("quota.byType.")}


def test_limits_are_those_of_the_manager() -> None:
    assert MAX_INSTANCES == REGISTRY_MAX_INSTANCES
    storage, group = (root_schema(info) for info in KIND_INFOS if info.kind != "KVCacheManager")
    for kind in ("nfs", "dummy", "threeFS", "vcnsThreeFS"):
        assert node_at(storage, f"spec.{kind}.keyCountPerFile")["maximum"] == MAX_KEYS_PER_FILE
    assert node_at(group, "spec.maxInstances")["maximum"] == REGISTRY_MAX_INSTANCES


@pytest.mark.parametrize(("field", "value"), [("policy", "LRU"), ("policy", "LFU"), ("policy", None), ("usedPercent", 80), ("usedPercent", "canary")])
def test_reclaim_settings_are_refused_whatever_they_say(field: str, value: Any) -> None:
    with pytest.raises(ResourceError) as caught:
        parse_model(InstanceGroupResource, _with(_group_base(), f"reclaim.{field}", value))
    (problem,) = caught.value.problems
    assert problem.path == f"spec.reclaim.{field}"
    assert problem.sentence.endswith("is not built in this version and would be ignored; remove it")


def test_a_new_group_reclaims_like_the_built_in_one_and_an_old_one_as_it_did() -> None:
    new = _group(_group_base())
    usual = default_group().cache_config.reclaim_strategy
    assert replace(new.cache_config.reclaim_strategy, storage_unique_name="") == usual
    theirs = replace(usual, reclaim_policy=ReclaimPolicy.LFU, trigger_strategy=TriggerStrategy(5, 0.855), reclaim_step_size=3, storage_unique_name="s")
    old = replace(new, cache_config=replace(new.cache_config, reclaim_strategy=theirs))
    assert diff(new, old) == []
    kept = group_from_resource(parse_model(InstanceGroupResource, _with(_group_base(), "reclaim.delayBeforeDelete", "5s")), old)
    assert kept.cache_config.reclaim_strategy == replace(theirs, delay_before_delete_ms=5000)


def test_the_uri_of_a_metadata_file_is_what_the_manager_opens(tmp_path: Path) -> None:
    place = tmp_path / "made" / "blocks.v1"
    document = _with(_group_base(), "metadataIndex.backend", {"type": "file", "uri": f"file://{place}"})
    config = _group(document).cache_config.meta_indexer.backend
    assert config == MetaBackendConfig("dummy", f"file://{place}")

    async def opened() -> None:
        pool = BlockingPool(threads=1)
        try:
            for instance_id in ("i-1", "i-2"):
                backend = open_backend(config, instance_id, RecordCodec(ProtoLocationEncoder(), lambda name: 1), pool)
                await backend.open()
                await backend.close()
        finally:
            pool.close()

    asyncio.run(opened())
    assert sorted(path.name for path in place.parent.iterdir()) == ["blocks.v1.i-1", "blocks.v1.i-2"]
    described = node_at(root_schema(next(info for info in KIND_INFOS if info.kind == "InstanceGroup")), "spec.metadataIndex.backend.uri")["description"]
    assert "file:///directory/name" in described
    assert "name.<instance id>" in described
