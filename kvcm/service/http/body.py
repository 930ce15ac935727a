"""Request bodies: read whole, in bounded time and bounded memory.

Dangers: a body that never ends or never comes; many large ones at once, each within its limit; a client that sends megabytes too many and hears of it
only when it has sent them all, so what is too long is read to its end, unless it is far too long, and thrown away.
"""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

MAX_BODY_BYTES = 16 << 20
MAX_DISCARDED_BYTES = 16 * MAX_BODY_BYTES
"""Longer bodies cost the connection at once."""
BODY_DEADLINE_S = 10.0
SMALL_BODY_BYTES = 64 << 10
"""Bodies up to here need no budget; the number of connections bounds them."""
BUDGET_BYTES = 128 << 20


class BodyRefused(Exception):
    """`status` is what HTTP answers; the connection cannot be used again, since the rest of the body would be taken for a request."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class BodyBudget:
    """How many bytes of large bodies one process holds at most. One for all listeners is right, one for each is not wrong."""

    def __init__(self, limit: int = BUDGET_BYTES) -> None:
        self.free = limit

    def take(self, size: int) -> bool:
        if size > self.free:
            return False
        self.free -= size
        return True

    def give_back(self, size: int) -> None:
        self.free += size


class Body:
    """`async with Body(request, budget) as text:` holds its part of the budget until the block ends.

    Raises BodyRefused: 413 too long, 408 too slow, 400 gone, 503 when too many large ones are held.
    """

    def __init__(self, request: Request, budget: BodyBudget) -> None:
        self._request = request
        self._budget = budget
        self._held = 0

    async def __aenter__(self) -> bytes:
        try:
            return await self._read()
        except BaseException:
            self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    async def _read(self) -> bytes:
        announced = self._request.headers.get("content-length", "")
        length = int(announced[:20]) if announced.isascii() and announced.isdigit() else 0
        # Who asks before sending ("100-continue") can be refused before sending.
        polite = self._request.headers.get("expect", "").lower() == "100-continue"
        if length > (MAX_BODY_BYTES if polite else MAX_DISCARDED_BYTES):
            raise BodyRefused(413)
        try:
            async with asyncio.timeout(BODY_DEADLINE_S):
                return await self._collect()
        except TimeoutError:
            raise BodyRefused(408) from None
        except ClientDisconnect:
            raise BodyRefused(400) from None

    async def _collect(self) -> bytes:
        chunks: list[bytes] = []
        size = refused = 0
        async for chunk in self._request.stream():
            size += len(chunk)
            if size > MAX_DISCARDED_BYTES:
                raise BodyRefused(413)
            if size > MAX_BODY_BYTES:
                refused = 413
            elif size > SMALL_BODY_BYTES and not refused and not self._hold(size):
                refused = 503
            if refused:
                # Read on without keeping it: a client sees the answer only if we do not hang up while it sends.
                chunks.clear()
                self._release()
            else:
                chunks.append(chunk)
        if refused:
            raise BodyRefused(refused)
        return b"".join(chunks)

    def _hold(self, size: int) -> bool:
        if not self._budget.take(size - self._held):
            return False
        self._held = size
        return True

    def _release(self) -> None:
        self._budget.give_back(self._held)
        self._held = 0
