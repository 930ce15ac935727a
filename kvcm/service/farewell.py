"""The moment between the end of leadership and the end of the listeners, when a manager is shut down and others go on.

A call that arrives while a gRPC server closes ends as UNAVAILABLE or CANCELLED, and its client cannot know that it has not run. So a manager that has led stays
a little longer and says SERVER_NOT_LEADER: nothing was done, and clients move on by themselves. Where nobody else is there, nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kvcm.service.cluster import ClusterView

FAREWELL_S: Final = 0.3
_ASK_S = 0.5


async def farewell(cluster: ClusterView, has_led: Callable[[], bool], seconds: float = FAREWELL_S) -> None:
    """Bounded; never raises."""
    if not has_led():
        return
    try:
        async with asyncio.timeout(_ASK_S):
            nodes = await cluster.nodes()
    except TimeoutError:
        return
    if len(nodes) > 1:
        await asyncio.sleep(seconds)
