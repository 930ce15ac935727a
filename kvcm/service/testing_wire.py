"""One way of asking a running manager over either wire, so that one test covers both: JSON objects in, JSON objects out.

HttpWire(manager.admin_http_url).call("ListStorage", {"trace_id": "t"})
GrpcWire(manager.admin_address, ADMIN).call("ListStorage", {"trace_id": "t"})
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any, Protocol

import grpc
from google.protobuf.json_format import ParseDict

from kvcm.protocol import admin_service_pb2, debug_service_pb2, meta_service_pb2
from kvcm.protocol.json_codec import message_to_json

_DEADLINE_S = 20.0
_MODULES: Mapping[str, Any] = {
    "kv_cache_manager.proto.meta.MetaService": meta_service_pb2,
    "kv_cache_manager.proto.admin.AdminService": admin_service_pb2,
    "kv_cache_manager.proto.debug.DebugService": debug_service_pb2,
}
META, ADMIN, DEBUG = _MODULES


class Wire(Protocol):
    def call(self, rpc: str, request: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]: ...


class HttpWire:
    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, rpc: str, request: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The reply of `POST /api/<rpc>`. Raises urllib.error.HTTPError for any status but 200."""
        url = f"{self._url}/api/{rpc[:1].lower()}{rpc[1:]}"
        sent = urllib.request.Request(url, json.dumps(request).encode(), {"Content-Type": "application/json", **(headers or {})})
        with urllib.request.urlopen(sent, timeout=_DEADLINE_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


class GrpcWire:
    """Makes a connection per call: for tests of behaviour, not of speed."""

    def __init__(self, address: str, service: str) -> None:
        self._address = address
        self._service = service

    def call(self, rpc: str, request: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The reply as the JSON API would print it. Raises grpc.RpcError when the transport fails."""
        module = _MODULES[self._service]
        method = module.DESCRIPTOR.services_by_name[self._service.rpartition(".")[2]].methods_by_name[rpc]
        request_cls, response_cls = getattr(module, method.input_type.name), getattr(module, method.output_type.name)
        message = ParseDict(dict(request), request_cls())
        with grpc.insecure_channel(self._address) as channel:
            ask = channel.unary_unary(f"/{self._service}/{rpc}", request_cls.SerializeToString, response_cls.FromString)
            metadata = tuple((headers or {}).items())
            reply: dict[str, Any] = json.loads(message_to_json(ask(message, timeout=_DEADLINE_S, metadata=metadata)))
        return reply


def code(reply: Mapping[str, Any]) -> str:
    """The name of the reply's code."""
    found: str = reply["header"]["status"]["code"]
    return found


def message(reply: Mapping[str, Any]) -> str:
    found: str = reply["header"]["status"]["message"]
    return found
