"""Keys in flight: at most one mutation at a time per block key (design D7).

A mutation holds all its keys from planning to publishing. Whoever needs one of them waits for the holder, then looks again; all keys are taken at
once, so two mutations can never hold half of what the other needs. Waiting is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from kvcm.meta.errors import KeysBusy

DEFAULT_WAIT_S = 10.0


class Ticket:
    """One holder; those who wait for any of its keys wait for it.

    Danger: a wait may begin when the holder has ended already, since a task takes its first step later than it is made. Nobody would wake it then.
    """

    __slots__ = ("_done", "_released")

    def __init__(self) -> None:
        self._done: asyncio.Event | None = None
        self._released = False

    async def wait(self) -> None:
        if self._released:
            return
        if self._done is None:
            self._done = asyncio.Event()
        await self._done.wait()

    def release(self) -> None:
        self._released = True
        if self._done is not None:
            self._done.set()


class KeyGate:
    def __init__(self, wait_s: float = DEFAULT_WAIT_S) -> None:
        self._held: dict[int, Ticket] = {}
        self._wait_s = wait_s

    def __len__(self) -> int:
        return len(self._held)

    def is_held(self, key: int) -> bool:
        return key in self._held

    @asynccontextmanager
    async def hold(self, keys: Collection[int]) -> AsyncIterator[None]:
        """Hold all `keys`; raises KeysBusy when they do not become free in time, holding nothing."""
        ticket = await self.acquire(keys)
        try:
            yield
        finally:
            self.release(keys, ticket)

    async def acquire(self, keys: Collection[int]) -> Ticket:
        if not self._held.keys().isdisjoint(keys):
            await self._wait_until_free(keys)
        ticket = Ticket()
        self._held.update(dict.fromkeys(keys, ticket))
        return ticket

    def release(self, keys: Collection[int], ticket: Ticket) -> None:
        for key in keys:
            del self._held[key]
        ticket.release()

    async def _wait_until_free(self, keys: Collection[int]) -> None:
        # Not asyncio.timeout: it binds itself to the current task, which callers that start eagerly do not have yet (see common/uncut.py).
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        while (holder := next((self._held[key] for key in keys if key in self._held), None)) is not None:
            waiting = loop.create_task(holder.wait())
            try:
                done, _ = await asyncio.wait({waiting}, timeout=deadline - loop.time())
            finally:
                waiting.cancel()
            if not done:
                raise KeysBusy("other writes of the same blocks did not finish in time; repeat the call")
