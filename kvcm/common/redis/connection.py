"""One pipelined connection to Redis: bytes out, replies in, in order.

Dangers:
- a command whose reply does not come: each send has a deadline, and when one passes the whole connection is cut. What was under way has an unknown outcome
  then, and the next connection begins by making sure that none of it lands any more (see `fenced`).
- the wrong server: a replica, or a Redis Cluster where a single Redis is wanted, is recognised when the connection is made, not by the first write.
- secrets: the password is in no message and no log line.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from kvcm.common.errors import StorageError, Unsupported
from kvcm.common.redis.login import credentials
from kvcm.common.redis.target import Address, RedisTarget

try:
    import hiredis
except ImportError:  # pragma: no cover  # the extra is not installed
    hiredis = None  # type: ignore[assignment]

NOT_INSTALLED = "the Python package hiredis is not installed: pip install 'kvcm[redis]'"
Arg = bytes | str | int
_NO_REPLY = object()
LOST = object()
"""What stands for a reply that will not come: whether the command was carried out is unknown."""
_MAX_SENTINEL_S = 1.0


class ConnectionLost(StorageError):
    """The connection ended before the reply came: whether the command was carried out is unknown."""


class RedisRefused(StorageError):
    """Redis answered with an error. `word` is its first word, e.g. READONLY."""

    def __init__(self, message: str, word: str) -> None:
        super().__init__(message)
        self.word = word


def pack(*args: Arg) -> bytes:
    """One command in Redis' protocol."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        raw = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


def error_word(reply: object) -> str:
    """The first word of an error reply; empty for any other reply."""
    return str(reply).partition(" ")[0] if isinstance(reply, hiredis.ReplyError) else ""


def refused(reply: object, what: str) -> RedisRefused:
    """An error reply as our own. Redis' sentence names keys and commands, never values or passwords, but it may be long."""
    return RedisRefused(f"Redis refused {what}: {str(reply)[:200]}", error_word(reply))


def glob_escaped(text: str) -> str:
    """The text as a literal part of a SCAN pattern."""
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in text)


class _Call:
    """Who waits: a future for several replies, or somebody who is told the only one."""

    __slots__ = ("count", "deadline", "future", "replies", "told")

    def __init__(self, future: asyncio.Future[list[Any]] | None, told: Callable[[Any], None] | None, count: int, deadline: float) -> None:
        self.future = future
        self.told = told
        self.count = count
        self.replies: list[Any] = []
        self.deadline = deadline


def is_installed() -> bool:
    """Is the parser here, which comes with the extra `kvcm[redis]`?"""
    return hiredis is not None


class RedisConnection(asyncio.Protocol):
    """Made by `connect`. Belongs to one loop."""

    def __init__(self, shown: str) -> None:
        if hiredis is None:
            raise Unsupported(f"a Redis is to be asked, and {NOT_INSTALLED}")
        self._shown = shown
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NO_REPLY)
        self._calls: deque[_Call] = deque()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False

    def send(self, data: bytes, replies: int, timeout_s: float) -> asyncio.Future[list[Any]]:
        """Send packed commands; the future gets their replies (errors among them as hiredis.ReplyError) or ConnectionLost."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if not self.is_open or self._transport is None:
            future.set_exception(ConnectionLost(f"the connection to Redis at {self._shown} is closed"))
            return future
        self._calls.append(_Call(future, None, replies, self._loop.time() + timeout_s))
        if self._timer is None:
            self._timer = self._loop.call_later(timeout_s, self._look)
        self._transport.write(data)
        return future

    def call(self, data: bytes, timeout_s: float, told: Callable[[Any], None]) -> bool:
        """Send one packed command; `told` gets its reply, or LOST, from the loop, without the detour over a future, and must not raise. False: the connection
        is closed, and nothing was sent or will be told."""
        if not self.is_open or self._transport is None:
            return False
        self._calls.append(_Call(None, told, 1, self._loop.time() + timeout_s))
        if self._timer is None:
            self._timer = self._loop.call_later(timeout_s, self._look)
        self._transport.write(data)
        return True

    def close(self, reason: str = "was closed") -> None:
        """Cut it at once; what is under way fails with ConnectionLost. Idempotent."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        calls, self._calls = self._calls, deque()
        for call in calls:
            if call.told is not None:
                call.told(LOST)
            elif call.future is not None and not call.future.done():
                call.future.set_exception(ConnectionLost(f"the connection to Redis at {self._shown} {reason}"))
                call.future.exception()  # retrieved: the caller may have gone away

    def _look(self) -> None:
        self._timer = None
        if not self._calls:
            return
        left = self._calls[0].deadline - self._loop.time()
        if left <= 0:
            self.close("gave no answer in time and was cut")
        else:
            self._timer = self._loop.call_later(left, self._look)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("was lost")

    def data_received(self, data: bytes) -> None:
        reader, calls = self._reader, self._calls
        try:
            reader.feed(data)
            gets = reader.gets
            while (reply := gets()) is not _NO_REPLY:
                if not calls:
                    raise hiredis.ProtocolError("a reply that nobody asked for")
                call = calls[0]
                if call.told is not None:
                    calls.popleft()
                    call.told(reply)
                    continue
                replies, count = call.replies, call.count
                replies.append(reply)
                while len(replies) < count:
                    if (reply := gets()) is _NO_REPLY:
                        return
                    replies.append(reply)
                calls.popleft()
                if call.future is not None and not call.future.done():
                    call.future.set_result(replies)
        except hiredis.ProtocolError:
            self.close("did not speak Redis' protocol")


async def connect(target: RedisTarget, name: str) -> RedisConnection:
    """A connection that is logged in, in the right database and known to be a writable Redis. `name`: shown by CLIENT LIST.

    Raises StorageError or Unsupported within the target's time-out.
    """
    return await _connected(target, None, name)


async def connect_node(target: RedisTarget, address: Address, name: str) -> RedisConnection:
    """The same to one node of a Redis Cluster, master or not: a replica sends whoever asks it for a key to its master."""
    return await _connected(replace(target, addresses=(address,)), address, name)


async def _connected(target: RedisTarget, node: Address | None, name: str) -> RedisConnection:
    await asyncio.sleep(0)  # callers may run their first step in a task that is not theirs (kvcm.common.uncut), and a time-out would cancel that one
    try:
        async with asyncio.timeout(target.timeout_s):
            address = node or (await _master_of(target) if target.master else target.addresses[0])
            return await _connect(target, address, name)
    except TimeoutError:
        raise StorageError(f"Redis at {target.shown} does not answer within {target.timeout_ms} ms") from None
    except (OSError, ssl.SSLError) as error:
        raise StorageError(f"Redis at {target.shown} cannot be reached: {_why(error)}") from error


async def _connect(target: RedisTarget, address: Address, name: str) -> RedisConnection:
    connection = await _dial(target, address)
    try:
        await _log_in(connection, target, name)
    except BaseException:
        connection.close()
        raise
    return connection


async def _dial(target: RedisTarget, address: Address) -> RedisConnection:
    host, port = address
    loop = asyncio.get_running_loop()
    context = await asyncio.to_thread(_tls, target) if target.tls else None
    _, connection = await loop.create_connection(lambda: RedisConnection(f"{host}:{port}"), host, port, ssl=context)
    return connection


async def _log_in(connection: RedisConnection, target: RedisTarget, name: str) -> None:
    commands: list[bytes] = []
    user, password = await credentials(target)
    if password:
        commands.append(pack("AUTH", user, password) if user else pack("AUTH", password))
    commands += (pack("SELECT", target.db), pack("CLIENT", "SETNAME", name), pack("ROLE"), pack("CLUSTER", "INFO"))
    replies = await connection.send(b"".join(commands), len(commands), target.timeout_s)
    *login, selected, _, role, cluster = replies
    if error := next((reply for reply in (*login, selected) if error_word(reply)), None):
        raise RedisRefused(f"Redis at {target.shown} refused the login or the database: {error_word(error)}", error_word(error))
    if isinstance(cluster, bytes) and not target.cluster:
        raise Unsupported(
            f"Redis at {target.shown} is a Redis Cluster: only block metadata can be kept there, by redis-cluster://; everything else needs etcd, "
            "a single Redis or sentinels (redis+sentinel://)"
        )
    if target.cluster and not isinstance(cluster, bytes):
        raise Unsupported(f"Redis at {target.shown} is no Redis Cluster, or this user may not ask it: give it as redis://, or allow the user CLUSTER")
    # A user without the right to ask ROLE gets an error here, and a replica then refuses the first write.
    if not target.cluster and isinstance(role, list) and role and role[0] != b"master":
        raise StorageError(f"Redis at {target.shown} is a {bytes(role[0]).decode('ascii', 'replace')}, not a master")


async def _master_of(target: RedisTarget) -> Address:
    """Ask the sentinels in turn. They have no password of their own here: `auth` is the master's."""
    for address in target.addresses:
        try:
            async with asyncio.timeout(min(_MAX_SENTINEL_S, target.timeout_s)):
                connection = await _dial(target, address)
                try:
                    (reply,) = await connection.send(pack("SENTINEL", "get-master-addr-by-name", target.master), 1, target.timeout_s)
                finally:
                    connection.close()
        except (OSError, TimeoutError, ConnectionLost):
            continue
        if isinstance(reply, list) and len(reply) == 2:
            return reply[0].decode(), int(reply[1])
    raise StorageError(f"no sentinel knows the {target.shown}")


def _tls(target: RedisTarget) -> ssl.SSLContext:
    """From the files as they are now: renewed certificates count with the next connection. Blocks; raises StorageError."""
    try:
        context = ssl.create_default_context(cafile=target.tls_ca_file or None)
        if target.tls_cert_file:
            context.load_cert_chain(target.tls_cert_file, target.tls_key_file or None)
    except OSError as error:  # also what OpenSSL says about them
        raise StorageError(f"the files of certificates for Redis at {target.shown} cannot be used: {_why(error)}") from error
    return context


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__


async def ask(connection: RedisConnection, commands: Sequence[bytes], timeout_s: float) -> list[Any]:
    """Replies of packed commands; an error among them is raised as RedisRefused."""
    replies = await connection.send(b"".join(commands), len(commands), timeout_s)
    for reply in replies:
        if error_word(reply):
            raise refused(reply, "a command")
    return replies
