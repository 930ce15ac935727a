"""AdminService: instances and their blocks (wire contract 5.4)."""

from __future__ import annotations

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import InstanceNotExist
from kvcm.config.registry import Registry
from kvcm.manager.cache_manager import CacheManager
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol.instance_codec import instance_from_request, instance_to_info
from kvcm.protocol.mask_codec import mask_from_proto
from kvcm.service.admin_replies import OK, done, finish, required
from kvcm.service.replies import fill_header, missing
from kvcm.service.rpc import Call, Reply, Rpc


def instance_rpcs(registry: Registry, manager: CacheManager) -> list[Rpc]:
    service = _Instances(registry, manager)
    common = admin.CommonResponse
    return [
        Rpc("RegisterInstance", admin.RegisterInstanceRequest, common, service.register),
        Rpc("RemoveInstance", admin.RemoveInstanceRequest, common, service.remove),
        Rpc("GetInstanceInfo", admin.GetInstanceInfoRequest, admin.GetInstanceInfoResponse, service.get),
        Rpc("ListInstanceInfo", admin.ListInstanceInfoRequest, admin.ListInstanceInfoResponse, service.list),
        Rpc("GetCacheMeta", admin.GetCacheMetaRequest, admin.GetCacheMetaResponse, service.get_cache_meta),
        Rpc("RemoveCache", admin.RemoveCacheRequest, common, service.remove_cache),
    ]


class _Instances:
    def __init__(self, registry: Registry, manager: CacheManager) -> None:
        self._registry = registry
        self._manager = manager

    async def register(self, request: admin.RegisterInstanceRequest, call: Call) -> Reply:
        group = self._registry.get_group(request.instance_group)
        await self._manager.register(instance_from_request(request, group.global_quota_group_name if group is not None else ""))
        return done(call)

    async def remove(self, request: admin.RemoveInstanceRequest, call: Call) -> Reply:
        await self._manager.remove_instance(required(request, "RemoveInstance", "instance_id"))
        return done(call)

    async def get(self, request: admin.GetInstanceInfoRequest, call: Call) -> Reply:
        instance_id = required(request, "GetInstanceInfo", "instance_id")
        instance = self._registry.get_instance(instance_id)
        if instance is None:
            raise InstanceNotExist(f"instance '{instance_id}' is not registered")
        response = admin.GetInstanceInfoResponse()
        instance_to_info(instance, response.instance_info)
        return finish(response, call)

    async def list(self, request: admin.ListInstanceInfoRequest, call: Call) -> Reply:
        name = required(request, "ListInstanceInfo", "instance_group_name")
        response = admin.ListInstanceInfoResponse()
        for instance in self._registry.list_instances(name):
            instance_to_info(instance, response.instance_info.add())
        return finish(response, call)

    async def get_cache_meta(self, request: admin.GetCacheMetaRequest, call: Call) -> Reply:
        shard = self._manager.shard(required(request, "GetCacheMeta", "instance_id"))
        keys = await self._manager.keys_for(shard, request.block_keys, request.token_ids)
        if request.HasField("block_mask"):
            mask = mask_from_proto(request.block_mask)
            keys = (BlockMask(offset=mask) if isinstance(mask, int) else BlockMask(values=mask)).unmasked(keys)
        views = await self._manager.view_in_slices(shard, keys)
        head = admin.GetCacheMetaResponse(metas=[view.meta_json for view in views])
        fill_header(head.header, call)
        # Locations are field 2 here as in the meta package, with the same message.
        return OK, b"".join([head.SerializeToString(), *(view.wire for view in views)])

    async def remove_cache(self, request: admin.RemoveCacheRequest, call: Call) -> Reply:
        instance_id = required(request, "RemoveCache", "instance_id")
        if not request.block_keys and not request.token_ids:
            raise missing("RemoveCache", "block_keys and token_ids")
        if request.block_keys and self._registry.get_instance(instance_id) is None:
            return done(call)  # nothing there to remove (wire contract 5.4)
        shard = self._manager.shard(instance_id)
        await self._manager.remove_cache(shard, await self._manager.keys_for(shard, request.block_keys, request.token_ids))
        return done(call)
