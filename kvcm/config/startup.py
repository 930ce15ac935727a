"""What a manager that knows nothing starts with (wire contract 1.6).

Without `kvcm.startup_config` the built-in storage and group are used; upstream's clients and tests rely on their exact values.
Danger: the built-in group would not pass the checks of the admin API (it names no storage in its reclaim strategy); it is applied by
`Registry.apply_startup`, which asks only what the registry itself needs.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvcm.common.errors import InvalidArgument
from kvcm.config.errors import SettingsError
from kvcm.config.model import (
    CacheConfig,
    CachePreferStrategy,
    InstanceGroup,
    MetaBackendConfig,
    MetaCachePolicy,
    MetaIndexerConfig,
    Quota,
    QuotaConfig,
    ReclaimPolicy,
    ReclaimStrategy,
    TriggerStrategy,
)
from kvcm.config.persisted import group_from_dict, storage_from_dict
from kvcm.data_storage.model import NfsSpec, Storage, StorageType

MAX_STARTUP_CHARS = 1 << 20
_GIGABYTE = 1_000_000_000


def default_storage() -> Storage:
    return Storage(name="nfs_01", type=StorageType.NFS, spec=NfsSpec(root_path="/tmp/nfs/", key_count_per_file=8))


def default_group() -> InstanceGroup:
    return InstanceGroup(
        name="default",
        storage_candidates=("nfs_01",),
        global_quota_group_name="default_quota_group",
        max_instance_count=100,
        quota=Quota(
            capacity=30 * _GIGABYTE,
            by_type=tuple(QuotaConfig(kind, 10 * _GIGABYTE) for kind in (StorageType.NFS, StorageType.HF3FS, StorageType.TAIR_MEMPOOL)),
        ),
        cache_config=CacheConfig(
            reclaim_strategy=ReclaimStrategy(
                reclaim_policy=ReclaimPolicy.LRU,
                trigger_strategy=TriggerStrategy(used_percentage=0.8),
                delay_before_delete_ms=1000,
            ),
            data_storage_strategy=CachePreferStrategy.PREFER_3FS,
            meta_indexer=MetaIndexerConfig(
                max_key_count=1_000_000,
                mutex_shard_num=16,
                batch_key_size=16,
                backend=MetaBackendConfig(storage_type="local", storage_uri=""),
                cache_policy=MetaCachePolicy(capacity=10_000, type="LRU", cache_shard_bits=0, high_pri_pool_ratio=0.0),
            ),
        ),
        user_data=json.dumps({"description": "Built-in group of a manager that was started without a startup configuration"}),
        version=1,
    )


def read_startup(path: str) -> tuple[Storage | None, InstanceGroup | None]:
    """What the file at `path` has; without a path, the built-in storage and group. Raises SettingsError with a sentence."""
    if not path:
        return default_storage(), default_group()
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_STARTUP_CHARS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"The startup configuration {path!r} cannot be read: {reason}.") from None
    return parse_startup_config(text)


def parse_startup_config(text: str) -> tuple[Storage | None, InstanceGroup | None]:
    """The `storage_config` and `instance_group` of a startup file, None where it has none. Raises SettingsError with a sentence."""
    if len(text) > MAX_STARTUP_CHARS:
        raise SettingsError(f"The startup configuration is longer than {MAX_STARTUP_CHARS} characters.")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise SettingsError("The startup configuration is not valid JSON.") from None
    if not isinstance(content, dict):
        raise SettingsError("The startup configuration must be a JSON object with 'storage_config' and 'instance_group'.")
    storage, group = content.get("storage_config"), content.get("instance_group")
    try:
        return (
            storage_from_dict(storage) if storage is not None else None,
            group_from_dict(group) if group is not None else None,
        )
    except InvalidArgument as error:
        raise SettingsError(f"The startup configuration cannot be used: {error.message}.") from error
