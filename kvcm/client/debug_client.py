"""Typed calls to a manager's DebugService: make one of its calls fail on purpose, to see what clients make of it.

The service exists only on managers that run with `kvcm.service.enable_debug_service=true`, on the port of the admin gRPC service; elsewhere every call
raises Unsupported. Never switch it on in production.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from kvcm.client.rpc_channel import DEFAULT_TIMEOUT_S, RpcChannel
from kvcm.client.security import PLAIN, ClientSecurity
from kvcm.protocol import debug_service_pb2 as pb
from kvcm.protocol import debug_service_pb2_grpc as pb_grpc


class DebugClient:
    """One connection to one manager. Use it as an async context manager, on one event loop."""

    def __init__(self, address: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, security: ClientSecurity = PLAIN) -> None:
        make: Any = pb_grpc.DebugServiceStub
        self._rpc = RpcChannel(address, make, timeout_s=timeout_s, security=security, service="admin (with the debug service on)")

    async def __aenter__(self) -> DebugClient:
        await self._rpc.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._rpc.close()

    async def inject_fault(self, api_name: str, *, once_at: int | None = None) -> None:
        """Make `api_name` (such as `GetCacheLocation`) answer INTERNAL_ERROR: every time, or only the call whose trace id ends in `_<once_at>`."""
        strategy = pb.ALWAYS if once_at is None else pb.ONCE
        request = pb.InjectFaultRequest(api_name=api_name, fault_type=pb.FT_INTERNAL_ERROR, fault_trigger_strategy=strategy, trigger_at_call=once_at or 0)
        await self._rpc.write("InjectFault", request)

    async def remove_fault(self, api_name: str) -> None:
        """Raises InvalidArgument when no fault is injected there."""
        await self._rpc.write("RemoveFault", pb.RemoveFaultRequest(api_name=api_name))

    async def clear_faults(self) -> None:
        await self._rpc.write("ClearFaults", pb.ClearFaultsRequest())
