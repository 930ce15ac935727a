"""One HTTP port: a bound socket and a uvicorn server on the running loop. No signal handlers of its own, no access log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from kvcm.service.errors import PortInUse
from kvcm.service.http.connections import Connections, QuietLog, connection_limit
from kvcm.service.http.protocol import protocol_factory
from kvcm.service.tls.keeper import TlsKeeper

KEEP_ALIVE_S = 75
HANDSHAKE_S = 10.0
_BACKLOG = 1024
_ALL_INTERFACES = "0.0.0.0"
_log = logging.getLogger("kvcm.service.http")


class HttpListener:
    """`bind` early, so that the real port is known before anything is built on it; then `start` and `stop`.

    `host`: the IP address to bind, all interfaces by default; `::` takes IPv4 too. `tls`: asked for a context per connection; plain text without it.
    """

    def __init__(self, host: str = _ALL_INTERFACES, tls: TlsKeeper | None = None) -> None:
        self._host = host
        self._tls = tls
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    def bind(self, port: int, key: str) -> int:
        """Take `port` (0: any free one) and return the real one. Raises PortInUse; `key` is the setting to name in its message."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            # Only a socket that says TCP gets TCP_NODELAY from asyncio; without it a reply in two writes waits 40 ms for an acknowledgement.
            sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        except OSError:
            raise PortInUse(f"Port {port} ({key}) cannot be opened for HTTP: this machine has no IPv6.") from None
        try:
            # Only past connections in TIME_WAIT may be ignored with this; a second listener still fails.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((self._host, port))
            # Listening now makes a second manager fail here and not later.
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            raise PortInUse(f"Port {port} ({key}) cannot be opened for HTTP: {error.strerror or 'it is not available'}.") from None
        sock.setblocking(False)
        self._socket = sock
        self.port = int(sock.getsockname()[1])
        return self.port

    def unbind(self) -> None:
        """Give the port back before `start`."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def start(self, app: Any, grace_s: float) -> None:
        """Serve `app` (ASGI) on the bound socket; returns when connections are accepted. At a stop, requests have `grace_s` seconds to end."""
        if self._socket is None:
            raise ValueError("bind first")
        loop = asyncio.get_running_loop()
        tls = self._tls
        config = uvicorn.Config(
            app,
            http=protocol_factory(Connections(connection_limit()), QuietLog(loop.time)),  # type: ignore[arg-type]  # any callable will do
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, int(grace_s)),
            ssl_context_factory=None if tls is None else lambda *_: tls.http_context(),
        )
        self._server = _Server(config)
        self._task = loop.create_task(self._server.serve(sockets=[self._socket]))
        ready = asyncio.ensure_future(self._server.ready.wait())
        done, _ = await asyncio.wait({self._task, ready}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if ready not in done:
            raise PortInUse(f"The HTTP listener on port {self.port} did not start.")

    async def stop(self) -> None:
        """Stop accepting, let requests end, then cut them. Idempotent."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            task, self._task = self._task, None
            await asyncio.gather(task, return_exceptions=True)
        self.unbind()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None and sockets:
            await self._start_tls(sockets)
        else:
            await super().startup(sockets)
        self.ready.set()

    async def _start_tls(self, sockets: list[socket.socket]) -> None:
        """As uvicorn does it, but with a limit for handshakes: it leaves them the loop's minute, and a connection counts nowhere before its handshake."""
        config, loop = self.config, asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            made: Any = config.http_protocol_class
            connection: asyncio.Protocol = made(config=config, server_state=self.server_state, app_state=self.lifespan.state)
            return connection

        self.servers = [
            await loop.create_server(
                protocol, sock=sock, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=HANDSHAKE_S
            )
            for sock in sockets
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's matter (see kvcm.cli.serve)."""
        yield
