"""A watch that lives longer than its connection: it resumes one revision behind the last change it has handed out.

Dangers:
- silence. A stream over a dead connection, or to a member that is cut off, is as quiet as a key that nobody changes. After `silence_s` without a word etcd is
  asked for its progress; when that is not answered either, the next endpoint is tried. Members without a leader end their streams by themselves.
- progress that lies. In etcd 3.4 an answer about progress may overtake changes, so it counts as a sign of life and never moves the position.
- compaction. History that is gone cannot be resumed: the caller reads everything again and watches from that read's revision + 1. It is never skipped silently.
- a large transaction comes in pieces; the position moves only behind the last one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from kvcm.etcd import etcd_v3_pb2 as pb
from kvcm.etcd import wire
from kvcm.etcd.calls import Caller
from kvcm.etcd.connections import Connection, NotConnected
from kvcm.etcd.errors import AccessRefused, Compacted, EtcdRefused, EtcdUnavailable
from kvcm.etcd.login import Metadata
from kvcm.etcd.model import Event, WatchBatch
from kvcm.etcd.status import Verdict, judge, refusal

DEFAULT_SILENCE_S: Final = 5.0
_ACCESS: Final = ("permission denied", "invalid auth token", "user name is empty")


class _Broken(Exception):
    """The stream is of no use any more."""


class Watch:
    """One reader at a time. Not started before the first `next`."""

    def __init__(self, caller: Caller, key: bytes, range_end: bytes, start_revision: int, silence_s: float) -> None:
        self._caller = caller
        self._key = key
        self._range_end = range_end
        self._position = start_revision
        self._silence_s = silence_s
        self._connection: Connection | None = None
        self._call: Any = None
        self._metadata: Metadata = ()
        self._reading: asyncio.Task[Any] | None = None
        self._pieces: list[Event] = []
        self._denied = 0

    @property
    def position(self) -> int:
        """The first revision that has not been handed out."""
        return self._position

    async def next(self) -> WatchBatch:
        """The next changes, or a batch without any as a sign of life: at the latest after twice `silence_s`, or an error.

        Raises Compacted and AccessRefused, which end the watch, and EtcdUnavailable, after which the next call tries again at the same position.
        A call that is cancelled loses nothing.
        """
        if self._call is None:
            await self._open()
        try:
            while True:
                batch = await self._response()
                if batch is not None:
                    return batch
        except (_Broken, grpc.aio.UsageError):
            self._drop(replace=True)
            raise EtcdUnavailable("The watch on etcd was interrupted; it goes on where it was.") from None
        except grpc.aio.AioRpcError as error:
            self._ended(error)
            raise EtcdUnavailable("The watch on etcd was interrupted; it goes on where it was.") from None

    async def close(self) -> None:
        """Idempotent."""
        self._drop(replace=False)

    async def _response(self) -> WatchBatch | None:
        response = await self._read()
        if response is None:
            # Silent: ask, and then it has to answer.
            await self._ask()
            response = await self._read()
            if response is None:
                raise _Broken
        return self._understand(response)

    async def _read(self) -> Any:
        """The next response, None after `silence_s`. The read goes on behind: to cancel it would end the stream."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait({self._reading}, timeout=self._silence_s)
        if not done:
            return None
        reading, self._reading = self._reading, None
        response = reading.result()
        if response is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
            raise _Broken
        return response

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(self._silence_s):
                await self._call.write(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
        except TimeoutError:
            raise _Broken from None

    def _understand(self, response: Any) -> WatchBatch | None:
        if response.canceled:
            self._cancelled(response)
        self._pieces += [wire.event(item) for item in response.events]
        if response.fragment:
            return None
        events, self._pieces = tuple(self._pieces), []
        if events:
            self._position = max(self._position, max(event.kv.mod_revision for event in events) + 1)
        self._denied = 0
        return WatchBatch(response.header.revision, events)

    def _cancelled(self, response: Any) -> None:
        """etcd has ended the watch; the stream is of no use without it."""
        if response.compact_revision:
            self._drop(replace=False)
            raise Compacted("etcd has compacted changes that the watch has not seen yet.", response.compact_revision)
        if any(text in response.cancel_reason for text in _ACCESS):
            self._refused_access(AccessRefused("etcd does not allow a watch to this user: grant it a role with read on the prefix."))
        raise _Broken

    def _refused_access(self, error: EtcdRefused) -> None:
        """Raises `error` unless a new login may help: then it returns once."""
        self._caller.login.refused(self._metadata)
        self._denied += 1
        if not self._caller.login.possible or self._denied > 1:
            self._drop(replace=False)
            raise error from None

    def _ended(self, error: grpc.aio.AioRpcError) -> None:
        verdict = judge(error)
        if verdict is Verdict.REFUSED:
            self._drop(replace=False)
            raise refusal(error, wire.WATCH.name) from None
        if verdict is Verdict.LOG_IN:
            access = refusal(error, wire.WATCH.name)
            self._refused_access(access if isinstance(access, EtcdRefused) else EtcdRefused(access.message))
        self._drop(replace=True)

    async def _open(self) -> None:
        """Raises EtcdError."""
        connection = await self._caller.connections.current()
        limit_s = self._caller.timeout_s
        self._connection = connection.__enter__()
        try:
            await connection.ready(limit_s)
            self._metadata = await self._caller.login.metadata(connection, limit_s)
            stream: Any = connection.channel.stream_stream(
                wire.WATCH.path,
                request_serializer=pb.WatchRequest.SerializeToString,
                response_deserializer=pb.WatchResponse.FromString,
            )
            self._call = stream(metadata=self._metadata)
            create = pb.WatchCreateRequest(key=self._key, range_end=self._range_end, start_revision=self._position, progress_notify=True, fragment=True)
            async with asyncio.timeout(limit_s):
                await self._call.write(pb.WatchRequest(create_request=create))
        except (NotConnected, TimeoutError, grpc.aio.UsageError, asyncio.InvalidStateError):
            self._drop(replace=True)
            raise EtcdUnavailable(f"etcd at {self._caller.connections.names} cannot be watched: no connection.") from None
        except grpc.aio.AioRpcError as error:
            self._ended(error)
            raise EtcdUnavailable(f"etcd at {self._caller.connections.names} cannot be watched: the connection broke.") from None
        except BaseException:
            self._drop(replace=False)
            raise

    def _drop(self, replace: bool) -> None:
        connection, self._connection = self._connection, None
        call, self._call = self._call, None
        reading, self._reading = self._reading, None
        self._pieces = []
        if call is not None:
            call.cancel()
        if reading is not None:
            reading.add_done_callback(_retrieved)
        if connection is not None:
            if replace:
                self._caller.connections.replace(connection)
            connection.__exit__(None, None, None)


def _retrieved(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
