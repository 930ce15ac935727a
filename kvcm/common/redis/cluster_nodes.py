"""The connections of one store to the nodes of its Redis Cluster: one a node, made when it is needed, and the map of slots.

The map is what somebody said last, never the truth: a node that does not hold a slot says so and does nothing, so a map that is out of date costs a redirect.
It is asked for anew when a node cannot be reached or a slot is held by nobody, at most every `_ASK_EVERY_S`, by one caller for all.

Danger: a node that hangs. Every step ends by the target's time-out, and who failed to reach a node a moment ago is told so at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcm.common.errors import StorageError
from kvcm.common.redis.cluster_slots import SlotMap
from kvcm.common.redis.connection import ConnectionLost, RedisConnection, connect_node, error_word, pack
from kvcm.common.redis.outage import Outage
from kvcm.common.redis.target import Address, RedisTarget

log = logging.getLogger("kvcm.redis")

_ASK_EVERY_S = 0.1
_RETRY_CONNECT_S = 0.1
_MAX_NODES = 1024
_MAX_ASKED = 8


class Link(NamedTuple):
    """An open connection and whose it is."""

    address: Address
    connection: RedisConnection


@dataclass(slots=True)
class _Node:
    address: Address
    outage: Outage
    connection: RedisConnection | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    failed_at: float = -1.0
    failure: StorageError | None = None


class ClusterNodes:
    def __init__(self, target: RedisTarget, name: str, on_connect: Callable[[], None] | None = None, outages: Callable[[str], Outage] = Outage) -> None:
        """`name`: of the connections, for CLIENT LIST. `on_connect`: told of every new one. `outages`: the one of a node, by what it is called in logs."""
        self.target = target
        self._name = name
        self._on_connect = on_connect
        self._outages = outages
        self._nodes: dict[Address, _Node] = {}
        self._map = SlotMap([], target.addresses[0])
        self._asking = asyncio.Lock()
        self._asked_at = -1.0
        self._closed = False

    @property
    def shown(self) -> str:
        return self.target.shown

    async def open(self) -> None:
        """Raises StorageError, Unsupported (no cluster)."""
        await self.ask_for_map(force=True)

    async def close(self) -> None:
        self._closed = True
        self._hang_up()

    async def of_slot(self, slot: int) -> Link:
        """To the node that is said to hold the slot. Raises StorageError."""
        address = await self.address_of(slot)
        try:
            return Link(address, await self.to(address))
        except StorageError:
            # Another may have taken the node's place.
            await self.ask_for_map()
            replaced = self._map.holder(slot)
            if replaced is None or replaced == address:
                raise
            return Link(replaced, await self.to(replaced))

    async def address_of(self, slot: int) -> Address:
        """Raises StorageError: nobody is known to hold it."""
        address = self._map.holder(slot)
        if address is None:
            await self.ask_for_map()
            address = self._map.holder(slot)
        if address is None:
            raise StorageError(f"no node of {self.shown} holds the slot {slot}: the cluster is not complete, or is being set up")
        return address

    async def to(self, address: Address) -> RedisConnection:
        """An open connection to a node. Raises StorageError."""
        node = self._nodes.get(address)
        if node is None:
            self._forget_closed()
            node = self._nodes[address] = _Node(address, self._outages(f"{address[0]}:{address[1]}"))
        if node.connection is not None and node.connection.is_open:
            return node.connection
        async with node.lock:
            if node.connection is not None and node.connection.is_open:
                return node.connection
            return await self._connect(node)

    def moved(self, slot: int, address: Address) -> None:
        """A node has said that the slot is held by that one."""
        self._map.moved(slot, address)

    async def holders(self, slots: Collection[int]) -> dict[Address, list[int]]:
        """The slots by node. Raises StorageError."""
        found: dict[Address, list[int]] = {}
        for slot in slots:
            found.setdefault(await self.address_of(slot), []).append(slot)
        return found

    async def ask_for_map(self, *, force: bool = False) -> None:
        """Learn anew who holds which slot, unless that was done a moment ago. Raises StorageError, Unsupported: nobody answered."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self._asking:
            if self._asked_at >= began or (not force and loop.time() - self._asked_at < _ASK_EVERY_S):
                return
            reasons: list[StorageError] = []
            for address in self._whom_to_ask():
                if reasons and loop.time() - began > 2 * self.target.timeout_s:
                    break
                try:
                    self._map = await self._map_of(address)
                except StorageError as error:
                    reasons.append(error)
                    continue
                self._asked_at = loop.time()
                return
            raise reasons[0]

    def _whom_to_ask(self) -> Sequence[Address]:
        """Nodes that are connected first: they answer at once."""
        known = sorted(self._nodes.values(), key=lambda node: node.connection is None or not node.connection.is_open)
        return list(dict.fromkeys([*(node.address for node in known), *self.target.addresses]))[: _MAX_ASKED + len(self.target.addresses)]

    async def _map_of(self, address: Address) -> SlotMap:
        connection = await self.to(address)
        try:
            (reply,) = await connection.send(pack("CLUSTER", "SLOTS"), 1, self.target.timeout_s)
        except ConnectionLost as error:
            raise StorageError(f"the cluster's node {address[0]}:{address[1]} did not say who holds which slot: {error.message}") from error
        try:
            return SlotMap(reply, address)
        except ValueError:
            word = error_word(reply) or "an answer of another kind"
            raise StorageError(f"the cluster's node {address[0]}:{address[1]} did not say who holds which slot: {word}") from None

    async def _connect(self, node: _Node) -> RedisConnection:
        loop = asyncio.get_running_loop()
        self._check_open()
        if node.failure is not None and loop.time() - node.failed_at < _RETRY_CONNECT_S:
            raise StorageError(node.failure.message)
        try:
            connection = await connect_node(self.target, node.address, self._name)
        except StorageError as error:
            node.failed_at, node.failure = loop.time(), error
            node.outage.failed(error.message, loop.time())
            raise
        node.outage.connected(loop.time())
        node.connection, node.failure = connection, None
        self._check_open()
        if self._on_connect is not None:
            self._on_connect()
        return connection

    def _check_open(self) -> None:
        if self._closed:
            self._hang_up()
            raise StorageError("the connection to Redis has been closed")

    def _hang_up(self) -> None:
        for node in self._nodes.values():
            if node.connection is not None:
                node.connection.close()

    def _forget_closed(self) -> None:
        """Nodes come and go; what is remembered of them stays bounded."""
        if len(self._nodes) < _MAX_NODES:
            return
        for address in [node.address for node in self._nodes.values() if not node.lock.locked() and (node.connection is None or not node.connection.is_open)]:
            del self._nodes[address]
