"""What every gRPC client of ours does with a channel: open it as the security asks, and tell a refused caller from other failures."""

from __future__ import annotations

from typing import Any

import grpc

from kvcm.client.errors import AccessDenied
from kvcm.client.security import ClientSecurity


def open_channel(api: Any, address: str, options: list[tuple[str, Any]], security: ClientSecurity) -> Any:
    """A channel of `api`, which is `grpc` or `grpc.aio`. Raises InvalidClientConfig for TLS files that cannot be used."""
    credentials = security.grpc_credentials()
    options = [*options, *security.grpc_options()]
    return api.insecure_channel(address, options) if credentials is None else api.secure_channel(address, credentials, options)


def denied(code: grpc.StatusCode, method: str, address: str) -> AccessDenied | None:
    """The error for a status that refuses the caller; None for any other."""
    if code is grpc.StatusCode.UNAUTHENTICATED:
        wants = "wants a token that it accepts"
    elif code is grpc.StatusCode.PERMISSION_DENIED:
        wants = "does not allow this to the identity that was sent"
    else:
        return None
    return AccessDenied(f"{method}: the manager at {address} {wants}", grpc_status=code.name, may_have_run=False)


# What gRPC says when no connection could be made; a connection that breaks later has other words, and with those nothing is sure.
_NEVER_SENT = ("failed to connect to all addresses", "connections to all backends failing", "dns resolution failed", "name resolution failure")


def never_sent(error: grpc.RpcError) -> bool:
    """Is it certain that the call never left this process? Unsure counts as no."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    details = (error.details() or "").lower()
    return details.startswith(_NEVER_SENT)
