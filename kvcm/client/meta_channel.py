"""gRPC facts shared by both metadata clients: channel options, retry policy, and what a failed call means."""

from __future__ import annotations

import json
from typing import Any

import grpc

from kvcm.client.config import MetaChannelConfig
from kvcm.client.errors import RpcFailed
from kvcm.client.grpc_channel import denied, never_sent
from kvcm.protocol.meta_service_pb2_grpc import MetaServiceStub

_SERVICE = "kv_cache_manager.proto.meta.MetaService"
# gRPC itself repeats these. RegisterInstance and GetClusterInfo go to the next node instead, mutations never repeat.
_IDEMPOTENT = (
    "GetInstanceInfo",
    "GetCacheLocation",
    "GetCacheLocationLen",
    "GetCacheLocationsByBackend",
    "GetCacheMeta",
    "GetCacheMetaDetail",
    "GetHostCacheState",
)
_MAX_MESSAGE_BYTES = 64 << 20
# These statuses say that the server did not run the call.
_NEVER_RAN = (grpc.StatusCode.UNIMPLEMENTED,)


def channel_options(config: MetaChannelConfig) -> list[tuple[str, Any]]:
    """Keepalive while calls run, quick reconnection, no proxy for a service of the cluster, and the retry policy of section C4."""
    options: list[tuple[str, Any]] = [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if config.retry_time > 1:
        options += [("grpc.enable_retries", 1), ("grpc.service_config", retry_policy(config))]
    return options


def retry_policy(config: MetaChannelConfig) -> str:
    """gRPC service configuration text: reads are repeated on UNAVAILABLE, at most `retry_time` attempts (gRPC itself stops at 5)."""
    first = config.call_timeout_s / (config.retry_time + 1)
    policy = {
        "maxAttempts": config.retry_time,
        "initialBackoff": f"{first:.6f}s",
        "maxBackoff": f"{2 * first:.6f}s",
        "backoffMultiplier": 1.2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    names = [{"service": _SERVICE, "method": method} for method in _IDEMPOTENT]
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": policy}]})


def stub_of(channel: Any) -> Any:
    """Callables by RPC name for a blocking or an asyncio channel."""
    make: Any = MetaServiceStub
    return make(channel)


def failure(error: grpc.RpcError, method: str, address: str) -> RpcFailed:
    """The client's error for a call that ended without a reply."""
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    refusal = denied(code, method, address)
    if refusal is not None:
        return refusal
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        why = "did not answer in time"
    elif code is grpc.StatusCode.UNAVAILABLE:
        why = "cannot be reached"
    else:
        why = f"ended the call with status {code.name}"
    never_ran = code in _NEVER_RAN or never_sent(error)
    return RpcFailed(f"{method}: the manager at {address} {why}", grpc_status=code.name, may_have_run=not never_ran)
