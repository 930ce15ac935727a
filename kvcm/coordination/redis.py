"""Coordination through Redis (`redis://`, `rediss://`, `redis+sentinel://`), under the names that upstream's manager uses (wire contract 1.4).

What the steps are and why they are safe: `kvcm.coordination.redis_scripts`. Every call has a deadline of a quarter of the lease at most; when it passes, the
connection is cut and the next call makes another, so that one half-open connection costs one call.

Dangers:
- a Redis that evicts keys (`maxmemory-policy` other than noeviction) may evict the lock: leadership then changes for no reason, never twice at a time for
  longer than one renewal interval;
- a fail-over of Sentinel, or of a replica by hand, can lose the last moments: see the scripts, and docs/high-availability.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kvcm.common.errors import InternalError, StorageError
from kvcm.common.redis.connection import RedisConnection, connect, error_word, pack, refused
from kvcm.common.redis.target import RedisTarget, parse_target
from kvcm.coordination.port import MAX_NODES, NODE_INFO_TTL_MS, Leader, NodeInfo, check_campaign, check_node, check_shared, check_text
from kvcm.coordination.redis_scripts import CAMPAIGN, KEEP_ALIVE, LIST_NODES, OBSERVE, PUT_NODE, PUT_SHARED, RESIGN, LuaScript

_LEADER_KEY = "_TAIR_KVCM_LEADER_KEY"
_MAX_CALL_S = 4.0
_MIN_CALL_S = 0.05
_RETRY_CONNECT_S = 0.05


class RedisCoordinator:
    """`epoch_floor`: epochs go on above it, and above every epoch that this process has seen, also when Redis has lost its own count."""

    def __init__(self, target: RedisTarget, epoch_floor: int = 0) -> None:
        self._target = target
        self._floor = epoch_floor
        self._call_s = min(target.timeout_s, _MAX_CALL_S)
        prefix = f"kvcm_{target.cluster_name}_" if target.cluster_name else "kvcm_"
        self._lock = f"{prefix}lock:{_LEADER_KEY}"
        self._term = f"{prefix}term:{_LEADER_KEY}"
        self._info = f"{prefix}kv:_TAIR_KVCM_NODE_INFO_"
        self._nodes = f"{prefix}nodes"
        self._shared = f"{prefix}shared:"
        self._connection: RedisConnection | None = None
        self._connecting = asyncio.Lock()
        self._failed_at = -1.0
        self._failure = ""
        self._closed = False

    async def campaign(self, node_id: str, lease_ms: int) -> int | None:
        check_campaign(node_id, lease_ms)
        self._hurry(lease_ms)
        epoch = int(await self._run(CAMPAIGN, self._lock, self._term, node_id, lease_ms, self._floor))
        self._floor = max(self._floor, epoch)
        return epoch or None

    async def keep_alive(self, node_id: str, epoch: int, lease_ms: int) -> bool:
        check_campaign(node_id, lease_ms)
        self._hurry(lease_ms)
        return bool(await self._run(KEEP_ALIVE, self._lock, self._term, node_id, epoch, lease_ms))

    async def resign(self, node_id: str, epoch: int) -> None:
        await self._run(RESIGN, self._lock, self._term, node_id, epoch)

    async def observe(self) -> Leader | None:
        found = await self._run(OBSERVE, self._lock, self._term)
        if not found:
            return None
        leader = Leader(_text(found[0]), int(found[1]) if bytes(found[1]).isdigit() else 0)
        self._floor = max(self._floor, leader.epoch)
        return leader

    async def put_node_info(self, node_id: str, info: str) -> None:
        check_node(node_id)
        check_text(info)
        if not await self._run(PUT_NODE, self._info + node_id, self._nodes, node_id, info, NODE_INFO_TTL_MS, MAX_NODES):
            raise StorageError(f"At most {MAX_NODES} nodes can be known.")

    async def get_node_info(self, node_id: str) -> str | None:
        found = await self._ask(pack("GET", self._info + node_id))
        return _text(found) if found is not None else None

    async def list_nodes(self) -> tuple[NodeInfo, ...]:
        flat = [_text(item) for item in await self._run(LIST_NODES, self._nodes, self._lock, self._info)]
        found = sorted(zip(flat[::2], flat[1::2], strict=True))[:MAX_NODES]
        return tuple(NodeInfo(node_id, info) for node_id, info in found)

    async def remove_node_info(self, node_id: str) -> None:
        await self._ask(pack("ZREM", self._nodes, node_id))
        await self._ask(pack("DEL", self._info + node_id))

    async def put_shared(self, node_id: str, epoch: int, name: str, text: str) -> bool:
        check_shared(name, text)
        return bool(await self._run(PUT_SHARED, self._lock, self._term, self._shared + name, node_id, epoch, text))

    async def get_shared(self, name: str) -> str | None:
        check_shared(name)
        found = await self._ask(pack("GET", self._shared + name))
        return _text(found) if found is not None else None

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _hurry(self, lease_ms: int) -> None:
        """The election gives a call up after a third of the lease. By then the connection should have been cut, so that the next call has a new one."""
        self._call_s = max(min(self._call_s, lease_ms / 4000), _MIN_CALL_S)

    async def _run(self, script: LuaScript, *keys_and_args: str | int) -> Any:
        reply = await self._reply(script.call(*keys_and_args))
        if error_word(reply) == "NOSCRIPT":
            # A Redis that has started anew knows no scripts; nothing has been done.
            await self._ask(script.load)
            reply = await self._reply(script.call(*keys_and_args))
        return self._good(reply)

    async def _ask(self, command: bytes) -> Any:
        return self._good(await self._reply(command))

    async def _reply(self, command: bytes) -> Any:
        connection = await self._connected()
        try:
            async with asyncio.timeout(self._call_s):
                (reply,) = await connection.send(command, 1, self._call_s)
        except TimeoutError:
            connection.close("gave no answer in time and was cut")
            raise StorageError(f"Redis at {self._target.shown} does not answer in time.") from None
        return reply

    def _good(self, reply: Any) -> Any:
        word = error_word(reply)
        if word and self._connection is not None:
            # READONLY: this Redis is a replica by now. Whatever it is, a new connection finds out where the master is and whether the login still counts.
            self._connection.close(f"was closed after the error {word}")
        if word == "WRONGTYPE":
            raise StorageError(f"Redis at {self._target.shown} holds something else under {self._lock}, {self._term} or {self._nodes}: take it away.")
        if word:
            raise refused(reply, "a step of the election")
        return reply

    async def _connected(self) -> RedisConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        loop = asyncio.get_running_loop()
        async with self._connecting:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            self._check_open()
            if self._failure and loop.time() - self._failed_at < _RETRY_CONNECT_S:
                raise StorageError(self._failure)
            try:
                async with asyncio.timeout(self._call_s):
                    self._connection = await connect(self._target, "kvcm-coordination")
            except (StorageError, TimeoutError) as error:
                self._failed_at = loop.time()
                self._failure = error.message if isinstance(error, StorageError) else f"Redis at {self._target.shown} does not answer in time."
                raise StorageError(self._failure) from error
            self._failure = ""
            self._check_open()
            return self._connection

    def _check_open(self) -> None:
        if not self._closed:
            return
        if self._connection is not None:
            self._connection.close()
        raise StorageError("The connection to Redis has been closed.")


def open_redis(uri: str, epoch_floor: int) -> RedisCoordinator:
    """Raises InvalidArgument, without the URI. What is wrong with the server is said by the first call."""
    return RedisCoordinator(parse_target(uri), epoch_floor)


def _text(raw: object) -> str:
    if not isinstance(raw, bytes):
        raise InternalError("Redis answered a step of the election in an unexpected form.")
    return raw.decode(errors="replace")
