"""Which calls a fault strikes (wire contract 5.8), and that there cannot be too many of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvcm.common.errors import CapacityReached, ErrorCode, InvalidArgument
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import debug_service_pb2 as debug
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.debug_service import FAULT_REQUESTS, build_debug_service
from kvcm.service.errors import InjectedFault
from kvcm.service.faults import MAX_FAULTS, MAX_NAME_CHARS, Fault, Faults
from kvcm.service.rpc import Call
from kvcm.service.testing_rpc import RpcDesk

pytestmark = pytest.mark.unit


def strikes(faults: Faults, request: object) -> bool:
    try:
        faults.check(request)
    except InjectedFault:
        return True
    return False


@pytest.mark.parametrize(
    ("trace_id", "struck"),
    [("a_12", True), ("a_012", True), ("a_b_12", True), ("_12", True), ("a_1_2", False), ("a12", False), ("12", False), ("a_12x", False), ("a_", False)],
)
def test_once_compares_the_integer_after_the_last_underscore(trace_id: str, struck: bool) -> None:
    faults = Faults(FAULT_REQUESTS)
    faults.inject("GetCacheLocation", Fault(at_call=12))
    assert strikes(faults, meta.GetCacheLocationRequest(trace_id=trace_id)) is struck
    assert not strikes(faults, meta.GetCacheMetaRequest(trace_id=trace_id))


def test_a_trace_id_of_any_length_and_number_is_no_accident() -> None:
    faults = Faults(FAULT_REQUESTS)
    faults.inject("GetCacheLocation", Fault(at_call=-3))
    assert strikes(faults, meta.GetCacheLocationRequest(trace_id="t_-3"))
    assert not strikes(faults, meta.GetCacheLocationRequest(trace_id="_" + "9" * 100_000))


def test_the_same_name_in_another_service_is_not_struck() -> None:
    faults = Faults(FAULT_REQUESTS)
    faults.inject("RegisterInstance", Fault())
    assert strikes(faults, meta.RegisterInstanceRequest())
    assert not strikes(faults, admin.RegisterInstanceRequest())


def test_faults_and_their_names_are_bounded() -> None:
    faults = Faults(FAULT_REQUESTS)
    for number in range(MAX_FAULTS):
        faults.inject(f"api{number}", Fault())
    with pytest.raises(CapacityReached):
        faults.inject("one more", Fault())
    faults.inject("api0", Fault(1))
    with pytest.raises(InvalidArgument):
        faults.inject("x" * (MAX_NAME_CHARS + 1), Fault())
    faults.clear()
    assert len(faults) == 0


def test_without_faults_the_dispatcher_has_nothing_to_ask(tmp_path: Path) -> None:
    async def run() -> None:
        desk = RpcDesk(tmp_path)
        await desk.open()
        service = build_debug_service(desk.dispatcher)

        async def ask(rpc: str, request: object) -> int:
            code, _ = await service.rpcs[rpc].handler(request, Call("", 0))
            return code

        assert await ask("InjectFault", debug.InjectFaultRequest(api_name="GetCacheLocation")) == ErrorCode.OK
        assert desk.dispatcher.faults is not None
        request = meta.GetCacheLocationRequest(instance_id="i", block_keys=[1])
        assert (await desk.call("GetCacheLocation", request))[0] == ErrorCode.INTERNAL_ERROR
        desk.lead.leads = False
        assert (await desk.call("GetCacheLocation", request))[0] == ErrorCode.SERVER_NOT_LEADER
        assert await ask("RemoveFault", debug.RemoveFaultRequest(api_name="GetCacheLocation")) == ErrorCode.OK
        assert desk.dispatcher.faults is None

    asyncio.run(run())


def test_a_name_that_never_asks_is_kept_and_said_so(tmp_path: Path) -> None:
    async def run() -> None:
        desk = RpcDesk(tmp_path)
        await desk.open()
        service = build_debug_service(desk.dispatcher)
        code, reply = await service.rpcs["InjectFault"].handler(debug.InjectFaultRequest(api_name="TrimCache"), Call("", 0))
        assert code == ErrorCode.OK
        assert "StartWriteCache" in debug.CommonResponse.FromString(reply).header.status.message

    asyncio.run(run())
