"""Events: bounded cost, order, nothing unaccounted for, and exactly one attempt per successful call (behaviour 17.4)."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.ids import SeededIds
from kvcm.event.bus import EventManager, LogPublisher
from kvcm.event.model import MAX_ELEMENTS, Event, event_line
from kvcm.event.publishers import LogPublisherConfig, parse_publishers
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.call_events import CallEvents, head_of
from kvcm.service.rpc import Call, Rpc, unsupported
from kvcm.service.testing_rpc import RpcDesk

pytestmark = pytest.mark.property


def event(number: int, weight: int = 1) -> Event:
    return Event(f"{number:032d}", "i", "cache_manager", "T", number, weight, lambda: {"number": number})


class Reader:
    """Takes lines; `stuck` until it is let go, or `broken`."""

    def __init__(self, *, stuck: bool = False, broken: bool = False) -> None:
        self.lines: list[str] = []
        self.entered, self.free = threading.Event(), threading.Event()
        self._broken = broken
        if not stuck:
            self.free.set()

    def __call__(self, lines: Sequence[str]) -> None:
        self.entered.set()
        assert self.free.wait(10)
        if self._broken:
            raise OSError("disk full")
        self.lines += lines

    def numbers(self) -> list[int]:
        return [json.loads(line)["number"] for line in self.lines]


class Failing:
    name = "failing"
    offered = delivered = dropped = queued = 0

    def offer(self, event: Event) -> None:
        raise RuntimeError("broken publisher")

    def close(self) -> None:
        pass


@settings(deadline=None, max_examples=15)
@given(count=st.integers(0, 120), size=st.integers(1, 40), stuck=st.booleans(), broken=st.booleans())
def test_I_EV_1_2_3_4_a_publisher_that_is_stuck_or_broken_harms_nobody(count: int, size: int, stuck: bool, broken: bool) -> None:
    good, bad = Reader(), Reader(stuck=stuck, broken=broken)
    fast, slow = LogPublisher(good, 1000), LogPublisher(bad, size)
    bus = EventManager([slow, Failing(), fast])
    for number in range(count):
        bus.publish(event(number))  # returns although `slow` is stuck: I-EV-1
        assert slow.queued <= size
    assert slow.offered == count == slow.queued + slow.delivered + slow.dropped
    bad.free.set()
    bus.close()
    assert good.numbers() == list(range(count))  # I-EV-2, I-EV-4
    for publisher, reader in ((fast, good), (slow, bad)):
        assert publisher.queued == 0
        assert publisher.delivered + publisher.dropped == publisher.offered == count  # I-EV-3
        assert publisher.delivered == len(reader.lines)
        assert reader.numbers() == sorted(reader.numbers())


def test_I_EV_1_waiting_events_are_bounded_by_what_they_keep_alive() -> None:
    reader = Reader(stuck=True)
    publisher = LogPublisher(reader, 1000)
    for number in range(10):
        publisher.offer(event(number, weight=24 << 20))
    assert (publisher.queued, publisher.dropped) == (2, 8)
    reader.free.set()
    publisher.close()


UNKNOWN_FIELD = b"\x82\x7d\x80\x80\x40" + bytes(1 << 20)
"""A mebibyte in a field that no message of ours has."""


@pytest.mark.parametrize(
    ("rpc", "request_"),
    [
        ("GetCacheLocation", meta.GetCacheLocationRequest(instance_id="i", query_type=meta.QT_PREFIX_MATCH, block_keys=[1], trace_id="t" * (1 << 20))),
        ("GetCacheLocation", meta.GetCacheLocationRequest(instance_id="i", query_type=meta.QT_PREFIX_MATCH, block_keys=range(100_000, 250_000))),
        ("StartWriteCache", meta.StartWriteCacheRequest(instance_id="i", block_keys=[1], write_timeout_seconds=1, trace_id="t" * (1 << 20))),
        ("GetCacheLocation", meta.GetCacheLocationRequest.FromString(b"\x12\x01i\x18\x02\x22\x01\x01" + UNKNOWN_FIELD)),
        ("FinishWriteCache", meta.FinishWriteCacheRequest.FromString(UNKNOWN_FIELD)),
    ],
)
def test_I_EV_1_no_part_of_a_request_waits_unweighed(rpc: str, request_: Any) -> None:
    weights: list[int] = []

    class Scales(LogPublisher):
        def offer(self, event: Event) -> None:
            weights.append(event.weight)

    bus = EventManager([Scales(Reader(), 10)])
    call = Call("t_1", 1)
    CallEvents(bus, SeededIds(1))(Rpc(rpc, type(request_), meta.CommonResponse, unsupported(rpc)), request_, call, int(meta.OK), b"", 1)
    bus.close()
    assert len(weights) == 1
    assert weights[0] >= len(request_.SerializeToString())


CALLS = st.lists(st.sampled_from(["read", "read batch", "read nobody", "start", "finish", "finish unknown", "meta", "admin"]), max_size=8)


@settings(deadline=None, max_examples=12)
@given(CALLS)
def test_I_EV_5_every_successful_read_start_and_finish_gives_one_event(names: list[str]) -> None:
    reader = Reader()

    async def scenario(root: Path) -> list[str]:
        desk = RpcDesk(root)
        await desk.open()
        bus = EventManager([LogPublisher(reader, 1000)])
        desk.dispatcher.taps = (CallEvents(bus, SeededIds(1)),)
        wanted, session = [], desk.session
        for at, name in enumerate(names):
            rpc, request = request_of(name, at, session)
            code, _, reply = await desk.call(rpc, request)
            if code == meta.OK and name in ("read", "read batch", "start", "finish"):
                wanted.append(rpc)
            if name == "start" and code == meta.OK:
                session = reply.write_session_id
        bus.close()
        return wanted

    with tempfile.TemporaryDirectory() as root:
        expected = asyncio.run(scenario(Path(root)))
    found = [json.loads(line) for line in reader.lines]
    assert [entry["type"] for entry in found] == expected
    assert len({entry["id"] for entry in found}) == len(found)
    assert all((entry["component"], entry["source"]) == ("cache_manager", "i") for entry in found)


def request_of(name: str, at: int, session: str) -> tuple[str, Any]:
    match name:
        case "read" | "read batch":
            kind = meta.QT_PREFIX_MATCH if name == "read" else meta.QT_BATCH_GET
            return "GetCacheLocation", meta.GetCacheLocationRequest(trace_id="t", instance_id="i", query_type=kind, block_keys=[1, 2])
        case "read nobody":
            return "GetCacheLocation", meta.GetCacheLocationRequest(instance_id="nobody", block_keys=[1])
        case "start":
            return "StartWriteCache", meta.StartWriteCacheRequest(instance_id="i", block_keys=[1, 100 + at], write_timeout_seconds=600)
        case "finish":
            return "FinishWriteCache", meta.FinishWriteCacheRequest(instance_id="i", write_session_id=session, success_blocks=meta.BlockMask(offset=1))
        case "finish unknown":
            return "FinishWriteCache", meta.FinishWriteCacheRequest(instance_id="i", write_session_id="?", success_blocks=meta.BlockMask(offset=1))
        case "meta":
            return "GetCacheMeta", meta.GetCacheMetaRequest(instance_id="i", block_keys=[1])
        case _:
            return "ListStorage", admin.ListStorageRequest()


def test_events_say_what_upstream_says(tmp_path: Path) -> None:
    reader = Reader()

    async def scenario() -> None:
        desk = RpcDesk(tmp_path)
        await desk.open()
        bus = EventManager([LogPublisher(reader, 1000)])
        desk.dispatcher.taps = (CallEvents(bus, SeededIds(1)),)
        read = meta.GetCacheLocationRequest(trace_id="t", instance_id="i", query_type=meta.QT_PREFIX_MATCH, block_keys=[1, -5])
        await desk.call("GetCacheLocation", read)
        _, _, started = await desk.call("StartWriteCache", meta.StartWriteCacheRequest(instance_id="i", block_keys=[1, 50, 2], write_timeout_seconds=30))
        success = meta.BlockMask(bool_masks=meta.BoolMasksType(values=[True]))
        await desk.call("FinishWriteCache", meta.FinishWriteCacheRequest(instance_id="i", write_session_id=started.write_session_id, success_blocks=success))
        bus.close()

    asyncio.run(scenario())
    read, start, finish = (json.loads(line) for line in reader.lines)
    common = ["id", "source", "component", "type", "trigger_time_us"]
    assert list(read) == [*common, "query_type", "keys", "tokens", "block_mask", "sw_size", "location_spec_names", "trace_id"]
    assert (read["query_type"], read["keys"], read["block_mask"], read["trace_id"], len(read["id"])) == ("prefix_match", [1, -5], [], "t", 32)
    assert list(start) == [*common, "write_session_id", "keys", "tokens", "block_mask", "location_spec_group_names", "write_timeout_seconds"]
    assert (start["keys"], start["block_mask"], start["write_timeout_seconds"]) == ([1, 50, 2], [True, False, True], 30)
    assert list(finish) == [*common, "write_session_id", "success_block"]
    assert (finish["write_session_id"], finish["success_block"]) == (start["write_session_id"], [True])


def test_long_lists_are_cut_and_counted() -> None:
    line = json.loads(event_line(Event("x", "i", "c", "t", 1, 1, lambda: {"keys": range(MAX_ELEMENTS + 5), "name": "n"})))
    assert (len(line["keys"]), line["keys_count"], line["name"]) == (MAX_ELEMENTS, MAX_ELEMENTS + 5, "n")


def test_texts_of_strangers_do_not_make_long_lines() -> None:
    text = "\x01" * 1_000_000
    line = event_line(Event("x", "i", "c", "t", 1, 1, lambda: {"trace_id": text, "location_spec_names": [text, "tp0"]}))
    assert len(line) < 20_000
    assert json.loads(line)["location_spec_names"][1] == "tp0"


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=300), st.lists(st.booleans(), max_size=300), st.integers(0, 5))
def test_the_head_of_a_reply_is_what_stands_before_its_locations(text: str, mask: list[bool], locations: int) -> None:
    head = meta.StartWriteCacheResponse(header=meta.CommonResponseHeader(request_id=text), write_session_id=text)
    head.block_mask.bool_masks.values.extend(mask)
    whole = meta.StartWriteCacheResponse(locations=[meta.CacheLocation(spec_size=1)] * locations)
    raw = head.SerializeToString()
    assert head_of(raw + whole.SerializeToString(), 4) == raw


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "JSON"),
        ("[]", "JSON object"),
        ('{"kafka":{}}', "kafka"),
        ('{"log":[]}', "'log'"),
        ('{"log":{"enable":1}}', "log.enable"),
        ('{"log":{"queue_size":0}}', "log.queue_size"),
        ('{"log":{"queue_size":true}}', "log.queue_size"),
        ('{"log":{"queue_sizes":1}}', "queue_sizes"),
        ('{"optimizer":{"max_subscribers":-1}}', "optimizer.max_subscribers"),
        ("[" * 50_000, "JSON"),
        (" " * 10 + "x" * 70_000, "characters"),
    ],
)
def test_wrong_configurations_are_refused_with_a_reason(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=r"must|names|has") as caught:
        parse_publishers(text)
    assert part in str(caught.value)


def test_configurations_are_read_with_their_defaults() -> None:
    assert not parse_publishers("").log.enable
    found = parse_publishers('{"log":{"enable":true},"optimizer":{"enable":false,"queue_size":7}}')
    assert found.log == LogPublisherConfig(True, 10_000)
    assert (found.optimizer.queue_size, found.optimizer.max_subscribers) == (7, 4)
