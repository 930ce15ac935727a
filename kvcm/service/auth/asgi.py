"""The guard in front of an HTTP application: refused calls never reach a route, and their bodies are not read (wire contract 3.6)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvcm.service.auth.guard import Guard, Refusal

REALM = "kvcm"
_SMALL_BODY_BYTES = 64 << 10
_UNAUTHORIZED = b'{"error":"unauthorized"}'
_ANSWERS = {
    Refusal.MISSING: (401, _UNAUTHORIZED, f'Bearer realm="{REALM}"'),
    Refusal.MALFORMED: (401, _UNAUTHORIZED, f'Bearer realm="{REALM}", error="invalid_request"'),
    Refusal.UNKNOWN: (401, _UNAUTHORIZED, f'Bearer realm="{REALM}", error="invalid_token"'),
    Refusal.FORBIDDEN: (403, b'{"error":"forbidden"}', ""),
    Refusal.BUSY: (429, b'{"error":"too many attempts"}', ""),
    Refusal.UNAVAILABLE: (503, b'{"error":"accounts cannot be checked now"}', ""),
}


class GuardedApp:
    """`open_paths` are answered without asking: probes, which tell nothing but well or not."""

    def __init__(self, app: Any, guard: Guard, open_paths: Collection[str] = ()) -> None:
        self._app = app
        self._guard = guard
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path not in self._open:
            client = scope.get("client")
            refusal = await self._guard.admit(_header(scope, b"authorization"), client[0] if client else "", rpc_of(path))
            if refusal is not None:
                await _refuse(scope, send, refusal, self._guard.takes_passwords)
                return
        await self._app(scope, receive, send)


def rpc_of(path: str) -> str:
    """`/api/getCacheMeta` is GetCacheMeta; the pages that are no RPC have the name ""."""
    if path in ("/metrics", "/api/healthy"):
        return ""
    name = path.removeprefix("/api/")
    return f"{name[:1].upper()}{name[1:]}" if name != path else path


def _header(scope: Any, wanted: bytes) -> bytes | None:
    found: bytes | None = None
    for name, value in scope["headers"]:
        if name == wanted:
            if found is not None:
                return b""  # two of them are as good as a malformed one
            found = value
    return found


async def _refuse(scope: Any, send: Any, refusal: Refusal, takes_passwords: bool) -> None:
    status, body, challenge = _ANSWERS[refusal]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if challenge:
        headers.append((b"www-authenticate", challenge.encode()))
        if takes_passwords:
            headers.append((b"www-authenticate", f'Basic realm="{REALM}", charset="UTF-8"'.encode()))
    size = _header(scope, b"content-length") or b"0"
    if _header(scope, b"transfer-encoding") is not None or not size.isdigit() or len(size) > 9 or int(size) > _SMALL_BODY_BYTES:
        # Nobody reads a body that long only to keep the connection.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
