"""Resources to the server's objects and back.

Ownership: a spec owns only the settings it can say. Everything else on an existing object (user data, reclaim policy and thresholds, indexer
tuning, settings written by other tools) is carried over from `base`, so that applying a resource never erases what it does not know. A field
with a default in the schema is owned even when the file leaves it out; a field without a default is owned only when it is set.

Texts leaving here (`storage_spec`, `group_spec`) never hold credentials: user information in foreign URIs is masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcm.common.redaction import redact_uri
from kvcm.config.model import (
    CacheConfig,
    CachePreferStrategy,
    InstanceGroup,
    MetaBackendConfig,
    MetaIndexerConfig,
    Quota,
    QuotaConfig,
    ReclaimPolicy,
    ReclaimStrategy,
    TriggerStrategy,
)
from kvcm.data_storage.model import (
    DummySpec,
    EventReportSpec,
    Hf3fsSpec,
    MooncakeSpec,
    NfsSpec,
    Storage,
    StorageType,
    TairMemPoolSpec,
    VcnsHf3fsSpec,
)
from kvcm.data_storage.model import StorageSpec as ServerSpec
from kvcm.resources.duration import format_duration, parse_duration
from kvcm.resources.errors import UnsupportedResource
from kvcm.resources.group import InstanceGroupResource, QuotaByType
from kvcm.resources.quantity import format_quantity, parse_quantity
from kvcm.resources.storage import StorageResource, ThreeFSBackend

Json = dict[str, Any]

_QUOTA_TYPES = {
    "nfs": StorageType.NFS,
    "three_fs": StorageType.HF3FS,
    "mooncake": StorageType.MOONCAKE,
    "tair_mem_pool": StorageType.TAIR_MEMPOOL,
    "tair_mem_pool_ssd": StorageType.TAIR_MEMPOOL_SSD,
    "dummy": StorageType.DUMMY,
}
_TYPE_WORDS = {kind: QuotaByType.model_fields[name].alias or name for name, kind in _QUOTA_TYPES.items()} | {StorageType.VCNS_HF3FS: "vcnsThreeFS"}
_PREFERENCES = {
    "AlwaysThreeFS": CachePreferStrategy.ALWAYS_3FS,
    "PreferThreeFS": CachePreferStrategy.PREFER_3FS,
    "AlwaysMooncake": CachePreferStrategy.ALWAYS_MOONCAKE,
    "PreferMooncake": CachePreferStrategy.PREFER_MOONCAKE,
    "AlwaysTairMemPool": CachePreferStrategy.ALWAYS_TAIR_MEMPOOL,
    "PreferTairMemPool": CachePreferStrategy.PREFER_TAIR_MEMPOOL,
    "AlwaysVcnsThreeFS": CachePreferStrategy.ALWAYS_VCNS_3FS,
    "PreferVcnsThreeFS": CachePreferStrategy.PREFER_VCNS_3FS,
    "AlwaysTairMemPoolSSD": CachePreferStrategy.ALWAYS_TAIR_MEMPOOL_SSD,
    "PreferTairMemPoolSSD": CachePreferStrategy.PREFER_TAIR_MEMPOOL_SSD,
}
_PREFERENCE_WORDS = {strategy: word for word, strategy in _PREFERENCES.items()}
# Nobody can have a storage of these kinds, so what a group says about them would mean nothing (design D10).
_UNBUILT_QUOTAS = ("mooncake", "tair_mem_pool", "tair_mem_pool_ssd")
_UNBUILT_PREFERENCES = ("Mooncake", "TairMemPool", "TairMemPoolSSD")
# What a new group says about reclaim, which no spec can: the values of the built-in group (`kvcm.config.startup`).
_NEW_RECLAIM = ReclaimStrategy(reclaim_policy=ReclaimPolicy.LRU, trigger_strategy=TriggerStrategy(used_percentage=0.8))
_METADATA_TYPES = {("local", None): "local", ("file", None): "dummy", ("redis", "WriteThrough"): "redis", ("redis", "WriteBehind"): "async_redis"}
_METADATA_WORDS = {server: words for words, server in _METADATA_TYPES.items()}


def type_word(kind: StorageType) -> str:
    """The word of a resource file for a kind of storage (`nfs`, `threeFS`, ...)."""
    return _TYPE_WORDS.get(kind, kind.type_name or "unspecified")


def check_built(resource: StorageResource | InstanceGroupResource) -> None:
    """Raises UnsupportedResource when a valid resource asks for something that this version does not build."""
    if isinstance(resource, StorageResource):
        _server_spec(resource)
    else:
        _check_group_built(resource)


# -- storages ---------------------------------------------------------------------------------------------------------------------------------


def storage_from_resource(resource: StorageResource, base: Storage | None = None) -> Storage:
    """What the manager should hold for a resource, keeping from `base` what the spec cannot say. Raises UnsupportedResource."""
    kind, spec = _server_spec(resource)
    check = base.check_storage_available_when_open if base is not None else False
    return Storage(resource.server_name, kind, spec, check_storage_available_when_open=check, enabled=resource.spec.enabled)


def _server_spec(resource: StorageResource) -> tuple[StorageType, ServerSpec]:
    spec = resource.spec
    if spec.nfs is not None:
        return StorageType.NFS, NfsSpec(_folder(spec.nfs.root_path), spec.nfs.key_count_per_file)
    if spec.dummy is not None:
        return StorageType.DUMMY, DummySpec(spec.dummy.root_path, spec.dummy.key_count_per_file)
    if spec.vcns_three_fs is not None:
        vcns = spec.vcns_three_fs
        return StorageType.VCNS_HF3FS, VcnsHf3fsSpec(
            remote_host=vcns.remote_host, remote_port=vcns.remote_port, meta_storage_uri=vcns.meta_storage_uri, **_three_fs(vcns)
        )
    if spec.three_fs is not None:
        return StorageType.HF3FS, Hf3fsSpec(**_three_fs(spec.three_fs))
    raise UnsupportedResource(f"Storage {resource.metadata.name}: {spec.kind} storages are not built in this version; use nfs, threeFS, vcnsThreeFS or dummy")


def _folder(path: str) -> str:
    """The server pastes file names directly behind an NFS root (wire contract 6.4), so the root has to end with a slash."""
    return path if path.endswith("/") else path + "/"


def _three_fs(spec: ThreeFSBackend) -> Json:
    return {
        "mountpoint": spec.mountpoint,
        "root_dir": spec.root_dir,
        "cluster_name": spec.cluster_name or "",
        "key_count_per_file": spec.key_count_per_file,
        "touch_file_when_create": spec.touch_file_when_create,
    }


def storage_spec(storage: Storage) -> Json:
    """What a Storage spec would say for an object on the server; kinds that no spec can say appear under the server's name for them."""
    return {type_word(storage.type): _backend_spec(storage.spec), "enabled": storage.enabled}


def _backend_spec(spec: ServerSpec) -> Json:
    if isinstance(spec, (NfsSpec, DummySpec)):
        # The server treats anything below 1 as 1 (wire contract 6.3).
        return {"rootPath": spec.root_path, "keyCountPerFile": max(spec.key_count_per_file, 1)}
    if isinstance(spec, (Hf3fsSpec, VcnsHf3fsSpec)):
        shared: Json = {
            "mountpoint": spec.mountpoint,
            "rootDir": spec.root_dir,
            "clusterName": spec.cluster_name,
            "keyCountPerFile": max(spec.key_count_per_file, 1),
            "touchFileWhenCreate": spec.touch_file_when_create,
        }
        if isinstance(spec, VcnsHf3fsSpec):
            shared |= {"remoteHost": spec.remote_host, "remotePort": spec.remote_port, "metaStorageUri": _masked(spec.meta_storage_uri)}
        return shared
    if isinstance(spec, MooncakeSpec):
        return {
            "localHostname": spec.local_hostname,
            "metadataConnstring": _masked(spec.metadata_connstring),
            "protocol": spec.protocol,
            "rdmaDevice": spec.rdma_device,
            "masterServiceEntry": spec.master_service_entry,
        }
    if isinstance(spec, TairMemPoolSpec):
        return {"domain": spec.domain, "timeout": spec.timeout, "serviceDiscoveryUrl": _masked(spec.service_discovery_url)}
    return _event_report_spec(spec)


def _event_report_spec(spec: EventReportSpec) -> Json:
    return {"heartbeatTimeoutMs": spec.heartbeat_timeout_ms, "cleanupGraceMs": spec.cleanup_grace_ms}


def _masked(uri: str) -> str:
    """A URI without what stands before '@' in its authority, which may be a password."""
    scheme, separator, rest = uri.rpartition("://")
    authority, slash, path = rest.partition("/")
    _, at, host = authority.rpartition("@")
    return f"{scheme}{separator}***@{host}{slash}{path}" if at else uri


# -- groups -----------------------------------------------------------------------------------------------------------------------------------


def group_from_resource(
    resource: InstanceGroupResource,
    base: InstanceGroup | None = None,
    server_names: Mapping[str, str] | None = None,
    default_backend: MetaBackendConfig | None = None,
) -> InstanceGroup:
    """What the manager should hold for a resource. Raises UnsupportedResource. `version` is base's (1 for a new group) and the caller's to raise.

    server_names: metadata name of a Storage resource -> its name on the server; a name that is missing there is a server name already.
    default_backend: where a new group's metadata is kept when the spec does not say; in memory unless given.
    """
    _check_group_built(resource)
    spec = resource.spec
    storages = tuple(dict.fromkeys((server_names or {}).get(name, name) for name in spec.storages))
    index = MetaIndexerConfig(backend=default_backend or MetaBackendConfig())
    start = base or InstanceGroup(
        name=resource.server_name,
        storage_candidates=storages,
        global_quota_group_name=resource.server_name,
        max_instance_count=spec.max_instances,
        quota=Quota(0),
        cache_config=CacheConfig(reclaim_strategy=_NEW_RECLAIM, meta_indexer=index),
    )
    return replace(
        start,
        name=resource.server_name,
        storage_candidates=storages,
        global_quota_group_name=start.global_quota_group_name or resource.server_name,
        max_instance_count=spec.max_instances,
        quota=Quota(parse_quantity(spec.quota.total), _by_type(spec.quota.by_type)),
        cache_config=_cache_config(resource, start.cache_config, storages),
    )


def _check_group_built(resource: InstanceGroupResource) -> None:
    spec = resource.spec
    where = f"InstanceGroup {resource.metadata.name}"
    for name in _UNBUILT_QUOTAS:
        if spec.quota.by_type is not None and getattr(spec.quota.by_type, name) is not None:
            word = type_word(_QUOTA_TYPES[name])
            raise UnsupportedResource(f"{where}: spec.quota.byType.{word}: such storages are not built in this version, so it would limit nothing; remove it")
    if spec.placement.preference.removeprefix("Prefer").removeprefix("Always") in _UNBUILT_PREFERENCES:
        raise UnsupportedResource(
            f"{where}: spec.placement.preference: such storages are not built in this version, so there is none to choose; "
            "remove it, or name ThreeFS or VcnsThreeFS"
        )


def _by_type(limits: QuotaByType | None) -> tuple[QuotaConfig, ...]:
    if limits is None:
        return ()
    return tuple(QuotaConfig(kind, parse_quantity(value)) for name, kind in _QUOTA_TYPES.items() if (value := getattr(limits, name)) is not None)


def _cache_config(resource: InstanceGroupResource, start: CacheConfig, storages: tuple[str, ...]) -> CacheConfig:
    spec = resource.spec
    old = start.reclaim_strategy
    reclaim = replace(
        old,
        # The server wants a name here and uses it for nothing (wire contract 5.3, behaviour 12.2).
        storage_unique_name=old.storage_unique_name or storages[0],
        delay_before_delete_ms=parse_duration(spec.reclaim.delay_before_delete),
    )
    index = replace(start.meta_indexer, max_key_count=spec.metadata_index.max_keys)
    backend = spec.metadata_index.backend
    if backend is not None:
        index = replace(index, backend=MetaBackendConfig(metadata_type(backend.type, backend.write_mode) or "local", backend.uri or ""))
    return replace(start, reclaim_strategy=reclaim, data_storage_strategy=_PREFERENCES[spec.placement.preference], meta_indexer=index)


def group_spec(group: InstanceGroup) -> Json:
    """What an InstanceGroup spec would say for an object on the server; values that no spec can say appear as the server has them."""
    config = group.cache_config
    quota: Json = {"total": format_quantity(group.quota.capacity)}
    if group.quota.by_type:
        limits: dict[str, int] = {}
        for item in group.quota.by_type:
            word = type_word(item.storage_type)
            limits[word] = min(item.capacity, limits.get(word, item.capacity))
        quota["byType"] = {word: format_quantity(limits[word]) for word in sorted(limits)}
    return {
        "storages": list(group.storage_candidates),
        "quota": quota,
        "maxInstances": group.max_instance_count,
        "placement": {"preference": _PREFERENCE_WORDS.get(config.data_storage_strategy, config.data_storage_strategy.name)},
        "reclaim": {"delayBeforeDelete": format_duration(max(config.reclaim_strategy.delay_before_delete_ms, 0))},
        "metadataIndex": {"maxKeys": config.meta_indexer.max_key_count, "backend": _metadata_backend(config.meta_indexer.backend)},
    }


def _metadata_backend(backend: MetaBackendConfig) -> Json:
    word, mode = _METADATA_WORDS.get(backend.storage_type, (backend.storage_type, None))
    found: Json = {"type": word} if mode is None else {"type": word, "writeMode": mode}
    if word != "local" and backend.storage_uri:
        found["uri"] = backend.storage_uri if word == "file" else redact_uri(backend.storage_uri)
    return found


def metadata_type(word: str, mode: str | None) -> str | None:
    """The server's word for a type of metadata backend and a writeMode; None for words that no resource has."""
    return _METADATA_TYPES.get((word, (mode or "WriteThrough") if word == "redis" else None))
