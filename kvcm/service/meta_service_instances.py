"""The calls of MetaService that are about instances and the cluster, not about blocks (wire contract 4.4, 4.5, 4.16)."""

from __future__ import annotations

from kvcm.common.errors import InstanceNotExist
from kvcm.config.persisted import storage_configs_text
from kvcm.config.registry import Registry
from kvcm.data_storage.model import StorageType
from kvcm.manager.cache_manager import CacheManager
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.instance_codec import instance_from_request, instance_to_info
from kvcm.service.cluster import ClusterView
from kvcm.service.meta_service_base import OK
from kvcm.service.replies import fill_header, missing
from kvcm.service.rpc import Call, Reply


class MetaInstances:
    def __init__(self, manager: CacheManager, registry: Registry, cluster: ClusterView) -> None:
        self._manager = manager
        self._registry = registry
        self._cluster = cluster

    async def register_instance(self, request: meta.RegisterInstanceRequest, call: Call) -> Reply:
        group = self._registry.get_group(request.instance_group)
        instance = instance_from_request(request, group.global_quota_group_name if group is not None else "")
        await self._manager.register(instance)
        # An id that was registered before keeps its own group: its storages are the ones the client needs.
        registered = self._registry.get_instance(instance.instance_id) or instance
        group = self._registry.get_group(registered.instance_group_name)
        candidates = [self._registry.get_storage(name) for name in group.storage_candidates] if group is not None else []
        shown = [storage for storage in candidates if storage is not None and storage.type is not StorageType.DUMMY]
        response = meta.RegisterInstanceResponse(storage_configs=storage_configs_text(shown), extra_info=group.extra_info if group is not None else "")
        fill_header(response.header, call)
        return OK, response.SerializeToString()

    async def get_instance_info(self, request: meta.GetInstanceInfoRequest, call: Call) -> Reply:
        if not request.instance_id:
            raise missing("GetInstanceInfo", "instance_id")
        instance = self._registry.get_instance(request.instance_id)
        if instance is None:
            raise InstanceNotExist(f"instance '{request.instance_id}' is not registered")
        response = meta.GetInstanceInfoResponse(instance_group=instance.instance_group_name)
        instance_to_info(instance, response.instance_info)
        fill_header(response.header, call)
        return OK, response.SerializeToString()

    async def get_cluster_info(self, request: meta.GetClusterInfoRequest, call: Call) -> Reply:
        known = self._cluster.snapshot()
        response = meta.GetClusterInfoResponse(self_node_id=known.self_node_id, leader_node_id=known.leader_node_id, leader_epoch=known.leader_epoch)
        endpoint = known.leader_endpoint
        if endpoint.node_id:
            response.leader_endpoint.node_id = endpoint.node_id
            response.leader_endpoint.host = endpoint.host
            response.leader_endpoint.meta_rpc_port = endpoint.meta_rpc_port
            response.leader_endpoint.meta_http_port = endpoint.meta_http_port
            response.leader_endpoint.custom_info = endpoint.custom_info
        fill_header(response.header, call)
        return OK, response.SerializeToString()
