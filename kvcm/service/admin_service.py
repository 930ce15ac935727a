"""AdminService: storages, instance groups, instances, health and leadership (wire contract 2.3, 5).

Codes are precise (DUPLICATE_ENTITY, INSTANCE_NOT_EXIST, ...) where upstream answers INTERNAL_ERROR for everything; docs/compatibility.md lists the
differences. What is still referenced is not removed unless the setting `kvcm.registry.enforce_references` is false.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import ErrorCode, InstanceNotExist, NotFound
from kvcm.config.registry import Registry
from kvcm.data_storage.manager import DataStorageManager
from kvcm.data_storage.model import Storage
from kvcm.manager.cache_manager import CacheManager
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol.group_codec import group_from_proto, group_to_proto
from kvcm.protocol.instance_codec import instance_from_request, instance_to_info
from kvcm.protocol.mask_codec import mask_from_proto
from kvcm.protocol.storage_codec import storage_from_proto, storage_to_proto
from kvcm.service.cluster import ClusterView
from kvcm.service.replies import fill_header, missing
from kvcm.service.rpc import Call, Reply, Rpc, Service, table, unsupported

FULL_NAME = "kv_cache_manager.proto.admin.AdminService"
_OK = int(ErrorCode.OK)
_ROOTS = {None: admin.ROOT_STATE_UNKNOWN, True: admin.ROOT_STATE_VERIFIED, False: admin.ROOT_STATE_LOST}
_RESPONSE_OF_LATER = {
    "AddAccount": admin.CommonResponse,
    "DeleteAccount": admin.CommonResponse,
    "ListAccount": admin.ListAccountResponse,
    "GenConfigSnapshot": admin.ConfigSnapShotResponse,
    "LoadConfigSnapshot": admin.CommonResponse,
    "MigrateCache": admin.MigrateCacheResponse,
    "ListAsyncCopyQuarantine": admin.ListAsyncCopyQuarantineResponse,
    "BreakGlassReleaseAsyncCopy": admin.CommonResponse,
    "GetMetrics": admin.GetMetricsResponse,
    "LeaderDemote": admin.CommonResponse,
    "GetLeaderElectorConfig": admin.GetLeaderElectorConfigResponse,
    "UpdateLeaderElectorConfig": admin.CommonResponse,
    "UpdateLogger": admin.CommonResponse,
}


def build_admin_service(manager: CacheManager, registry: Registry, storages: DataStorageManager, cluster: ClusterView) -> Service:
    """The service with every RPC of the contract; those of later versions answer UNSUPPORTED with a sentence."""
    service = _AdminService(manager, registry, storages, cluster)
    common = admin.CommonResponse
    served = [
        Rpc("AddStorage", admin.AddStorageRequest, common, service.add_storage),
        Rpc("EnableStorage", admin.EnableStorageRequest, common, service.enable_storage),
        Rpc("DisableStorage", admin.DisableStorageRequest, common, service.disable_storage),
        Rpc("RemoveStorage", admin.RemoveStorageRequest, common, service.remove_storage),
        Rpc("UpdateStorage", admin.UpdateStorageRequest, common, service.update_storage),
        Rpc("ListStorage", admin.ListStorageRequest, admin.ListStorageResponse, service.list_storage),
        Rpc("CreateInstanceGroup", admin.CreateInstanceGroupRequest, common, service.create_group),
        Rpc("UpdateInstanceGroup", admin.UpdateInstanceGroupRequest, common, service.update_group),
        Rpc("RemoveInstanceGroup", admin.RemoveInstanceGroupRequest, common, service.remove_group),
        Rpc("GetInstanceGroup", admin.GetInstanceGroupRequest, admin.GetInstanceGroupResponse, service.get_group),
        Rpc("ListInstanceGroup", admin.ListInstanceGroupRequest, admin.ListInstanceGroupResponse, service.list_groups),
        Rpc("RegisterInstance", admin.RegisterInstanceRequest, common, service.register_instance),
        Rpc("RemoveInstance", admin.RemoveInstanceRequest, common, service.remove_instance),
        Rpc("GetInstanceInfo", admin.GetInstanceInfoRequest, admin.GetInstanceInfoResponse, service.get_instance_info),
        Rpc("ListInstanceInfo", admin.ListInstanceInfoRequest, admin.ListInstanceInfoResponse, service.list_instance_info),
        Rpc("GetCacheMeta", admin.GetCacheMetaRequest, admin.GetCacheMetaResponse, service.get_cache_meta),
        Rpc("RemoveCache", admin.RemoveCacheRequest, common, service.remove_cache),
        Rpc("CheckHealth", admin.CheckHealthRequest, admin.CheckHealthResponse, service.check_health, leader_only=False),
        Rpc(
            "GetManagerClusterInfo",
            admin.GetManagerClusterInfoRequest,
            admin.GetManagerClusterInfoResponse,
            service.get_manager_cluster_info,
            leader_only=False,
        ),
    ]
    later = [Rpc(name, getattr(admin, f"{name}Request"), response, unsupported(name), leader_only=False) for name, response in _RESPONSE_OF_LATER.items()]
    return table(FULL_NAME, served + later)


class _AdminService:
    def __init__(self, manager: CacheManager, registry: Registry, storages: DataStorageManager, cluster: ClusterView) -> None:
        self._manager = manager
        self._registry = registry
        self._storages = storages
        self._cluster = cluster

    # -- storages ------------------------------------------------------------------------------------------------------------------------------

    async def add_storage(self, request: admin.AddStorageRequest, call: Call) -> Reply:
        if not request.HasField("storage"):
            raise missing("AddStorage", "storage")
        await self._registry.add_storage(storage_from_proto(request.storage))
        return _done(call)

    async def update_storage(self, request: admin.UpdateStorageRequest, call: Call) -> Reply:
        if not request.HasField("storage"):
            raise missing("UpdateStorage", "storage")
        await self._registry.update_storage(storage_from_proto(request.storage), force=request.force_update)
        return _done(call)

    async def enable_storage(self, request: admin.EnableStorageRequest, call: Call) -> Reply:
        await self._registry.set_storage_enabled(_required(request, "EnableStorage", "storage_unique_name"), True)
        return _done(call)

    async def disable_storage(self, request: admin.DisableStorageRequest, call: Call) -> Reply:
        await self._registry.set_storage_enabled(_required(request, "DisableStorage", "storage_unique_name"), False)
        return _done(call)

    async def remove_storage(self, request: admin.RemoveStorageRequest, call: Call) -> Reply:
        await self._registry.remove_storage(_required(request, "RemoveStorage", "storage_unique_name"))
        return _done(call)

    async def list_storage(self, request: admin.ListStorageRequest, call: Call) -> Reply:
        storages = self._registry.list_storages()
        response = admin.ListStorageResponse(
            storage=[storage_to_proto(storage) for storage in storages],
            disabled_storage_names=[storage.name for storage in storages if not storage.enabled],
            states=[self._state(storage) for storage in storages],
        )
        return _finish(response, call)

    def _state(self, storage: Storage) -> admin.StorageState:
        name = storage.name
        # A record that is registered and not opened yet (or any more) has no backend to ask.
        problem = self._storages.problem(name) if self._storages.get(name) is not None else f"Storage '{name}' is not opened."
        return admin.StorageState(
            name=name,
            enabled=storage.enabled,
            available=self._storages.available(name),
            root_verified=_ROOTS[self._storages.root_verified(name)],
            problem=problem,
            type=admin.StorageType.Name(storage.type),
        )

    # -- groups --------------------------------------------------------------------------------------------------------------------------------

    async def create_group(self, request: admin.CreateInstanceGroupRequest, call: Call) -> Reply:
        if not request.HasField("instance_group"):
            raise missing("CreateInstanceGroup", "instance_group")
        await self._registry.create_group(group_from_proto(request.instance_group))
        return _done(call)

    async def update_group(self, request: admin.UpdateInstanceGroupRequest, call: Call) -> Reply:
        if not request.HasField("instance_group"):
            raise missing("UpdateInstanceGroup", "instance_group")
        await self._registry.update_group(group_from_proto(request.instance_group), request.current_version)
        return _done(call)

    async def remove_group(self, request: admin.RemoveInstanceGroupRequest, call: Call) -> Reply:
        await self._registry.remove_group(_required(request, "RemoveInstanceGroup", "name"))
        return _done(call)

    async def get_group(self, request: admin.GetInstanceGroupRequest, call: Call) -> Reply:
        name = _required(request, "GetInstanceGroup", "name")
        group = self._registry.get_group(name)
        if group is None:
            raise NotFound(f"instance group '{name}' does not exist")
        usage = self._usage(name, len(self._registry.list_instances(name)))
        return _finish(admin.GetInstanceGroupResponse(instance_group=group_to_proto(group), usage=usage), call)

    async def list_groups(self, request: admin.ListInstanceGroupRequest, call: Call) -> Reply:
        groups = self._registry.list_groups()
        counts = Counter(instance.instance_group_name for instance in self._registry.list_instances())
        response = admin.ListInstanceGroupResponse(
            instance_group=[group_to_proto(group) for group in groups],
            usage=[self._usage(group.name, counts[group.name]) for group in groups],
        )
        return _finish(response, call)

    def _usage(self, name: str, instances: int) -> admin.InstanceGroupUsage:
        used = self._manager.group_usage(name)
        return admin.InstanceGroupUsage(name=name, instances=instances, keys=used.keys, used_bytes=used.total)

    # -- instances -----------------------------------------------------------------------------------------------------------------------------

    async def register_instance(self, request: admin.RegisterInstanceRequest, call: Call) -> Reply:
        group = self._registry.get_group(request.instance_group)
        await self._manager.register(instance_from_request(request, group.global_quota_group_name if group is not None else ""))
        return _done(call)

    async def remove_instance(self, request: admin.RemoveInstanceRequest, call: Call) -> Reply:
        await self._manager.remove_instance(_required(request, "RemoveInstance", "instance_id"))
        return _done(call)

    async def get_instance_info(self, request: admin.GetInstanceInfoRequest, call: Call) -> Reply:
        instance_id = _required(request, "GetInstanceInfo", "instance_id")
        instance = self._registry.get_instance(instance_id)
        if instance is None:
            raise InstanceNotExist(f"instance '{instance_id}' is not registered")
        response = admin.GetInstanceInfoResponse()
        instance_to_info(instance, response.instance_info)
        return _finish(response, call)

    async def list_instance_info(self, request: admin.ListInstanceInfoRequest, call: Call) -> Reply:
        name = _required(request, "ListInstanceInfo", "instance_group_name")
        response = admin.ListInstanceInfoResponse()
        for instance in self._registry.list_instances(name):
            instance_to_info(instance, response.instance_info.add())
        return _finish(response, call)

    async def get_cache_meta(self, request: admin.GetCacheMetaRequest, call: Call) -> Reply:
        shard = self._manager.shard(_required(request, "GetCacheMeta", "instance_id"))
        keys = await self._manager.keys_for(shard, request.block_keys, request.token_ids)
        if request.HasField("block_mask"):
            mask = mask_from_proto(request.block_mask)
            keys = (BlockMask(offset=mask) if isinstance(mask, int) else BlockMask(values=mask)).unmasked(keys)
        views = await self._manager.view_in_slices(shard, keys)
        head = admin.GetCacheMetaResponse(metas=[view.meta_json for view in views])
        fill_header(head.header, call)
        # Locations are field 2 here as in the meta package, with the same message.
        return _OK, b"".join([head.SerializeToString(), *(view.wire for view in views)])

    async def remove_cache(self, request: admin.RemoveCacheRequest, call: Call) -> Reply:
        instance_id = _required(request, "RemoveCache", "instance_id")
        if not request.block_keys and not request.token_ids:
            raise missing("RemoveCache", "block_keys and token_ids")
        if request.block_keys and self._registry.get_instance(instance_id) is None:
            return _done(call)  # nothing there to remove (wire contract 5.4)
        shard = self._manager.shard(instance_id)
        await self._manager.remove_cache(shard, await self._manager.keys_for(shard, request.block_keys, request.token_ids))
        return _done(call)

    # -- health and leadership -----------------------------------------------------------------------------------------------------------------

    async def check_health(self, request: admin.CheckHealthRequest, call: Call) -> Reply:
        known = self._cluster.snapshot()
        response = admin.CheckHealthResponse(is_leader=known.is_leader, is_health=known.is_health, elector_last_loop_time_ms=known.elector_last_loop_ms)
        return _finish(response, call)

    async def get_manager_cluster_info(self, request: admin.GetManagerClusterInfoRequest, call: Call) -> Reply:
        known = self._cluster.snapshot()
        response = admin.GetManagerClusterInfoResponse(
            self_leader_expiration_time=known.self_leader_expiration_us,
            self_node_id=known.self_node_id,
            leader_node_id=known.leader_node_id,
        )
        endpoint = known.leader_endpoint
        if endpoint.node_id:
            for field in admin.NodeEndpoint.DESCRIPTOR.fields_by_name:
                setattr(response.leader_endpoint, field, getattr(endpoint, field))
        return _finish(response, call)


def _done(call: Call) -> Reply:
    return _finish(admin.CommonResponse(), call)


def _finish(response: Any, call: Call) -> Reply:
    fill_header(response.header, call)
    return _OK, response.SerializeToString()


def _required(request: Any, rpc: str, field: str) -> str:
    value: str = getattr(request, field)
    if not value:
        raise missing(rpc, field)
    return value
