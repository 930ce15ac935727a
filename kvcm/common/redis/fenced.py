"""Writes that an old leader cannot make and that never land late (design D6).

Every store keeps one key of its own, the token `<fence, 20 digits>.<process, 8 digits><random>`. Each mutation is one Lua script that begins by comparing
the token with the one its writer set. A writer sets a new token

- when it becomes leader (the fence is higher), before it reads anything: from then on nothing of the old leader lands;
- for every new connection (the fence is the same, the random part is not): from then on nothing lands that was sent over an earlier connection. So after a
  time-out or a lost connection, whose outcome is unknown, a read over the next connection tells the truth for good.

A token of the same fence that another process has set means two elections that do not know of each other, each with a leader of that epoch. Whoever finds it
has been overtaken: the other one has read the store after everything that landed before.

The fence is as durable as the Redis that holds it: one that loses data (no persistence, eviction, a fail-over of Sentinel) can lose the fence too.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from kvcm.common.errors import OutcomeUnknown, StorageError, TakenOver
from kvcm.common.redis.connection import LOST, ConnectionLost, RedisConnection, connect, error_word, pack, refused
from kvcm.common.redis.outage import Outage
from kvcm.common.redis.target import RedisTarget
from kvcm.common.this_process import THIS_PROCESS

log = logging.getLogger("kvcm.redis")

FENCE_DIGITS = 20
_ATTEMPTS = 3
_RETRY_CONNECT_S = 0.1
# Redis says these before the first write of a script, so nothing was stored.
NOTHING_DONE = frozenset({"OOM", "READONLY", "MISCONF", "NOREPLICAS", "LOADING", "MASTERDOWN", "BUSY", "NOAUTH", "UNKILLABLE"})
_ELSEWHERE = frozenset({"READONLY", "NOAUTH", "MASTERDOWN"})
"""After these a new connection finds out where the master is by now, and whether the login still counts."""


class Superseded(TakenOver):
    """A newer leader has raised the store's fence to `fence`; nothing was written."""


class Script:
    """A Lua script, called by its hash. Its first lines must be FENCED for scripts that write: KEYS[1] is the token's key, ARGV[1] the writer's token."""

    __slots__ = ("_head", "load", "sha")

    def __init__(self, text: str) -> None:
        raw = text.encode()
        self.sha = hashlib.sha1(raw, usedforsecurity=False).hexdigest().encode()
        self.load = pack("SCRIPT", "LOAD", raw)
        self._head = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % self.sha

    def call(self, key: bytes, token: bytes, args: bytes, count: int) -> bytes:
        """`args`: `count` arguments, each packed as `$<length>\\r\\n<bytes>\\r\\n`."""
        return b"*%d\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (count + 5, self._head, len(key), key, len(token), token, args)


# What stands there and its fence, both empty for what is no token of ours: something else under this name excludes nobody, or nobody could ever lead again.
HELD = """
local function held_now()
  local token = redis.pcall('GET', KEYS[1])
  local held = type(token) == 'string' and string.match(token, '^%d+%.') or ''
  if #held ~= 21 then return '', '' end
  return token, string.sub(held, 1, 20)
end
"""

FENCED = """
local token = redis.call('GET', KEYS[1])
if token ~= ARGV[1] then return token or '' end
"""

# A Redis that is full must still get a leader, which may remove something. A script that has written is not refused memory any more, so the old token
# goes first.
_CLAIM = Script(
    HELD
    + """
local token, held = held_now()
if held > string.sub(ARGV[1], 1, 20) then return token end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1])
return {token}
"""
)


class FencedRedis:
    """One writer's way to a store in Redis. Calls may overlap: they share one connection and are carried out in order."""

    def __init__(
        self,
        target: RedisTarget,
        fence_key: str,
        name: str,
        on_connect: Callable[[], None] | None = None,
        *,
        process: bytes = THIS_PROCESS,
        outages: Callable[[str], Outage] = Outage,
    ) -> None:
        """`name`: of the connection, for CLIENT LIST. `on_connect`: told of every new connection. `process`: 8 bytes that name the writer's process.
        `outages`: the one of a Redis, by what it is called in logs."""
        self.target = target
        self._key = fence_key.encode()
        self._name = name
        self._on_connect = on_connect
        self._outage = outages(target.shown)
        self._process = process
        self._overtaken = 0
        """The fence under which another process has been found."""
        self._connection: RedisConnection | None = None
        self._token = b""
        """Of this connection; empty: not set yet."""
        self._lock = asyncio.Lock()
        self._closed = False
        self._failed_at = -1.0
        self._failure: StorageError | None = None
        self.fence = 0
        """The highest fence that this writer has been given; 0: none yet, it only reads."""
        self.replaced = 0
        """The fence that stood in the store before this writer's first claim under `fence`; 0: none, or not known because an answer was lost."""

    @property
    def shown(self) -> str:
        return self.target.shown

    async def raise_fence(self, fence: int) -> None:
        """From the return of this on, nothing lands that was sent under a smaller fence or over an earlier connection. Raises Superseded, StorageError."""
        if fence < self.fence:
            raise self._superseded(self.fence)
        if fence > self.fence:
            self.replaced = 0
        self.fence = fence
        self._token = b""
        await self.connection()

    async def connection(self) -> RedisConnection:
        """An open connection on which this writer's token counts. Raises Superseded, StorageError."""
        connection = self._connection
        if connection is not None and connection.is_open and (self._token or not self.fence):
            return connection
        async with self._lock:
            connection = self._connection
            if connection is None or not connection.is_open:
                connection = await self._connect()
            if self.fence and not self._token:
                await self._claim(connection)
            return connection

    async def reader(self) -> RedisConnection:
        """A connection over which reads are final: nothing sent earlier lands after them. Also for a writer that has been superseded."""
        try:
            return await self.connection()
        except Superseded:
            # The newer token refuses whatever of ours may still be under way.
            assert self._connection is not None
            return self._connection

    async def run(self, script: Script, args: bytes, count: int, fence: int) -> Any:
        """Run a fenced script. `args`: its `count` arguments after the token, packed.

        Raises Superseded, StorageError (nothing was written) or OutcomeUnknown (read over `reader` to know).
        """
        if fence > self.fence:
            await self.raise_fence(fence)
        return await self._run(script, args, count, fence, None)

    def is_ready(self, fence: int) -> bool:
        """Can a change under this fence be sent at once?"""
        connection = self._connection
        return connection is not None and connection.is_open and bool(self._token) and fence == self.fence

    def start(
        self, script: Script, args: bytes, count: int, fence: int, done: Callable[[], None], otherwise: Callable[[Coroutine[Any, Any, Any]], None]
    ) -> bool:
        """`run` without a task, for scripts that return 1: then `done` is called, and in every other case `otherwise`, with what is left to do. It ends as
        `run` does, and must be awaited. Exactly one of both is called, once, from the loop; neither may raise. False: not ready, nothing was sent."""
        if not self.is_ready(fence):
            return False
        connection, token = self._connection, self._token
        assert connection is not None

        def told(reply: Any) -> None:
            if reply == 1:
                done()
            else:
                otherwise(self._run(script, args, count, fence, (connection, token, reply)))

        return connection.call(script.call(self._key, token, args, count), self.target.timeout_s, told)

    async def _run(self, script: Script, args: bytes, count: int, fence: int, first: tuple[RedisConnection, bytes, Any] | None) -> Any:
        """`first`: the connection, token and reply of the first attempt, where that has been made."""
        for _ in range(_ATTEMPTS):
            if first is not None:
                (connection, token, reply), first = first, None
                if reply is LOST:
                    raise OutcomeUnknown(f"Redis at {self.shown} did not confirm a change")
            else:
                if fence < self.fence:
                    raise self._superseded(self.fence)
                connection = await self.connection()
                token = self._token
                try:
                    (reply,) = await connection.send(script.call(self._key, token, args, count), 1, self.target.timeout_s)
                except ConnectionLost as error:
                    raise OutcomeUnknown(f"Redis at {self.shown} did not confirm a change") from error
            if not isinstance(reply, bytes):
                word = error_word(reply)
                if not word:
                    return reply
                if word == "NOSCRIPT":
                    await self._load(connection, script)
                    continue
                if word in NOTHING_DONE:
                    if word in _ELSEWHERE:
                        connection.close(f"was closed after the error {word}")
                    raise refused(reply, "a change")
                log.error("redis_unexpected_error at=%s word=%s: whether the change was made is looked up", self.shown, word)
                self._token = b""  # a fence that somebody has overwritten is set again
                raise OutcomeUnknown(f"Redis at {self.shown} ended a change with an unexpected error") from refused(reply, "a change")
            self._refused_by(reply, token, fence)
        raise StorageError(f"Redis at {self.shown} keeps changing hands; repeat the call")

    def hang_up(self) -> None:
        """Cut the connection, with what waits on it; the next call makes another."""
        if self._connection is not None:
            self._connection.close("was given up")

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _refused_by(self, stored: bytes, token: bytes, fence: int) -> None:
        """The store's token is not ours: raise if a newer leader set it, else have it set anew."""
        holder = _fence_of(stored)
        if holder > fence:
            raise self._superseded(holder)
        if token == self._token:
            if holder == fence and not set_by(stored, self._process):
                self._overtaken = fence
                tell_of_two(self.shown, fence)
                raise self._superseded(holder)
            if not holder:
                log.error("redis_fence_lost at=%s: Redis has forgotten who leads, so it has probably lost data; the fence is set again", self.shown)
            self._token = b""

    async def _connect(self) -> RedisConnection:
        loop = asyncio.get_running_loop()
        self._check_open()
        if self._failure is not None and loop.time() - self._failed_at < _RETRY_CONNECT_S:
            raise StorageError(self._failure.message)
        self._token = b""
        try:
            self._connection = await connect(self.target, self._name)
        except StorageError as error:
            self._failed_at, self._failure = loop.time(), error
            self._outage.failed(error.message, loop.time())
            raise
        self._outage.connected(loop.time())
        self._check_open()
        self._failure = None
        if self._on_connect is not None:
            self._on_connect()
        return self._connection

    def _check_open(self) -> None:
        if not self._closed:
            return
        if self._connection is not None:
            self._connection.close()
        raise StorageError("the connection to Redis has been closed")

    async def _claim(self, connection: RedisConnection) -> None:
        fence = self.fence
        if fence == self._overtaken:
            raise self._superseded(fence)
        token = token_of(fence, self._process)
        try:
            for _ in range(2):
                (reply,) = await connection.send(_CLAIM.call(self._key, token, b"", 0), 1, self.target.timeout_s)
                if error_word(reply) != "NOSCRIPT":
                    break
                await self._load(connection, _CLAIM)
        except ConnectionLost as error:
            raise StorageError(f"Redis at {self.shown} did not answer in time") from error
        if isinstance(reply, bytes):
            raise self._superseded(_fence_of(reply))
        if error_word(reply):
            if error_word(reply) in _ELSEWHERE:
                connection.close(f"was closed after the error {error_word(reply)}")
            raise refused(reply, "the fence")
        if self.fence == fence:
            self._token = token
            if isinstance(reply, list) and not self.replaced:
                self.replaced = _fence_of(reply[0])

    async def _load(self, connection: RedisConnection, script: Script) -> None:
        try:
            (reply,) = await connection.send(script.load, 1, self.target.timeout_s)
        except ConnectionLost as error:
            raise StorageError(f"Redis at {self.shown} did not answer in time") from error
        if reply != script.sha:
            raise refused(reply, "a script")

    def _superseded(self, fence: int) -> Superseded:
        return Superseded(f"a newer leader has taken over the store in Redis at {self.shown}; this process may not write any more", fence)


def token_of(fence: int, process: bytes) -> bytes:
    """A new one."""
    return b"%0*d.%b%b" % (FENCE_DIGITS, fence, process, secrets.token_hex(4).encode())


def set_by(token: bytes, process: bytes) -> bool:
    return token[FENCE_DIGITS + 1 : FENCE_DIGITS + 9] == process


def tell_of_two(shown: str, fence: int) -> None:
    log.error(
        "redis_two_leaders at=%s epoch=%d: another process writes here under the same epoch; do all managers have the same kvcm.coordination.uri?", shown, fence
    )


def fence_of(token: bytes | None) -> int:
    """The fence that a stored token names; 0 for none."""
    return _fence_of(token or b"")


def _fence_of(token: bytes) -> int:
    digits = token[:FENCE_DIGITS]
    return int(digits) if digits.isdigit() and token[FENCE_DIGITS : FENCE_DIGITS + 1] == b"." else 0


def arg(raw: bytes) -> bytes:
    """One packed argument."""
    return b"$%d\r\n%b\r\n" % (len(raw), raw)
