"""LeaderDemote: the leader drains and another one takes over; nothing may be lost, in any mode."""

from __future__ import annotations

import time

from faults.scene import Round, Scene
from kvcm.client import AdminClient


async def play(scene: Scene, number: int) -> Round:
    leader = await scene.ready()
    began = next(term for term in reversed(scene.house.terms()) if term.node == leader.name)
    async with AdminClient(leader.manager.admin_address) as admin:
        since = time.time()
        await admin.leader_demote()
    # Whoever wins now; it may be the same node.
    stepped = time.time()
    served = (await scene.prober.leader(stepped)).got
    figures = await scene.settle(since, served)
    if figures.epoch <= began.epoch:
        raise RuntimeError("nobody has taken over after LeaderDemote")
    return figures
