"""A Kubernetes API server as far as a manager's pod label needs it: get, list by one label, merge patch of pods. Over TLS, in a thread of its own."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kvcm.service.tls.testing import Authority

Json = dict[str, Any]
TOKEN = "the-token"


class PodServer:
    """`pods` by name; `requests`: method and path of each. `refuse`: answer this HTTP status. `before_patch`: called with the name before a patch lands.

    `folder` gets the token and the authority, as a service account's does.
    """

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        cert, key = authority.issue().write(folder, "api")
        (folder / "ca.crt").write_bytes(authority.cert)
        (folder / "token").write_text(f"{TOKEN}\n")
        self.token = TOKEN
        self.pods: dict[str, Json] = {}
        self.requests: list[str] = []
        self.refuse = 0
        self.before_patch: Callable[[str], None] = lambda name: None
        self._version = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> PodServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, name: str, owner: str = "set", labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> None:
        meta: Json = {"name": name, "labels": dict(labels or {"app": "kvcm"}), "annotations": dict(annotations or {})}
        if owner:
            meta["ownerReferences"] = [{"uid": "other", "controller": False}, {"uid": owner, "controller": True}]
        self.pods[name] = {"metadata": meta}
        self._touch(name)

    def labels(self, name: str) -> dict[str, str]:
        return dict(self.pods[name]["metadata"]["labels"])

    def annotations(self, name: str) -> dict[str, str]:
        return dict(self.pods[name]["metadata"]["annotations"])

    def change(self, name: str, change: Json) -> None:
        """A merge patch without any check."""
        for field in ("labels", "annotations"):
            for key, value in change["metadata"].get(field, {}).items():
                if value is None:
                    self.pods[name]["metadata"][field].pop(key, None)
                else:
                    self.pods[name]["metadata"][field][key] = value
        self._touch(name)

    def _touch(self, name: str) -> None:
        self._version += 1
        self.pods[name]["metadata"]["resourceVersion"] = str(self._version)

    def answer(self, method: str, path: str, token: str, body: Json | None) -> tuple[int, Json]:
        self.requests.append(f"{method} {path}")
        if self.refuse:
            return self.refuse, {"kind": "Status"}
        if token != f"Bearer {self.token}":
            return 401, {"kind": "Status"}
        parts = urlsplit(path)
        segments = parts.path.strip("/").split("/")
        if segments[:4] != ["api", "v1", "namespaces", "ns"] or segments[4] != "pods":
            return 404, {}
        if len(segments) == 5:
            key, _, value = parse_qs(parts.query)["labelSelector"][0].partition("=")
            return 200, {"items": [pod for pod in self.pods.values() if pod["metadata"]["labels"].get(key) == value]}
        name = segments[5]
        if name not in self.pods:
            return 404, {}
        if method == "PATCH":
            assert body is not None
            self.before_patch(name)
            if body["metadata"]["resourceVersion"] != self.pods[name]["metadata"]["resourceVersion"]:
                return 409, {"kind": "Status"}
            self.change(name, body)
        return 200, self.pods[name]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(None)

            def do_PATCH(self) -> None:
                assert self.headers["content-type"] == "application/merge-patch+json"
                self._reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def _reply(self, body: Json | None) -> None:
                status, document = owner.answer(self.command, self.path, self.headers.get("authorization", ""), body)
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                return

        return Handler
