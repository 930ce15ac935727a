"""A small TCP proxy for tests, on the test's own event loop: it delays, goes silent, or drops what passes through it."""

from __future__ import annotations

import asyncio
from types import TracebackType

_LOCAL = "127.0.0.1"


class TcpProxy:
    """`async with TcpProxy(port) as proxy:` forwards `proxy.address` to that port of this machine.

    `delay_s` holds back each answer of the server; `silent` swallows everything both ways while connections stay open (half-open);
    `drop` cuts all connections; `refusing` closes new ones at once.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0
        self.silent = False
        self.refusing = False
        self.connections = 0

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"{_LOCAL}:{self._server.sockets[0].getsockname()[1]}"

    def drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accept, _LOCAL, 0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.refusing:
                return
            far_reader, far_writer = await asyncio.open_connection(_LOCAL, self._target)
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._forward(reader, far_writer, False))
                    group.create_task(self._forward(far_reader, writer, True))
            finally:
                far_writer.transport.abort()
                self._writers.discard(far_writer)
        except* (OSError, asyncio.CancelledError, _Ended):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delayed: bool) -> None:
        while data := await reader.read(65_536):
            if delayed and self.delay_s:
                await asyncio.sleep(self.delay_s)
            if not self.silent:
                writer.write(data)
                await writer.drain()
        raise _Ended


class _Ended(Exception):
    """One side has closed; so does the other."""
