"""One store's way to the keys of one slot of a Redis Cluster, wherever the slot is just now.

A command is repeated only where the cluster has said that nothing was done (see `cluster_slots`), for at most the target's time-out; never after a connection
was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kvcm.common.errors import StorageError
from kvcm.common.redis.cluster_nodes import ClusterNodes, Link
from kvcm.common.redis.cluster_slots import NOT_NOW, Redirect, redirect
from kvcm.common.redis.connection import ConnectionLost, error_word, pack, refused
from kvcm.common.redis.target import Address

ASKING = pack("ASKING")
_PAUSE_S = 0.01
_MAX_PAUSE_S = 0.1
_AT_ONCE = 2


class ClusterSlot:
    def __init__(self, nodes: ClusterNodes, slot: int) -> None:
        self.nodes = nodes
        self.slot = slot
        self._link: Link | None = None

    async def link(self) -> Link:
        """To the node that holds the slot, as far as is known. Raises StorageError."""
        link = self._link
        if link is None or not link.connection.is_open:
            link = await self.nodes.of_slot(self.slot)
            self._link = link
        return link

    async def reader(self) -> Link:
        """The link for `ask`. Raises StorageError."""
        return await self.link()

    async def ask(self, commands: Sequence[bytes], timeout_s: float = 0.0) -> list[Any]:
        """Replies of packed commands, each for one key of the slot, in order; errors are among them. `timeout_s`: for an answer; 0: the target's.

        Raises StorageError: the cluster did not answer in time, or the slot is held by nobody. Commands that change anything must bear to be done twice.
        """
        timeout_s = timeout_s or self.nodes.target.timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        replies: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        attempt = 0
        while True:
            link = await self.reader()
            asked: dict[Address, list[int]] = {}
            again: list[int] = []
            got = await self._send(link, b"".join([commands[at] for at in left]), len(left), timeout_s)
            for at, reply in zip(left, got, strict=True):
                replies[at] = reply
                where = redirect(reply, link.address)
                if where is not None and where.ask:
                    asked.setdefault(where.address, []).append(at)
                elif where is not None or error_word(reply) in NOT_NOW:
                    self.follow(link, where)
                    again.append(at)
            for address, there in asked.items():
                other = Link(address, await self.nodes.to(address))
                got = await self._send(other, b"".join([ASKING + commands[at] for at in there]), 2 * len(there), timeout_s)
                for at, reply in zip(there, got[1::2], strict=True):
                    replies[at] = reply
                    if redirect(reply, address) is not None or error_word(reply) in NOT_NOW:
                        again.append(at)
            if not again:
                return replies
            left = sorted(again)
            attempt += 1
            await self.pause(attempt, deadline, replies[left[0]])

    async def pause(self, attempt: int, deadline: float, reply: object) -> None:
        """Before a repetition. Raises StorageError when it is too late for one, or nobody holds the slot."""
        if error_word(reply) == "CLUSTERDOWN":
            holder = await self.nodes.address_of(self.slot)
            await self.nodes.ask_for_map()
            if await self.nodes.address_of(self.slot) == holder:
                raise refused(reply, "a command")
            self._link = None  # an old master that is alone says so too
        if attempt > _AT_ONCE:
            wait_s = min(_PAUSE_S * attempt, _MAX_PAUSE_S)
            if asyncio.get_running_loop().time() + wait_s > deadline:
                raise StorageError(f"{self.nodes.shown} keeps sending a command elsewhere: slot {self.slot} is being moved; repeat the call")
            await asyncio.sleep(wait_s)

    def follow(self, link: Link, where: Redirect | None) -> None:
        """What this link has said counts unless another one was taken meanwhile."""
        if where is not None and self._link is link:
            self.nodes.moved(self.slot, where.address)
            self._link = None

    async def _send(self, link: Link, data: bytes, count: int, timeout_s: float) -> list[Any]:
        try:
            return await link.connection.send(data, count, timeout_s)
        except ConnectionLost as error:
            raise StorageError(f"{self.nodes.shown} did not answer: {error.message}") from error
