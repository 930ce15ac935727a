"""MetaService operations beside the hot path, as values: locations by kind of store, details of blocks, hosts, events. See meta_ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvcm.client.detail_types import (
    BackendSelector,
    BlockAdd,
    BlockDelete,
    BlockDetail,
    BlockSnapshot,
    Event,
    EventReport,
    Heartbeat,
    HostDown,
    HostMatch,
    LocationDetail,
    LocationStatus,
    NodeRegister,
)
from kvcm.client.errors import InvalidCall
from kvcm.client.meta_ops import Operation, build, locations_of, mask_message
from kvcm.client.types import BlockMask, Location, LocationSpec, QueryType
from kvcm.protocol import meta_service_pb2 as pb


def match_by_backend(
    instance_id: str, keys: Sequence[int], tokens: Sequence[int], selectors: Sequence[BackendSelector], spec_names: Sequence[str], trace_id: str
) -> Operation[tuple[tuple[Location, ...], ...]]:
    request = build(
        pb.GetCacheLocationsByBackendRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        query_type=int(QueryType.BATCH_GET),
        block_keys=keys,
        token_ids=tokens,
        location_spec_names=spec_names,
        backend_selectors=[build(pb.BackendLocationSelector, backend_type=item.storage_type, strategy=int(item.strategy)) for item in selectors],
    )
    return Operation("GetCacheLocationsByBackend", request, lambda reply: tuple(locations_of(item.locations) for item in reply.key_locations))


def match_meta_detail(
    instance_id: str, keys: Sequence[int], tokens: Sequence[int], block_mask: BlockMask | None, trace_id: str
) -> Operation[tuple[BlockDetail, ...]]:
    request = build(
        pb.GetCacheMetaDetailRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        block_keys=keys,
        token_ids=tokens,
        block_mask=mask_message(block_mask),
    )
    return Operation("GetCacheMetaDetail", request, lambda reply: tuple(map(_block, reply.items)), details=True)


def get_host_cache_state(
    instance_id: str, keys: Sequence[int], query_type: QueryType, mediums: Sequence[str], peer_hosts: int, trace_id: str
) -> Operation[tuple[HostMatch, ...]]:
    request = build(
        pb.GetHostCacheStateRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        query_type=int(query_type),
        block_cache_keys=keys,
        medium=mediums,
        p2p_host_count=peer_hosts,
    )

    def read(reply: Any) -> tuple[HostMatch, ...]:
        return tuple(HostMatch(host.host_ip_port, host.local, host.p2p_1_fetch, host.p2p_1_total_match) for host in reply.hosts)

    return Operation("GetHostCacheState", request, read)


def report_event(instance_id: str, host: str, storage_type: int, events: Iterable[Event], trace_id: str) -> Operation[EventReport]:
    request = build(
        pb.ReportEventRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        host_ip_port=host,
        storage_type=storage_type,
        events=[_event(event) for event in events],
    )

    def read(reply: Any) -> EventReport:
        codes = tuple(int(code) for code in reply.item_results)
        return EventReport(codes, reply.committed_snapshot_version, reply.retry_after_ms, reply.snapshot_required, reply.extra_info)

    return Operation("ReportEvent", request, read, mutation=True, details=True)


def _block(item: Any) -> BlockDetail:
    return BlockDetail(
        index=item.request_index,
        key=item.block_key,
        previous_key=item.prev_block_key,
        properties=dict(item.properties),
        locations=tuple(_location(location) for location in item.locations),
        code=int(item.status.code),
        message=item.status.message,
    )


def _location(location: Any) -> LocationDetail:
    number = int(location.status)
    status = LocationStatus(number) if number in LocationStatus.__members__.values() else number
    specs = tuple(LocationSpec(spec.name, spec.uri) for spec in location.location_specs)
    return LocationDetail(location.location_id, status, int(location.type), location.create_time, specs)


def _event(event: Event) -> Any:
    match event:
        case NodeRegister():
            return build(pb.EventItem, event_type=pb.EVENT_NODE_REGISTER, node_register=build(pb.NodeRegisterEventParams, mediums=event.mediums))
        case BlockAdd():
            params = build(pb.BlockAddEventParams, block_key=str(event.key), medium=event.medium, specs=_specs(event.specs))
            return pb.EventItem(event_type=pb.EVENT_BLOCK_ADD, block_add=params)
        case BlockDelete():
            gone = build(pb.BlockDeleteEventParams, block_key=str(event.key), medium=event.medium, spec_names=event.spec_names)
            return pb.EventItem(event_type=pb.EVENT_BLOCK_DELETE, block_delete=gone)
        case HostDown():
            return pb.EventItem(event_type=pb.EVENT_HOST_DOWN, host_down=pb.HostDownEventParams())
        case Heartbeat():
            return pb.EventItem(event_type=pb.EVENT_HEARTBEAT, heartbeat=build(pb.HeartbeatEventParams, system_status=dict(event.status)))
        case BlockSnapshot():
            blocks = [build(pb.BlockSnapshotItem, block_key=str(item.key), medium=item.medium, specs=_specs(item.specs)) for item in event.blocks]
            return pb.EventItem(event_type=pb.EVENT_BLOCK_SNAPSHOT, block_snapshot=pb.BlockSnapshotEventParams(blocks=blocks))
    raise InvalidCall("an event must be one of NodeRegister, BlockAdd, BlockDelete, HostDown, Heartbeat, BlockSnapshot")


def _specs(specs: Sequence[LocationSpec]) -> list[Any]:
    return [build(pb.LocationSpec, name=spec.name, uri=spec.uri) for spec in specs]
