"""The gRPC health service, grpc.health.v1 (ours; upstream has none).

`""` says whether the listeners are up, a service's full name whether its leader-only calls would be answered now. Both are asked when somebody asks,
so an answer can never be older than the question; watchers are told within a quarter of a second.

Not the servicer of grpcio-health-checking: its watches never end, so a graceful stop would always take its whole grace time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from kvcm.service.grpc.unsent import begin

HEALTH_SERVICE = "grpc.health.v1.Health"
_POLL_S = 0.25
MAX_WATCHERS = 256
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """`may_serve()`: would a leader-only call be answered now?"""

    def __init__(self, services: Collection[str], may_serve: Callable[[], bool]) -> None:
        self._services = frozenset(services)
        self._may_serve = may_serve
        self._closing = asyncio.Event()
        self._watchers = 0

    def close(self) -> None:
        """From now on nothing is serving, and watches end after saying so."""
        self._closing.set()

    def status(self, service: str) -> int:
        if service and service not in self._services:
            return int(_UNKNOWN)
        up = not self._closing.is_set() and (not service or self._may_serve())
        return int(_SERVING if up else _NOT_SERVING)

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check, health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self._watch, health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    async def _check(self, request: Any, context: Any) -> Any:
        begin(context)
        status = self.status(request.service)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this listener has no service of that name")
        return health_pb2.HealthCheckResponse(status=status)

    async def _watch(self, request: Any, context: Any) -> None:
        begin(context)
        if self._watchers >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many health watches are open")
        self._watchers += 1
        told = None
        try:
            while True:
                status = self.status(request.service)
                if status != told:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    told = status
                if self._closing.is_set():
                    return
                try:
                    async with asyncio.timeout(_POLL_S):
                        await self._closing.wait()
                except TimeoutError:
                    pass
        finally:
            self._watchers -= 1
