"""MetaService: what engines call (wire contract 2.2, 4). Checks the form of a request, asks the manager, writes the reply.

GetCacheLocation and StartWriteCache are hot: their replies are joined from bytes that were encoded when the location was made (design D2). Codes follow
wire contract 4 except where docs/compatibility.md says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import ErrorCode, InstanceNotExist, InvalidArgument, Unsupported
from kvcm.config.model import QueryType
from kvcm.config.persisted import storage_configs_text
from kvcm.config.registry import Registry
from kvcm.data_storage.model import StorageType
from kvcm.manager.cache_manager import CacheManager
from kvcm.manager.searcher import LocateQuery
from kvcm.manager.shard import InstanceShard
from kvcm.manager.trimmer import TrimRange
from kvcm.manager.writer import StartWrite
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.instance_codec import instance_from_request, instance_to_info
from kvcm.protocol.key_packing import packed_block_keys
from kvcm.protocol.location_encoder import encode_ok_header, reframe_all
from kvcm.protocol.mask_codec import Mask, mask_from_proto, mask_to_proto
from kvcm.service.cluster import ClusterView
from kvcm.service.replies import fill_header, missing
from kvcm.service.rpc import Call, Reply, Rpc, Service, table, unsupported

FULL_NAME = "kv_cache_manager.proto.meta.MetaService"
_OK = int(ErrorCode.OK)
_PREFIX = int(QueryType.PREFIX_MATCH)
_LOCATIONS_IN_START_WRITE = 4
_WORTH_PACKING = 8  # fewer keys are looked up one by one faster than their request is serialised anew
_QUERY_TYPES = {int(kind): kind for kind in QueryType}


def build_meta_service(manager: CacheManager, registry: Registry, cluster: ClusterView) -> Service:
    """The service with every RPC of the contract; those of later versions answer UNSUPPORTED with a sentence."""
    service = _MetaService(manager, registry, cluster)
    served = [
        Rpc("RegisterInstance", meta.RegisterInstanceRequest, meta.RegisterInstanceResponse, service.register_instance),
        Rpc("GetInstanceInfo", meta.GetInstanceInfoRequest, meta.GetInstanceInfoResponse, service.get_instance_info),
        Rpc("GetCacheLocation", meta.GetCacheLocationRequest, meta.GetCacheLocationResponse, service.get_cache_location),
        Rpc("GetCacheMeta", meta.GetCacheMetaRequest, meta.GetCacheMetaResponse, service.get_cache_meta),
        Rpc("StartWriteCache", meta.StartWriteCacheRequest, meta.StartWriteCacheResponse, service.start_write_cache),
        Rpc("FinishWriteCache", meta.FinishWriteCacheRequest, meta.CommonResponse, service.finish_write_cache),
        Rpc("RemoveCache", meta.RemoveCacheRequest, meta.CommonResponse, service.remove_cache),
        Rpc("TrimCache", meta.TrimCacheRequest, meta.CommonResponse, service.trim_cache),
        Rpc("GetClusterInfo", meta.GetClusterInfoRequest, meta.GetClusterInfoResponse, service.get_cluster_info, leader_only=False),
    ]
    later = [
        Rpc(name, getattr(meta, f"{name}Request"), getattr(meta, f"{name}Response"), unsupported(name))
        for name in ("GetCacheMetaDetail", "GetCacheLocationLen", "GetCacheLocationsByBackend", "GetHostCacheState", "ReportEvent")
    ]
    return table(FULL_NAME, served + later)


class _MetaService:
    def __init__(self, manager: CacheManager, registry: Registry, cluster: ClusterView) -> None:
        self._manager = manager
        self._registry = registry
        self._cluster = cluster

    # -- hot -----------------------------------------------------------------------------------------------------------------------------------

    async def get_cache_location(self, request: meta.GetCacheLocationRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        given = request.block_keys
        # Keys need no hashing, so the common call has nothing to wait for.
        keys = self._manager.keys_of(shard, given, ()) if given else await self._manager.keys_for(shard, given, request.token_ids)
        call.queried_blocks = count = len(keys)
        masked = request.HasField("block_mask")
        names = request.location_spec_names
        if request.query_type == _PREFIX and not masked and not names and not request.want_checksums:
            packed = packed_block_keys(request) if count >= _WORTH_PACKING and given else None
            plain = self._manager.plain_prefix(shard, keys, packed, call.now_us)
            if plain is not None:
                parts, call.hit_blocks = plain
                return _OK, b"".join((encode_ok_header(call.request_id), *parts))
        query_type = _QUERY_TYPES.get(request.query_type)
        if query_type is None:
            raise InvalidArgument(f"query_type {request.query_type} is unknown")
        mask = _domain_mask(mask_from_proto(request.block_mask)) if masked else None
        query = LocateQuery(query_type, keys, mask, request.sw_size, tuple(names), request.want_checksums)
        found = await self._manager.locate(shard, query, call.now_us)
        call.hit_blocks = found.hits
        tail = [] if found.checksums is None else [meta.GetCacheLocationResponse(checksums=found.checksums).SerializeToString()]
        return _OK, b"".join((encode_ok_header(call.request_id), *found.parts, *tail))

    async def start_write_cache(self, request: meta.StartWriteCacheRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        keys = await self._manager.keys_for(shard, request.block_keys[:], request.token_ids)
        names = request.location_spec_group_names
        wanted = StartWrite(keys, tuple(names) if names else (), request.write_timeout_seconds, request.min_replica_count)
        started = await self._manager.start_write(shard, wanted)
        head = meta.StartWriteCacheResponse(write_session_id=started.session_id)
        mask_to_proto(_proto_mask(started.mask), head.block_mask)
        parts = [encode_ok_header(call.request_id), head.SerializeToString()]
        parts.extend(reframe_all(started.locations, _LOCATIONS_IN_START_WRITE))
        return _OK, b"".join(parts)

    async def finish_write_cache(self, request: meta.FinishWriteCacheRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        if not request.write_session_id:
            raise missing("FinishWriteCache", "write_session_id")
        if not request.HasField("success_blocks"):
            raise missing("FinishWriteCache", "success_blocks")
        success = _domain_mask(mask_from_proto(request.success_blocks))
        await self._manager.finish_write(shard, request.write_session_id, success, request.checksums[:])
        return _OK, encode_ok_header(call.request_id)

    # -- the others ----------------------------------------------------------------------------------------------------------------------------

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
        return _OK, response.SerializeToString()

    async def get_instance_info(self, request: meta.GetInstanceInfoRequest, call: Call) -> Reply:
        if not request.instance_id:
            raise missing("GetInstanceInfo", "instance_id")
        instance = self._registry.get_instance(request.instance_id)
        if instance is None:
            raise InstanceNotExist(f"instance '{request.instance_id}' is not registered")
        response = meta.GetInstanceInfoResponse(instance_group=instance.instance_group_name)
        instance_to_info(instance, response.instance_info)
        fill_header(response.header, call)
        return _OK, response.SerializeToString()

    async def get_cache_meta(self, request: meta.GetCacheMetaRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        keys = await self._manager.keys_for(shard, request.block_keys, request.token_ids)
        if request.HasField("block_mask"):
            keys = _domain_mask(mask_from_proto(request.block_mask)).unmasked(keys)
        views = await self._manager.view_in_slices(shard, keys)
        tail = meta.GetCacheMetaResponse(metas=[view.meta_json for view in views]).SerializeToString()
        return _OK, b"".join([encode_ok_header(call.request_id), *(view.wire for view in views), tail])

    async def remove_cache(self, request: meta.RemoveCacheRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        await self._manager.remove_cache(shard, await self._manager.keys_for(shard, request.block_keys, request.token_ids))
        return _OK, encode_ok_header(call.request_id)

    async def trim_cache(self, request: meta.TrimCacheRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        await self._manager.trim(shard, _trim_range(request))
        return _OK, encode_ok_header(call.request_id)

    async def get_cluster_info(self, request: meta.GetClusterInfoRequest, call: Call) -> Reply:
        known = self._cluster.snapshot()
        response = meta.GetClusterInfoResponse(self_node_id=known.self_node_id, leader_node_id=known.leader_node_id)
        endpoint = known.leader_endpoint
        if endpoint.node_id:
            response.leader_endpoint.node_id = endpoint.node_id
            response.leader_endpoint.host = endpoint.host
            response.leader_endpoint.meta_rpc_port = endpoint.meta_rpc_port
            response.leader_endpoint.meta_http_port = endpoint.meta_http_port
            response.leader_endpoint.custom_info = endpoint.custom_info
        fill_header(response.header, call)
        return _OK, response.SerializeToString()

    def _shard(self, instance_id: str, call: Call) -> InstanceShard:
        shard = self._manager.shard(instance_id)
        call.instance = instance_id
        call.group = shard.instance.instance_group_name
        return shard


def _trim_range(request: meta.TrimCacheRequest) -> TrimRange | None:
    if request.strategy == meta.TS_REMOVE_ALL_CACHE:
        return None
    if request.strategy == meta.TS_UNSPECIFIED:
        raise missing("TrimCache", "strategy")
    if request.strategy != meta.TS_TIMESTAMP:
        raise Unsupported(f"trim strategy {request.strategy} is not served; use TS_REMOVE_ALL_CACHE or TS_TIMESTAMP")
    if request.begin_timestamp < 0 or request.begin_timestamp > request.end_timestamp:
        raise InvalidArgument("a trim by time needs 0 <= begin_timestamp <= end_timestamp, in seconds since the epoch")
    return TrimRange(request.begin_timestamp, request.end_timestamp)


def _domain_mask(mask: Mask) -> BlockMask:
    return BlockMask(offset=mask) if isinstance(mask, int) else BlockMask(values=mask)


def _proto_mask(mask: BlockMask) -> int | Sequence[bool]:
    return mask.offset if mask.values is None else mask.values
