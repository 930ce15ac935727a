"""Instance groups between admin messages and the domain (wire contract 5.3)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.config.model import CachePreferStrategy, InstanceReclaimBudgetPolicy, MetaCachePolicy, ReclaimPolicy
from kvcm.config.startup import default_group
from kvcm.data_storage.model import StorageType
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol.domain_codec import group_from_proto, group_from_reply, group_to_proto, require_fields
from kvcm.protocol.json_codec import json_to_message, message_to_plain

pytestmark = pytest.mark.unit


def body(**cache_config: Any) -> dict[str, Any]:
    """The least that is accepted."""
    return {
        "name": "g",
        "storage_candidates": ["n"],
        "global_quota_group_name": "q",
        "cache_config": {
            "data_storage_strategy": 2,
            "reclaim_strategy": {"storage_unique_name": "n"},
            "meta_indexer_config": {"meta_storage_backend_config": {"storage_type": "local"}},
            **cache_config,
        },
    }


def message(value: dict[str, Any]) -> admin.InstanceGroup:
    return json_to_message(json.dumps(value).encode(), admin.InstanceGroup)


def refusal(value: dict[str, Any]) -> str:
    with pytest.raises(InvalidArgument) as caught:
        group_from_proto(message(value))
    return caught.value.message.removeprefix("missing or invalid fields: ")


def test_the_least_group_is_accepted_as_it_comes() -> None:
    group = group_from_proto(message(body()))
    assert (group.max_instance_count, group.version, group.quota.capacity, group.quota.by_type) == (0, 0, 0, ())
    indexer = group.cache_config.meta_indexer
    assert (indexer.max_key_count, indexer.mutex_shard_num, indexer.batch_key_size) == (0, 0, 0)
    assert indexer.cache_policy == MetaCachePolicy(0, "LRU", 6, 0.0)
    assert indexer.persist_metadata_interval_time_ms == 1000
    assert group.cache_config.reclaim_strategy.instance_reclaim_budget_policy is None
    assert group.cache_config.migration_json == ""


def test_quota_types_come_as_names_or_numbers_and_the_preference_as_number() -> None:
    value = body()
    value["quota"] = {"capacity": "9", "quota_config": [{"storage_type": 4, "capacity": 1}, {"storage_type": "ST_3FS", "capacity": 2}]}
    group = group_from_proto(message(value))
    assert [item.storage_type for item in group.quota.by_type] == [StorageType.NFS, StorageType.HF3FS]
    assert group.cache_config.data_storage_strategy is CachePreferStrategy.PREFER_3FS


def test_all_problems_are_named_at_once() -> None:
    assert refusal({"name": "g3"}) == "{InstanceGroup: {storage_candidates}{global_quota_group_name}{cache_config}}"
    assert refusal(body(reclaim_strategy={})) == "{InstanceGroup: {CacheConfig: {CacheReclaimStrategy: {storage_unique_name}}}}"
    assert refusal({"cache_config": {}}) == (
        "{InstanceGroup: {name}{storage_candidates}{global_quota_group_name}{CacheConfig: {data_storage_strategy}"
        "{CacheReclaimStrategy: {storage_unique_name}}{MetaIndexerConfig: {MetaStorageBackendConfig: {storage_type}}}}}"
    )


@pytest.mark.parametrize(
    ("cache_config", "problem"),
    [
        ({"data_storage_strategy": 0}, "{data_storage_strategy}"),
        ({"data_storage_strategy": 99}, "{data_storage_strategy}"),
        ({"reclaim_strategy": {"storage_unique_name": "n", "reclaim_policy": 9}}, "{CacheReclaimStrategy: {reclaim_policy}}"),
        (
            {"reclaim_strategy": {"storage_unique_name": "n", "instance_reclaim_budget_policy": 9}},
            "{CacheReclaimStrategy: {instance_reclaim_budget_policy}}",
        ),
        (
            {"reclaim_strategy": {"storage_unique_name": "n", "trigger_strategy": {"used_percentage": "NaN"}}},
            "{CacheReclaimStrategy: {TriggerStrategy: {used_percentage}}}",
        ),
        (
            {
                "meta_indexer_config": {
                    "meta_storage_backend_config": {"storage_type": "local"},
                    "meta_cache_policy_config": {"high_pri_pool_ratio": "Infinity"},
                }
            },
            "{MetaIndexerConfig: {MetaCachePolicyConfig: {high_pri_pool_ratio}}}",
        ),
        (
            {"migration_config": {"strategies": [{"source_storage_name": "a", "target_storage_name": "b"}] * 2}},
            "{MigrationConfig: {strategies}}",
        ),
    ],
)
def test_values_out_of_range_are_named(cache_config: dict[str, Any], problem: str) -> None:
    assert refusal(body(**cache_config)) == f"{{InstanceGroup: {{CacheConfig: {problem}}}}}"


def test_an_unknown_quota_type_is_named() -> None:
    assert "{QuotaConfig: {storage_type}}" in refusal({**body(), "quota": {"quota_config": [{"storage_type": 42}]}})


def test_a_policy_without_a_type_keeps_all_defaults_and_one_with_a_type_keeps_none() -> None:
    backend = {"storage_type": "local"}
    untyped = {"meta_storage_backend_config": backend, "meta_cache_policy_config": {"capacity": 5}}
    assert group_from_proto(message(body(meta_indexer_config=untyped))).cache_config.meta_indexer.cache_policy == MetaCachePolicy()
    typed = {"meta_storage_backend_config": backend, "meta_cache_policy_config": {"type": "lru"}}
    policy = group_from_proto(message(body(meta_indexer_config=typed))).cache_config.meta_indexer.cache_policy
    assert policy == MetaCachePolicy(0, "lru", 0, 0.0)


def test_an_interval_of_zero_is_kept_and_always_shown() -> None:
    indexer = {"meta_storage_backend_config": {"storage_type": "dummy"}, "persist_metadata_interval_time_ms": 0}
    group = group_from_proto(message(body(meta_indexer_config=indexer)))
    assert group.cache_config.meta_indexer.persist_metadata_interval_time_ms == 0
    shown: Any = message_to_plain(group_to_proto(group))
    assert shown["cache_config"]["meta_indexer_config"]["persist_metadata_interval_time_ms"] == "0"


def test_every_sub_message_is_shown_even_when_all_in_it_is_default() -> None:
    shown: Any = message_to_plain(group_to_proto(group_from_proto(message(body()))))
    assert shown["quota"] == {"capacity": "0", "quota_config": []}
    assert shown["cache_config"]["reclaim_strategy"]["trigger_strategy"] == {"used_size": "0", "used_percentage": 0}
    assert shown["cache_config"]["meta_indexer_config"]["meta_cache_policy_config"]["type"] == "LRU"
    assert "migration_config" not in shown["cache_config"]
    assert "instance_reclaim_budget_policy" not in shown["cache_config"]["reclaim_strategy"]


def test_migration_settings_and_budget_policy_survive_a_round_trip() -> None:
    migration = {
        "strategies": [
            {
                "source_storage_name": "a",
                "target_storage_name": "b",
                "trigger_threshold": 0.5,
                "method_configs": {"copy": {"enabled": True}, "mark": {"enabled": True, "timeout_ms": "9"}},
                "retention": "MIGRATION_RETENTION_KEEP_BOTH",
            }
        ],
        "copy_max_concurrency": 3,
    }
    reclaim = {"storage_unique_name": "n", "reclaim_policy": "POLICY_LFU", "instance_reclaim_budget_policy": 0}
    sent = message(body(migration_config=migration, reclaim_strategy=reclaim))
    group = group_from_proto(sent)
    assert group.cache_config.reclaim_strategy.reclaim_policy is ReclaimPolicy.LFU
    assert group.cache_config.reclaim_strategy.instance_reclaim_budget_policy is InstanceReclaimBudgetPolicy.USAGE_PROPORTIONAL
    back = group_to_proto(group)
    assert back.cache_config.migration_config == sent.cache_config.migration_config
    assert back.cache_config.reclaim_strategy.HasField("instance_reclaim_budget_policy")


def test_stored_migration_settings_that_do_not_parse_hide_nothing_else() -> None:
    group = group_from_proto(message(body()))
    damaged = replace(group, cache_config=replace(group.cache_config, migration_json='{"strategies":7}'))
    assert group_to_proto(damaged) == group_to_proto(group)


def test_require_fields_names_what_is_absent() -> None:
    require_fields("GetInstanceGroup", name=True)
    with pytest.raises(InvalidArgument) as caught:
        require_fields("RemoveInstance", instance_id=False, other=True, more=False)
    assert caught.value.message == "missing or invalid fields: {RemoveInstance: {instance_id}{more}}"


def test_a_reply_is_read_as_it_comes_because_built_in_groups_never_were_requests() -> None:
    group = default_group()
    shown = group_to_proto(group)
    with pytest.raises(InvalidArgument, match="storage_unique_name"):
        group_from_proto(shown)
    assert group_from_reply(shown) == group
    assert group_from_reply(message({"name": "g"})).name == "g"
