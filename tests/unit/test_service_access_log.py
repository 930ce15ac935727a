"""One line per call, bounded, without secrets, and off the loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.access_log import MAX_KEPT_BYTES, AccessLog
from kvcm.service.payload import SHOWN_ELEMENTS, SHOWN_MESSAGES, payload_text
from kvcm.service.rpc import Call, Dispatcher, Origin, Rpc, unsupported
from kvcm.service.testing_rpc import RpcDesk

pytestmark = pytest.mark.unit

CANARY = "c4n4ry-word"
READ = Rpc("GetCacheLocation", meta.GetCacheLocationRequest, meta.GetCacheLocationResponse, unsupported("x"))


class From(Origin):
    def __init__(self, peer: str) -> None:
        self._peer = peer

    def header(self, name: str) -> str:
        return ""

    def peer(self) -> str:
        return self._peer


def logged(calls: Sequence[tuple[Rpc, Any, Call, int, bytes, int]], with_payload: bool = False, max_chars: int = 2048) -> list[dict[str, Any]]:
    lines: list[str] = []
    log = AccessLog(lines.extend, 1000, with_payload, max_chars)
    for call in calls:
        log(*call)
    log.close()
    assert all("\n" not in line for line in lines)
    return [json.loads(line) for line in lines]


def call(request_id: str = "t_1700000000123456", instance: str = "i", peer: str = "") -> Call:
    made = Call(request_id, 1_700_000_000_123_456, From(peer) if peer else None)
    made.instance, made.keys, made.queried_blocks, made.hit_blocks = instance, 3, 3, 2
    return made


def test_a_line_says_who_what_and_how_long() -> None:
    reply = meta.GetCacheLocationResponse(header=meta.CommonResponseHeader(request_id="t")).SerializeToString()
    (line,) = logged([(READ, meta.GetCacheLocationRequest(), call(peer="ipv4:10.1.2.3:4711"), 1, reply, 87)])
    assert line == {
        "request_begin_time": "2023.11.14,22:13:20.123456",
        "client_ip": "10.1.2.3",
        "trace_id": "t",
        "request_id": "t_1700000000123456",
        "api_name": "GetCacheLocation",
        "status_code": 1,
        "request_cost_time_us": 87,
        "instance_id": "i",
        "blocks": 3,
        "hit_blocks": 2,
        "reply_bytes": len(reply),
    }


@pytest.mark.parametrize(
    ("peer", "shown"), [("ipv6:%5B::1%5D:80", "::1"), ("ipv6:[::1]:80", "::1"), ("10.0.0.9", "10.0.0.9"), ("unix:/tmp/x", "unix:/tmp/x"), ("", "")]
)
def test_peers_are_shown_as_addresses(peer: str, shown: str) -> None:
    (line,) = logged([(READ, None, call(peer=peer), 1, b"", 1)])
    assert line["client_ip"] == shown


def test_an_error_has_its_message_without_secrets() -> None:
    text = f"cannot reach redis://user:{CANARY}@host"
    reply = meta.GetCacheLocationResponse(header=meta.CommonResponseHeader(status=meta.Status(code=meta.INTERNAL_ERROR, message=text))).SerializeToString()
    (line,) = logged([(READ, None, call(), 3, reply, 1)])
    assert line["message"] == "cannot reach redis://***@host"


def test_texts_of_callers_cannot_break_a_line() -> None:
    (line,) = logged([(READ, None, call(request_id='a"\n\\ü_1', instance='i"\r'), 1, b"", 1)])
    assert (line["request_id"], line["instance_id"]) == ('a"\n\\ü_1', 'i"\r')


def test_payloads_are_bounded_and_secrets_hidden() -> None:
    request = admin.AddAccountRequest(trace_id="t", user_name="u", password=CANARY)
    add = Rpc("AddAccount", admin.AddAccountRequest, admin.CommonResponse, unsupported("x"))
    read = meta.GetCacheLocationRequest(instance_id="i", block_keys=range(5000))
    reply = meta.GetCacheLocationResponse(locations=[meta.CacheLocation(type=meta.ST_NFS)] * 40).SerializeToString()
    first, second = logged([(add, request, call(), 1, b"\n\x00", 1), (READ, read, call(), 1, reply, 1)], with_payload=True)
    assert first["request"] == {"trace_id": "t", "user_name": "u", "password": "***"}
    assert second["request"]["block_keys"] == [*map(str, range(SHOWN_ELEMENTS)), "... 5000 in all"]
    assert len(second["response"]["locations"]) == SHOWN_MESSAGES + 1


def test_large_messages_are_not_kept() -> None:
    read = meta.GetCacheLocationRequest(instance_id="x" * (MAX_KEPT_BYTES + 1))
    (line,) = logged([(READ, read, call(), 1, b"x" * (MAX_KEPT_BYTES + 1), 1)], with_payload=True)
    assert "request" not in line
    assert "response" not in line
    assert line["reply_bytes"] == MAX_KEPT_BYTES + 1


def test_storages_show_no_credentials() -> None:
    request = admin.CreateInstanceGroupRequest()
    request.instance_group.name = "g"
    request.instance_group.user_data = json.dumps({"secret_key": CANARY})
    request.instance_group.cache_config.meta_indexer_config.meta_storage_backend_config.storage_uri = f"redis://u:{CANARY}@h:1"
    text = payload_text(request, 4096)
    assert CANARY not in text
    assert "redis://***@h:1" in text
    snapshot = admin.LoadConfigSnapshotRequest(config_snapshot=json.dumps({"anything": CANARY}))
    assert CANARY not in payload_text(snapshot, 4096)


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=400), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), st.integers(64, 500), st.lists(st.text(max_size=300), max_size=20))
def test_payloads_are_always_json_and_near_their_bound(text: str, keys: list[int], limit: int, names: list[str]) -> None:
    request = meta.GetCacheLocationRequest(trace_id=text, instance_id=text, block_keys=keys, location_spec_names=names)
    written = payload_text(request, limit)
    assert isinstance(json.loads(written), dict)
    # One list of long texts may cross the line: eight of 256 characters, six bytes each when escaped.
    assert len(written) <= limit + SHOWN_ELEMENTS * 300 * 6 + 200


class Stuck:
    def __init__(self) -> None:
        self.entered, self.free = threading.Event(), threading.Event()

    def __call__(self, lines: Sequence[str]) -> None:
        self.entered.set()
        assert self.free.wait(10)


def test_a_stuck_reader_costs_lines_and_they_are_counted() -> None:
    stuck = Stuck()
    log = AccessLog(stuck, 4, False, 100)
    log(READ, None, call(), 1, b"", 1)
    assert stuck.entered.wait(10)
    for _ in range(10):
        log(READ, None, call(), 1, b"", 1)
    stuck.free.set()
    log.close()
    counted = {family.name: family.samples[0][1] for family in log.families()}
    assert counted == {"access_log.line_counter": 4, "access_log.dropped_counter": 7}


def test_every_call_has_a_line_whatever_becomes_of_it(tmp_path: Path) -> None:
    lines: list[str] = []

    async def scenario() -> None:
        desk = RpcDesk(tmp_path)
        await desk.open()
        log = AccessLog(lines.extend, 100, False, 100)
        desk.dispatcher.taps = (log,)
        await desk.call(
            "GetCacheLocation", meta.GetCacheLocationRequest(trace_id="a", instance_id="i", query_type=meta.QT_PREFIX_MATCH, block_keys=[1, 2, 3, 99])
        )
        await desk.call("GetCacheLocation", meta.GetCacheLocationRequest(trace_id="b", instance_id="nobody", block_keys=[1]))
        await desk.call("ListStorage", admin.ListStorageRequest(trace_id="c"))
        desk.lead.leads = False
        await desk.call("ListStorage", admin.ListStorageRequest(trace_id="d"))
        log.close()

    asyncio.run(scenario())
    found = [json.loads(line) for line in lines]
    assert [line["trace_id"] for line in found] == ["a", "b", "c", "d"]
    assert (found[0]["blocks"], found[0]["hit_blocks"], found[0]["instance_id"]) == (4, 3, "i")
    assert "not registered" in found[1]["message"]
    assert "does not lead" in found[3]["message"]


def test_a_failing_tap_costs_nobody_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(rpc: Rpc, request: Any, call: Call, code: int, reply: bytes, elapsed_us: int) -> None:
        raise RuntimeError("broken")

    async def scenario() -> int:
        desk = RpcDesk(tmp_path)
        await desk.open()
        assert isinstance(desk.dispatcher, Dispatcher)
        desk.dispatcher.taps = (broken,)
        return (await desk.call("ListStorage", admin.ListStorageRequest()))[0]

    assert asyncio.run(scenario()) == admin.OK
    assert "tap_failed" in caplog.text
