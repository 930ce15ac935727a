"""SIGKILL of the leader, in the middle of the load. A follower that is warm has to serve within the lease and a second."""

from __future__ import annotations

import asyncio
import time

from faults.scene import Round, Scene


async def play(scene: Scene, number: int) -> Round:
    leader = await scene.ready()
    await scene.sync(leader)
    since = time.time()
    await asyncio.to_thread(leader.kill)
    served = (await scene.prober.leader(since, other_than=leader.name)).got
    tail = scene.ledger.crashed() if scene.plan.mode == "behind" else 0
    await asyncio.to_thread(leader.start)
    return await scene.settle(since, served, tail)
