"""Groups and instances in the persisted JSON dialect (wire contract 1.6, behaviour 2.6), and the door to the whole dialect.

This is what registries and startup files hold: enums as integers, storage kinds by name, `cache_prefer_strategy`. It is not the JSON of the
admin API, and it knows nothing of protobuf. Readers ignore keys they do not know, give defaults for missing ones and raise
`PersistedFormatError` naming the field for the rest; `x_from_dict(x_to_dict(x)) == x` for every domain object.
"""

from __future__ import annotations

import json

from kvcm.config.model import (
    CacheConfig,
    CachePreferStrategy,
    Instance,
    InstanceGroup,
    InstanceReclaimBudgetPolicy,
    LocationSpecGroup,
    LocationSpecInfo,
    MetaBackendConfig,
    MetaCachePolicy,
    MetaIndexerConfig,
    ModelDeployment,
    QueryType,
    Quota,
    QuotaConfig,
    ReclaimPolicy,
    ReclaimStrategy,
    TriggerStrategy,
)
from kvcm.config.persisted_fields import Fields, PersistedFormatError
from kvcm.config.persisted_storage import storage_configs_text, storage_from_dict, storage_to_dict, type_from_name
from kvcm.data_storage.model import StorageType

__all__ = [
    "PersistedFormatError",
    "group_from_dict",
    "group_to_dict",
    "instance_from_dict",
    "instance_to_dict",
    "storage_configs_text",
    "storage_from_dict",
    "storage_to_dict",
]


def group_to_dict(group: InstanceGroup) -> dict[str, object]:
    """The record of one instance group."""
    return {
        "name": group.name,
        "storage_candidates": list(group.storage_candidates),
        "global_quota_group_name": group.global_quota_group_name,
        "max_instance_count": group.max_instance_count,
        "quota": {
            "capacity": group.quota.capacity,
            "quota_config": [{"storage_type": item.storage_type.type_name, "capacity": item.capacity} for item in group.quota.by_type],
        },
        "cache_config": _cache_config_to_dict(group.cache_config),
        "user_data": group.user_data,
        "version": group.version,
        "extra_info": group.extra_info,
        "event_report_storage_candidates": list(group.event_report_storage_candidates),
        "revisit_interval_buckets": group.revisit_interval_buckets,
    }


def group_from_dict(value: object) -> InstanceGroup:
    """One instance group from its record. Raises PersistedFormatError."""
    fields = Fields(value, "instance_group")
    quota = fields.child("quota")
    events = "event_report_storage_candidates" if fields.has("event_report_storage_candidates") else "event_reporting_storage_candidates"
    return InstanceGroup(
        name=fields.required_text("name"),
        storage_candidates=fields.texts("storage_candidates"),
        global_quota_group_name=fields.text("global_quota_group_name"),
        max_instance_count=fields.int64("max_instance_count"),
        quota=Quota(
            capacity=quota.int64("capacity"),
            by_type=tuple(QuotaConfig(_quota_type(item), item.int64("capacity")) for item in quota.children("quota_config")),
        ),
        cache_config=_cache_config_from_dict(fields.child("cache_config")),
        user_data=fields.text("user_data"),
        version=fields.int64("version", 1),
        extra_info=fields.text("extra_info"),
        event_report_storage_candidates=fields.texts(events),
        revisit_interval_buckets=fields.text("revisit_interval_buckets"),
    )


def _quota_type(item: Fields) -> StorageType:
    """A kind by name; the admin API accepts a quota without a kind, which is stored as an empty name."""
    return type_from_name(item, "storage_type") if item.text("storage_type") else StorageType.UNSPECIFIED


def _cache_config_to_dict(config: CacheConfig) -> dict[str, object]:
    reclaim, indexer = config.reclaim_strategy, config.meta_indexer
    strategy: dict[str, object] = {
        "storage_unique_name": reclaim.storage_unique_name,
        "reclaim_policy": int(reclaim.reclaim_policy),
        "trigger_strategy": {
            "used_size": reclaim.trigger_strategy.used_size,
            "used_percentage": reclaim.trigger_strategy.used_percentage,
        },
        "trigger_period_seconds": reclaim.trigger_period_seconds,
        "reclaim_step_size": reclaim.reclaim_step_size,
        "reclaim_step_percentage": reclaim.reclaim_step_percentage,
        "delay_before_delete_ms": reclaim.delay_before_delete_ms,
    }
    if reclaim.instance_reclaim_budget_policy is not None:
        strategy["instance_reclaim_budget_policy"] = int(reclaim.instance_reclaim_budget_policy)
    result: dict[str, object] = {
        "reclaim_strategy": strategy,
        "cache_prefer_strategy": int(config.data_storage_strategy),
        "meta_indexer_config": {
            "max_key_count": indexer.max_key_count,
            "mutex_shard_num": indexer.mutex_shard_num,
            "batch_key_size": indexer.batch_key_size,
            "meta_storage_backend_config": {
                "storage_type": indexer.backend.storage_type,
                "storage_uri": indexer.backend.storage_uri,
            },
            "meta_cache_policy_config": {
                "capacity": indexer.cache_policy.capacity,
                "type": indexer.cache_policy.type,
                "cache_shard_bits": indexer.cache_policy.cache_shard_bits,
                "high_pri_pool_ratio": indexer.cache_policy.high_pri_pool_ratio,
            },
            "persist_metadata_interval_time_ms": indexer.persist_metadata_interval_time_ms,
        },
    }
    if config.migration_json:
        result["migration_config"] = json.loads(config.migration_json)
    return result


def _cache_config_from_dict(fields: Fields) -> CacheConfig:
    return CacheConfig(
        reclaim_strategy=_reclaim_from_dict(fields.child("reclaim_strategy")),
        data_storage_strategy=fields.choice("cache_prefer_strategy", CachePreferStrategy, CachePreferStrategy.PREFER_3FS),
        meta_indexer=_indexer_from_dict(fields.child("meta_indexer_config")),
        migration_json=_migration_text(fields),
    )


def _migration_text(fields: Fields) -> str:
    if not fields.has("migration_config"):
        return ""
    value = fields.raw("migration_config")
    if not isinstance(value, dict):
        raise fields.wrong("migration_config", "a JSON object")
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _reclaim_from_dict(fields: Fields) -> ReclaimStrategy:
    trigger, usual = fields.child("trigger_strategy"), ReclaimStrategy()
    policy = InstanceReclaimBudgetPolicy.GROUP_LRU
    return ReclaimStrategy(
        storage_unique_name=fields.text("storage_unique_name"),
        reclaim_policy=fields.choice("reclaim_policy", ReclaimPolicy, usual.reclaim_policy),
        trigger_strategy=TriggerStrategy(trigger.int64("used_size"), trigger.number("used_percentage")),
        trigger_period_seconds=fields.int32("trigger_period_seconds"),
        reclaim_step_size=fields.int32("reclaim_step_size"),
        reclaim_step_percentage=fields.int32("reclaim_step_percentage"),
        delay_before_delete_ms=fields.int32("delay_before_delete_ms", usual.delay_before_delete_ms),
        instance_reclaim_budget_policy=fields.choice("instance_reclaim_budget_policy", InstanceReclaimBudgetPolicy, policy)
        if fields.has("instance_reclaim_budget_policy")
        else None,
    )


def _indexer_from_dict(fields: Fields) -> MetaIndexerConfig:
    backend, policy, usual = fields.child("meta_storage_backend_config"), fields.child("meta_cache_policy_config"), MetaIndexerConfig()
    return MetaIndexerConfig(
        max_key_count=fields.int64("max_key_count", usual.max_key_count),
        mutex_shard_num=fields.int64("mutex_shard_num", usual.mutex_shard_num),
        batch_key_size=fields.int64("batch_key_size", usual.batch_key_size),
        backend=MetaBackendConfig(backend.text("storage_type", usual.backend.storage_type), backend.text("storage_uri")),
        cache_policy=MetaCachePolicy(
            capacity=policy.int64("capacity", usual.cache_policy.capacity),
            type=policy.text("type", usual.cache_policy.type),
            cache_shard_bits=policy.int32("cache_shard_bits", usual.cache_policy.cache_shard_bits),
            high_pri_pool_ratio=policy.number("high_pri_pool_ratio", usual.cache_policy.high_pri_pool_ratio),
        ),
        persist_metadata_interval_time_ms=fields.int64("persist_metadata_interval_time_ms", usual.persist_metadata_interval_time_ms),
    )


def instance_to_dict(instance: Instance) -> dict[str, object]:
    """The record of one instance."""
    model = instance.model_deployment
    return {
        "quota_group_name": instance.quota_group_name,
        "instance_group_name": instance.instance_group_name,
        "instance_id": instance.instance_id,
        "block_size": instance.block_size,
        "location_spec_infos": [{"name": info.name, "size": info.size} for info in instance.location_spec_infos],
        "model_deployment": {
            "model_name": model.model_name,
            "dtype": model.dtype,
            "use_mla": model.use_mla,
            "tp_size": model.tp_size,
            "dp_size": model.dp_size,
            "lora_name": model.lora_name,
            "pp_size": model.pp_size,
            "extra": model.extra,
            "user_data": model.user_data,
            "use_eagle_pop": model.use_eagle_pop,
        },
        "location_spec_groups": [{"name": group.name, "spec_names": list(group.spec_names)} for group in instance.location_spec_groups],
        "default_query_type": int(instance.default_query_type),
    }


def instance_from_dict(value: object) -> Instance:
    """One instance from its record, its spec groups sorted. Raises PersistedFormatError."""
    fields = Fields(value, "instance")
    model = fields.child("model_deployment")
    groups = [LocationSpecGroup(item.text("name"), tuple(sorted(item.texts("spec_names")))) for item in fields.children("location_spec_groups")]
    return Instance(
        instance_id=fields.required_text("instance_id"),
        instance_group_name=fields.text("instance_group_name"),
        quota_group_name=fields.text("quota_group_name"),
        block_size=fields.int32("block_size"),
        location_spec_infos=tuple(LocationSpecInfo(item.text("name"), item.int64("size")) for item in fields.children("location_spec_infos")),
        model_deployment=ModelDeployment(
            model_name=model.text("model_name"),
            dtype=model.text("dtype"),
            use_mla=model.boolean("use_mla"),
            tp_size=model.int32("tp_size"),
            dp_size=model.int32("dp_size"),
            lora_name=model.text("lora_name"),
            pp_size=model.int32("pp_size"),
            extra=model.text("extra"),
            user_data=model.text("user_data"),
            use_eagle_pop=model.boolean("use_eagle_pop"),
        ),
        location_spec_groups=tuple(sorted(groups, key=lambda group: group.name)),
        default_query_type=fields.choice("default_query_type", QueryType, QueryType.UNSPECIFIED),
    )
