"""`fenced` for the keys of one slot of a Redis Cluster: a token in the slot, compared by every script that changes anything there.

The token moves with its slot, so what was true of one Redis stays true: nothing lands that was sent under a smaller fence, and after a new token is set
nothing lands that was sent before. A new token is set for every connection, for every node that takes the slot over, and after every answer that did not come.

Every key of a script is declared, so that while the slot is moved a script is carried out as a whole, or not at all and says so.

Danger: replication is asynchronous. A replica that takes over from its master may not have the last changes, and not the token either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.redis.cluster_nodes import ClusterNodes, Link
from kvcm.common.redis.cluster_slot import ASKING, ClusterSlot
from kvcm.common.redis.cluster_slots import NOT_NOW, redirect
from kvcm.common.redis.connection import ConnectionLost, error_word, refused
from kvcm.common.redis.fenced import NOTHING_DONE, Script, Superseded, arg, fence_of, set_by, tell_of_two, token_of
from kvcm.common.this_process import THIS_PROCESS

log = logging.getLogger("kvcm.redis")

_ATTEMPTS = 100
"""Each but the first few is after a pause, and a deadline ends them earlier."""
_AGAIN = object()


@dataclass(frozen=True, slots=True)
class Call:
    """A script with what follows its token's key (`keys`) and its token (`args`), packed."""

    script: Script
    keys: bytes
    key_count: int
    args: bytes
    arg_count: int

    def packed(self, key: bytes, token: bytes) -> bytes:
        """`key`: of the token, packed."""
        head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % (self.key_count + self.arg_count + 5, self.script.sha)
        return b"".join((head, arg(b"%d" % (self.key_count + 1)), key, self.keys, arg(token), self.args))


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that is under way."""

    link: Link
    token: bytes
    answer: asyncio.Future[list[Any]]


class FencedSlot(ClusterSlot):
    def __init__(self, nodes: ClusterNodes, slot: int, fence_key: bytes, claim: Callable[[int], Call], on_forgotten: Callable[[], None] = lambda: None) -> None:
        """`claim`: makes the script that sets the token under a fence. It returns a list with the token of before when it did, and the token that stands there
        when that one has a higher fence. `on_forgotten`: told when the slot has lost the token, so probably everything."""
        super().__init__(nodes, slot)
        self._key = arg(fence_key)
        self._claim_of = claim
        self._on_forgotten = on_forgotten
        self._overtaken = 0
        """The fence under which another process has been found."""
        self._claimed: Link | None = None
        """The link that `_token` was set for; None: it must be set before anything else."""
        self._token = b""
        self._lock = asyncio.Lock()
        self.fence = 0
        """The highest fence that this writer has been given; 0: none yet, it only reads."""

    async def raise_fence(self, fence: int) -> None:
        """From the return of this on, nothing lands that was sent under a smaller fence or before. Raises Superseded, StorageError."""
        if fence < self.fence:
            raise self._superseded(self.fence)
        self.fence = fence
        self._claimed = None
        await self.link()

    async def link(self) -> Link:
        """One on which this writer's token counts. Raises Superseded, StorageError."""
        if (link := self._ready()) is not None:
            return link
        async with self._lock:
            return self._ready() or await self._claim()

    async def reader(self) -> Link:
        """One over which reads are final: nothing sent earlier lands after them. Also for a writer that has been superseded."""
        try:
            return await self.link()
        except Superseded:
            # The newer token refuses whatever of ours may still be under way.
            return await super().link()

    def begin(self, call: Call, fence: int) -> Begun | None:
        """Send a call at once, for `run`; None when something has to be done first."""
        link = self._ready()
        if link is None or fence != self.fence:
            return None
        return Begun(link, self._token, link.connection.send(call.packed(self._key, self._token), 1, self.nodes.target.timeout_s))

    async def run(self, call: Call, fence: int, deadline: float, begun: Begun | None = None) -> Any:
        """Run a fenced script. `deadline`: of the loop's time, for repetitions. `begun`: what `begin` gave for it.

        Raises Superseded, StorageError (nothing was written) or OutcomeUnknown (read over `reader` to know).
        """
        if fence > self.fence:
            await self.raise_fence(fence)
        for attempt in range(1, _ATTEMPTS + 1):
            if begun is None:
                if fence < self.fence:
                    raise self._superseded(self.fence)
                link, token = await self.link(), self._token
                answer = link.connection.send(call.packed(self._key, token), 1, self.nodes.target.timeout_s)
            else:
                link, token, answer = begun.link, begun.token, begun.answer
                begun = None
            try:
                reply = await self._settle(link, call, token, answer, attempt, deadline)
            except ConnectionLost as error:
                raise OutcomeUnknown(f"{self.nodes.shown} did not confirm a change") from error
            if reply is _AGAIN:
                continue
            if isinstance(reply, bytes):
                self._refused_by(reply, token, fence)
                continue
            word = error_word(reply)
            if not word:
                return reply
            if word in NOTHING_DONE:
                raise refused(reply, "a change")
            log.error("redis_unexpected_error at=%s word=%s: whether the change was made is looked up", self.nodes.shown, word)
            self._claimed = None  # a fence that somebody has overwritten is set again
            raise OutcomeUnknown(f"{self.nodes.shown} ended a change with an unexpected error") from refused(reply, "a change")
        raise StorageError(f"{self.nodes.shown} keeps changing hands; repeat the call")

    # -- inside --------------------------------------------------------------------------------------------------------------------------------

    def _ready(self) -> Link | None:
        link = self._link
        if link is None or not link.connection.is_open or (self.fence and self._claimed is not link):
            return None
        return link

    async def _claim(self) -> Link:
        """With the lock held."""
        deadline = asyncio.get_running_loop().time() + self.nodes.target.timeout_s
        for attempt in range(1, _ATTEMPTS + 1):
            link, fence = await super().link(), self.fence
            if not fence:
                return link
            if fence == self._overtaken:
                raise self._superseded(fence)
            token = token_of(fence, THIS_PROCESS)
            call = self._claim_of(fence)
            try:
                answer = link.connection.send(call.packed(self._key, token), 1, self.nodes.target.timeout_s)
                reply = await self._settle(link, call, token, answer, attempt, deadline)
            except ConnectionLost as error:
                raise StorageError(f"{self.nodes.shown} did not answer in time") from error
            if reply is _AGAIN:
                continue
            if isinstance(reply, bytes):
                raise self._superseded(fence_of(reply))
            if error_word(reply):
                raise refused(reply, "the fence")
            if reply == [b""] and fence_of(self._token) == fence:
                self._forgotten()
            if self.fence == fence and self._link is link:
                self._token, self._claimed = token, link
                return link
        raise StorageError(f"{self.nodes.shown} keeps changing hands; repeat the call")

    async def _settle(self, link: Link, call: Call, token: bytes, answer: asyncio.Future[list[Any]], attempt: int, deadline: float) -> object:
        """What the script has answered at last; _AGAIN where it was not run. Raises ConnectionLost: nobody knows whether it was; StorageError: it was not."""
        (reply,) = await answer
        where = redirect(reply, link.address)
        place = link
        if where is not None and where.ask:
            place = Link(where.address, await self.nodes.to(where.address))
            try:
                _, reply = await place.connection.send(ASKING + call.packed(self._key, token), 2, self.nodes.target.timeout_s)
            except ConnectionLost:
                self._claimed = None  # it may still be on its way there
                raise
            where = redirect(reply, place.address)
        elif where is not None:
            self.follow(link, where)
        word = error_word(reply)
        if word == "NOSCRIPT":
            await self._load(place, call.script)
            return _AGAIN
        if where is None and word not in NOT_NOW:
            return reply
        await self.pause(attempt, deadline, reply)
        return _AGAIN

    def _refused_by(self, stored: bytes, token: bytes, fence: int) -> None:
        """The slot's token is not ours: raise if a newer leader set it, else have it set anew."""
        holder = fence_of(stored)
        if holder > fence:
            raise self._superseded(holder)
        if token == self._token:
            if holder == fence and not set_by(stored, THIS_PROCESS):
                self._overtaken = fence
                tell_of_two(self.nodes.shown, fence)
                raise self._superseded(holder)
            self._claimed = None  # what was lost is told when it is set again

    def _forgotten(self) -> None:
        log.error("redis_fence_lost at=%s: a node has forgotten who leads, so it has probably lost data; the fence is set again", self.nodes.shown)
        self._on_forgotten()

    async def _load(self, link: Link, script: Script) -> None:
        try:
            (reply,) = await link.connection.send(script.load, 1, self.nodes.target.timeout_s)
        except ConnectionLost as error:
            raise StorageError(f"{self.nodes.shown} did not answer in time") from error.__cause__
        if reply != script.sha:
            raise refused(reply, "a script")

    def _superseded(self, fence: int) -> Superseded:
        return Superseded(f"a newer leader has taken over the store in {self.nodes.shown}; this process may not write any more", fence)
