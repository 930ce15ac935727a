"""The OpenAPI document and its page say what the listeners serve, for every RPC of every service."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import jsonschema_rs
import pytest
from starlette.routing import Route

from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import debug_service_pb2 as debug
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.json_codec import message_to_json
from kvcm.service.http.app import build_app
from kvcm.service.http.docs_page import docs_page
from kvcm.service.http.openapi import document_bytes, openapi_document
from kvcm.service.in_flight import InFlight
from kvcm.service.rpc import Call, Reply, Rpc, Service, table

pytestmark = pytest.mark.unit
PACKAGES: dict[str, Any] = {"meta.MetaService": meta, "admin.AdminService": admin, "debug.DebugService": debug}


async def nobody(request: Any, call: Call) -> Reply:
    raise AssertionError


def service_of(name: str) -> Service:
    """Every RPC of the contract, from the descriptors."""
    module = PACKAGES[name]
    methods = module.DESCRIPTOR.services_by_name[name.rpartition(".")[2]].methods
    handler: Callable[[Any, Call], Awaitable[Reply]] = nobody
    return table(
        f"kv_cache_manager.proto.{name}",
        [Rpc(method.name, getattr(module, method.input_type.name), getattr(module, method.output_type.name), handler) for method in methods],
    )


def document_of(name: str) -> dict[str, Any]:
    service = service_of(name)
    return openapi_document([service], {rpc: f"/api/{rpc[0].lower()}{rpc[1:]}" for rpc in service.rpcs}, {"/docs": "A page for people."})


def validator(document: dict[str, Any], name: str) -> Any:
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": document["components"]})


@pytest.mark.parametrize("name", PACKAGES)
def test_every_rpc_has_its_path_and_every_reference_leads_somewhere(name: str) -> None:
    document = document_of(name)
    service = service_of(name)
    posts = {what["post"]["operationId"] for what in document["paths"].values() if "post" in what}
    assert posts == set(service.rpcs)
    assert document["openapi"] == "3.1.0"
    text = document_bytes(document).decode()
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert references == set(document["components"]["schemas"])
    assert json.loads(text) == document


@pytest.mark.parametrize("name", PACKAGES)
def test_every_schema_is_a_schema_and_a_default_reply_fits_its_own(name: str) -> None:
    document = document_of(name)
    for rpc in service_of(name).rpcs.values():
        where = document["paths"][f"/api/{rpc.name[0].lower()}{rpc.name[1:]}"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        check = validator(document, where["$ref"].rpartition("/")[2])
        assert check.is_valid(json.loads(message_to_json(rpc.response_cls())))
        assert not check.is_valid([])


def test_replies_are_described_strictly_and_requests_as_leniently_as_they_are_read() -> None:
    document = document_of("meta.MetaService")
    schemas = document["components"]["schemas"]
    reply, request = validator(document, "meta.GetCacheMetaResponse"), validator(document, "meta.GetCacheLocationRequest")
    assert schemas["meta.GetHostCacheStateResponse"]["required"] == ["hosts"]
    assert not reply.is_valid({"locations": []})
    good: list[Any] = [{}, {"block_keys": [1, "2"], "query_type": "QT_PREFIX_MATCH"}, {"query_type": 2, "block_mask": None, "block_mask2": 1}]
    bad: list[Any] = [{"block_keys": ["x"]}, {"block_keys": [1 << 63]}, {"trace_id": 1}, {"block_mask": {"offset": 1, "bool_masks": {}}}]
    assert [request.is_valid(body) for body in good] == [True] * len(good)
    assert [request.is_valid(body) for body in bad] == [False] * len(bad)
    spec = validator(document, "meta.LocationSpecInfo")
    assert not spec.is_valid({"name": "a", "size": 1})
    assert spec.is_valid({"name": "a", "size": "1"})
    assert validator(document, "meta.LocationSpecInfo-input").is_valid({"size": 1})


def test_wrappers_maps_and_extensions_are_as_in_the_dialect() -> None:
    document = document_of("admin.AdminService")
    assert not [name for name in document["components"]["schemas"] if "google" in name]
    group = document["components"]["schemas"]["admin.MigrationConfig"]["properties"]["copy_max_inflight_bytes"]
    assert group["type"] == "string"
    assert "disabled_storage_names" not in document["components"]["schemas"]["admin.ListStorageResponse"]["required"]
    system_status = document_of("meta.MetaService")["components"]["schemas"]["meta.HeartbeatEventParams"]["properties"]["system_status"]
    assert system_status["anyOf"][0]["additionalProperties"] == {"type": "string"}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_page_names_everything_and_loads_nothing(name: str) -> None:
    document = document_of(name)
    page = docs_page(document)
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
    for schema in document["components"]["schemas"]:
        assert f'id="{schema}"' in page
    assert not re.search(r"<script|<img|<link|https?:(?!//HOST)|src=", page)


def test_the_page_escapes_what_it_shows() -> None:
    document = document_of("debug.DebugService")
    document["info"]["title"] = "<b>&"
    assert "<b>&<" not in docs_page(document)
    assert "&lt;b&gt;&amp;" in docs_page(document)


def test_documented_paths_are_exactly_the_routes() -> None:
    service = service_of("debug.DebugService")
    dispatcher: Any = None
    for docs in (True, False):
        app = build_app([service], dispatcher, InFlight(), docs=docs)
        served = {route.path for route in app.routes if isinstance(route, Route)}
        assert served == {"/api/injectFault", "/api/removeFault", "/api/clearFaults"} | ({"/docs", "/openapi.json"} if docs else set())


def test_a_guarded_listener_says_that_it_wants_a_token() -> None:
    service = service_of("debug.DebugService")
    paths = {rpc: f"/api/{rpc}" for rpc in service.rpcs}
    assert "security" not in openapi_document([service], paths, {})
    document = openapi_document([service], paths, {"/metrics": "Metrics."}, guarded=True)
    assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert document["security"] == [{"bearer": []}]
    assert all("401" in operation["responses"] for methods in document["paths"].values() for operation in methods.values())
