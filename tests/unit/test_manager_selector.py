"""Which storage takes new blocks: one row per rule of behaviour 6.1."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from kvcm.common.errors import ErrorCode
from kvcm.config.model import CacheConfig, CachePreferStrategy, InstanceGroup, Quota, QuotaConfig, ReclaimStrategy
from kvcm.data_storage.model import NfsSpec, Storage, StorageType
from kvcm.manager.errors import NoStorage, QuotaReached
from kvcm.manager.ports import Storages
from kvcm.manager.selector import delete_delay_us, select_storage
from kvcm.meta.usage import UsageCounter

pytestmark = pytest.mark.unit

NFS, FS3, VCNS, MOON, POOL, SSD, DUMMY = (
    StorageType.NFS,
    StorageType.HF3FS,
    StorageType.VCNS_HF3FS,
    StorageType.MOONCAKE,
    StorageType.TAIR_MEMPOOL,
    StorageType.TAIR_MEMPOOL_SSD,
    StorageType.DUMMY,
)
S = CachePreferStrategy
TYPES = {"nfs": NFS, "nfs2": NFS, "fs": FS3, "vcns": VCNS, "moon": MOON, "pool": POOL, "ssd": SSD, "dummy": DUMMY, "report": StorageType.EVENT_REPORT_L2}


@dataclass
class Known:
    down: tuple[str, ...] = ()

    def get(self, name: str) -> Storage | None:
        return Storage(name, TYPES[name], NfsSpec("/x/")) if name in TYPES else None

    def available(self, name: str) -> bool:
        return name in TYPES and name not in self.down


@dataclass
class Row:
    candidates: str
    expected: str | type[Exception]
    strategy: CachePreferStrategy = S.UNSPECIFIED
    down: str = ""
    capacity: int = 1000
    used: dict[StorageType, int] = field(default_factory=dict)
    by_type: dict[StorageType, int] = field(default_factory=dict)
    required: int = 10


ROWS = [
    # The configured order decides.
    Row("nfs fs", "nfs"),
    Row("fs nfs", "fs"),
    Row("nfs fs", "fs", down="nfs"),
    Row("missing fs", "fs"),
    Row("report nfs", "nfs"),
    # Preferences.
    Row("nfs fs", "fs", S.PREFER_3FS),
    Row("nfs nfs2", "nfs", S.PREFER_3FS),
    Row("nfs fs", "nfs", S.PREFER_3FS, down="fs"),
    Row("nfs fs", "fs", S.ALWAYS_3FS),
    Row("nfs vcns", NoStorage, S.ALWAYS_3FS),
    Row("nfs fs", NoStorage, S.ALWAYS_3FS, down="fs"),
    Row("fs vcns", "vcns", S.ALWAYS_VCNS_3FS),
    Row("fs vcns", "vcns", S.PREFER_VCNS_3FS),
    Row("fs nfs", "fs", S.PREFER_VCNS_3FS),
    Row("nfs moon", "moon", S.ALWAYS_MOONCAKE),
    Row("nfs moon", "moon", S.PREFER_MOONCAKE),
    Row("nfs pool", "pool", S.ALWAYS_TAIR_MEMPOOL),
    Row("nfs pool", "pool", S.PREFER_TAIR_MEMPOOL),
    Row("nfs ssd", "ssd", S.ALWAYS_TAIR_MEMPOOL_SSD),
    Row("pool ssd", "ssd", S.PREFER_TAIR_MEMPOOL_SSD),
    Row("nfs pool", NoStorage, S.ALWAYS_TAIR_MEMPOOL_SSD),
    # Nothing to take from.
    Row("nfs fs", NoStorage, down="nfs fs"),
    Row("missing", NoStorage),
    Row("report", NoStorage),
    # The group's bytes.
    Row("nfs", "nfs", capacity=10),
    Row("nfs", QuotaReached, capacity=9),
    Row("nfs", "nfs", capacity=100, used={NFS: 90}),
    Row("nfs", QuotaReached, capacity=100, used={NFS: 91}),
    Row("nfs", QuotaReached, capacity=100, used={FS3: 60, NFS: 40}),
    Row("nfs", QuotaReached, capacity=0, required=0),
    Row("nfs", QuotaReached, capacity=-1, required=0),
    # The bytes of a type: listed types are limited, others are open; VCNS 3FS counts as 3FS.
    Row("nfs fs", "fs", by_type={NFS: 100}, used={NFS: 95}),
    Row("nfs fs", "nfs", by_type={NFS: 100}, used={NFS: 90}),
    Row("nfs fs", "fs", by_type={NFS: 0}),
    Row("vcns nfs", "nfs", by_type={FS3: 100}, used={FS3: 95}),
    Row("fs nfs", "nfs", by_type={VCNS: 100}, used={VCNS: 95}),
    Row("nfs fs", QuotaReached, by_type={NFS: 5, FS3: 5}),
    Row("nfs fs", NoStorage, S.ALWAYS_3FS, by_type={FS3: 5}),
    Row("nfs fs", "nfs", S.PREFER_3FS, by_type={FS3: 5}),
]


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row.candidates}-{row.strategy.name}-{row.expected if isinstance(row.expected, str) else row.expected.__name__}"
)
def test_the_table(row: Row) -> None:
    quota = Quota(row.capacity, tuple(QuotaConfig(kind, limit) for kind, limit in row.by_type.items()))
    group = InstanceGroup("g", tuple(row.candidates.split()), "q", 0, quota, CacheConfig(data_storage_strategy=row.strategy))
    usage = UsageCounter()
    for kind, amount in row.used.items():
        usage.add_bytes(int(kind), amount)
    storages = cast(Storages, Known(tuple(row.down.split())))
    if isinstance(row.expected, str):
        assert select_storage(group, storages, usage, row.required).name == row.expected
        return
    with pytest.raises(row.expected) as caught:
        select_storage(group, storages, usage, row.required)
    assert "'g'" in str(caught.value), "the sentence names the group"
    codes = {QuotaReached: ErrorCode.REACH_MAX_ENTITY_CAPACITY, NoStorage: ErrorCode.INSTANCE_NOT_EXIST}
    assert caught.value.code is codes[row.expected]  # type: ignore[attr-defined,index]


@pytest.mark.parametrize(("delay_ms", "expected_us"), [(0, 0), (1, 1000), (1500, 1_500_000), (-5, 0)])
def test_the_delay_before_deletion_comes_from_the_group(delay_ms: int, expected_us: int) -> None:
    config = CacheConfig(reclaim_strategy=ReclaimStrategy(delay_before_delete_ms=delay_ms))
    assert delete_delay_us(InstanceGroup("g", ("s",), "q", 0, Quota(1), config)) == expected_us


def test_without_its_group_an_instance_still_has_a_delay() -> None:
    assert delete_delay_us(None) == 1_000_000
