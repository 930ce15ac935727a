"""SIGKILL of the leader, which is started again at once under its old name, as a container is: it must not take the lease back before it can serve."""

from __future__ import annotations

import asyncio
import time

from faults.scene import Round, Scene


async def play(scene: Scene, number: int) -> Round:
    leader = await scene.ready()
    await scene.sync(leader)
    since = time.time()
    await asyncio.to_thread(leader.kill)
    killed = time.time()
    again = asyncio.create_task(asyncio.to_thread(leader.start))
    served = (await scene.prober.leader(killed)).got
    tail = scene.ledger.crashed() if scene.plan.mode == "behind" else 0
    await again
    return await scene.settle(since, served, tail)
