"""Schemathesis over the OpenAPI documents: requests made from them, good and bad, get the statuses and the replies that they describe."""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_messages import is_place, safe_paths
from kvcm.service.testing_story import startup_file

pytestmark = pytest.mark.integration
FEW = settings(deadline=None, max_examples=3, database=None, suppress_health_check=list(HealthCheck))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
QUIET = {"LeaderDemote", "UpdateLeaderElectorConfig"}


class Served:
    def __init__(self, manager: ManagerProcess, folder: str) -> None:
        self.folder = folder
        debug = f"http://127.0.0.1:{manager.endpoint.meta_http_port + 3000}"
        self.urls = {"meta": manager.http_url, "admin": manager.admin_http_url, "debug": debug}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="kvcm-openapi-") as folder:
        manager = ManagerProcess({"kvcm.startup_config": startup_file(folder), "kvcm.service.enable_debug_service": "true"})
        with manager:
            yield Served(manager, folder)
            assert [line for line in manager.log.splitlines() if "Traceback" in line or "level=error" in line] == []


def fetched(url: str, path: str) -> tuple[int, str, bytes]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.getheader("content-type", ""), response.read()
    connection.close()
    return answer


def kept_in(folder: str, value: Any, name: str = "") -> Any:
    """`value`, but whatever names a place to write names one below `folder`, or none at all."""
    if isinstance(value, dict):
        return {key: kept_in(folder, item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [kept_in(folder, item, name) for item in value]
    if isinstance(value, str) and is_place(name):
        return safe_paths(folder)[len(value) % len(safe_paths(folder))]
    return value


@pytest.mark.parametrize("listener", ["meta", "admin", "debug"])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_what_is_served_is_what_is_described(served: Served, listener: str, mode: GenerationMode) -> None:
    url = served.urls[listener]
    status, kind, text = fetched(url, "/openapi.json")
    assert (status, kind) == (200, "application/json")
    schema: Any = schemathesis.openapi.from_dict(json.loads(text))
    seen = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.definition.raw.get("operationId") in QUIET or (mode is GenerationMode.NEGATIVE and operation.method.upper() == "GET"):
            continue
        seen += 1

        @FEW
        @given(operation.as_strategy(generation_mode=mode))
        def holds(case: Any) -> None:
            case.body = kept_in(served.folder, case.body)
            case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)

        holds()
    assert seen > 2


@pytest.mark.parametrize("listener", ["meta", "admin", "debug"])
def test_the_page_is_served_without_anything_from_elsewhere(served: Served, listener: str) -> None:
    status, kind, text = fetched(served.urls[listener], "/docs")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert b"<script" not in text


def test_both_can_be_switched_off() -> None:
    with ManagerProcess({"kvcm.service.http_docs": "false"}) as manager:
        for path in ("/openapi.json", "/docs"):
            assert fetched(manager.http_url, path) == (404, "text/plain; charset=utf-8", b"404 Not Found")
            assert fetched(manager.admin_http_url, path)[0] == 404
