"""What the recorded samples say about the wires themselves: keep-alive, odd bodies and numbers on HTTP; where services live and what is refused on gRPC.

Differences are rows of docs/compatibility.md: chunked bodies are read, garbage on gRPC is INVALID_ARGUMENT, long trace ids are cut, two oneof members are 400.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from kvcm.common.testing_ports import free_port
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.rpc import MAX_TRACE_ID_CHARS
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_fuzz_calls import calls_of

pytestmark = pytest.mark.integration
META, ADMIN, DEBUG = (f"/kv_cache_manager.proto.{name}Service" for name in ("meta.Meta", "admin.Admin", "debug.Debug"))


@pytest.fixture(scope="module")
def manager() -> Iterator[ManagerProcess]:
    running = ManagerProcess({"kvcm.service.admin_rpc_port": str(free_port()), "kvcm.service.enable_debug_service": "true"})
    with running:
        yield running


@pytest.fixture(scope="module")
def connection(manager: ManagerProcess) -> Iterator[http.client.HTTPConnection]:
    opened = http.client.HTTPConnection("127.0.0.1", manager.endpoint.meta_http_port, timeout=20)
    register = next(call for call in calls_of() if call.rpc == "RegisterInstance" and b"FP8" in call.json)
    assert post(opened, "registerInstance", register.json)[0] == 200
    yield opened
    opened.close()


def post(connection: http.client.HTTPConnection, api: str, body: bytes, **headers: str) -> tuple[int, Any, dict[str, str]]:
    connection.request("POST", f"/api/{api}", body, headers)
    response = connection.getresponse()
    text = response.read()
    return response.status, json.loads(text) if response.status == 200 else text, {name.lower(): value for name, value in response.getheaders()}


def locate(connection: http.client.HTTPConnection, fields: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
    return post(connection, "getCacheLocation", f'{{"instance_id":"i","query_type":"QT_PREFIX_MATCH",{fields}}}'.encode(), **headers)


def test_one_connection_serves_many_requests(connection: http.client.HTTPConnection) -> None:
    for _ in range(3):
        status, reply, headers = locate(connection, '"trace_id":"t","block_keys":[1]')
        assert (status, reply["header"]["status"]["code"], reply["locations"]) == (200, "OK", [])
        assert headers["content-type"] == "application/json"
        assert {"content-length", "date"} <= headers.keys()
        assert "connection" not in headers
    socket = connection.sock
    locate(connection, '"block_keys":[1]')
    assert connection.sock is socket


def test_a_close_that_is_asked_for_is_given(manager: ManagerProcess) -> None:
    opened = http.client.HTTPConnection("127.0.0.1", manager.endpoint.meta_http_port, timeout=20)
    status, _, headers = locate(opened, '"block_keys":[1]', Connection="close")
    assert (status, headers["connection"]) == (200, "close")
    opened.close()


def test_content_type_is_not_looked_at(connection: http.client.HTTPConnection) -> None:
    for kind in ("text/plain", "application/xml", ""):
        assert locate(connection, '"block_keys":[1]', **{"Content-Type": kind})[0] == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ('"block_keys":["1","-2"]', 200),
        ('"block_keys":[9223372036854775808]', 400),
        ('"block_keys":[1.5]', 400),
        ('"block_keys":[1e3]', 200),
        ('"trace_id":null,"block_keys":[1]', 200),
        ('"trace_id":5,"block_keys":[1]', 400),
        ('"block_keys":[1],"sw_size":"7"', 200),
        ('"block_keys":[1],"block_mask":{"offset":0,"bool_masks":{}}', 400),
        ('"block_keys":[1],"unknown":{"deep":[{}]}', 200),
    ],
)
def test_numbers_and_types(connection: http.client.HTTPConnection, fields: str, status: int) -> None:
    found, reply, _ = locate(connection, fields)
    assert found == status
    assert reply == b"{}" if status == 400 else reply["header"]["status"]["code"] == "OK"


def test_the_last_of_two_equal_fields_counts(connection: http.client.HTTPConnection) -> None:
    status, reply, _ = locate(connection, '"trace_id":"first","block_keys":[1],"traceId":"second"')
    assert status == 200
    assert reply["header"]["request_id"].startswith("second_")


@pytest.mark.parametrize("body", [b"", b"[]", b"{} x", b"null", b'{"a":}', b"\xff{}", b"\xef\xbb\xbf{}"])
def test_bodies_that_are_not_a_json_object(connection: http.client.HTTPConnection, body: bytes) -> None:
    status, text, headers = post(connection, "getCacheLocation", body)
    assert (status, text) == (400, b"{}")
    assert "content-type" not in headers


def test_a_body_of_twelve_megabytes_is_answered_and_its_trace_id_cut(connection: http.client.HTTPConnection) -> None:
    status, reply, _ = locate(connection, f'"block_keys":[1],"trace_id":"{"x" * 12_000_000}"')
    assert (status, reply["header"]["status"]["code"]) == (200, "OK")
    assert reply["header"]["request_id"].rpartition("_")[0] == "x" * MAX_TRACE_ID_CHARS


def status_of(address: str, path: str, request: bytes = b"") -> grpc.StatusCode:
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        method: Any = channel.unary_unary(path, None, None)
        found: grpc.StatusCode = method.future(request, timeout=20).code()
        return found


def test_each_service_is_on_its_own_port_only(manager: ManagerProcess) -> None:
    assert manager.meta_address != manager.admin_address
    for path, meta_port, admin_port in (
        (f"{META}/GetClusterInfo", grpc.StatusCode.OK, grpc.StatusCode.UNIMPLEMENTED),
        (f"{ADMIN}/CheckHealth", grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK),
        (f"{DEBUG}/ClearFaults", grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK),
        (f"{META}/NoSuchCall", grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNIMPLEMENTED),
    ):
        assert (status_of(manager.meta_address, path), status_of(manager.admin_address, path)) == (meta_port, admin_port)


def test_grpc_takes_four_mebibytes_and_only_messages(manager: ManagerProcess) -> None:
    keys = b"\x22" + b"\x80\x80\x80\x02" + b"\x01" * (4 << 20)
    assert status_of(manager.meta_address, f"{META}/GetCacheLocation", keys) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status_of(manager.meta_address, f"{META}/GetCacheLocation", b"\xff\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT


def test_an_error_of_the_application_is_a_good_reply_on_grpc(manager: ManagerProcess) -> None:
    request = admin.GetInstanceInfoRequest(trace_id="t", instance_id="nope")
    with grpc.insecure_channel(manager.admin_address) as channel:
        method: Any = channel.unary_unary(f"{ADMIN}/GetInstanceInfo", None, None)
        reply = admin.GetInstanceInfoResponse.FromString(method(request.SerializeToString(), timeout=20))
    assert reply.header.status.code == admin.INSTANCE_NOT_EXIST
    assert reply.header.request_id.startswith("t_")
    assert not reply.HasField("instance_info")
