"""gRPC listeners: transport-free services behind grpc.aio (design D1, D2; wire contract 1.1, 3.5).

The hot path is `_Handler.__call__`: parse, dispatch, hand the reply bytes over. Serialisers are the identity, so a reply is never built twice.
The gRPC status is OK for every answered call; errors are in the reply's header.

Dangers: two managers on one port must fail instead of sharing it (SO_REUSEPORT is gRPC's default); a client that hangs up cancels the handler,
which is why the manager runs mutations in tasks of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from kvcm.service.auth.grpc_guard import guarded
from kvcm.service.auth.guard import Guard
from kvcm.service.errors import PortInUse
from kvcm.service.grpc.hardened import new_server
from kvcm.service.grpc.unread import SHORT_REPLY_BYTES, Unread
from kvcm.service.grpc.unsent import begin
from kvcm.service.in_flight import InFlight
from kvcm.service.open_files import share
from kvcm.service.rpc import MAX_REPLY_BYTES, Dispatcher, Rpc, Service
from kvcm.service.tls.keeper import TlsKeeper

MAX_REQUEST_BYTES = 4 << 20
MAX_CONCURRENT_RPCS = 4096
MAX_CONNECTIONS = 16_384
_SHARE_OF_FILES = 4
_RESTARTS = 600
_RESTART_PAUSE_S = 0.5
_ALL_INTERFACES = "0.0.0.0"
_log = logging.getLogger("kvcm.service.grpc")

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # With room for what tracing adds.
    ("grpc.max_send_message_length", MAX_REPLY_BYTES + (1 << 20)),
    # Clients of the contract ping every 10 s, also while no call runs; the default would answer them with GOAWAY.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # A peer that vanished without a word frees its connection within two minutes.
    ("grpc.keepalive_time_ms", 90_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Who connects and says nothing, and who has said nothing for long; a client of gRPC comes back by itself when it has something to say.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # Calls of one connection beyond these wait in its client.
    ("grpc.max_concurrent_streams", 1024),
)


class GrpcListener:
    """One port. `extra` handlers (health) come after the services and are never guarded. Start it on the loop that serves.

    `host`: the IP address to bind. `tls`: plain text without it. `guards`: by the full name of a service, for those that not everybody may call.
    """

    def __init__(
        self,
        services: Sequence[Service],
        dispatcher: Dispatcher,
        in_flight: InFlight,
        extra: Sequence[Any] = (),
        *,
        host: str = _ALL_INTERFACES,
        tls: TlsKeeper | None = None,
        guards: Mapping[str, Guard] = MappingProxyType({}),
    ) -> None:
        handlers, unread = {}, Unread()
        for service in services:
            guard = guards.get(service.full_name)
            for rpc in service.rpcs.values():
                method = _method(rpc, dispatcher, in_flight, unread)
                handlers[f"/{service.full_name}/{rpc.name}"] = method if guard is None else guarded(method, guard, rpc.name)
        self._handlers = (_Table(handlers), *extra)
        self._host = f"[{host}]" if ":" in host else host
        self._tls = tls
        self._credentials: Any = None
        self._server: Any = None
        self._watching: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, port: int, key: str) -> int:
        """Listen on `port` (0: any free one) and return the real one. Raises PortInUse; `key` is the setting to name in its message."""
        options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", share(_SHARE_OF_FILES, MAX_CONNECTIONS)))
        server = new_server(self._handlers, options, MAX_CONCURRENT_RPCS)
        try:
            if self._tls is None:
                bound = server.add_insecure_port(f"{self._host}:{port}")
            else:
                self._credentials = self._tls.grpc_credentials()
                bound = server.add_secure_port(f"{self._host}:{port}", self._credentials)
        except RuntimeError:
            bound = 0
        if not bound:
            raise PortInUse(f"Port {port} ({key}) cannot be opened for gRPC: another process uses it, or it is not allowed.")
        self.port = bound
        await server.start()
        self._server = server
        self._watching = asyncio.get_running_loop().create_task(self._watch(server, key))
        return self.port

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls at once, let running ones end for `grace_s` seconds, then cut them. Idempotent.

        A call that has just arrived ends as UNAVAILABLE or CANCELLED and has not run; one that has begun gets its reply.
        """
        server, self._server = self._server, None
        if self._watching is not None:
            self._watching.cancel()
        if server is not None:
            await server.stop(grace_s)

    async def _watch(self, server: Any, key: str) -> None:
        """A server that ends by itself is started again: without its ports this process would lead and serve nobody."""
        try:
            # Shielded, because a cancelled wait would cancel what a stop waits for.
            await asyncio.shield(asyncio.ensure_future(server.wait_for_termination()))
        except Exception:
            _log.exception("grpc_server_ended port=%d", self.port)
        for attempt in range(_RESTARTS):
            if self._server is not server:
                return
            try:
                await self.start(self.port, key)
                _log.warning("grpc_server_started_again port=%d", self.port)
                return
            except PortInUse as error:
                _log.error("grpc_server_not_started attempt=%d: %s", attempt + 1, error.message)
                await asyncio.sleep(_RESTART_PAUSE_S)


class _Table(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


class _Origin:
    """`kvcm.service.rpc.Origin`: the metadata stay in gRPC until somebody asks."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def header(self, name: str) -> str:
        for key, value in self._context.invocation_metadata() or ():
            if key == name:
                return value if isinstance(value, str) else ""
        return ""

    def peer(self) -> str:
        return str(self._context.peer())


def _method(rpc: Rpc, dispatcher: Dispatcher, in_flight: InFlight, unread: Unread) -> Any:
    parse = rpc.request_cls.FromString
    call = dispatcher.call

    async def handle(request: bytes, context: Any) -> bytes:
        begin(context)
        try:
            message = parse(request)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a valid {rpc.request_cls.DESCRIPTOR.name} message")
        in_flight.count += 1
        try:
            reply = await call(rpc, message, _Origin(context))
        finally:
            in_flight.count -= 1
        if len(reply) > SHORT_REPLY_BYTES and not unread.hold(context, len(reply)):
            # Not RESOURCE_EXHAUSTED, which says to clients that nothing was done.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too many long replies wait for clients that do not read them; try again later")
        return reply

    return grpc.unary_unary_rpc_method_handler(handle)
