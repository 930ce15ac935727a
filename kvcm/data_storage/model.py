"""Storage kinds and their configuration (wire contract 1.6, 2.1).

`Storage` is what an administrator configures; one storage is one named place. `type_name` texts are the persisted JSON names and the URI schemes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class StorageType(IntEnum):
    """Numbers of the wire enum (vintage N)."""

    UNSPECIFIED = 0
    HF3FS = 1
    MOONCAKE = 2
    TAIR_MEMPOOL = 3
    NFS = 4
    VCNS_HF3FS = 5
    DUMMY = 6
    EVENT_REPORT_L1P5 = 7
    EVENT_REPORT_L2 = 8
    TAIR_MEMPOOL_SSD = 9

    @property
    def type_name(self) -> str:
        return _TYPE_NAMES[self]

    @property
    def quota_type(self) -> StorageType:
        """The type under which bytes are accounted: VCNS 3FS counts as 3FS (behaviour 2.5)."""
        return StorageType.HF3FS if self is StorageType.VCNS_HF3FS else self

    @property
    def reported(self) -> bool:
        """Do hosts tell what lies there? Such bytes are in the hosts' own memory: never allocated, probed, counted or deleted by us (behaviour 21.1)."""
        return self in (StorageType.EVENT_REPORT_L1P5, StorageType.EVENT_REPORT_L2)

    @property
    def allocatable(self) -> bool:
        return self is not StorageType.UNSPECIFIED and not self.reported


_TYPE_NAMES = {
    StorageType.UNSPECIFIED: "",
    StorageType.HF3FS: "hf3fs",
    StorageType.MOONCAKE: "mooncake",
    StorageType.TAIR_MEMPOOL: "pace",
    StorageType.NFS: "file",
    StorageType.VCNS_HF3FS: "vcns_hf3fs",
    StorageType.DUMMY: "dummy",
    StorageType.EVENT_REPORT_L1P5: "event_report_l1p5",
    StorageType.EVENT_REPORT_L2: "event_report_l2",
    StorageType.TAIR_MEMPOOL_SSD: "pace_ssd",
}
STORAGE_TYPE_BY_NAME = {name: kind for kind, name in _TYPE_NAMES.items() if name}


@dataclass(frozen=True, slots=True)
class NfsSpec:
    root_path: str
    key_count_per_file: int = 1


@dataclass(frozen=True, slots=True)
class DummySpec:
    root_path: str
    key_count_per_file: int = 1


@dataclass(frozen=True, slots=True)
class Hf3fsSpec:
    mountpoint: str
    root_dir: str
    cluster_name: str = ""
    key_count_per_file: int = 1
    touch_file_when_create: bool = False


@dataclass(frozen=True, slots=True)
class VcnsHf3fsSpec:
    mountpoint: str
    root_dir: str
    remote_host: str
    remote_port: int
    meta_storage_uri: str
    cluster_name: str = ""
    key_count_per_file: int = 1
    touch_file_when_create: bool = False


@dataclass(frozen=True, slots=True)
class MooncakeSpec:
    local_hostname: str
    metadata_connstring: str
    protocol: str
    master_service_entry: str
    rdma_device: str = ""


@dataclass(frozen=True, slots=True)
class TairMemPoolSpec:
    domain: str
    timeout: int = 0
    service_discovery_url: str = ""
    media_type: int = 0


@dataclass(frozen=True, slots=True)
class EventReportSpec:
    heartbeat_timeout_ms: int = 30_000
    cleanup_grace_ms: int = 300_000
    liveness_check_interval_ms: int = 5_000
    snapshot_min_interval_ms: int = 30_000
    snapshot_delta_drain_timeout_ms: int = 10_000


StorageSpec = NfsSpec | DummySpec | Hf3fsSpec | VcnsHf3fsSpec | MooncakeSpec | TairMemPoolSpec | EventReportSpec


@dataclass(frozen=True, slots=True)
class Storage:
    """One configured store. `name` is its identity on the wire and the host part of every URI it hands out."""

    name: str
    type: StorageType
    spec: StorageSpec
    check_storage_available_when_open: bool = False
    enabled: bool = field(default=True)
