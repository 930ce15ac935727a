"""`tracer_result`: only for those who ask, and then a tree of spans."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.rpc import TRACE_SUFFIX
from kvcm.service.testing_rpc import RpcDesk
from kvcm.service.tracing import MAX_SPANS, Tracer

pytestmark = pytest.mark.unit

ASKING = f"x{TRACE_SUFFIX}"


def answer(root: Path, name: str, request: Any) -> Any:
    async def scenario() -> Any:
        desk = RpcDesk(root)
        await desk.open()
        return (await desk.call(name, request))[2]

    return asyncio.run(scenario())


def test_a_read_that_asks_gets_its_spans_and_its_locations(tmp_path: Path) -> None:
    reply = answer(
        tmp_path, "GetCacheLocation", meta.GetCacheLocationRequest(trace_id=ASKING, instance_id="i", query_type="QT_PREFIX_MATCH", block_keys=[1, 2])
    )
    assert len(reply.locations) == 2
    assert reply.header.status.code == meta.OK
    assert reply.header.request_id.startswith(f"{ASKING}_")
    tree = json.loads(reply.header.tracer_result)
    assert set(tree) == {"span_time_us", f"{ASKING}:{ASKING}"}
    (service,) = tree[f"{ASKING}:{ASKING}"]
    (name,) = [key for key in service if key != "span_time_us"]
    assert name == "kvcm/service/meta_service_reads.py:GetCacheLocation"
    children = [key for child in service[name] for key in child if key != "span_time_us"]
    assert "kvcm/manager/searcher.py:plain_prefix" in children
    assert "/root" not in reply.header.tracer_result


def test_a_write_is_traced_to_its_end(tmp_path: Path) -> None:
    reply = answer(tmp_path, "StartWriteCache", meta.StartWriteCacheRequest(trace_id=ASKING, instance_id="i", block_keys=[90], write_timeout_seconds=9))
    assert len(reply.locations) == 1
    assert reply.write_session_id
    assert "cache_manager.py:start_write" in reply.header.tracer_result


def test_a_refused_call_has_its_error_and_its_spans(tmp_path: Path) -> None:
    reply = answer(tmp_path, "GetCacheLocation", meta.GetCacheLocationRequest(trace_id=ASKING, instance_id="nobody", block_keys=[1]))
    assert reply.header.status.code == meta.INSTANCE_NOT_EXIST
    assert "cache_manager.py:shard" in reply.header.tracer_result


@pytest.mark.parametrize("trace_id", ["", "x", TRACE_SUFFIX + "x"])
def test_others_get_none(tmp_path: Path, trace_id: str) -> None:
    reply = answer(tmp_path, "GetCacheLocation", meta.GetCacheLocationRequest(trace_id=trace_id, instance_id="i", query_type="QT_PREFIX_MATCH", block_keys=[1]))
    assert reply.header.tracer_result == ""


def test_admin_replies_have_no_place_for_it(tmp_path: Path) -> None:
    reply = answer(tmp_path, "ListStorage", admin.ListStorageRequest(trace_id=ASKING))
    assert reply.header.status.code == admin.OK


def test_spans_are_bounded_and_close_when_something_fails() -> None:
    now = iter(range(100_000))
    tracer = Tracer(lambda: next(now))
    for _ in range(MAX_SPANS + 10):
        with pytest.raises(ValueError, match="x"), tracer.span("outer"):
            raise ValueError("x")
    tree = json.loads(tracer.text("t"))
    assert len(tree["t:t"]) == MAX_SPANS
    assert all(node["span_time_us"] > 0 for node in tree["t:t"])
