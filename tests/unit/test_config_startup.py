"""The startup configuration: upstream's exact defaults, and files in the persisted dialect."""

from __future__ import annotations

import json

import pytest

from kvcm.config.errors import SettingsError
from kvcm.config.model import CachePreferStrategy, ReclaimPolicy
from kvcm.config.persisted import group_to_dict, storage_to_dict
from kvcm.config.startup import default_group, default_storage, parse_startup_config
from kvcm.data_storage.model import NfsSpec, StorageType

pytestmark = pytest.mark.unit


def test_the_built_in_content_is_that_of_the_contract() -> None:
    storage, group = default_storage(), default_group()
    assert (storage.name, storage.type, storage.spec) == ("nfs_01", StorageType.NFS, NfsSpec("/tmp/nfs/", 8))
    assert (group.name, group.storage_candidates, group.global_quota_group_name) == ("default", ("nfs_01",), "default_quota_group")
    assert (group.max_instance_count, group.version, group.quota.capacity) == (100, 1, 30_000_000_000)
    assert {item.storage_type: item.capacity for item in group.quota.by_type} == dict.fromkeys(
        (StorageType.NFS, StorageType.HF3FS, StorageType.TAIR_MEMPOOL), 10_000_000_000
    )
    reclaim, indexer = group.cache_config.reclaim_strategy, group.cache_config.meta_indexer
    assert (reclaim.reclaim_policy, reclaim.trigger_strategy.used_percentage, reclaim.delay_before_delete_ms) == (ReclaimPolicy.LRU, 0.8, 1000)
    assert group.cache_config.data_storage_strategy is CachePreferStrategy.PREFER_3FS
    assert (indexer.max_key_count, indexer.mutex_shard_num, indexer.batch_key_size) == (1_000_000, 16, 16)
    assert (indexer.backend.storage_type, indexer.backend.storage_uri) == ("local", "")
    policy = indexer.cache_policy
    assert (policy.type, policy.capacity, policy.cache_shard_bits, policy.high_pri_pool_ratio) == ("LRU", 10_000, 0, 0.0)
    assert "description" in json.loads(group.user_data)


def test_a_file_in_the_persisted_dialect_gives_storage_and_group() -> None:
    text = json.dumps({"storage_config": storage_to_dict(default_storage()), "instance_group": group_to_dict(default_group())})
    assert parse_startup_config(text) == (default_storage(), default_group())
    assert parse_startup_config("{}") == (None, None)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"storage_config": 5}', '{"instance_group": {"name": 3}}', "x" * 2_000_000])
def test_a_bad_file_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_startup_config(text)
    assert caught.value.message.startswith("The startup configuration")
