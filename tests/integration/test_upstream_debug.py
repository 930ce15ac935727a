"""Fault injection against a manager process, over gRPC and over HTTP on the meta port plus 3000 (wire contract 5.8, 8.3)."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from kvcm.common.errors import NotReady
from kvcm.common.testing_ports import free_port
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_wire import ADMIN, DEBUG, META, GrpcWire, HttpWire, Wire, code, message

pytestmark = pytest.mark.integration

SPEC = {
    "instance_group": "default",
    "instance_id": "faulty",
    "block_size": 4,
    "model_deployment": {"model_name": "m", "dtype": "FP8", "tp_size": 1, "dp_size": 1, "pp_size": 1},
    "location_spec_infos": [{"name": "tp0", "size": 64}],
}
APIS: dict[str, dict[str, Any]] = {
    "RegisterInstance": SPEC,
    "GetCacheLocation": {"instance_id": "faulty", "query_type": "QT_PREFIX_MATCH", "block_keys": [1]},
    "GetCacheLocationLen": {"instance_id": "faulty", "query_type": "QT_PREFIX_MATCH", "block_keys": [1]},
    "GetCacheMetaDetail": {"instance_id": "faulty", "block_keys": [1]},
    "StartWriteCache": {"instance_id": "faulty", "block_keys": [1], "write_timeout_seconds": 30},
    "FinishWriteCache": {"instance_id": "faulty", "write_session_id": "nobody", "success_blocks": {"offset": 1}},
}


@pytest.fixture(scope="module")
def manager() -> Iterator[ManagerProcess]:
    with ManagerProcess({"kvcm.service.enable_debug_service": "true"}) as running:
        assert code(HttpWire(running.http_url).call("RegisterInstance", SPEC)) == "OK"
        yield running


@pytest.fixture(params=["http", "grpc"])
def wires(manager: ManagerProcess, request: pytest.FixtureRequest) -> Iterator[tuple[Wire, Wire]]:
    """(debug, meta)"""
    if request.param == "http":
        debug: Wire = HttpWire(manager.debug_http_url)
        meta: Wire = HttpWire(manager.http_url)
    else:
        debug, meta = GrpcWire(manager.admin_address, DEBUG), GrpcWire(manager.meta_address, META)
    yield debug, meta
    debug.call("ClearFaults", {})


@pytest.mark.parametrize("api", APIS)
def test_a_fault_strikes_every_call_of_its_api_until_it_is_removed(wires: tuple[Wire, Wire], api: str) -> None:
    debug, meta = wires
    before = meta.call(api, APIS[api])
    injected = debug.call("InjectFault", {"api_name": api, "fault_type": "FT_INTERNAL_ERROR", "fault_trigger_strategy": "ALWAYS"})
    assert injected == {"header": {"status": {"code": "OK", "message": ""}, "request_id": ""}}
    for _ in range(2):
        struck = meta.call(api, {"trace_id": "t", **APIS[api]})
        assert code(struck) == "INTERNAL_ERROR"
        assert "fault" in message(struck)
        assert struck["header"]["request_id"].startswith("t_")
    # Nobody else is struck.
    assert code(meta.call("GetInstanceInfo", {"instance_id": "faulty"})) == "OK"
    removed = debug.call("RemoveFault", {"api_name": api})
    assert removed == {"header": {"status": {"code": "OK", "message": ""}, "request_id": ""}}
    assert code(meta.call(api, APIS[api])) == code(before)


def test_once_strikes_the_call_whose_trace_id_ends_in_its_number(wires: tuple[Wire, Wire]) -> None:
    debug, meta = wires
    request = {"api_name": "GetCacheLocation", "fault_type": "FT_INTERNAL_ERROR", "fault_trigger_strategy": "ONCE", "trigger_at_call": 2}
    assert code(debug.call("InjectFault", request)) == "OK"
    traces = ("run_1", "run_2", "run_3", "run2", "2", "run_2_x", "", "run_02")
    struck = [trace for trace in traces if code(meta.call("GetCacheLocation", {"trace_id": trace, **APIS["GetCacheLocation"]})) == "INTERNAL_ERROR"]
    assert struck == ["run_2", "run_02"]


def test_a_second_fault_of_an_api_takes_the_place_of_the_first(wires: tuple[Wire, Wire]) -> None:
    debug, meta = wires
    debug.call("InjectFault", {"api_name": "StartWriteCache"})
    debug.call("InjectFault", {"api_name": "StartWriteCache", "fault_trigger_strategy": "ONCE", "trigger_at_call": 7})
    assert code(meta.call("StartWriteCache", APIS["StartWriteCache"])) == "OK"


def test_clearing_takes_all_away_and_is_always_fine(wires: tuple[Wire, Wire]) -> None:
    debug, meta = wires
    for api in APIS:
        assert code(debug.call("InjectFault", {"api_name": api})) == "OK"
    for _ in range(2):
        assert code(debug.call("ClearFaults", {})) == "OK"
    assert code(meta.call("GetCacheLocation", APIS["GetCacheLocation"])) == "OK"
    assert code(debug.call("RemoveFault", {"api_name": "GetCacheLocation"})) == "INVALID_ARGUMENT"


def test_what_is_not_a_fault_is_refused_and_changes_nothing(wires: tuple[Wire, Wire]) -> None:
    debug, meta = wires
    for request in ({}, {"api_name": ""}, {"api_name": "GetCacheLocation", "fault_type": 5}, {"api_name": "GetCacheLocation", "fault_trigger_strategy": 2}):
        refused = debug.call("InjectFault", request)
        assert (code(refused), refused["header"]["request_id"]) == ("INVALID_ARGUMENT", "")
    assert code(meta.call("GetCacheLocation", APIS["GetCacheLocation"])) == "OK"


def test_http_takes_an_unknown_name_of_an_enum_for_its_first_member(manager: ManagerProcess) -> None:
    debug = HttpWire(manager.debug_http_url)
    assert code(debug.call("InjectFault", {"api_name": "GetCacheLocation", "fault_type": "INTERNAL_ERROR", "fault_trigger_strategy": "ALWAYS"})) == "OK"
    once = {"api_name": "GetCacheLocation", "fault_type": "INTERNAL_ERROR", "fault_trigger_strategy": "ONCE", "trigger_at_call": 1}
    assert code(debug.call("InjectFault", once)) == "OK"
    assert code(debug.call("RemoveFault", {"api_name": "GetCacheLocation"})) == "OK"
    assert code(debug.call("ClearFaults", {})) == "OK"


def test_the_admin_service_has_no_faults_and_its_port_no_debug_api(manager: ManagerProcess) -> None:
    debug = HttpWire(manager.debug_http_url)
    debug.call("InjectFault", {"api_name": "RegisterInstance"})
    try:
        assert code(GrpcWire(manager.admin_address, ADMIN).call("RegisterInstance", SPEC)) == "OK"
    finally:
        debug.call("ClearFaults", {})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        HttpWire(manager.admin_http_url).call("ClearFaults", {})


def test_without_the_setting_there_is_no_debug_service() -> None:
    with ManagerProcess() as quiet:
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(quiet.debug_http_url, timeout=5)
        with pytest.raises(grpc.RpcError) as caught:
            GrpcWire(quiet.admin_address, DEBUG).call("ClearFaults", {})
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_debug_port_that_is_taken_stops_the_start_with_a_sentence() -> None:
    port = free_port()
    while port > 65_535 - 3000:
        port = free_port()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", port + 3000))
        taken.listen()
        settings = {"kvcm.service.enable_debug_service": "true", "kvcm.service.http_port": str(port)}
        sentence = rf"Port {port + 3000} \(kvcm.service.http_port \+ 3000\) cannot be opened"
        with pytest.raises(NotReady, match=sentence), ManagerProcess(settings) as running:
            assert running.pid
