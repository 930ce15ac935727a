"""The lease is looked at before a call begins and again before a read is answered (design D6)."""

from __future__ import annotations

import asyncio

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import ErrorCode
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import encode_header
from kvcm.service.rpc import Call, Dispatcher, Reply, Rpc
from kvcm.service.testing_rpc import Lead, Observed

pytestmark = pytest.mark.unit

CASES = [
    ("GetCacheLocation", True, ErrorCode.SERVER_NOT_LEADER),
    ("ListStorage", True, ErrorCode.SERVER_NOT_LEADER),
    ("GenConfigSnapshot", True, ErrorCode.SERVER_NOT_LEADER),
    # Its store has confirmed it, under a fence that still held.
    ("FinishWriteCache", True, ErrorCode.OK),
    # Every node answers these.
    ("GetClusterInfo", False, ErrorCode.OK),
]


@pytest.mark.parametrize(("name", "leader_only", "expected"), CASES)
def test_a_read_that_ends_after_the_lease_is_not_answered(name: str, leader_only: bool, expected: ErrorCode) -> None:
    clock, lead, observed = FakeClock(), Lead(), Observed()
    lead.lease_ends_us = clock.monotonic_us() + 100
    takes_us = 99

    async def work(request: object, call: Call) -> Reply:
        clock.advance_us(takes_us)
        return int(ErrorCode.OK), encode_header(ErrorCode.OK, "", call.request_id)

    rpc = Rpc(name, meta.GetClusterInfoRequest, meta.GetClusterInfoResponse, work, leader_only)
    dispatcher = Dispatcher(clock, lead, observed)

    def ask() -> meta.GetClusterInfoResponse:
        return meta.GetClusterInfoResponse.FromString(asyncio.run(dispatcher.call(rpc, meta.GetClusterInfoRequest(trace_id="t"))))

    assert int(ask().header.status.code) == ErrorCode.OK
    takes_us = 1
    late = ask()
    assert int(late.header.status.code) == expected
    assert late.header.request_id.startswith("t_")
    assert observed.calls == [(name, int(ErrorCode.OK)), (name, int(expected))]
    lead.leads = False
    refused = ask()
    assert int(refused.header.status.code) == (ErrorCode.SERVER_NOT_LEADER if leader_only else ErrorCode.OK)
    assert ("while it answered" in refused.header.status.message) is False
    dispatcher.why_not_leader = lambda: "nobody leads now"
    assert ask().header.status.message == ("nobody leads now" if leader_only else "")
