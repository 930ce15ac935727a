"""A real Redis for tests, and a network between it and the code under test that can be slow or cut. Both on free ports, stopped for certain."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import hiredis

from kvcm.common.redis.connection import Arg, pack
from kvcm.common.testing_ports import free_port

_START_S = 20.0
_POLL_S = 0.01


def redis_binary() -> str | None:
    """`redis-server` of this machine (REDIS_SERVER_BIN or the path); None when it has none."""
    return os.environ.get("REDIS_SERVER_BIN") or shutil.which("redis-server")


class RedisServer:
    """`with RedisServer() as redis:`. `durable`: every change is on disk before it is answered, so that it survives `kill` and `start`."""

    def __init__(self, *options: str, durable: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvcm-redis-")
        self._options = ("--save", "", "--appendonly", "yes" if durable else "no", "--appendfsync", "always", *options)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader()
        self.port = free_port()

    @property
    def uri(self) -> str:
        return f"redis://127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Also after `kill`, on the same port and with the same files."""
        binary = redis_binary()
        assert binary is not None, "redis-server is not installed"
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder.name, *self._options]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        while True:
            try:
                if self.call("PING") in (b"PONG",) or self._answers_oddly():
                    return
            except OSError:
                self._disconnect()
            assert self._process.poll() is None, "redis-server ended at its start"
            assert time.monotonic() < deadline, "redis-server did not start in time"
            time.sleep(_POLL_S)

    def kill(self) -> None:
        assert self._process is not None
        self._disconnect()
        self._process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def call(self, *args: Arg) -> Any:
        """One command over a connection of the test's own; an error reply is returned, not raised."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=10)
            self._reader = hiredis.Reader()
        self._socket.sendall(pack(*args))
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("redis-server closed the connection")
            self._reader.feed(data)
        return reply

    def fields(self, key: str) -> dict[str, str]:
        """A hash as text."""
        flat = [item.decode("utf-8", "surrogateescape") for item in self.call("HGETALL", key)]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def keys(self, pattern: str = "*") -> list[str]:
        return sorted(key.decode() for key in self.call("KEYS", pattern))

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def __enter__(self) -> RedisServer:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self.resume()
            self.kill()
        self._disconnect()
        self._folder.cleanup()

    def _answers_oddly(self) -> bool:
        """A server that wants a password is up too."""
        return "NOAUTH" in str(self.call("PING"))

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Network:
    """A TCP proxy in front of a port. While `hold` is set, what clients send waits here; what waited is delivered by `release`, also for connections that
    the client has given up meanwhile. `hold_answers` does the same to replies."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._held: list[tuple[asyncio.StreamWriter, bytes]] = []
        self.arrived = asyncio.Event()
        """Set when something waits here."""
        self.port = 0

    async def __aenter__(self) -> Network:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    def hold(self) -> None:
        """From now on requests of the connections that are open wait. New connections are not affected."""
        self._open = asyncio.Event()
        self._holding = set(self._writers)
        self.arrived.clear()

    def hold_answers(self) -> None:
        self._answers.clear()

    def release_answers(self) -> None:
        self._answers.set()

    async def release(self) -> int:
        """Deliver what waits; returns how many bytes."""
        held, self._held = self._held, []
        self._holding = set()
        self._open.set()
        for writer, data in held:
            writer.write(data)
            await writer.drain()
        return sum(len(data) for _, data in held)

    def cut(self) -> None:
        """Close every connection."""
        for writer in self._writers:
            writer.transport.abort()

    _holding: set[asyncio.StreamWriter] = set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, their_writer}
        for job in (self._requests(reader, their_writer), self._replies(their_reader, writer)):
            task = asyncio.get_running_loop().create_task(job)
            self._pumps.add(task)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if writer in self._holding:
                    self._held.append((writer, data))
                    self.arrived.set()
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        # A client that gives up does not take back what it has sent.
        if writer not in self._holding:
            writer.transport.abort()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._answers.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()
