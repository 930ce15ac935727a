"""The ports of one manager and which service is behind which (wire contract 1.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.routing import BaseRoute

from kvcm.config.settings import Settings
from kvcm.config.settings_checks import DEBUG_PORT_OFFSET, MAX_PORT
from kvcm.metrics.http_metrics import HttpMetrics
from kvcm.service.auth.asgi import GuardedApp
from kvcm.service.auth.guard import Guard
from kvcm.service.cluster import Endpoint
from kvcm.service.errors import PortInUse
from kvcm.service.grpc.health import HEALTH_SERVICE, Health
from kvcm.service.grpc.reflection import Reflection
from kvcm.service.grpc.server import GrpcListener
from kvcm.service.http.app import build_app
from kvcm.service.http.listener import HttpListener
from kvcm.service.http.probes import PROBE_PATHS, probe_routes
from kvcm.service.in_flight import InFlight
from kvcm.service.rpc import Dispatcher, Service
from kvcm.service.security import Security

_HTTP_KEY = "kvcm.service.http_port"
_PAIR_ATTEMPTS = 16


class Listeners:
    """`bind_http` first, then `start`; a failure of either leaves what was opened to `stop`.

    Port 0 means any free one. The admin gRPC service has a port of its own only if its setting is not 0 and not the meta port. The debug service is
    beside the admin service on gRPC and 3000 above the meta service on HTTP.
    """

    def __init__(self, settings: Settings, security: Security | None = None, http_metrics: HttpMetrics | None = None) -> None:
        self._settings = settings
        self._http_metrics = http_metrics or HttpMetrics()
        security = self._security = security or Security()
        host, admin_tls = security.host, security.admin.tls
        self._meta_http = HttpListener(host, security.meta.tls)
        self._admin_http = HttpListener(host, admin_tls)
        self._debug_http = HttpListener(host, admin_tls) if settings.service_enable_debug_service else None
        self._probe_http = HttpListener(host) if settings.service_probe_port else None
        self._grpc: list[GrpcListener] = []
        self._health: list[Health] = []
        self._reflection: list[Reflection] = []

    def bind_http(self) -> tuple[int, int]:
        """Take the HTTP ports; returns (meta, admin). Raises PortInUse."""
        if self._probe_http is not None:
            self._probe_http.bind(self._settings.service_probe_port, "kvcm.service.probe_port")
        return self._bind_meta_http(), self._admin_http.bind(self._settings.service_admin_http_port, "kvcm.service.admin_http_port")

    async def start(
        self,
        meta: Service,
        admin: Service,
        debug: Service | None,
        admin_extra: Sequence[BaseRoute],
        dispatcher: Dispatcher,
        in_flight: InFlight,
        may_serve: Callable[[], bool],
        is_ready: Callable[[], bool],
        own: Endpoint,
        grace_s: float,
    ) -> Endpoint:
        """Accept calls on all ports; returns `own` with the real ports. Raises PortInUse.

        `debug`: None unless the settings ask for the debug service. `is_ready`: the answer of `/readyz`.
        """
        rpc_port, admin_port = self._settings.service_rpc_port, self._settings.service_admin_rpc_port
        beside_admin = [admin] if debug is None else [admin, debug]
        shared = admin_port in (0, rpc_port)

        security = self._security
        wanted = [(service, security.admin.grpc) for service in beside_admin] + [(meta, security.meta.grpc)]
        guards = {service.full_name: guard for service, guard in wanted if guard is not None}

        async def listen(services: Sequence[Service], port: int, key: str) -> int:
            names = [service.full_name for service in services]
            health = Health(names, may_serve)
            extra = [health.handler()]
            tls = security.meta.tls if services[0] is meta else security.admin.tls
            self._health.append(health)
            if self._settings.service_grpc_reflection:
                reflection = Reflection(names, [HEALTH_SERVICE])
                extra += reflection.handlers()
                self._reflection.append(reflection)
            listener = GrpcListener(services, dispatcher, in_flight, extra, host=security.host, tls=tls, guards=guards)
            self._grpc.append(listener)
            return await listener.start(port, key)

        real_rpc = await listen([meta, *beside_admin] if shared else [meta], rpc_port, "kvcm.service.rpc_port")
        real_admin = real_rpc if shared else await listen(beside_admin, admin_port, "kvcm.service.admin_rpc_port")
        docs = self._settings.service_http_docs
        probes = probe_routes(is_ready)

        async def serve(name: str, listener: HttpListener | None, services: Sequence[Service], guard: Guard | None, extra: Sequence[BaseRoute] = ()) -> None:
            if listener is not None:
                meter = self._http_metrics.meter(name)
                app = build_app(services, dispatcher, in_flight, extra, docs=docs and bool(services), guarded=guard is not None, meter=meter)
                await listener.start(app if guard is None else GuardedApp(app, guard, PROBE_PATHS), grace_s)

        await serve("meta", self._meta_http, [meta], security.meta.http)
        await serve("admin", self._admin_http, [admin], security.admin.http, [*admin_extra, *probes])
        await serve("debug", self._debug_http, [] if debug is None else [debug], security.admin.http)
        await serve("probe", self._probe_http, [], None, probes)
        return replace(own, meta_rpc_port=real_rpc, meta_http_port=self._meta_http.port, admin_rpc_port=real_admin, admin_http_port=self._admin_http.port)

    def close_health(self) -> None:
        """Tell whoever asks or watches that this node is about to go."""
        for health in self._health:
            health.close()
        for reflection in self._reflection:
            reflection.close()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls on all ports at once, let running ones end for `grace_s` seconds, cut the rest. Idempotent."""
        self.close_health()
        stops = [listener.stop(grace_s) for listener in self._grpc]
        http = [listener.stop() for listener in (self._meta_http, self._admin_http, self._debug_http, self._probe_http) if listener is not None]
        await asyncio.gather(*stops, *http, return_exceptions=True)

    def _bind_meta_http(self) -> int:
        """The meta port, and the debug port above it. Where any port will do, one whose neighbour is free is looked for."""
        wanted = self._settings.service_http_port
        if self._debug_http is None:
            return self._meta_http.bind(wanted, _HTTP_KEY)
        for _ in range(1 if wanted else _PAIR_ATTEMPTS):
            port = self._meta_http.bind(wanted, _HTTP_KEY)
            debug_port = port + DEBUG_PORT_OFFSET
            try:
                if debug_port > MAX_PORT:
                    raise PortInUse(f"Port {port} ({_HTTP_KEY}) leaves no room for the debug port, which is {DEBUG_PORT_OFFSET} above it.")
                self._debug_http.bind(debug_port, f"{_HTTP_KEY} + {DEBUG_PORT_OFFSET}")
                return port
            except PortInUse as error:
                self._meta_http.unbind()
                refused = error
        raise refused
