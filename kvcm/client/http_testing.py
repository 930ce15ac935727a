"""A scripted HTTP node for tests of the HTTP client: it answers what it is told to, keeps connections, and notes what it saw."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Answer = tuple[int, Any]
"""(HTTP status, JSON document or raw bytes)."""


def reply(code: str = "OK", message: str = "", **fields: Any) -> Answer:
    """An answered call, as the JSON API has it."""
    return 200, {"header": {"status": {"code": code, "message": message}, "request_id": "r_1"}, **fields}


class HttpNode:
    """`with HttpNode() as node:` listens on a free port of the loopback. `answer(api, body)` decides; it may block, and may return None to hang up."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.leader: HttpNode | None = None
        self.answer: Callable[[str, dict[str, Any]], Answer | None] = self.normal
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                node.connections += 1
                node._sockets.append(self.connection)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api = self.path.removeprefix("/api/")
                node.calls.append((api, body))
                node.headers.append({name.lower(): value for name, value in self.headers.items()})
                found = node.answer(api, body)
                if found is None:
                    self.close_connection = True
                    return
                status, document = found
                content = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                return None

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                return None

        self._sockets: list[socket.socket] = []
        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def seen(self, api: str) -> int:
        """How many requests of this API came."""
        return sum(name == api for name, _ in self.calls)

    def normal(self, api: str, body: dict[str, Any]) -> Answer:
        """As a manager: GetClusterInfo names `leader` (None: no leader), the rest is OK on the leader only."""
        if api == "getClusterInfo":
            if self.leader is None:
                return reply(self_node_id="n", leader_node_id="")
            endpoint = {"node_id": "n", "host": "127.0.0.1", "meta_rpc_port": 1, "meta_http_port": self.leader.port, "custom_info": ""}
            return reply(leader_endpoint=endpoint)
        return reply("SERVER_NOT_LEADER", "ask the leader") if self.leader is not self else reply(echo=body)

    def hang_up(self) -> None:
        """Close every connection, as a server does with those that are idle for long."""
        while self._sockets:
            sock = self._sockets.pop()
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self) -> HttpNode:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self.hang_up()
        self._server.server_close()
        self._thread.join(10)
