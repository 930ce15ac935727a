"""Which storage takes new blocks (behaviour section 6, wire contract 4.12).

Pure: the same inputs give the same answer (I-SEL-3). Quotas are limits on what is used plus what is asked for; they are not reserved, so writes that
are in flight together can overshoot by their own size.
"""

from __future__ import annotations

from kvcm.config.model import CachePreferStrategy, InstanceGroup
from kvcm.data_storage.model import Storage, StorageType
from kvcm.manager.errors import NoStorage, QuotaReached
from kvcm.manager.ports import Storages
from kvcm.meta.usage import UsageCounter

_PREFERENCES = {
    CachePreferStrategy.ALWAYS_3FS: (StorageType.HF3FS, True),
    CachePreferStrategy.PREFER_3FS: (StorageType.HF3FS, False),
    CachePreferStrategy.ALWAYS_MOONCAKE: (StorageType.MOONCAKE, True),
    CachePreferStrategy.PREFER_MOONCAKE: (StorageType.MOONCAKE, False),
    CachePreferStrategy.ALWAYS_TAIR_MEMPOOL: (StorageType.TAIR_MEMPOOL, True),
    CachePreferStrategy.PREFER_TAIR_MEMPOOL: (StorageType.TAIR_MEMPOOL, False),
    CachePreferStrategy.ALWAYS_VCNS_3FS: (StorageType.VCNS_HF3FS, True),
    CachePreferStrategy.PREFER_VCNS_3FS: (StorageType.VCNS_HF3FS, False),
    CachePreferStrategy.ALWAYS_TAIR_MEMPOOL_SSD: (StorageType.TAIR_MEMPOOL_SSD, True),
    CachePreferStrategy.PREFER_TAIR_MEMPOOL_SSD: (StorageType.TAIR_MEMPOOL_SSD, False),
}


def select_storage(group: InstanceGroup, storages: Storages, usage: UsageCounter, required_bytes: int) -> Storage:
    """The storage for one batch of `required_bytes`. Raises QuotaReached (the group or every candidate's type is full) or NoStorage."""
    capacity = group.quota.capacity
    if capacity < 0 or usage.total >= capacity or usage.total + required_bytes > capacity:
        raise QuotaReached(
            f"group '{group.name}' uses {usage.total} of its {capacity} bytes and cannot take {required_bytes} more; raise its quota or remove blocks"
        )
    configured = [found for name in group.storage_candidates if (found := storages.get(name)) is not None]
    usable = [storage for storage in configured if storage.type.allocatable and storages.available(storage.name)]
    if not usable:
        raise NoStorage(f"no storage of group '{group.name}' is available for new blocks; check its candidates: {_names(group)}")
    candidates = [storage for storage in usable if not _type_full(group, usage, storage.type, required_bytes)]
    if not candidates:
        raise QuotaReached(f"the type quotas of group '{group.name}' are full for every available storage; raise them or remove blocks")
    kind, strict = _PREFERENCES.get(group.cache_config.data_storage_strategy, (None, False))
    preferred = next((storage for storage in candidates if storage.type is kind), None)
    if preferred is not None:
        return preferred
    if strict:
        assert kind is not None
        raise NoStorage(f"group '{group.name}' insists on storage of type '{kind.type_name}' and none is available with quota left")
    return candidates[0]


def _type_full(group: InstanceGroup, usage: UsageCounter, kind: StorageType, required_bytes: int) -> bool:
    """A type that no quota entry names is open; VCNS 3FS is accounted as 3FS."""
    for quota in group.quota.by_type:
        if quota.storage_type.quota_type is kind.quota_type:
            used = usage.bytes_of(kind)
            if used >= quota.capacity or used + required_bytes > quota.capacity:
                return True
    return False


def _names(group: InstanceGroup) -> str:
    return ", ".join(group.storage_candidates) or "(none)"


def delete_delay_us(group: InstanceGroup | None) -> int:
    """How long bytes stay after their location became DELETING, so that readers who hold the URI can finish. Microseconds."""
    return 1000 * max(0, group.cache_config.reclaim_strategy.delay_before_delete_ms) if group is not None else 1_000_000
