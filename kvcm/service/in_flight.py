"""How many calls are being answered, so that a demotion or a shutdown can wait for them. On the hot path: transports change `count` directly."""

from __future__ import annotations

import asyncio

_LOOK_EVERY_S = 0.005


class InFlight:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nothing is being answered; False when that took longer. New calls that end at once (not leading) do not disturb it."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.count:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_EVERY_S)
        return True
