"""GET /healthz, /readyz and /metrics of the operator. Plain HTTP for the kubelet and for Prometheus; nothing here tells a secret."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from kvcm_operator.health import Health

_ALL = "0.0.0.0"  # probes come from the node
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def serve(health: Health, port: int, host: str = _ALL) -> AsyncIterator[int]:
    """The port, for the length of the block; port 0 serves nothing and yields 0."""
    if not port:
        yield 0
        return
    runner = web.AppRunner(application(health), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield port
    finally:
        await runner.cleanup()


def application(health: Health) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        return _answer(health.alive(), "watches have fallen behind")

    async def readyz(_: web.Request) -> web.Response:
        return _answer(health.ready(), "another operator leads, or this one is starting")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=health.page(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


def _answer(good: bool, problem: str) -> web.Response:
    return web.Response(text="ok") if good else web.Response(text=problem, status=503)
