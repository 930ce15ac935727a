"""Hypothesis over every message of the three services, on gRPC and on HTTP: each call is answered, with a code, and nothing of it is the manager's fault."""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcm.protocol import admin_service_pb2, debug_service_pb2, meta_service_pb2
from kvcm.protocol.json_codec import message_to_json
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_fuzz_calls import calls_of
from kvcm.service.testing_messages import requests
from kvcm.service.testing_story import startup_file

pytestmark = pytest.mark.integration
FEW = settings(deadline=None, max_examples=6, database=None, suppress_health_check=list(HealthCheck))
MORE = settings(FEW, max_examples=60)
MODULES: dict[str, Any] = {"meta": meta_service_pb2, "admin": admin_service_pb2, "debug": debug_service_pb2}
# A node that gives its lead away, or is told to wait before it takes it back, would leave nothing to try.
QUIET = {"LeaderDemote", "UpdateLeaderElectorConfig"}
RPCS = [
    pytest.param(listener, service, method, id=f"{listener}-{method.name}")
    for listener, module in MODULES.items()
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name not in QUIET
]


class Target:
    """A manager process with an instance `i`, a gRPC channel and one HTTP connection per listener."""

    def __init__(self, manager: ManagerProcess, folder: str) -> None:
        self.folder = folder
        self.channel = grpc.insecure_channel(manager.meta_address)
        ports = {"meta": manager.endpoint.meta_http_port, "admin": manager.endpoint.admin_http_port, "debug": manager.endpoint.meta_http_port + 3000}
        host = urlsplit(manager.http_url).hostname or ""
        self.http = {name: http.client.HTTPConnection(host, port, timeout=20) for name, port in ports.items()}
        register = next(call for call in calls_of() if call.rpc == "RegisterInstance" and b'"instance_id":"i"' in call.json and b"FP8" in call.json)
        assert self.post("meta", "RegisterInstance", register.json)[0] == 200

    def post(self, listener: str, rpc: str, body: bytes) -> tuple[int, bytes]:
        connection = self.http[listener]
        connection.request("POST", f"/api/{rpc[0].lower()}{rpc[1:]}", body)
        response = connection.getresponse()
        return response.status, response.read()

    def call(self, path: str, request: bytes) -> bytes:
        method: Any = self.channel.unary_unary(path, None, None)
        reply: bytes = method(request, timeout=20)
        return reply


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="kvcm-messages-") as folder:
        settings_of_it = {"kvcm.startup_config": startup_file(folder), "kvcm.service.enable_debug_service": "true"}
        manager = ManagerProcess(settings_of_it)
        with manager:
            target = Target(manager, folder)
            yield target
            target.channel.close()
            for connection in target.http.values():
                connection.close()
            bad = [line for line in manager.log.splitlines() if "Traceback" in line or "level=error" in line or "unexpected_error" in line]
            assert bad == []


@pytest.mark.parametrize(("listener", "service", "method"), RPCS)
def test_any_message_is_answered_alike_on_both_wires(target: Target, listener: str, service: Any, method: Any) -> None:
    module = MODULES[listener]
    request_cls, response_cls = getattr(module, method.input_type.name), getattr(module, method.output_type.name)

    @FEW
    @given(requests(request_cls, target.folder))
    def holds(request: Any) -> None:
        reply = response_cls.FromString(target.call(f"/{service.full_name}/{method.name}", request.SerializeToString()))
        assert reply.header.status.code in module.ErrorCode.values()
        assert reply.header.status.code != 0
        assert reply.header.status.code == module.OK or reply.header.status.message
        status, text = target.post(listener, method.name, message_to_json(request))
        assert status == 200
        found = json.loads(text)["header"]["status"]
        assert found["code"] in module.ErrorCode.keys()  # noqa: SIM118  # no mapping

    holds()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(("trace_id", "instance_id", "block_keys", "blockMask", "offset", "query_type", "x")), inner, max_size=5)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("rpc", ["GetCacheLocation", "StartWriteCache", "RegisterInstance"])
def test_any_json_is_answered_or_refused(target: Target, rpc: str) -> None:
    @MORE
    @given(JSON)
    def holds(value: Any) -> None:
        status, text = target.post("meta", rpc, json.dumps(value).encode())
        assert status in (200, 400)
        assert (status == 400) == (text == b"{}")

    holds()


def test_any_bytes_are_refused_or_answered(target: Target) -> None:
    @MORE
    @given(st.binary(max_size=60), st.sampled_from(("GetCacheLocation", "FinishWriteCache")))
    def holds(text: bytes, rpc: str) -> None:
        method: Any = target.channel.unary_unary(f"/kv_cache_manager.proto.meta.MetaService/{rpc}", None, None)
        call = method.future(text, timeout=20)
        assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
        assert target.post("meta", rpc, text)[0] in (200, 400)

    holds()
