"""MetaService: what engines call (wire contract 2.2, 4). Handlers check the form of a request, ask the manager, write the reply.

This file is the list of RPCs; the handlers are in `meta_service_reads`, `_writes`, `_instances` and `_events`. Codes follow wire contract 4 except where
docs/compatibility.md says otherwise.
"""

from __future__ import annotations

from kvcm.config.registry import Registry
from kvcm.manager.cache_manager import CacheManager
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.cluster import ClusterView
from kvcm.service.meta_service_events import MetaEvents
from kvcm.service.meta_service_instances import MetaInstances
from kvcm.service.meta_service_reads import MetaReads
from kvcm.service.meta_service_writes import MetaWrites
from kvcm.service.rpc import Handler, Rpc, Service, table
from kvcm.service.tracing import Tracer, traceable

FULL_NAME = "kv_cache_manager.proto.meta.MetaService"


def build_meta_service(manager: CacheManager, registry: Registry, cluster: ClusterView) -> Service:
    """The service with every RPC of the contract."""

    def watched(tracer: Tracer) -> dict[str, Handler]:
        return {rpc.name: rpc.handler for rpc in _served(tracer.watch(manager), registry, cluster)}

    return table(FULL_NAME, [traceable(rpc, watched) for rpc in _served(manager, registry, cluster)])


def _served(manager: CacheManager, registry: Registry, cluster: ClusterView) -> list[Rpc]:
    reads, writes, instances = MetaReads(manager), MetaWrites(manager), MetaInstances(manager, registry, cluster)
    events = MetaEvents(manager, registry)
    return [
        Rpc("RegisterInstance", meta.RegisterInstanceRequest, meta.RegisterInstanceResponse, instances.register_instance),
        Rpc("GetInstanceInfo", meta.GetInstanceInfoRequest, meta.GetInstanceInfoResponse, instances.get_instance_info),
        Rpc("GetCacheLocation", meta.GetCacheLocationRequest, meta.GetCacheLocationResponse, reads.get_cache_location),
        Rpc("GetCacheLocationLen", meta.GetCacheLocationLenRequest, meta.GetCacheLocationLenResponse, reads.get_cache_location_len),
        Rpc(
            "GetCacheLocationsByBackend",
            meta.GetCacheLocationsByBackendRequest,
            meta.GetCacheLocationsByBackendResponse,
            reads.get_cache_locations_by_backend,
        ),
        Rpc("GetCacheMeta", meta.GetCacheMetaRequest, meta.GetCacheMetaResponse, reads.get_cache_meta),
        Rpc("GetCacheMetaDetail", meta.GetCacheMetaDetailRequest, meta.GetCacheMetaDetailResponse, reads.get_cache_meta_detail),
        Rpc("GetHostCacheState", meta.GetHostCacheStateRequest, meta.GetHostCacheStateResponse, events.get_host_cache_state),
        Rpc("StartWriteCache", meta.StartWriteCacheRequest, meta.StartWriteCacheResponse, writes.start_write_cache),
        Rpc("FinishWriteCache", meta.FinishWriteCacheRequest, meta.CommonResponse, writes.finish_write_cache),
        Rpc("RemoveCache", meta.RemoveCacheRequest, meta.CommonResponse, writes.remove_cache),
        Rpc("TrimCache", meta.TrimCacheRequest, meta.CommonResponse, writes.trim_cache),
        Rpc("GetClusterInfo", meta.GetClusterInfoRequest, meta.GetClusterInfoResponse, instances.get_cluster_info, leader_only=False),
        Rpc("ReportEvent", meta.ReportEventRequest, meta.ReportEventResponse, events.report_event),
    ]
