"""One asyncio connection to one gRPC service of one manager, with the deadlines and errors that the admin and debug clients share.

Nothing is retried here: callers know better what may be repeated. `unanswered` says what a call without an answer means: NotReady for one that changes
nothing, OutcomeUnknown for one that may have been carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import grpc

from kvcm.client.admin_errors import AdminCallFailed, ManagerUnreachable, check_reply
from kvcm.client.grpc_channel import denied, open_channel
from kvcm.client.security import PLAIN, ClientSecurity
from kvcm.common.errors import ErrorCode, KvcmError, NotReady, OutcomeUnknown, Unsupported

DEFAULT_TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 64 * 1024 * 1024
_OPTIONS: list[tuple[str, Any]] = [
    # Proxies of the environment are for the world outside; a manager is a neighbour.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    # Whoever waits for a manager that starts finds it soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


class RpcChannel:
    """`address`: host:port. `stub_of`: makes the generated stub of the service for a channel. Use it as an async context manager, on one event loop."""

    def __init__(self, address: str, stub_of: Callable[[Any], Any], *, timeout_s: float, security: ClientSecurity = PLAIN, service: str = "admin") -> None:
        self._address = address
        self._stub_of = stub_of
        self._timeout = timeout_s
        self._security = security
        self._service = service
        self._channel: grpc.aio.Channel | None = None

    @property
    def address(self) -> str:
        return self._address

    async def reachable(self, timeout_s: float) -> bool:
        """Can a connection be made? Sends nothing."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected()
        except (TimeoutError, ManagerUnreachable):
            return False
        return True

    async def __aenter__(self) -> RpcChannel:
        self._channel = open_channel(grpc.aio, self._address, _OPTIONS, self._security)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def read(self, method: str, request: Any) -> Any:
        """The reply of a call that changes nothing. Raises KvcmError."""
        return await self.call(method, request, NotReady)

    async def write(self, method: str, request: Any, *, force: bool = False) -> Any:
        """The reply of a call that changes something. Raises KvcmError, OutcomeUnknown when no answer came."""
        return await self.call(method, request, OutcomeUnknown, force=force)

    async def call(self, method: str, request: Any, unanswered: type[KvcmError], *, force: bool = False, check: bool = True) -> Any:
        """`check` False: a reply with an error code is a result too."""
        metadata = self._security.metadata(force=force) or None
        try:
            async with asyncio.timeout(self._timeout):
                rpc: Callable[..., Awaitable[Any]] = getattr(self._stub_of(await self._connected()), method)
                # The deadline goes along, so that the manager stops too when we stop waiting.
                reply = await rpc(request, timeout=self._timeout, metadata=metadata)
        except TimeoutError:
            raise unanswered(self._silence(method, unanswered)) from None
        except grpc.aio.AioRpcError as error:
            raise self._transport_error(method, error, unanswered) from None
        if check:
            check_reply(method, reply)
        return reply

    async def _connected(self) -> grpc.aio.Channel:
        """Wait for a connection, but not for a manager that refuses: then nothing was sent and the caller may be told so."""
        channel = self._channel
        if channel is None:
            raise ManagerUnreachable("the client is closed")
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                raise ManagerUnreachable(self._unreachable())
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
        return channel

    def _unreachable(self) -> str:
        over = "over TLS " if self._security.tls is not None else ""
        names = ", do its certificates fit" if over else ", does it speak TLS"
        return f"no manager can be reached {over}at {self._address}; is it running{names}, and is this its {self._service} gRPC port?"

    def _silence(self, method: str, unanswered: type[KvcmError]) -> str:
        lost = "; it may have been carried out" if unanswered is OutcomeUnknown else ""
        return f"the manager at {self._address} did not answer {method} within {self._timeout:g} s{lost}"

    def _transport_error(self, method: str, error: grpc.aio.AioRpcError, unanswered: type[KvcmError]) -> KvcmError:
        code = error.code()
        refusal = denied(code, method, self._address)
        if refusal is not None:
            return refusal
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported(f"the server at {self._address} does not know {method}; is this the {self._service} gRPC port of a manager?")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return unanswered(self._silence(method, unanswered))
        # CANCELLED: the manager is closing; it sends that to calls that it has not begun and to those that it cuts off.
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            lost = "; it may have been carried out" if unanswered is OutcomeUnknown else ""
            return unanswered(f"the connection to the manager at {self._address} broke during {method}{lost}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            text = f"the manager at {self._address} did not take {method}: the request is too large for gRPC, or there were too many wrong passwords"
            return AdminCallFailed(method, int(ErrorCode.UNKNOWN_ERROR), text)
        return AdminCallFailed(method, int(ErrorCode.UNKNOWN_ERROR), f"the call {method} failed in transport ({code.name})")
