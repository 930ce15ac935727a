"""The guard in front of gRPC methods: metadata `authorization`, and refusals as gRPC statuses.

The request has been received by then, at most a few megabytes, and is not parsed.
"""

from __future__ import annotations

from typing import Any

import grpc

from kvcm.service.auth.guard import Guard, Refusal
from kvcm.service.grpc.unsent import begin

_ANSWERS = {
    Refusal.MISSING: (grpc.StatusCode.UNAUTHENTICATED, "this call needs the metadata 'authorization: Bearer <token>'"),
    Refusal.MALFORMED: (grpc.StatusCode.UNAUTHENTICATED, "the metadata 'authorization' is not of the form 'Bearer <token>'"),
    Refusal.UNKNOWN: (grpc.StatusCode.UNAUTHENTICATED, "the credentials are not known to this manager"),
    Refusal.FORBIDDEN: (grpc.StatusCode.PERMISSION_DENIED, "this account may read, but not change anything"),
    Refusal.BUSY: (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many wrong passwords; try again in a minute"),
    Refusal.UNAVAILABLE: (grpc.StatusCode.UNAVAILABLE, "accounts cannot be checked by this manager now; only the leader knows them"),
}


def guarded(method: Any, guard: Guard, rpc: str) -> Any:
    """`method` (unary, both ways) behind `guard`."""
    inner = method.unary_unary

    async def handle(request: Any, context: Any) -> Any:
        begin(context)  # a password takes its time, and the caller is not late meanwhile
        refusal = await guard.admit(_authorization(context), peer_address(context.peer()), rpc)
        if refusal is not None:
            await context.abort(*_ANSWERS[refusal])
        return await inner(request, context)

    return grpc.unary_unary_rpc_method_handler(handle, method.request_deserializer, method.response_serializer)


def peer_address(peer: str) -> str:
    """`ipv4:10.0.0.1:5000` is 10.0.0.1: every connection has a port of its own, an attacker has many."""
    return peer.partition(":")[2].rpartition(":")[0]


def _authorization(context: Any) -> bytes | None:
    found: bytes | None = None
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            if found is not None:
                return b""
            found = value.encode("latin-1", "replace") if isinstance(value, str) else bytes(value)
    return found
