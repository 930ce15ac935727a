"""The OpenAPI 3.1 document of one HTTP listener, made from the services behind it. Ours; upstream has none.

Made once, when the listener is built; what is served is the document's bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import kvcm
from kvcm.service.http.schemas import Schema, Schemas
from kvcm.service.rpc import Rpc, Service

OPENAPI_VERSION = "3.1.0"
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_JSON = "application/json"
_REFUSALS = {
    "400": "The body is not JSON for the request message. Nothing has happened.",
    "408": "The body did not come in time. The connection is closed.",
    "413": "The body is too long. The connection is closed.",
    "500": "The reply could not be written as JSON.",
    "503": "Too many large bodies are being handled. Try again later.",
}
_DESCRIPTION = (
    "JSON over HTTP of the messages that gRPC uses. Every answered call is HTTP 200, errors of the application included: look at `header.status.code`. "
    "Requests may spell names in snake_case or lowerCamelCase; unknown names are ignored, null means unset, and an unknown name of an enum is its default. "
    "64-bit integers are texts in replies. The content type of a request is not looked at."
)


def openapi_document(services: Sequence[Service], path_of: Mapping[str, str], gets: Mapping[str, str], *, guarded: bool = False) -> dict[str, Any]:
    """The document. `path_of`: RPC name -> path; `gets`: path of every GET -> what it answers, one sentence; `guarded`: a bearer token is asked for."""
    rpcs = [(service, rpc) for service in services for rpc in service.rpcs.values()]
    schemas = Schemas((rpc.request_cls.DESCRIPTOR for _, rpc in rpcs), (rpc.response_cls.DESCRIPTOR for _, rpc in rpcs))
    paths: dict[str, Any] = {path_of[rpc.name]: {"post": _operation(service, rpc, schemas)} for service, rpc in rpcs}
    paths |= {path: {"get": _get(path, text)} for path, text in gets.items()}
    document: dict[str, Any] = {
        "openapi": OPENAPI_VERSION,
        "info": {"title": " and ".join(_short(service) for service in services), "version": kvcm.__version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": _short(service)} for service in services],
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": schemas.components()},
    }
    if guarded:
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
        for operation in (operation for methods in paths.values() for operation in methods.values()):
            operation["responses"]["401"] = {"description": "No token, or not one that is accepted here."}
    return document


def document_bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _operation(service: Service, rpc: Rpc, schemas: Schemas) -> Schema:
    where = "Answered by the leader only; other nodes say SERVER_NOT_LEADER." if rpc.leader_only else "Answered by every node."
    return {
        "operationId": rpc.name,
        "tags": [_short(service)],
        "summary": _CAPITAL.sub(" ", rpc.name).capitalize(),
        "description": f"gRPC: `/{service.full_name}/{rpc.name}`. {where}",
        "requestBody": {"required": True, "content": {_JSON: {"schema": schemas.reference(rpc.request_cls.DESCRIPTOR, True)}}},
        "responses": {
            "200": {
                "description": "Handled; `header.status.code` tells how it went.",
                "content": {_JSON: {"schema": schemas.reference(rpc.response_cls.DESCRIPTOR, False)}},
            },
            **{status: {"description": text} for status, text in _REFUSALS.items()},
        },
    }


def _get(path: str, text: str) -> Schema:
    responses = {"200": {"description": text}, "503": {"description": "Not now."}}
    return {"operationId": "get" + "".join(part.capitalize() for part in re.split(r"\W+", path)), "summary": text, "responses": responses}


def _short(service: Service) -> str:
    return service.full_name.rpartition(".")[2]
