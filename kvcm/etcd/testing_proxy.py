"""A small TCP proxy for tests, on the test's own event loop: it delays, goes silent, or drops what passes through it."""

from __future__ import annotations

import asyncio
from types import TracebackType

_LOCAL = "127.0.0.1"


class TcpProxy:
    """`async with TcpProxy(port) as proxy:` forwards `proxy.address` to that port of this machine.

    `delay_s` holds back each answer of the server; `silent` swallows everything both ways while connections stay open (half-open);
    `drop` cuts all connections; `refusing` closes new ones at once; `hold` keeps back what clients send on the connections there are, until `release`, also
    when the client has long hung up.
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
        self._gate = _open_gate()
        self._held: list[asyncio.Event] = []
        self.delivered = asyncio.Event()
        """Something that was held has reached the server."""

    def hold(self) -> None:
        self._gate.clear()
        self._held.append(self._gate)
        self._gate = _open_gate()

    def release(self) -> None:
        for gate in self._held:
            gate.set()

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
            line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)
            far_reader, far_writer = await asyncio.open_connection(_LOCAL, self._target)
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._up(reader, far_writer, self._gate))
                    group.create_task(self._down(far_reader, line))
                    group.create_task(self._deliver(line, writer))
            finally:
                far_writer.transport.abort()
                self._writers.discard(far_writer)
        except* (OSError, asyncio.CancelledError, _Ended):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        """From the client to the server; what was held is delivered even if the client has hung up."""
        while data := await reader.read(65_536):
            held = not gate.is_set()
            await gate.wait()
            if not self.silent:
                writer.write(data)
                await writer.drain()
            if held:
                # The server takes it up before it hears that the client has given up.
                await asyncio.sleep(0.1)
                self.delivered.set()
        await gate.wait()
        raise _Ended

    async def _down(self, reader: asyncio.StreamReader, line: asyncio.Queue[tuple[float, bytes]]) -> None:
        now = asyncio.get_running_loop().time
        while data := await reader.read(65_536):
            await line.put((now() + self.delay_s, data))
        await line.put((now() + self.delay_s, b""))

    async def _deliver(self, line: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """Each piece after its delay; pieces do not wait for one another's delays."""
        while True:
            due, data = await line.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            if not data:
                raise _Ended
            if self.silent:
                continue
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                pass  # the client has hung up; the server may still be getting what was held


class _Ended(Exception):
    """One side has closed; so does the other."""


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
