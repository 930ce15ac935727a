"""Instance groups and instances (wire contract 2.1, 2.3; behaviour 2.6). Immutable: a change is a new object."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvcm.data_storage.model import StorageType


class CachePreferStrategy(IntEnum):
    """Which storage kind new blocks go to (wire contract 2.3)."""

    UNSPECIFIED = 0
    ALWAYS_3FS = 1
    PREFER_3FS = 2
    ALWAYS_MOONCAKE = 3
    PREFER_MOONCAKE = 4
    ALWAYS_TAIR_MEMPOOL = 5
    PREFER_TAIR_MEMPOOL = 6
    ALWAYS_VCNS_3FS = 7
    PREFER_VCNS_3FS = 8
    ALWAYS_TAIR_MEMPOOL_SSD = 9
    PREFER_TAIR_MEMPOOL_SSD = 10


class ReclaimPolicy(IntEnum):
    UNSPECIFIED = 0
    LRU = 1
    LFU = 2
    TTL = 3


class InstanceReclaimBudgetPolicy(IntEnum):
    """How a group's reclaim is shared among its instances; absent means GROUP_LRU (behaviour 12.4)."""

    USAGE_PROPORTIONAL = 0
    FIXED_PER_INSTANCE = 1
    GROUP_LRU = 2


class QueryType(IntEnum):
    UNSPECIFIED = 0
    BATCH_GET = 1
    PREFIX_MATCH = 2
    REVERSE_ROLL_SW_MATCH = 3
    PREFIX_MATCH_WITH_MAMBA = 4


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    storage_type: StorageType
    capacity: int


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes. A capacity <= 0 means that nothing may be written (wire contract 4.12)."""

    capacity: int
    by_type: tuple[QuotaConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class TriggerStrategy:
    used_size: int = 0
    used_percentage: float = 0.0


@dataclass(frozen=True, slots=True)
class ReclaimStrategy:
    storage_unique_name: str = ""
    reclaim_policy: ReclaimPolicy = ReclaimPolicy.LRU
    trigger_strategy: TriggerStrategy = field(default_factory=TriggerStrategy)
    trigger_period_seconds: int = 0
    reclaim_step_size: int = 0
    reclaim_step_percentage: int = 0
    delay_before_delete_ms: int = 1000
    # None = not given, which differs from 0 and is kept apart in round trips.
    instance_reclaim_budget_policy: InstanceReclaimBudgetPolicy | None = None


@dataclass(frozen=True, slots=True)
class MetaBackendConfig:
    """`storage_type`: local, dummy (file), redis, async_redis."""

    storage_type: str = "local"
    storage_uri: str = ""


@dataclass(frozen=True, slots=True)
class MetaCachePolicy:
    capacity: int = 0
    type: str = "LRU"
    cache_shard_bits: int = 6
    high_pri_pool_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class MetaIndexerConfig:
    max_key_count: int = 1_000_000
    mutex_shard_num: int = 16
    batch_key_size: int = 16
    backend: MetaBackendConfig = field(default_factory=MetaBackendConfig)
    cache_policy: MetaCachePolicy = field(default_factory=MetaCachePolicy)
    persist_metadata_interval_time_ms: int = 1000


@dataclass(frozen=True, slots=True)
class CacheConfig:
    reclaim_strategy: ReclaimStrategy = field(default_factory=ReclaimStrategy)
    data_storage_strategy: CachePreferStrategy = CachePreferStrategy.PREFER_3FS
    meta_indexer: MetaIndexerConfig = field(default_factory=MetaIndexerConfig)
    # Text of the migration_config message as received (JSON object), kept for round trips until tiered storage is built (D10).
    migration_json: str = ""


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    name: str
    storage_candidates: tuple[str, ...]
    global_quota_group_name: str
    max_instance_count: int
    quota: Quota
    cache_config: CacheConfig
    user_data: str = ""
    version: int = 1
    extra_info: str = ""
    event_report_storage_candidates: tuple[str, ...] = ()
    revisit_interval_buckets: str = ""


@dataclass(frozen=True, slots=True)
class LocationSpecInfo:
    """One named part of a block and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class LocationSpecGroup:
    name: str
    spec_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelDeployment:
    model_name: str
    dtype: str
    use_mla: bool = False
    tp_size: int = 0
    dp_size: int = 0
    lora_name: str = ""
    pp_size: int = 0
    extra: str = ""
    user_data: str = ""
    use_eagle_pop: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """One model deployment. `location_spec_groups` are kept sorted by name, their spec names sorted too."""

    instance_id: str
    instance_group_name: str
    quota_group_name: str
    block_size: int
    location_spec_infos: tuple[LocationSpecInfo, ...]
    model_deployment: ModelDeployment
    location_spec_groups: tuple[LocationSpecGroup, ...] = ()
    default_query_type: QueryType = QueryType.UNSPECIFIED

    def mismatches(self, other: Instance) -> list[str]:
        """Names of the identity fields that differ (wire contract 4.4); `user_data` is not part of identity."""
        mine, theirs = self.model_deployment, other.model_deployment
        found = []
        if self.block_size != other.block_size:
            found.append("block_size")
        if self.location_spec_infos != other.location_spec_infos:
            found.append("location_spec_infos")
        if _identity(mine) != _identity(theirs):
            found.append("model_deployment")
        if self.location_spec_groups != other.location_spec_groups:
            found.append("location_spec_groups")
        if self.default_query_type != other.default_query_type:
            found.append("default_query_type")
        return found


def _identity(deployment: ModelDeployment) -> tuple[object, ...]:
    return (
        deployment.model_name,
        deployment.dtype,
        deployment.use_mla,
        deployment.tp_size,
        deployment.dp_size,
        deployment.lora_name,
        deployment.pp_size,
        deployment.extra,
        deployment.use_eagle_pop,
    )
