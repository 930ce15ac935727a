"""MetaService and what must not be asked of it: the exact code, a sentence, nothing changed, and it goes on serving (wire contract 2.1, 4)."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import ErrorCode
from kvcm.manager.cache_manager import MAX_KEYS_PER_CALL
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.rpc import MAX_MESSAGE_CHARS
from kvcm.service.testing_rpc import CAPACITY, MAX_KEYS, OPEN, SERVED, RpcDesk

pytestmark = pytest.mark.unit

INVALID, UNSUPPORTED, INTERNAL, UNKNOWN = ErrorCode.INVALID_ARGUMENT, ErrorCode.UNSUPPORTED, ErrorCode.INTERNAL_ERROR, ErrorCode.INSTANCE_NOT_EXIST
FULL, TAKEN = ErrorCode.REACH_MAX_ENTITY_CAPACITY, ErrorCode.DUPLICATE_ENTITY
BIG32, SMALL32, BIG64 = (1 << 31) - 1, -(1 << 31), (1 << 63) - 1
SESSION = "the open session"
LEN, BY_BACKEND, DETAIL = "GetCacheLocationLen", "GetCacheLocationsByBackend", "GetCacheMetaDetail"
WITH_KEYS = ("GetCacheLocation", LEN, BY_BACKEND, "GetCacheMeta", DETAIL, "StartWriteCache", "RemoveCache")
BY_INSTANCE = (*WITH_KEYS, "FinishWriteCache", "TrimCache", "GetHostCacheState")
HOSTS, REPORT = "GetHostCacheState", "ReportEvent"
PREFIX, WINDOW = meta.QT_PREFIX_MATCH, meta.QT_REVERSE_ROLL_SW_MATCH


@dataclass(frozen=True)
class Case:
    rpc: str
    request: Any
    code: ErrorCode
    says: str

    def __str__(self) -> str:
        return f"{self.rpc}-{self.says}"


def good(rpc: str, **changes: Any) -> Any:
    """A request that would be served but for `changes`."""
    fields: dict[str, Any] = {"trace_id": "t", "instance_id": "i"}
    match rpc:
        case "RegisterInstance":
            specs, model = [meta.LocationSpecInfo(name="tp0", size=512)], meta.ModelDeployment(model_name="m", dtype="fp16")
            fields |= {"instance_id": "new", "instance_group": "g", "block_size": 4, "location_spec_infos": specs, "model_deployment": model}
        case "GetCacheLocation" | "GetCacheLocationLen":
            fields |= {"block_keys": SERVED, "query_type": PREFIX}
        case "GetCacheLocationsByBackend":
            fields |= {"block_keys": SERVED, "query_type": meta.QT_BATCH_GET, "backend_selectors": [select(meta.ST_NFS)]}
        case "StartWriteCache":
            fields |= {"block_keys": [11, 12], "write_timeout_seconds": 30}
        case "FinishWriteCache":
            fields |= {"write_session_id": SESSION, "success_blocks": meta.BlockMask(offset=len(OPEN))}
        case "TrimCache":
            fields |= {"strategy": meta.TS_REMOVE_ALL_CACHE}
        case "GetCacheMeta" | "GetCacheMetaDetail" | "RemoveCache":
            fields |= {"block_keys": SERVED}
        case "GetHostCacheState":
            fields |= {"block_cache_keys": SERVED}
        case "ReportEvent":
            event = meta.EventItem(event_type=meta.EVENT_HEARTBEAT, heartbeat=meta.HeartbeatEventParams())
            fields |= {"host_ip_port": "h:1", "storage_type": meta.ST_EVENT_REPORT_L2, "events": [event]}
    return getattr(meta, f"{rpc}Request")(**fields | changes)


def select(kind: int, strategy: int = 0) -> Any:
    fields: dict[str, Any] = {"backend_type": kind, "strategy": strategy}
    return meta.BackendLocationSelector(**fields)


def bools(*values: bool) -> meta.BlockMask:
    return meta.BlockMask(bool_masks={"values": values})


def case(rpc: str, code: ErrorCode, says: str, **changes: Any) -> Case:
    return Case(rpc, good(rpc, **changes), code, says)


def register(code: ErrorCode, says: str, **changes: Any) -> Case:
    return case("RegisterInstance", code, says, **changes)


def query(says: str, **changes: Any) -> list[Case]:
    return [case(rpc, INVALID, says, **changes) for rpc in ("GetCacheLocation", LEN)]


def by_backend(says: str, **changes: Any) -> Case:
    return case(BY_BACKEND, INVALID, says, **changes)


def start(code: ErrorCode, says: str, **changes: Any) -> Case:
    return case("StartWriteCache", code, says, **changes)


def finish(code: ErrorCode, says: str, **changes: Any) -> Case:
    return case("FinishWriteCache", code, says, **changes)


def trim(code: ErrorCode, says: str, **changes: Any) -> Case:
    return case("TrimCache", code, says, **changes)


CASES = [
    *(case(rpc, UNKNOWN, "instance", instance_id=name) for rpc in BY_INSTANCE for name in ("", "nobody", "I", "x" * 5000)),
    *(case(rpc, INVALID, "both empty", block_keys=[], token_ids=[]) for rpc in WITH_KEYS),
    *(case(rpc, INVALID, "at most 131072", block_keys=range(MAX_KEYS_PER_CALL + 1)) for rpc in WITH_KEYS),
    case("RemoveCache", INVALID, "at most 131072", block_keys=[], token_ids=bytes(4 * MAX_KEYS_PER_CALL + 4)),
    case(HOSTS, INVALID, "{GetHostCacheState: {block_cache_keys}}", block_cache_keys=[]),
    case(HOSTS, INVALID, "at most 131072", block_cache_keys=range(MAX_KEYS_PER_CALL + 1)),
    case(HOSTS, INVALID, "p2p_host_count", p2p_host_count=-1),
    *(case(HOSTS, INVALID, "QT_PREFIX_MATCH", query_type=n) for n in (meta.QT_BATCH_GET, WINDOW)),
    case(HOSTS, INVALID, "is unknown", query_type=99),
    case(HOSTS, INVALID, "neither", query_type=meta.QT_PREFIX_MATCH_WITH_MAMBA),
    *(case(REPORT, INVALID, f"{{{field}}}", **{field: ""}) for field in ("instance_id", "host_ip_port")),
    *(case(REPORT, INVALID, "storage_type", storage_type=n) for n in (0, meta.ST_NFS, meta.ST_TAIRMEMPOOL_SSD, 99)),
    *(case(REPORT, INVALID, "host_ip_port", host_ip_port=host) for host in ("h#1", "h\n", "h" * 300)),
    case(REPORT, UNKNOWN, "instance", instance_id="nobody"),
    case(REPORT, UNKNOWN, "event_report_storage_candidates"),
    case("GetInstanceInfo", INVALID, "{GetInstanceInfo: {instance_id}}", instance_id=""),
    case("GetInstanceInfo", UNKNOWN, "'nobody'", instance_id="nobody"),
    *query("query_type must be set", query_type=0),
    *query("query_type 99", query_type=99),
    *query("query_type -1", query_type=-1),
    *(case(rpc, UNSUPPORTED, "query_type 4", query_type=meta.QT_PREFIX_MATCH_WITH_MAMBA) for rpc in ("GetCacheLocation", LEN)),
    *(refused for size in (0, -1, 4, BIG32, SMALL32) for refused in query(f"(3), not {size}", query_type=WINDOW, sw_size=size)),
    *query("(0), not 1", query_type=WINDOW, sw_size=1, block_keys=[], token_ids=[1, 2, 3]),
    *(by_backend("QT_BATCH_GET only", query_type=n) for n in (0, PREFIX, WINDOW, meta.QT_PREFIX_MATCH_WITH_MAMBA, 99, -1)),
    by_backend("backend_selectors is empty", backend_selectors=[]),
    *(by_backend(f"backend_type {n} ", backend_selectors=[select(meta.ST_NFS), select(n)]) for n in (0, 10, 263, -1, BIG32)),
    *(by_backend(f"strategy {n} ", backend_selectors=[select(meta.ST_NFS, n)]) for n in (4, -1)),
    by_backend("at most 131072 choices", block_keys=range(70_000), backend_selectors=[select(meta.ST_NFS)] * 2),
    start(INVALID, "1 entries for 2 blocks", location_spec_group_names=["A"]),
    start(INVALID, "3 entries for 2 blocks", location_spec_group_names=["A", "B", "A"]),
    start(INVALID, "2 entries for 1 blocks", block_keys=[], token_ids=[1, 2, 3, 4], location_spec_group_names=["A", "B"]),
    start(INVALID, "'nope' is not registered", location_spec_group_names=["A", "nope"]),
    start(INVALID, "'nope' is not registered", block_keys=SERVED, location_spec_group_names=["nope", "A", "A"]),
    start(INVALID, "'' is not registered", location_spec_group_names=["", "A"]),
    start(INVALID, "no bytes", location_spec_group_names=["none", "A"]),
    start(FULL, f"5 of {MAX_KEYS} blocks", block_keys=range(100, 100 + MAX_KEYS - len(SERVED) - len(OPEN) + 1)),
    start(FULL, f"of its {CAPACITY} bytes", block_keys=range(100, 160)),
    finish(INVALID, "{FinishWriteCache: {write_session_id}}", write_session_id=""),
    finish(INVALID, "{FinishWriteCache: {success_blocks}}", success_blocks=None),
    *(finish(INTERNAL, "start the write again", write_session_id=name) for name in ("x", "0" * 32, "the open session " * 900)),
    finish(INVALID, "another instance", instance_id="j"),
    *(finish(INVALID, "does not fit the 2 blocks", success_blocks=meta.BlockMask(offset=n)) for n in (-1, 3, BIG32, SMALL32)),
    *(finish(INVALID, "does not fit the 2 blocks", success_blocks=mask) for mask in (meta.BlockMask(), bools(), bools(True), bools(True, False, True))),
    *(finish(INVALID, f"{n} entries for the 2 blocks", checksums=range(n)) for n in (1, 3)),
    trim(INVALID, "{TrimCache: {strategy}}", strategy=0),
    *(trim(UNSUPPORTED, f"trim strategy {n} is not served", strategy=n) for n in (meta.TS_REMOVE_ALL_META, 99, -1)),
    trim(INVALID, "begin_timestamp <= end_timestamp", strategy=meta.TS_TIMESTAMP, begin_timestamp=2, end_timestamp=1),
    trim(INVALID, "begin_timestamp <= end_timestamp", strategy=meta.TS_TIMESTAMP, begin_timestamp=-1, end_timestamp=BIG32),
    trim(INVALID, "begin_timestamp <= end_timestamp", strategy=meta.TS_TIMESTAMP, begin_timestamp=1),
    *(register(INVALID, "{block_size}", block_size=n) for n in (0, -1, SMALL32)),
    register(INVALID, "{instance_group}", instance_group=""),
    register(INVALID, "{instance_id}", instance_id=""),
    register(INVALID, "{model_deployment}", model_deployment=None),
    register(INVALID, "{ModelDeployment: {model_name}{dtype}}", model_deployment=meta.ModelDeployment()),
    register(INVALID, "{location_spec_infos}", location_spec_infos=[]),
    register(INVALID, "index 1: {LocationSpecInfo: {name}}", location_spec_infos=[meta.LocationSpecInfo(name="a"), meta.LocationSpecInfo(size=1)]),
    *(register(INVALID, "{default_query_type}", default_query_type=n) for n in (99, -1)),
    register(UNKNOWN, "'elsewhere'", instance_group="elsewhere"),
    *(register(INVALID, "The instance_id", instance_id=name) for name in ("a/b", "..", "a?b", " a", "a\n", "x" * 257)),
    register(INVALID, "location_spec_infos", location_spec_infos=[meta.LocationSpecInfo(name="../up", size=1)]),
    *(register(INVALID, "must be positive", location_spec_infos=[meta.LocationSpecInfo(name="a", size=n)]) for n in (0, -1, SMALL32)),
    register(INVALID, "twice", location_spec_infos=[meta.LocationSpecInfo(name="a", size=n) for n in (1, 2)]),
    register(INVALID, "does not have", location_spec_groups=[meta.LocationSpecGroup(name="g", spec_names=["nowhere"])]),
    register(TAKEN, "block_size differs", instance_id="i", block_size=8),
    register(TAKEN, "model_deployment differs", instance_id="i", model_deployment=meta.ModelDeployment(model_name="other", dtype="fp16")),
    register(TAKEN, "location_spec_infos differs", instance_id="j", instance_group="elsewhere"),
]


async def opened(root: Path) -> RpcDesk:
    desk = RpcDesk(root)
    await desk.open()
    return desk


async def assert_serving(desk: RpcDesk) -> None:
    """The open write can be finished, a new one started, and all of it read."""
    finished = await desk.call("FinishWriteCache", good("FinishWriteCache", write_session_id=desk.session))
    assert finished[:2] == (ErrorCode.OK, "")
    assert (await desk.call("StartWriteCache", good("StartWriteCache")))[0] == ErrorCode.OK
    code, _, reply = await desk.call("GetCacheLocation", good("GetCacheLocation", block_keys=[*SERVED, *OPEN, 11]))
    assert (code, len(reply.locations)) == (ErrorCode.OK, len(SERVED) + len(OPEN))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_call_of_the_meta_service_is_refused_with_a_sentence_and_changes_nothing(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        desk = await opened(tmp_path)
        request = case.request
        if getattr(request, "write_session_id", "") == SESSION:
            request = good(case.rpc)
            request.CopyFrom(case.request)
            request.write_session_id = desk.session
        before = desk.state()
        code, message, reply = await desk.call(case.rpc, request)
        assert (ErrorCode(code), case.says in message) == (case.code, True), message
        assert 10 < len(message) <= MAX_MESSAGE_CHARS
        assert not re.search("Traceback| object at ", message)
        assert reply.header.request_id.startswith(getattr(request, "trace_id", ""))
        assert [field.name for field, _ in reply.ListFields()] == ["header"]
        assert desk.state() == before
        assert desk.observed.calls == [(case.rpc, case.code)]
        await assert_serving(desk)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize(
    ("rpc", "changes"),
    [
        ("GetCacheLocation", {"token_ids": [1, 2, 3, 4]}),
        ("GetCacheLocation", {"block_keys": [1, 1, 2], "sw_size": -7}),
        ("GetCacheLocation", {"query_type": meta.QT_BATCH_GET, "block_mask": meta.BlockMask(offset=99), "sw_size": BIG32}),
        ("GetCacheLocation", {"query_type": WINDOW, "sw_size": 1, "block_mask": bools(True, True, True)}),
        ("GetCacheMeta", {"block_mask": bools(False), "detail_level": -1}),
        ("GetCacheMeta", {"block_keys": [1, 1, BIG64]}),
    ],
    ids=["keys before tokens", "twice the same key", "a mask that batch reads ignore", "a mask that windows ignore", "a short mask", "an unknown key"],
)
def test_an_odd_read_that_the_contract_allows_is_answered_for_its_three_keys(rpc: str, changes: dict[str, Any], tmp_path: Path) -> None:
    async def story() -> None:
        desk = await opened(tmp_path)
        before = desk.state()
        code, message, reply = await desk.call(rpc, good(rpc, **changes))
        assert (code, message) == (ErrorCode.OK, "")
        assert len(reply.locations) == 3
        assert desk.state() == before

    asyncio.run(story())


@pytest.mark.parametrize("mask", [meta.BlockMask(offset=-1), meta.BlockMask(offset=BIG32), bools(*[True] * 9)], ids=["negative", "huge", "too long"])
@pytest.mark.parametrize("rpc", ["GetCacheLocation", "GetCacheMeta", DETAIL])
def test_a_mask_that_covers_everything_leaves_nothing_to_answer(rpc: str, mask: meta.BlockMask, tmp_path: Path) -> None:
    async def story() -> None:
        desk = await opened(tmp_path)
        code, _, reply = await desk.call(rpc, good(rpc, block_mask=mask))
        assert (code, len(reply.items if rpc == DETAIL else reply.locations)) == (ErrorCode.OK, 0)
        await assert_serving(desk)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("sizes", "code", "says"),
    [
        ([1 << 62, 1 << 62], FULL, "bytes"),
        ([BIG64], FULL, "bytes"),
    ],
)
def test_a_size_that_no_storage_can_hold_is_refused_when_blocks_are_to_be_written(sizes: list[int], code: ErrorCode, says: str, tmp_path: Path) -> None:
    """Registration takes any positive size; only a write shows that there is no room for it."""

    async def story() -> None:
        desk = await opened(tmp_path)
        specs = [meta.LocationSpecInfo(name=f"tp{n}", size=size) for n, size in enumerate(sizes)]
        assert (await desk.call("RegisterInstance", good("RegisterInstance", location_spec_infos=specs)))[0] == ErrorCode.OK
        before = desk.state()
        found, message, reply = await desk.call("StartWriteCache", good("StartWriteCache", instance_id="new"))
        assert (ErrorCode(found), says in message, len(reply.locations)) == (code, True, 0), message
        assert desk.state() == before
        await assert_serving(desk)

    asyncio.run(story())


def test_a_node_that_does_not_lead_sends_every_call_to_the_leader_and_says_who_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        desk = await opened(tmp_path)
        before = desk.state()
        desk.lead.leads = False
        for name, rpc in desk.meta.rpcs.items():
            code, message, reply = await desk.call(name, rpc.request_cls())
            assert code == (ErrorCode.OK if name == "GetClusterInfo" else ErrorCode.SERVER_NOT_LEADER), name
            assert ("GetClusterInfo" in message) == (name != "GetClusterInfo")
            if name == "GetClusterInfo":
                assert (reply.leader_node_id, reply.leader_endpoint.meta_rpc_port) == ("node", 1)
        assert desk.state() == before
        desk.lead.leads = True
        await assert_serving(desk)

    asyncio.run(story())
