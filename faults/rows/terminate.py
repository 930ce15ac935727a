"""SIGTERM of the leader: an orderly end, as of a pod that is moved; the process is started again."""

from __future__ import annotations

import asyncio
import time

from faults.breaches import Kind
from faults.scene import Round, Scene


async def play(scene: Scene, number: int) -> Round:
    leader = await scene.ready()
    since = time.time()
    leader.terminate()
    served = (await scene.prober.leader(since, other_than=leader.name)).got
    code = await asyncio.to_thread(leader.ended)
    if code:
        scene.breach(Kind.HUNG, f"{leader.name} ended with code {code} after SIGTERM")
    await asyncio.to_thread(leader.start)
    return await scene.settle(since, served)
