"""What hosts hold themselves: ReportEvent takes it in (wire contract 4.18), GetHostCacheState tells who has how much of a prompt (4.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kvcm.common.errors import InvalidArgument, KvcmError
from kvcm.config.model import QueryType
from kvcm.config.registry import Registry
from kvcm.data_storage.model import StorageType
from kvcm.manager.cache_manager import CacheManager
from kvcm.manager.event_report import Reported
from kvcm.manager.event_report_events import (
    Add,
    Event,
    EventKind,
    HostDown,
    Snapshot,
    add,
    check_block_count,
    check_host,
    check_together,
    delete,
    fold,
    heartbeat,
    register,
)
from kvcm.manager.event_report_hosts import HostQuery
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import encode_ok_header
from kvcm.service.meta_service_base import OK, MetaHandlers
from kvcm.service.replies import fill_header, missing
from kvcm.service.rpc import MAX_MESSAGE_CHARS, Call, Reply

_KINDS = {int(kind): kind for kind in StorageType if kind.reported}
_QUERY_TYPES = {int(kind): kind for kind in QueryType}
_SLICE = 256  # events or blocks of a snapshot between two chances for others
_PAYLOADS: dict[int, str] = {
    EventKind.NODE_REGISTER: "node_register",
    EventKind.BLOCK_ADD: "block_add",
    EventKind.BLOCK_DELETE: "block_delete",
    EventKind.HOST_DOWN: "host_down",
    EventKind.HEARTBEAT: "heartbeat",
    EventKind.BLOCK_SNAPSHOT: "block_snapshot",
}


class MetaEvents(MetaHandlers):
    def __init__(self, manager: CacheManager, registry: Registry) -> None:
        super().__init__(manager)
        self._registry = registry

    async def report_event(self, request: meta.ReportEventRequest, call: Call) -> Reply:
        for name in ("instance_id", "host_ip_port"):
            if not getattr(request, name):
                raise missing("ReportEvent", name)
        if not request.events:
            return OK, encode_ok_header(call.request_id)
        kind = _KINDS.get(request.storage_type)
        if kind is None:
            raise InvalidArgument("storage_type must be ST_EVENT_REPORT_L1P5 or ST_EVENT_REPORT_L2")
        host = check_host(request.host_ip_port)
        shard = self._shard(request.instance_id, call)
        storage = self._manager.report_storage(shard, kind)
        check_together([item.event_type for item in request.events])
        events = await _read_all(request.events, _event)
        reported = await self._manager.report_events(shard, storage, host, events)
        group = self._registry.get_group(call.group)
        return _reply(reported, len(events), group.extra_info if group is not None else "", call)

    async def get_host_cache_state(self, request: meta.GetHostCacheStateRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        keys = request.block_cache_keys
        if not keys:
            raise missing("GetHostCacheState", "block_cache_keys")
        if request.p2p_host_count < 0:
            raise missing("GetHostCacheState", "p2p_host_count")
        query_type = _QUERY_TYPES.get(request.query_type)
        if query_type is None:
            raise InvalidArgument(f"query_type {request.query_type} is unknown")
        call.queried_blocks = len(keys)
        matches = await self._manager.match_hosts(shard, HostQuery(keys, query_type, frozenset(request.medium), request.p2p_host_count))
        call.hit_blocks = max((match.local for match in matches), default=0)
        hosts = [
            meta.HostCacheMatch(host_ip_port=match.host, local=match.local, p2p_1_fetch=match.p2p_fetch, p2p_1_total_match=match.p2p_total) for match in matches
        ]
        return OK, encode_ok_header(call.request_id) + meta.GetHostCacheStateResponse(hosts=hosts).SerializeToString()


def _reply(reported: Reported, count: int, extra_info: str, call: Call) -> Reply:
    """Success, or the first failing event's code and sentence, and then a result for each event."""
    response: Any = meta.ReportEventResponse(
        committed_snapshot_version=reported.version,
        retry_after_ms=reported.retry_after_ms,
        snapshot_required=reported.snapshot_required,
        extra_info=extra_info,
    )
    fill_header(response.header, call)
    if reported.failures:
        first = reported.failures[min(reported.failures)]
        response.header.status.code, response.header.status.message = int(first.code), first.message[:MAX_MESSAGE_CHARS]
        results = [OK] * count
        for at, error in reported.failures.items():
            results[at] = int(error.code)
        response.item_results.extend(results)
    return int(response.header.status.code), response.SerializeToString()


async def _read_all(items: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
    """What `read` makes of each item, or why it is not acceptable."""
    found: list[Any] = []
    for at, item in enumerate(items):
        if at and not at % _SLICE:
            await asyncio.sleep(0)
        try:
            found.append(await _snapshot(item) if item.event_type == EventKind.BLOCK_SNAPSHOT else read(item))
        except KvcmError as error:
            found.append(error)
    return found


def _event(item: meta.EventItem) -> Event:
    """Raises InvalidArgument, CapacityReached."""
    payload = _payload(item)
    match item.event_type:
        case EventKind.NODE_REGISTER:
            return register(payload.mediums)
        case EventKind.BLOCK_ADD:
            return _add(payload)
        case EventKind.BLOCK_DELETE:
            return delete(payload.block_key, payload.medium, payload.spec_names)
        case EventKind.HEARTBEAT:
            return heartbeat(payload.system_status)
        case _:
            return HostDown()


async def _snapshot(item: meta.EventItem) -> Event:
    blocks = _payload(item).blocks
    check_block_count(len(blocks))
    found: dict[int, list[Add]] = {}
    for start in range(0, len(blocks), _SLICE):
        if start:
            await asyncio.sleep(0)
        fold(map(_add, blocks[start : start + _SLICE]), found)
    return Snapshot(found)


def _payload(item: meta.EventItem) -> Any:
    """The parameters that belong to the event's type. Raises InvalidArgument."""
    name = _PAYLOADS.get(item.event_type)
    if name is None:
        raise InvalidArgument(f"event_type {item.event_type} is unknown")
    if item.WhichOneof("event_params") != name:
        raise InvalidArgument(f"an event of type {meta.ReportEventType.Name(item.event_type)} needs {name}")
    return getattr(item, name)


def _add(block: Any) -> Add:
    return add(block.block_key, block.medium, [(spec.name, spec.uri) for spec in block.specs])
