"""Operations beside the hot path as values: what is sent, how replies are read, and what an error reply still tells."""

from __future__ import annotations

from typing import Any

import pytest

from kvcm.client import meta_ops_detail as ops
from kvcm.client.detail_types import (
    BackendSelector,
    BlockAdd,
    BlockDelete,
    BlockSnapshot,
    Event,
    EventReport,
    Heartbeat,
    HostDown,
    HostMatch,
    LocationStatus,
    NodeRegister,
    SelectStrategy,
)
from kvcm.client.errors import InvalidCall, ServiceError, ServiceInternal
from kvcm.client.meta_ops import result_of
from kvcm.client.types import BlockMask, Location, LocationSpec, QueryType
from kvcm.protocol import meta_service_pb2 as pb

pytestmark = pytest.mark.unit

SPEC = LocationSpec("tp0", "vineyard://10.0.0.1:1/mem")


def _header(code: int = 1, message: str = "") -> Any:
    return pb.CommonResponseHeader(status=pb.Status(code=code, message=message), request_id="r")  # type: ignore[arg-type]  # the wire has numbers


def test_numbers_are_those_of_the_wire() -> None:
    pairs = (
        (SelectStrategy, "LSS_", pb.LocationSelectStrategy),
        (LocationStatus, "CLS_", pb.CacheLocationStatus),
        (QueryType, "QT_", pb.QueryType),
    )
    for ours, prefix, theirs in pairs:
        assert {f"{prefix}{member.name}": member.value for member in ours} == dict(theirs.items())


def test_every_kind_of_event_has_its_type_and_its_member() -> None:
    events: list[Event] = [
        NodeRegister(("mem", "ssd")),
        BlockAdd(-5, "mem", (SPEC,)),
        BlockDelete(6, "mem", ("tp0",)),
        HostDown(),
        Heartbeat({"load": "0.5"}),
        BlockSnapshot((BlockAdd(7, "ssd", (SPEC,)),)),
    ]
    operation = ops.report_event("i", "10.0.0.1:1", 8, events, "t")
    assert operation.mutation
    request = operation.request
    assert (request.instance_id, request.host_ip_port, request.storage_type, request.trace_id) == ("i", "10.0.0.1:1", 8, "t")
    members = [(pb.ReportEventType.Name(item.event_type), item.WhichOneof("event_params")) for item in request.events]
    assert members == [
        ("EVENT_NODE_REGISTER", "node_register"),
        ("EVENT_BLOCK_ADD", "block_add"),
        ("EVENT_BLOCK_DELETE", "block_delete"),
        ("EVENT_HOST_DOWN", "host_down"),
        ("EVENT_HEARTBEAT", "heartbeat"),
        ("EVENT_BLOCK_SNAPSHOT", "block_snapshot"),
    ]
    added = request.events[1].block_add
    assert (added.block_key, added.medium, added.specs[0].uri) == ("-5", "mem", SPEC.uri)
    assert list(request.events[2].block_delete.spec_names) == ["tp0"]
    assert request.events[4].heartbeat.system_status == {"load": "0.5"}
    assert request.events[5].block_snapshot.blocks[0].block_key == "7"


def test_what_is_no_event_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidCall, match="must be one of"):
        ops.report_event("i", "h:1", 8, ["add"], "")  # type: ignore[list-item]
    with pytest.raises(InvalidCall):
        ops.report_event("i", "h:1", 8, [NodeRegister((1,))], "")  # type: ignore[arg-type]


def test_a_report_tells_what_failed_also_with_an_error() -> None:
    operation = ops.report_event("i", "h:1", 8, [], "")
    good = pb.ReportEventResponse(header=_header(), committed_snapshot_version="v1", snapshot_required=True, extra_info="x")
    assert result_of(operation, good) == EventReport((), "v1", 0, True, "x")
    with pytest.raises(ServiceError) as caught:
        result_of(operation, pb.ReportEventResponse(header=_header(13, "too soon"), item_results=[pb.OK, pb.SNAPSHOT_RATE_LIMITED], retry_after_ms=1500))
    assert (caught.value.service_code, caught.value.client_code) == (13, 51)
    assert caught.value.details == EventReport((1, 13), "", 1500, False, "")


def test_hosts() -> None:
    operation = ops.get_host_cache_state("i", [1, 2], QueryType.PREFIX_MATCH_WITH_MAMBA, ["mem"], 3, "t")
    request = operation.request
    assert (list(request.block_cache_keys), request.query_type, list(request.medium), request.p2p_host_count) == ([1, 2], 4, ["mem"], 3)
    reply = pb.GetHostCacheStateResponse(header=_header(), hosts=[pb.HostCacheMatch(host_ip_port="h:1", local=2, p2p_1_fetch=1, p2p_1_total_match=3)])
    assert result_of(operation, reply) == (HostMatch("h:1", 2, 1, 3),)


def test_locations_by_backend() -> None:
    operation = ops.match_by_backend("i", [1], [], [BackendSelector(8, SelectStrategy.V6D_COVERAGE)], ["tp0"], "")
    assert operation.request.query_type == 1
    assert [(item.backend_type, item.strategy) for item in operation.request.backend_selectors] == [(8, 2)]
    location = pb.CacheLocation(type=8, location_specs=[pb.LocationSpec(name="tp0", uri=SPEC.uri)])  # type: ignore[arg-type]  # the wire has numbers
    reply = pb.GetCacheLocationsByBackendResponse(header=_header(), key_locations=[pb.CacheLocationVector(locations=[location]), pb.CacheLocationVector()])
    assert result_of(operation, reply) == ((Location((SPEC,), 8),), ())
    with pytest.raises(InvalidCall):
        ops.match_by_backend("i", [1], [], [BackendSelector(1 << 40)], [], "")


def test_details_of_blocks_come_with_an_error_too() -> None:
    operation = ops.match_meta_detail("i", [1, 2], [], BlockMask(offset=1), "")
    assert operation.request.block_mask.offset == 1
    location = pb.CacheLocationDetail(location_id="l", status=77, type=4, create_time=9)  # type: ignore[arg-type]  # a later version's state
    item = pb.CacheMetaDetailItem(request_index=1, block_key=2, properties={"a": "b"}, locations=[location], status=pb.Status(code=pb.IO_ERROR, message="lost"))
    with pytest.raises(ServiceInternal) as caught:
        result_of(operation, pb.GetCacheMetaDetailResponse(header=_header(3, "all failed"), items=[item]))
    details = caught.value.details
    assert isinstance(details, tuple)
    (block,) = details
    assert (block.index, block.key, block.code, block.message, block.properties) == (1, 2, 20, "lost", {"a": "b"})
    assert (block.locations[0].status, block.locations[0].create_time_us) == (77, 9)
