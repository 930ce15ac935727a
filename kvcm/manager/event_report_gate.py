"""Changes of one reporter run side by side; a snapshot runs alone (behaviour 21.4, I-RE-5). Other reporters have gates of their own.

A snapshot closes the gate, waits until the running changes have ended, and opens it when it has ended itself. Changes that come meanwhile wait. All waiting is
bounded in time and number; who cannot wait any longer is told that a snapshot is in progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvcm.manager.errors import SnapshotInProgress

MAX_WAITING = 256


class Gate:
    __slots__ = ("_closed", "_idle", "_opened", "_running", "_waiting")

    def __init__(self) -> None:
        self._closed = False
        self._running = 0
        self._waiting = 0
        self._opened = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed

    @asynccontextmanager
    async def change(self, wait_s: float) -> AsyncIterator[None]:
        """Raises SnapshotInProgress when the gate does not open within `wait_s` seconds."""
        if self._closed:
            await self._wait_open(wait_s)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @asynccontextmanager
    async def snapshot(self, wait_s: float) -> AsyncIterator[None]:
        """Raises SnapshotInProgress: another one runs, or the changes under way do not end within `wait_s` seconds."""
        if self._closed:
            raise SnapshotInProgress("another snapshot of this host is being taken in; repeat the report when it has ended")
        self._closed = True
        self._opened.clear()
        try:
            await self._drain(wait_s)
            yield
        finally:
            self._closed = False
            self._opened.set()

    async def _drain(self, wait_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + wait_s
        while self._running:
            self._idle.clear()
            if not await _set_before(self._idle, deadline):
                raise SnapshotInProgress(f"changes of this host did not end within {wait_s:g} s, so its snapshot could not begin; repeat it")

    async def _wait_open(self, wait_s: float) -> None:
        if self._waiting >= MAX_WAITING:
            raise SnapshotInProgress("a snapshot of this host is being taken in and too many of its changes wait already; repeat the report later")
        deadline = asyncio.get_running_loop().time() + wait_s
        self._waiting += 1
        try:
            while self._closed:
                if not await _set_before(self._opened, deadline):
                    raise SnapshotInProgress(f"a snapshot of this host did not end within {wait_s:g} s; repeat the report later")
        finally:
            self._waiting -= 1


async def _set_before(event: asyncio.Event, deadline: float) -> bool:
    """Was the event set before the loop's clock said `deadline`?"""
    # Not asyncio.timeout: it binds itself to the current task, which callers that start eagerly do not have yet (see common/uncut.py).
    loop = asyncio.get_running_loop()
    waiting = loop.create_task(event.wait())
    try:
        done, _ = await asyncio.wait({waiting}, timeout=max(0.0, deadline - loop.time()))
    finally:
        waiting.cancel()
    return bool(done)
