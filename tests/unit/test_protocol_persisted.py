"""The persisted JSON dialect (wire contract 1.6, 4.4): exact texts, defaults, older keys, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.config.model import CachePreferStrategy, InstanceReclaimBudgetPolicy, QueryType, ReclaimPolicy
from kvcm.config.persisted import (
    PersistedFormatError,
    group_from_dict,
    group_to_dict,
    instance_from_dict,
    instance_to_dict,
    storage_configs_text,
    storage_from_dict,
    storage_to_dict,
)
from kvcm.data_storage.model import (
    EventReportSpec,
    Hf3fsSpec,
    MooncakeSpec,
    NfsSpec,
    Storage,
    StorageType,
    TairMemPoolSpec,
    VcnsHf3fsSpec,
)

pytestmark = pytest.mark.unit

# What upstream answered at registration, byte for byte.
NFS_TEXT = '[{"type":"file","is_available":true,"global_unique_name":"nfs_01","storage_spec":{"root_path":"/tmp/nfs/","key_count_per_file":8}}]'
SPEC_KEYS = {
    "file": "root_path,key_count_per_file",
    "hf3fs": "cluster_name,mountpoint,root_dir,key_count_per_file",
    "vcns_hf3fs": "cluster_name,mountpoint,root_dir,key_count_per_file,remote_host,remote_port,meta_storage_uri",
    "mooncake": "local_hostname,metadata_connstring,protocol,rdma_device,master_server_entry",
    "pace": "domain,timeout,service_discovery_url",
}
STORAGES = [
    Storage("nfs_01", StorageType.NFS, NfsSpec("/tmp/nfs/", 8)),
    Storage("h", StorageType.HF3FS, Hf3fsSpec("/m", "r", touch_file_when_create=True)),
    Storage("v", StorageType.VCNS_HF3FS, VcnsHf3fsSpec("/m", "r", "h", 1, "u"), enabled=False),
    Storage("m", StorageType.MOONCAKE, MooncakeSpec("l", "c", "tcp", "h:50051")),
    Storage("p", StorageType.TAIR_MEMPOOL, TairMemPoolSpec("d", 3, "static://h:1", 2)),
]


def test_storage_configs_text_is_upstreams() -> None:
    assert storage_configs_text(STORAGES[:1]) == NFS_TEXT
    assert storage_configs_text([]) == "[]"


def test_clients_get_exactly_the_spec_keys_they_know() -> None:
    for item in json.loads(storage_configs_text(STORAGES)):
        assert list(item) == ["type", "is_available", "global_unique_name", "storage_spec"]
        assert ",".join(item["storage_spec"]) == SPEC_KEYS[item["type"]]
    assert [item["is_available"] for item in json.loads(storage_configs_text(STORAGES))] == [True, True, False, True, True]


@pytest.mark.parametrize("storage", STORAGES, ids=lambda storage: storage.type.type_name)
def test_records_keep_everything(storage: Storage) -> None:
    assert storage_from_dict(json.loads(json.dumps(storage_to_dict(storage)))) == storage


def test_missing_keys_take_defaults_and_unknown_keys_are_ignored() -> None:
    storage = storage_from_dict({"type": "file", "global_unique_name": "n", "x": 1, "storage_spec": {"root_path": "/r", "y": []}})
    assert storage == Storage("n", StorageType.NFS, NfsSpec("/r", 1))
    event = storage_from_dict({"type": "event_report_l2", "global_unique_name": "e"})
    assert (event.type, event.spec) == (StorageType.EVENT_REPORT_L2, EventReportSpec())
    group = group_from_dict({"name": "g"})
    assert group.cache_config.data_storage_strategy is CachePreferStrategy.PREFER_3FS
    assert group.cache_config.reclaim_strategy.reclaim_policy is ReclaimPolicy.LRU
    assert (group.version, group.cache_config.meta_indexer.max_key_count) == (1, 1_000_000)
    instance = instance_from_dict({"instance_id": "i"})
    assert (instance.block_size, instance.default_query_type) == (0, QueryType.UNSPECIFIED)


def test_older_records_are_understood() -> None:
    old = {"type": "pace", "global_unique_name": "p", "storage_spec": {"domain": "d", "enable_vipserver": True, "vipserver_domain": "v.d"}}
    assert storage_from_dict(old).spec == TairMemPoolSpec("d", 0, "vipserver://v.d")
    ssd = storage_from_dict({"type": "pace_ssd", "global_unique_name": "p", "storage_spec": {"domain": "d"}})
    assert (ssd.type, ssd.spec) == (StorageType.TAIR_MEMPOOL_SSD, TairMemPoolSpec("d", media_type=5))
    assert storage_from_dict({"type": "vineyard", "global_unique_name": "e"}).type is StorageType.EVENT_REPORT_L1P5
    assert group_from_dict({"name": "g", "event_reporting_storage_candidates": ["e"]}).event_report_storage_candidates == ("e",)


def test_the_group_record_uses_integers_and_type_names() -> None:
    record: Any = {
        "name": "default",
        "storage_candidates": ["nfs_01"],
        "global_quota_group_name": "default_quota_group",
        "max_instance_count": 100,
        "quota": {"capacity": 30000000000, "quota_config": [{"storage_type": "file", "capacity": 10000000000}]},
        "cache_config": {
            "reclaim_strategy": {
                "storage_unique_name": "",
                "reclaim_policy": 1,
                "trigger_strategy": {"used_size": 0, "used_percentage": 0.8},
                "trigger_period_seconds": 0,
                "reclaim_step_size": 0,
                "reclaim_step_percentage": 0,
                "delay_before_delete_ms": 1000,
                "instance_reclaim_budget_policy": 0,
            },
            "cache_prefer_strategy": 2,
            "meta_indexer_config": {
                "max_key_count": 1000000,
                "mutex_shard_num": 16,
                "batch_key_size": 16,
                "meta_storage_backend_config": {"storage_type": "local", "storage_uri": ""},
                "meta_cache_policy_config": {"capacity": 10000, "type": "LRU", "cache_shard_bits": 0, "high_pri_pool_ratio": 0.0},
                "persist_metadata_interval_time_ms": 1000,
            },
            "migration_config": {"strategies": [], "ü": 1},
        },
        "user_data": "{}",
        "version": 1,
        "extra_info": "",
        "event_report_storage_candidates": [],
        "revisit_interval_buckets": "",
    }
    group = group_from_dict(record)
    assert group_to_dict(group) == record
    assert group.quota.by_type[0].storage_type is StorageType.NFS
    policy = group.cache_config.reclaim_strategy.instance_reclaim_budget_policy
    assert policy is InstanceReclaimBudgetPolicy.USAGE_PROPORTIONAL
    assert group.cache_config.migration_json == '{"strategies":[],"ü":1}'


def test_spec_groups_of_an_instance_come_back_sorted() -> None:
    groups = [{"name": "b", "spec_names": ["z", "a"]}, {"name": "a", "spec_names": []}]
    instance = instance_from_dict({"instance_id": "i", "location_spec_groups": groups})
    assert [(group.name, group.spec_names) for group in instance.location_spec_groups] == [("a", ()), ("b", ("a", "z"))]
    assert instance_from_dict(instance_to_dict(instance)) == instance


@pytest.mark.parametrize(
    ("read", "value", "field"),
    [
        (storage_from_dict, [], "storage must be a JSON object"),
        (storage_from_dict, {"type": "ftp", "global_unique_name": "n"}, r"storage\.type must be one of dummy,"),
        (storage_from_dict, {"global_unique_name": "n"}, r"storage\.type"),
        (storage_from_dict, {"type": "file"}, r"storage\.global_unique_name"),
        (storage_from_dict, {"type": "file", "global_unique_name": "n", "is_available": 1}, r"storage\.is_available must be true or false"),
        (storage_from_dict, {"type": "file", "global_unique_name": "n", "storage_spec": {"root_path": 1}}, r"storage_spec\.root_path"),
        (
            storage_from_dict,
            {"type": "file", "global_unique_name": "n", "storage_spec": {"key_count_per_file": "8"}},
            r"storage_spec\.key_count_per_file must be an integer of 32 bits",
        ),
        (group_from_dict, "g", "instance_group must be a JSON object"),
        (group_from_dict, {}, r"instance_group\.name"),
        (group_from_dict, {"name": "g", "storage_candidates": "n"}, r"storage_candidates must be a list"),
        (group_from_dict, {"name": "g", "storage_candidates": [1]}, r"storage_candidates must be a list of texts"),
        (group_from_dict, {"name": "g", "version": 1 << 63}, r"version must be an integer of 64 bits"),
        (group_from_dict, {"name": "g", "version": True}, r"version"),
        (group_from_dict, {"name": "g", "quota": {"quota_config": [{}, 3]}}, r"quota\.quota_config\[1\] must be a JSON object"),
        (group_from_dict, {"name": "g", "quota": {"quota_config": [{"storage_type": 4}]}}, r"quota_config\[0\]\.storage_type"),
        (group_from_dict, {"name": "g", "cache_config": {"cache_prefer_strategy": 99}}, r"cache_prefer_strategy must be one of the numbers 0, 1"),
        (group_from_dict, {"name": "g", "cache_config": {"migration_config": []}}, r"cache_config\.migration_config"),
        (
            group_from_dict,
            {"name": "g", "cache_config": {"reclaim_strategy": {"trigger_strategy": {"used_percentage": float("nan")}}}},
            r"reclaim_strategy\.trigger_strategy\.used_percentage must be a finite number",
        ),
        (
            group_from_dict,
            {"name": "g", "cache_config": {"reclaim_strategy": {"trigger_strategy": {"used_percentage": 10**400}}}},
            r"used_percentage must be a finite number",
        ),
        (instance_from_dict, {"instance_id": ""}, r"instance\.instance_id"),
        (instance_from_dict, {"instance_id": "i", "model_deployment": {"use_mla": "true"}}, r"model_deployment\.use_mla"),
        (instance_from_dict, {"instance_id": "i", "default_query_type": 9}, r"instance\.default_query_type"),
    ],
)
def test_a_malformed_record_is_refused_by_the_name_of_its_field(read: Any, value: Any, field: str) -> None:
    with pytest.raises(PersistedFormatError, match=field) as caught:
        read(value)
    assert isinstance(caught.value, InvalidArgument)
