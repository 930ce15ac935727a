"""What probes ask: `/healthz` (the listeners are up) and `/readyz` (calls would be served, here or at a known leader). They tell nothing else.

They need no token and, on a port of their own (`kvcm.service.probe_port`), no TLS and no client certificate, which a kubelet does not have.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

LIVE_PATH = "/healthz"
READY_PATH = "/readyz"
PROBE_PATHS = (LIVE_PATH, READY_PATH)


def probe_routes(is_ready: Callable[[], bool]) -> list[BaseRoute]:
    async def live(request: Request) -> Response:
        return PlainTextResponse("ok")

    async def ready(request: Request) -> Response:
        return PlainTextResponse("ok") if is_ready() else PlainTextResponse("not ready", 503)

    return [Route(LIVE_PATH, live, methods=["GET"]), Route(READY_PATH, ready, methods=["GET"])]
