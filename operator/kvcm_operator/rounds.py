"""Run the framework, and run it anew in the same process when it has become blind: that is the only way to have it read once more what there is.

The Lease, the probes and the metrics stay; every object gets a pass, as after a restart of the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger("kvcm.operator")


async def in_rounds(run: Callable[[asyncio.Future[None]], Awaitable[None]], stop: asyncio.Event, blind: asyncio.Event) -> None:
    """Returns when `stop` is set, or when a round ends by itself. `run` does one round, until its argument is done; what it raises ends everything."""
    while True:
        blind.clear()
        ending = asyncio.ensure_future(_either(stop, blind))
        try:
            await run(ending)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        if stop.is_set() or not blind.is_set():
            return
        _log.warning("watching begins anew in this process, since the watches had missed a kind")


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
