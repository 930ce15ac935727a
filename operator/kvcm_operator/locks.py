"""One pass at a time for one object.

The key is the object's name, which is stricter than its uid: two objects of one name never live at the same time, and a new one must not start
before the last pass over the old one has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvcm_operator.world import Ref


class Locks:
    """Belongs to one event loop. Holds memory only for objects that are being worked on."""

    def __init__(self) -> None:
        self._held: dict[Ref, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, ref: Ref) -> AsyncIterator[None]:
        lock, users = self._held.get(ref, (asyncio.Lock(), 0))
        self._held[ref] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._held[ref]
            if users == 1:
                del self._held[ref]
            else:
                self._held[ref] = (lock, users - 1)

    def __len__(self) -> int:
        return len(self._held)
