"""Instance groups between the admin messages and the domain (wire contract 2.3, 5.3).

All required fields are checked here and reported together; what is not required is taken as it comes, a zero included. The migration settings
are kept as the JSON text of their message until tiered storage is built.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, TypeVar

from kvcm.config.model import (
    CacheConfig,
    CachePreferStrategy,
    InstanceGroup,
    InstanceReclaimBudgetPolicy,
    MetaBackendConfig,
    MetaCachePolicy,
    MetaIndexerConfig,
    Quota,
    QuotaConfig,
    ReclaimPolicy,
    ReclaimStrategy,
    TriggerStrategy,
)
from kvcm.data_storage.model import StorageType
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol.json_codec import JsonBodyError, json_to_message, message_to_json
from kvcm.protocol.missing_fields import inside, named, refuse

E = TypeVar("E", bound=IntEnum)


def group_from_proto(msg: admin.InstanceGroup) -> InstanceGroup:
    """A group from a create or update request. Raises MissingFields with everything that is wrong."""
    refuse(inside("InstanceGroup", _group_problems(msg)))
    return group_from_reply(msg)


def group_from_reply(msg: admin.InstanceGroup) -> InstanceGroup:
    """A group as a manager holds it. Nothing is required of it: built-in and older groups never passed the checks of a request.

    Raises ValueError for an enum number that this version does not know.
    """
    return InstanceGroup(
        name=msg.name,
        storage_candidates=tuple(msg.storage_candidates),
        global_quota_group_name=msg.global_quota_group_name,
        max_instance_count=msg.max_instance_count,
        quota=Quota(msg.quota.capacity, tuple(QuotaConfig(StorageType(item.storage_type), item.capacity) for item in msg.quota.quota_config)),
        cache_config=_cache_config_from_proto(msg.cache_config),
        user_data=msg.user_data,
        version=msg.version,
        extra_info=msg.extra_info,
        event_report_storage_candidates=tuple(msg.event_report_storage_candidates),
        revisit_interval_buckets=msg.revisit_interval_buckets,
    )


def _known(kind: type[E], number: int) -> bool:
    return number in kind.__members__.values()


def _group_problems(msg: admin.InstanceGroup) -> str:
    problems = named(
        ("name", bool(msg.name)),
        ("storage_candidates", len(msg.storage_candidates) > 0),
        ("global_quota_group_name", bool(msg.global_quota_group_name)),
        ("cache_config", msg.HasField("cache_config")),
    )
    if not all(_known(StorageType, item.storage_type) for item in msg.quota.quota_config):
        problems += inside("InstanceGroupQuota", inside("QuotaConfig", named(("storage_type", False))))
    return problems + (inside("CacheConfig", _cache_config_problems(msg.cache_config)) if msg.HasField("cache_config") else "")


def _cache_config_problems(msg: admin.CacheConfig) -> str:
    preference, reclaim, indexer = msg.data_storage_strategy, msg.reclaim_strategy, msg.meta_indexer_config
    routes = [(strategy.source_storage_name, strategy.target_storage_name) for strategy in msg.migration_config.strategies]
    return (
        named(("data_storage_strategy", preference != 0 and _known(CachePreferStrategy, preference)))
        + inside("CacheReclaimStrategy", _reclaim_problems(reclaim))
        + inside("MetaIndexerConfig", _indexer_problems(indexer))
        + inside("MigrationConfig", named(("strategies", len(set(routes)) == len(routes))))
    )


def _reclaim_problems(msg: admin.CacheReclaimStrategy) -> str:
    return named(
        ("storage_unique_name", bool(msg.storage_unique_name)),
        ("reclaim_policy", _known(ReclaimPolicy, msg.reclaim_policy)),
        ("instance_reclaim_budget_policy", _known(InstanceReclaimBudgetPolicy, msg.instance_reclaim_budget_policy)),
    ) + inside("TriggerStrategy", named(("used_percentage", math.isfinite(msg.trigger_strategy.used_percentage))))


def _indexer_problems(msg: admin.MetaIndexerConfig) -> str:
    backend = named(("storage_type", bool(msg.meta_storage_backend_config.storage_type)))
    policy = named(("high_pri_pool_ratio", math.isfinite(msg.meta_cache_policy_config.high_pri_pool_ratio)))
    return inside("MetaStorageBackendConfig", backend) + inside("MetaCachePolicyConfig", policy)


def _cache_config_from_proto(msg: admin.CacheConfig) -> CacheConfig:
    reclaim, trigger, migration = msg.reclaim_strategy, msg.reclaim_strategy.trigger_strategy, msg.migration_config
    return CacheConfig(
        reclaim_strategy=ReclaimStrategy(
            storage_unique_name=reclaim.storage_unique_name,
            reclaim_policy=ReclaimPolicy(reclaim.reclaim_policy),
            trigger_strategy=TriggerStrategy(trigger.used_size, trigger.used_percentage),
            trigger_period_seconds=reclaim.trigger_period_seconds,
            reclaim_step_size=reclaim.reclaim_step_size,
            reclaim_step_percentage=reclaim.reclaim_step_percentage,
            delay_before_delete_ms=reclaim.delay_before_delete_ms,
            instance_reclaim_budget_policy=InstanceReclaimBudgetPolicy(reclaim.instance_reclaim_budget_policy)
            if reclaim.HasField("instance_reclaim_budget_policy")
            else None,
        ),
        data_storage_strategy=CachePreferStrategy(msg.data_storage_strategy),
        meta_indexer=_indexer_from_proto(msg.meta_indexer_config),
        migration_json=message_to_json(migration).decode() if msg.HasField("migration_config") else "",
    )


def _indexer_from_proto(msg: admin.MetaIndexerConfig) -> MetaIndexerConfig:
    backend, policy = msg.meta_storage_backend_config, msg.meta_cache_policy_config
    cache_policy = MetaCachePolicy()
    # A policy without a type is no policy: it keeps all defaults (wire contract 5.3).
    if policy.type:
        cache_policy = MetaCachePolicy(policy.capacity, policy.type, policy.cache_shard_bits, policy.high_pri_pool_ratio)
    interval = MetaIndexerConfig().persist_metadata_interval_time_ms
    if msg.HasField("persist_metadata_interval_time_ms"):
        interval = msg.persist_metadata_interval_time_ms.value
    return MetaIndexerConfig(
        max_key_count=msg.max_key_count,
        mutex_shard_num=msg.mutex_shard_num,
        batch_key_size=msg.batch_key_size,
        backend=MetaBackendConfig(backend.storage_type, backend.storage_uri),
        cache_policy=cache_policy,
        persist_metadata_interval_time_ms=interval,
    )


def group_to_proto(group: InstanceGroup) -> admin.InstanceGroup:
    """The admin message of a group, with every sub-message set. Stored migration settings that no longer parse are left out."""
    msg = admin.InstanceGroup(
        name=group.name,
        storage_candidates=group.storage_candidates,
        global_quota_group_name=group.global_quota_group_name,
        max_instance_count=group.max_instance_count,
        user_data=group.user_data,
        version=group.version,
        extra_info=group.extra_info,
        event_report_storage_candidates=group.event_report_storage_candidates,
        revisit_interval_buckets=group.revisit_interval_buckets,
    )
    msg.quota.capacity = group.quota.capacity
    for item in group.quota.by_type:
        msg.quota.quota_config.add(storage_type=int(item.storage_type), capacity=item.capacity)
    _fill_cache_config(msg.cache_config, group.cache_config)
    msg.quota.SetInParent()
    return msg


def _fill_cache_config(msg: Any, config: CacheConfig) -> None:
    msg.data_storage_strategy = int(config.data_storage_strategy)
    _fill_reclaim(msg.reclaim_strategy, config.reclaim_strategy)
    _fill_indexer(msg.meta_indexer_config, config.meta_indexer)
    if not config.migration_json:
        return
    try:
        msg.migration_config.CopyFrom(json_to_message(config.migration_json.encode(), admin.MigrationConfig))
    except (JsonBodyError, UnicodeEncodeError):
        msg.ClearField("migration_config")


def _fill_reclaim(msg: Any, reclaim: ReclaimStrategy) -> None:
    msg.storage_unique_name = reclaim.storage_unique_name
    msg.reclaim_policy = int(reclaim.reclaim_policy)
    msg.trigger_strategy.used_size = reclaim.trigger_strategy.used_size
    msg.trigger_strategy.used_percentage = reclaim.trigger_strategy.used_percentage
    msg.trigger_strategy.SetInParent()
    msg.trigger_period_seconds = reclaim.trigger_period_seconds
    msg.reclaim_step_size = reclaim.reclaim_step_size
    msg.reclaim_step_percentage = reclaim.reclaim_step_percentage
    msg.delay_before_delete_ms = reclaim.delay_before_delete_ms
    if reclaim.instance_reclaim_budget_policy is not None:
        msg.instance_reclaim_budget_policy = int(reclaim.instance_reclaim_budget_policy)


def _fill_indexer(msg: Any, indexer: MetaIndexerConfig) -> None:
    msg.max_key_count = indexer.max_key_count
    msg.mutex_shard_num = indexer.mutex_shard_num
    msg.batch_key_size = indexer.batch_key_size
    msg.meta_storage_backend_config.storage_type = indexer.backend.storage_type
    msg.meta_storage_backend_config.storage_uri = indexer.backend.storage_uri
    msg.meta_storage_backend_config.SetInParent()
    policy = msg.meta_cache_policy_config
    policy.capacity = indexer.cache_policy.capacity
    policy.type = indexer.cache_policy.type
    policy.cache_shard_bits = indexer.cache_policy.cache_shard_bits
    policy.high_pri_pool_ratio = indexer.cache_policy.high_pri_pool_ratio
    policy.SetInParent()
    msg.persist_metadata_interval_time_ms.value = indexer.persist_metadata_interval_time_ms
    msg.persist_metadata_interval_time_ms.SetInParent()
