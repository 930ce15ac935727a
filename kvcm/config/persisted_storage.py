"""Storages in the persisted JSON dialect (wire contract 1.6, 4.4): kind by name, one `storage_spec` object whose keys depend on the kind.

Two texts look alike and differ: a *record* (registry, startup file) carries everything; `storage_configs_text`, which clients receive at
registration, carries exactly the keys that they know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from kvcm.config.persisted_fields import Fields
from kvcm.data_storage.model import (
    STORAGE_TYPE_BY_NAME,
    DummySpec,
    EventReportSpec,
    Hf3fsSpec,
    MooncakeSpec,
    NfsSpec,
    Storage,
    StorageSpec,
    StorageType,
    TairMemPoolSpec,
    VcnsHf3fsSpec,
)

# Names that older releases wrote for a kind.
_OLD_TYPE_NAMES = {"vineyard": StorageType.EVENT_REPORT_L1P5}
# What a pool of kind `pace_ssd` consists of (wire contract 2.1).
_SSD_MEDIA_TYPE = 5
# Spec keys that a record carries and clients do not get.
_RECORD_ONLY_KEYS = frozenset({"touch_file_when_create", "media_type"})


def type_from_name(fields: Fields, name: str) -> StorageType:
    """The kind named by text field `name` of `fields`; raises PersistedFormatError for a name that is not known."""
    text = fields.required_text(name)
    kind = STORAGE_TYPE_BY_NAME.get(text) or _OLD_TYPE_NAMES.get(text)
    if kind is None:
        raise fields.wrong(name, f"one of {', '.join(sorted(STORAGE_TYPE_BY_NAME))}")
    return kind


def spec_to_dict(spec: StorageSpec) -> dict[str, object]:
    """All keys of a spec in the order in which upstream writes them."""
    match spec:
        case NfsSpec() | DummySpec():
            return {"root_path": spec.root_path, "key_count_per_file": spec.key_count_per_file}
        case Hf3fsSpec():
            return _hf3fs_to_dict(spec)
        case VcnsHf3fsSpec():
            remote = {"remote_host": spec.remote_host, "remote_port": spec.remote_port, "meta_storage_uri": spec.meta_storage_uri}
            return {**_hf3fs_to_dict(spec), **remote}
        case MooncakeSpec():
            return {
                "local_hostname": spec.local_hostname,
                "metadata_connstring": spec.metadata_connstring,
                "protocol": spec.protocol,
                "rdma_device": spec.rdma_device,
                "master_server_entry": spec.master_service_entry,
            }
        case TairMemPoolSpec():
            return {
                "domain": spec.domain,
                "timeout": spec.timeout,
                "service_discovery_url": spec.service_discovery_url,
                "media_type": spec.media_type,
            }
        case EventReportSpec():
            return {
                "heartbeat_timeout_ms": spec.heartbeat_timeout_ms,
                "cleanup_grace_ms": spec.cleanup_grace_ms,
                "liveness_check_interval_ms": spec.liveness_check_interval_ms,
                "snapshot_min_interval_ms": spec.snapshot_min_interval_ms,
                "snapshot_delta_drain_timeout_ms": spec.snapshot_delta_drain_timeout_ms,
            }


def _hf3fs_to_dict(spec: Hf3fsSpec | VcnsHf3fsSpec) -> dict[str, object]:
    return {
        "cluster_name": spec.cluster_name,
        "mountpoint": spec.mountpoint,
        "root_dir": spec.root_dir,
        "key_count_per_file": spec.key_count_per_file,
        "touch_file_when_create": spec.touch_file_when_create,
    }


def _nfs(spec: Fields) -> StorageSpec:
    return NfsSpec(spec.text("root_path"), spec.int32("key_count_per_file", 1))


def _dummy(spec: Fields) -> StorageSpec:
    return DummySpec(spec.text("root_path"), spec.int32("key_count_per_file", 1))


def _hf3fs(spec: Fields) -> StorageSpec:
    return Hf3fsSpec(
        mountpoint=spec.text("mountpoint"),
        root_dir=spec.text("root_dir"),
        cluster_name=spec.text("cluster_name"),
        key_count_per_file=spec.int32("key_count_per_file", 1),
        touch_file_when_create=spec.boolean("touch_file_when_create"),
    )


def _vcns(spec: Fields) -> StorageSpec:
    return VcnsHf3fsSpec(
        mountpoint=spec.text("mountpoint"),
        root_dir=spec.text("root_dir"),
        remote_host=spec.text("remote_host"),
        remote_port=spec.int32("remote_port"),
        meta_storage_uri=spec.text("meta_storage_uri"),
        cluster_name=spec.text("cluster_name"),
        key_count_per_file=spec.int32("key_count_per_file", 1),
        touch_file_when_create=spec.boolean("touch_file_when_create"),
    )


def _mooncake(spec: Fields) -> StorageSpec:
    return MooncakeSpec(
        local_hostname=spec.text("local_hostname"),
        metadata_connstring=spec.text("metadata_connstring"),
        protocol=spec.text("protocol"),
        master_service_entry=spec.text("master_server_entry"),
        rdma_device=spec.text("rdma_device"),
    )


def _pace(spec: Fields, usual_media_type: int = 0) -> StorageSpec:
    url = spec.text("service_discovery_url")
    # Records of early-2026 releases name a vipserver domain instead (wire contract 7.1).
    if not url and spec.boolean("enable_vipserver"):
        url = f"vipserver://{spec.text('vipserver_domain')}"
    return TairMemPoolSpec(spec.text("domain"), spec.int32("timeout"), url, spec.int32("media_type", usual_media_type))


def _pace_ssd(spec: Fields) -> StorageSpec:
    return _pace(spec, _SSD_MEDIA_TYPE)


def _event_report(spec: Fields) -> StorageSpec:
    usual = EventReportSpec()
    return EventReportSpec(
        heartbeat_timeout_ms=spec.int64("heartbeat_timeout_ms", usual.heartbeat_timeout_ms),
        cleanup_grace_ms=spec.int64("cleanup_grace_ms", usual.cleanup_grace_ms),
        liveness_check_interval_ms=spec.int64("liveness_check_interval_ms", usual.liveness_check_interval_ms),
        snapshot_min_interval_ms=spec.int64("snapshot_min_interval_ms", usual.snapshot_min_interval_ms),
        snapshot_delta_drain_timeout_ms=spec.int64("snapshot_delta_drain_timeout_ms", usual.snapshot_delta_drain_timeout_ms),
    )


_SPEC_READERS: dict[StorageType, Callable[[Fields], StorageSpec]] = {
    StorageType.HF3FS: _hf3fs,
    StorageType.MOONCAKE: _mooncake,
    StorageType.TAIR_MEMPOOL: _pace,
    StorageType.TAIR_MEMPOOL_SSD: _pace_ssd,
    StorageType.NFS: _nfs,
    StorageType.VCNS_HF3FS: _vcns,
    StorageType.DUMMY: _dummy,
    StorageType.EVENT_REPORT_L1P5: _event_report,
    StorageType.EVENT_REPORT_L2: _event_report,
}


def storage_to_dict(storage: Storage) -> dict[str, object]:
    """The record of one storage. `is_available` keeps what Enable/DisableStorage said."""
    return {
        "type": storage.type.type_name,
        "is_available": storage.enabled,
        "global_unique_name": storage.name,
        "check_storage_available_when_open": storage.check_storage_available_when_open,
        "storage_spec": spec_to_dict(storage.spec),
    }


def storage_from_dict(value: object) -> Storage:
    """One storage from its record. Raises PersistedFormatError; unknown keys are ignored."""
    fields = Fields(value, "storage")
    kind = type_from_name(fields, "type")
    return Storage(
        name=fields.required_text("global_unique_name"),
        type=kind,
        spec=_SPEC_READERS[kind](fields.child("storage_spec")),
        check_storage_available_when_open=fields.boolean("check_storage_available_when_open"),
        enabled=fields.boolean("is_available", True),
    )


def storage_configs_text(storages: Iterable[Storage]) -> str:
    """The compact JSON array that RegisterInstance returns (wire contract 4.4); the caller leaves `dummy` storages out."""
    return json.dumps([_client_view(storage) for storage in storages], separators=(",", ":"), ensure_ascii=False)


def _client_view(storage: Storage) -> dict[str, object]:
    spec = {key: value for key, value in spec_to_dict(storage.spec).items() if key not in _RECORD_ONLY_KEYS}
    return {
        "type": storage.type.type_name,
        "is_available": storage.enabled,
        "global_unique_name": storage.name,
        "storage_spec": spec,
    }
