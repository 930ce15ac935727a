"""The JSON API of one listener (wire contract 3.1-3.4) and what only the admin listener has: metrics and health.

`POST /api/<rpc name, first letter lower>`. Every answered call is 200; 400 and `{}` for a body that is not JSON for the message; 404 and a text for an
unknown path and for any other method. Content types are not looked at.

`GET /openapi.json` and `GET /docs` are ours and can be switched off.

Dangers: bodies (see `body.py`); JSON of megabytes, which takes about 30 ms each to read. Large texts are read and written in a thread, where at least
the part that is Python lets the loop go on; the scanner of `json` itself does not, about 8 ms per megabyte.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

from fastapi import FastAPI
from google.protobuf.message import Message
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kvcm.metrics.http_metrics import HttpMeter
from kvcm.metrics.registry import CONTENT_TYPE, Metrics
from kvcm.protocol.json_codec import JsonBodyError, json_to_message, message_to_json
from kvcm.service.http.body import Body, BodyBudget, BodyRefused
from kvcm.service.http.docs_page import CONTENT_SECURITY_POLICY, docs_page
from kvcm.service.http.openapi import document_bytes, openapi_document
from kvcm.service.in_flight import InFlight
from kvcm.service.rpc import Dispatcher, Rpc, Service

DOCUMENT_PATH, DOCS_PATH = "/openapi.json", "/docs"
HEALTHY = b'{"status":"OK"}'
_HEAVY_BYTES = 128 << 10
_HEAVY_DEADLINE_S = 30.0
_NOTHING = b"{}"
_CLOSE = {"connection": "close"}
T = TypeVar("T")
_log = logging.getLogger("kvcm.service.http")


class _Origin:
    """`kvcm.service.rpc.Origin`."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def header(self, name: str) -> str:
        return self._request.headers.get(name, "")

    def peer(self) -> str:
        client = self._request.client
        return client.host if client is not None else ""


def build_app(
    services: Sequence[Service],
    dispatcher: Dispatcher,
    in_flight: InFlight,
    extra: Sequence[BaseRoute] = (),
    *,
    docs: bool = False,
    guarded: bool = False,
    meter: HttpMeter | None = None,
) -> FastAPI:
    """The application of one listener; `extra` comes from `admin_routes`, `docs` adds the OpenAPI document and its page, `meter` counts.

    `guarded`: somebody in front asks for a token, which the document then says.
    """
    pool, budget, meter = ThreadPoolExecutor(1, "kvcm-json"), BodyBudget(), meter or HttpMeter()
    routes: list[BaseRoute] = [_route(rpc, dispatcher, in_flight, pool, budget, meter) for service in services for rpc in service.rpcs.values()]
    routes += extra
    if docs:
        routes += _docs_routes(services, extra, guarded)
    app = FastAPI(title="KVCM", routes=routes, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(HTTPException, _not_found)
    return app


def admin_routes(services: Sequence[Service], dispatcher: Dispatcher, metrics: Metrics | None) -> list[BaseRoute]:
    """`GET /api/healthy`, and `GET /metrics` unless `metrics` is None. One of `services` must have CheckHealth."""
    check = next(service.rpcs["CheckHealth"] for service in services if "CheckHealth" in service.rpcs)
    routes: list[BaseRoute] = [Route("/api/healthy", _healthy(check, dispatcher), methods=["GET"])]
    if metrics is not None:
        routes.append(Route("/metrics", _metrics(metrics), methods=["GET"]))
    return routes


def _docs_routes(services: Sequence[Service], extra: Sequence[BaseRoute], guarded: bool) -> list[BaseRoute]:
    known = {
        "/api/healthy": "Is this node healthy?",
        "/healthz": "Is this process up?",
        "/readyz": "Would calls be served, here or by a known leader?",
        "/metrics": "Metrics in Prometheus' text format.",
        DOCUMENT_PATH: "This document.",
        DOCS_PATH: "A page for people.",
    }
    served = {route.path for route in extra if isinstance(route, Route)} | {DOCUMENT_PATH, DOCS_PATH}
    paths = {name: path_of(name) for service in services for name in service.rpcs}
    document = openapi_document(services, paths, {path: text for path, text in known.items() if path in served}, guarded=guarded)
    page = docs_page(document).encode()
    content = document_bytes(document)

    async def give_document(request: Request) -> Response:
        return _json(content)

    async def give_page(request: Request) -> Response:
        return Response(page, headers={"content-type": "text/html; charset=utf-8", "content-security-policy": CONTENT_SECURITY_POLICY})

    return [Route(DOCUMENT_PATH, give_document, methods=["GET"]), Route(DOCS_PATH, give_page, methods=["GET"])]


def path_of(rpc_name: str) -> str:
    return f"/api/{rpc_name[:1].lower()}{rpc_name[1:]}"


def _route(rpc: Rpc, dispatcher: Dispatcher, in_flight: InFlight, pool: Executor, budget: BodyBudget, meter: HttpMeter) -> Route:
    def parse(body: bytes) -> Message:
        return json_to_message(body, rpc.request_cls)

    def write(reply: bytes) -> bytes:
        return message_to_json(rpc.response_cls.FromString(reply))

    def refuse(status: int, began: float, headers: dict[str, str] | None = None) -> Response:
        meter.refuse(status, perf_counter() - began)
        return Response(_NOTHING, status, headers)

    async def handle(request: Request) -> Response:
        began = perf_counter()
        try:
            async with Body(request, budget) as body:
                message = await _convert(pool, parse, body)
        except JsonBodyError:
            return refuse(400, began)
        except BodyRefused as refused:
            # The rest of the body would be taken for the next request.
            return refuse(refused.status, began, _CLOSE)
        parsed = perf_counter()
        in_flight.count += 1
        try:
            reply = await dispatcher.call(rpc, message, _Origin(request))
        finally:
            in_flight.count -= 1
        called = perf_counter()
        held = len(reply) if len(reply) > _HEAVY_BYTES else 0
        if not budget.take(held):
            return refuse(503, began)
        try:
            text = await _convert(pool, write, reply)
        except BodyRefused as refused:
            return refuse(refused.status, began)
        except Exception:
            _log.exception("reply_not_serialisable api=%s", rpc.name)
            return refuse(500, began)
        finally:
            budget.give_back(held)
        meter.answered(began, parsed, called, perf_counter())
        return _json(text)

    return Route(path_of(rpc.name), handle, methods=["POST"])


async def _convert(pool: Executor, convert: Callable[[bytes], T], text: bytes) -> T:
    """`convert(text)`, in the pool when it is large. Raises what it raises, BodyRefused (503) when the pool has too much to do."""
    if len(text) <= _HEAVY_BYTES:
        return convert(text)
    try:
        async with asyncio.timeout(_HEAVY_DEADLINE_S):
            return await asyncio.get_running_loop().run_in_executor(pool, convert, text)
    except TimeoutError:
        raise BodyRefused(503) from None


def _healthy(check: Rpc, dispatcher: Dispatcher):  # type: ignore[no-untyped-def]
    async def handle(request: Request) -> Response:
        reply = check.response_cls.FromString(await dispatcher.call(check, check.request_cls()))
        if getattr(reply, "is_health", False):
            return _json(HEALTHY)
        return Response(message_to_json(reply), 503, media_type="application/json")

    return handle


def _metrics(metrics: Metrics):  # type: ignore[no-untyped-def]
    async def handle(request: Request) -> Response:
        try:
            return Response(await metrics.render(), headers={"content-type": CONTENT_TYPE})
        except TimeoutError:
            return Response("The metrics page took too long to write.", 503)

    return handle


def _json(body: bytes) -> Response:
    return Response(body, headers={"content-type": "application/json"})


async def _not_found(request: Request, error: Exception) -> Response:
    """Whatever the router refuses is "not found", a wrong method too."""
    return Response("404 Not Found", 404, media_type="text/plain")
