"""AdminService, put together from its nouns (wire contract 2.3, 5): storages, groups, instances, accounts, snapshot, metrics, node.

Codes are precise (DUPLICATE_ENTITY, INSTANCE_NOT_EXIST, ...) where upstream answers INTERNAL_ERROR for everything; docs/compatibility.md lists the
differences. What is still referenced is not removed unless the setting `kvcm.registry.enforce_references` is false or the call is forced.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcm.config.registry import Registry
from kvcm.data_storage.manager import DataStorageManager
from kvcm.manager.cache_manager import CacheManager
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.admin_accounts import account_rpcs
from kvcm.service.admin_groups import group_rpcs
from kvcm.service.admin_instances import instance_rpcs
from kvcm.service.admin_metrics import MetricsView, metrics_rpcs
from kvcm.service.admin_node import Election, node_rpcs
from kvcm.service.admin_snapshot import snapshot_rpcs
from kvcm.service.admin_storages import storage_rpcs
from kvcm.service.cluster import ClusterView
from kvcm.service.rpc import Rpc, Service, table, unsupported

FULL_NAME = "kv_cache_manager.proto.admin.AdminService"
_RESPONSE_OF_LATER = {
    "MigrateCache": admin.MigrateCacheResponse,
    "ListAsyncCopyQuarantine": admin.ListAsyncCopyQuarantineResponse,
    "BreakGlassReleaseAsyncCopy": admin.CommonResponse,
}


def build_admin_service(
    manager: CacheManager,
    registry: Registry,
    storages: DataStorageManager,
    cluster: ClusterView,
    election: Election,
    metrics: MetricsView,
    set_log_level: Callable[[int], None],
) -> Service:
    """The service with every RPC of the contract; those of later versions answer UNSUPPORTED with a sentence."""
    return table(
        FULL_NAME,
        [
            *storage_rpcs(registry, storages),
            *group_rpcs(registry, manager),
            *instance_rpcs(registry, manager),
            *account_rpcs(registry.accounts),
            *snapshot_rpcs(registry, manager),
            *metrics_rpcs(metrics),
            *node_rpcs(cluster, election, set_log_level),
            *(Rpc(name, getattr(admin, f"{name}Request"), response, unsupported(name), leader_only=False) for name, response in _RESPONSE_OF_LATER.items()),
        ],
    )
