"""AdminService: instance groups (wire contract 5.3)."""

from __future__ import annotations

from collections import Counter

from kvcm.common.errors import NotFound
from kvcm.config.registry import Registry
from kvcm.manager.cache_manager import CacheManager
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol.group_codec import group_from_proto, group_to_proto
from kvcm.service.admin_replies import done, finish, required
from kvcm.service.replies import missing
from kvcm.service.rpc import Call, Reply, Rpc


def group_rpcs(registry: Registry, manager: CacheManager) -> list[Rpc]:
    service = _Groups(registry, manager)
    common = admin.CommonResponse
    return [
        Rpc("CreateInstanceGroup", admin.CreateInstanceGroupRequest, common, service.create),
        Rpc("UpdateInstanceGroup", admin.UpdateInstanceGroupRequest, common, service.update),
        Rpc("RemoveInstanceGroup", admin.RemoveInstanceGroupRequest, common, service.remove),
        Rpc("GetInstanceGroup", admin.GetInstanceGroupRequest, admin.GetInstanceGroupResponse, service.get),
        Rpc("ListInstanceGroup", admin.ListInstanceGroupRequest, admin.ListInstanceGroupResponse, service.list),
    ]


class _Groups:
    def __init__(self, registry: Registry, manager: CacheManager) -> None:
        self._registry = registry
        self._manager = manager

    async def create(self, request: admin.CreateInstanceGroupRequest, call: Call) -> Reply:
        if not request.HasField("instance_group"):
            raise missing("CreateInstanceGroup", "instance_group")
        await self._registry.create_group(group_from_proto(request.instance_group))
        return done(call)

    async def update(self, request: admin.UpdateInstanceGroupRequest, call: Call) -> Reply:
        if not request.HasField("instance_group"):
            raise missing("UpdateInstanceGroup", "instance_group")
        await self._registry.update_group(group_from_proto(request.instance_group), request.current_version)
        return done(call)

    async def remove(self, request: admin.RemoveInstanceGroupRequest, call: Call) -> Reply:
        await self._registry.remove_group(required(request, "RemoveInstanceGroup", "name"), force=call.forced)
        return done(call)

    async def get(self, request: admin.GetInstanceGroupRequest, call: Call) -> Reply:
        name = required(request, "GetInstanceGroup", "name")
        group = self._registry.get_group(name)
        if group is None:
            raise NotFound(f"instance group '{name}' does not exist")
        usage = self._usage(name, len(self._registry.list_instances(name)))
        return finish(admin.GetInstanceGroupResponse(instance_group=group_to_proto(group), usage=usage), call)

    async def list(self, request: admin.ListInstanceGroupRequest, call: Call) -> Reply:
        groups = self._registry.list_groups()
        counts = Counter(instance.instance_group_name for instance in self._registry.list_instances())
        response = admin.ListInstanceGroupResponse(
            instance_group=[group_to_proto(group) for group in groups],
            usage=[self._usage(group.name, counts[group.name]) for group in groups],
        )
        return finish(response, call)

    def _usage(self, name: str, instances: int) -> admin.InstanceGroupUsage:
        used = self._manager.group_usage(name)
        return admin.InstanceGroupUsage(name=name, instances=instances, keys=used.keys, used_bytes=used.total)
