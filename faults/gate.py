"""A way to a store that can be closed for one process: what that process sends waits here, and arrives when the test says so, however late.

Linux only: whose connection it is, /proc says.

Danger: the held bytes must reach the store even after their sender has hung up, because that is the case that matters.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from faults.own_loop import LIMIT_S, OwnLoop
from kvcm.common.testing_ports import free_port

_LOCAL = "127.0.0.1"
_CHUNK = 1 << 16
_WHOLE_S = 0.1
"""For the rest of an answer."""


class Gate(OwnLoop):
    """`with Gate(redis.port) as gate:` forwards `gate.port`. All methods may be called from any thread."""

    def __init__(self, target: int) -> None:
        super().__init__("gate")
        self.port = free_port()
        self._target = target
        self._server: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._shut: set[int] = set()
        self._arrived = asyncio.Event()

    def hold(self, pid: int) -> None:
        """From now on what this process sends waits, on connections that are open and on new ones."""
        self._run(self._hold(pid))

    def wait_held(self, timeout_s: float = LIMIT_S) -> None:
        """Until something waits. Raises TimeoutError."""
        self._run(asyncio.wait_for(self._arrived.wait(), timeout_s))

    def release(self, pid: int) -> bytes:
        """Deliver what waits and let everything through again; returns what the store has answered to it after a moment."""
        return self._run(self._release(pid))

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, _LOCAL, self.port)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(self, pid: int) -> None:
        self._arrived.clear()
        self._shut.add(pid)
        for pipe in self._pipes:
            pipe.held = pipe.held or pipe.pid == pid

    async def _release(self, pid: int) -> bytes:
        self._shut.discard(pid)
        pipes = [pipe for pipe in self._pipes if pipe.pid == pid and pipe.waiting]
        for pipe in pipes:
            pipe.answers.clear()
        for pipe in self._pipes:
            if pipe.pid == pid:
                await pipe.let_go()
        for pipe in pipes:
            await pipe.answered.wait()
        await asyncio.sleep(_WHOLE_S)
        return b"".join(bytes(pipe.answers) for pipe in pipes)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid = await asyncio.to_thread(_owner, writer.get_extra_info("peername")[1], self.port)
        pipe = _Pipe(pid, self._arrived)
        pipe.held = pid in self._shut
        self._pipes.add(pipe)
        try:
            await pipe.run(reader, writer, self._target)
        finally:
            self._pipes.discard(pipe)


class _Pipe:
    """One connection and the one behind it."""

    def __init__(self, pid: int, arrived: asyncio.Event) -> None:
        self.pid = pid
        self.held = False
        self.waiting = bytearray()
        self.answers = bytearray()
        self.answered = asyncio.Event()
        self._arrived = arrived
        self._far: asyncio.StreamWriter | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        try:
            far_reader, self._far = await asyncio.open_connection(_LOCAL, target)
        except OSError:
            writer.transport.abort()
            return
        replies = asyncio.get_running_loop().create_task(self._replies(far_reader, writer))
        try:
            await self._requests(reader, self._far)
            await self._empty.wait()
            if self.answers or self.answered.is_set():
                await asyncio.wait({replies}, timeout=0.2)
        finally:
            replies.cancel()
            self.answered.set()
            self._far.transport.abort()
            writer.transport.abort()

    async def let_go(self) -> None:
        """Deliver what waits."""
        data, self.waiting = bytes(self.waiting), bytearray()
        self.held = False
        if data and self._far is not None:
            self.answered.clear()
            self._far.write(data)
            try:
                await self._far.drain()
                async with asyncio.timeout(2.0):
                    await self.answered.wait()
            except (OSError, TimeoutError):
                self.answered.set()
        self._empty.set()

    async def _requests(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if self.held:
                    self.waiting += data
                    self._empty.clear()
                    self._arrived.set()
                    continue
                far.write(data)
                await far.drain()
        except OSError:
            pass

    async def _replies(self, far: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await far.read(_CHUNK):
                self.answers = (self.answers + data)[-4096:]
                self.answered.set()
                try:
                    writer.write(data)
                    await writer.drain()
                except OSError:
                    pass  # its client has hung up; what the store answers is of interest here
        except OSError:
            pass
        if self._empty.is_set():
            writer.transport.abort()


def _owner(client_port: int, server_port: int) -> int:
    """The process that holds this end of a local connection; 0 when none is found."""
    inode = ""
    lines = [line for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]]
    for fields in map(str.split, lines):
        if int(fields[1].rpartition(":")[2], 16) == client_port and int(fields[2].rpartition(":")[2], 16) == server_port:
            inode = fields[9]
    for folder in Path("/proc").iterdir() if inode not in ("", "0") else ():
        if folder.name.isdigit():
            try:
                if any(os.readlink(handle) == f"socket:[{inode}]" for handle in (folder / "fd").iterdir()):
                    return int(folder.name)
            except OSError:
                continue
    return 0
