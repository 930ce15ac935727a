"""One call to etcd, carried to an answer or to an honest error: deadline, rotation over endpoints, login, bounded retries.

What may be repeated: a call that changes nothing or whose repetition changes nothing more (`repeatable`); and any call that certainly was not begun (no
connection, etcd without a leader, a refused token). A write that was sent and not answered is OutcomeUnknown, and only the caller can find out.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from kvcm.common.errors import OutcomeUnknown
from kvcm.etcd.connections import Connection, Connections, NotConnected
from kvcm.etcd.errors import EtcdUnavailable, RequestTooLarge
from kvcm.etcd.login import Login, Metadata
from kvcm.etcd.status import Verdict, judge, refusal
from kvcm.etcd.uri import EtcdConfig

# etcd's own limit for a request is 1.5 MiB unless it was told otherwise; the rest is for what surrounds our bytes.
MAX_REQUEST_BYTES: Final = 1_500_000
# With several endpoints, a silent one gets this long before the next is asked. Longer than a slow one needs.
_ATTEMPT_S: Final = 2.5
_MAX_ATTEMPTS: Final = 12
_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0
_SUSPECT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Method:
    """`name`: what a message to people calls it."""

    path: str
    name: str
    reply: Any
    repeatable: bool = False


class Caller:
    """Shared by everything that speaks to one etcd."""

    def __init__(self, config: EtcdConfig) -> None:
        self.connections = Connections(config)
        self.login = Login(config)
        self.timeout_s = config.timeout_s

    async def call(self, method: Method, request: Any, *, repeatable: bool | None = None, timeout_s: float | None = None) -> Any:
        """The reply. Raises EtcdError (not carried out) or OutcomeUnknown."""
        if request.ByteSize() > MAX_REQUEST_BYTES:
            raise RequestTooLarge(f"{method.name} is larger than the {MAX_REQUEST_BYTES} bytes that etcd is given at once.")
        run = _Run(self, method, request, method.repeatable if repeatable is None else repeatable, timeout_s or self.timeout_s)
        return await run.result()

    async def close(self) -> None:
        await self.connections.close()


class _Run:
    def __init__(self, caller: Caller, method: Method, request: Any, repeatable: bool, timeout_s: float) -> None:
        self._caller = caller
        self._method = method
        self._request = request
        self._repeatable = repeatable
        self._timeout_s = timeout_s
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._logins = 0
        self._reason = "no answer in time"

    def _left(self) -> float:
        return self._deadline - asyncio.get_running_loop().time()

    async def result(self) -> Any:
        pause_s = _PAUSE_S
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            connection = await self._caller.connections.current()
            with connection:
                answered, reply = await self._attempt(connection)
            if answered:
                return reply
            if attempt % self._caller.connections.count == 0:
                # Every endpoint has had its turn.
                pause = min(pause_s * random.uniform(0.5, 1.5), self._left())
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)
                await asyncio.sleep(max(pause, 0))
            if self._left() <= 0:
                break
        raise EtcdUnavailable(f"etcd at {self._caller.connections.names} cannot be reached: {self._reason}.")

    async def _attempt(self, connection: Connection) -> tuple[bool, Any]:
        """(True, reply), or False when another attempt is right. Raises what ends the call."""
        several = self._caller.connections.count > 1
        limit_s = max(min(self._left(), _ATTEMPT_S if several else self._left()), 0.001)
        metadata: Metadata = ()
        sent = False
        began = asyncio.get_running_loop().time()
        try:
            await connection.ready(limit_s)
            metadata = await self._caller.login.metadata(connection, limit_s)
            sent = True
            # A write is sent once: it gets all the time there is.
            return True, await self._send(connection, metadata, limit_s if self._repeatable else max(self._left(), 0.001))
        except NotConnected:
            self._reason = "no connection"
            self._caller.connections.replace(connection)
            return False, None
        except asyncio.CancelledError:
            # The caller's own deadline. A connection that kept it waiting is not used again: it may be half-open.
            if asyncio.get_running_loop().time() - began >= _SUSPECT_S:
                self._caller.connections.replace(connection)
            raise
        except grpc.aio.UsageError:
            # Closed while we waited.
            raise EtcdUnavailable("The client of etcd has been closed.") from None
        except grpc.aio.AioRpcError as error:
            self._judged(connection, metadata, error, sent)
            return False, None

    async def _send(self, connection: Connection, metadata: Metadata, limit_s: float) -> Any:
        method = self._method
        call = connection.channel.unary_unary(method.path, request_serializer=_serialize, response_deserializer=method.reply.FromString)
        return await call(self._request, timeout=limit_s, metadata=metadata)

    def _judged(self, connection: Connection, metadata: Metadata, error: grpc.aio.AioRpcError, sent: bool) -> None:
        """Returns when another try is right, raises otherwise."""
        verdict = judge(error)
        if verdict is Verdict.LOG_IN and self._caller.login.possible and self._logins == 0:
            self._logins += 1
            self._caller.login.refused(metadata)
        elif verdict is Verdict.NOT_BEGUN:
            self._reason = "it has no leader or is overloaded"
            self._caller.connections.replace(connection)
        elif verdict is Verdict.UNKNOWN:
            self._unknown(connection, error, sent)
        else:
            raise refusal(error, self._method.name) from None

    def _unknown(self, connection: Connection, error: grpc.aio.AioRpcError, sent: bool) -> None:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and self._repeatable:
            raise RequestTooLarge(f"The answer to {self._method.name} is larger than one message may be.") from None
        self._reason = "no answer in time" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else "the connection broke"
        self._caller.connections.replace(connection)
        if sent and not self._repeatable:
            raise OutcomeUnknown(f"etcd did not answer {self._method.name} ({self._reason}); it may have been carried out.") from None


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
