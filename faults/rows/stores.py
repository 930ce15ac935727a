"""A store goes away under the load: killed and started again, connections dropped, answers 2 s late, half-open connections; then all is well again.

Where the leases are: the leader answers until its deadline and not longer; somebody leads again soon after. Where only metadata are: the leader goes on leading
and reading, and changes end with an error by their deadline. Nobody ever waits longer than a client's own limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from faults.breaches import Kind
from faults.house import LONGEST_CALL_S
from faults.scene import Round, Scene
from kvcm.common.redis.testing import RedisServer
from kvcm.etcd.testing import EtcdServer

SLOW_S = 2.0
_RECOVERED_S = 12.0
"""Attempts to lead are at most 5 s apart while a store is away, and a promotion that fails pauses for 5 s."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`begin` and `end` block. `lasting`: longer than the lease; otherwise the moment that it takes."""

    name: str
    begin: Callable[[Scene, str], None]
    end: Callable[[Scene, str], None]
    lasting: bool = True


def _server(scene: Scene, store: str) -> RedisServer | EtcdServer:
    if store == "redis":
        return scene.house.redis
    assert scene.house.etcd is not None
    return scene.house.etcd


def _kill(scene: Scene, store: str) -> None:
    server = _server(scene, store)
    (server if isinstance(server, RedisServer) else server.only).kill()


def _start(scene: Scene, store: str) -> None:
    server = _server(scene, store)
    if isinstance(server, RedisServer):
        server.start()
    else:
        server.only.start()
        server.only.wait_healthy()


def _clear(scene: Scene, store: str) -> None:
    scene.house.weather[store].clear()


FAULTS = (
    Fault("killed and started again at once", _kill, _start, lasting=False),
    Fault("connections dropped", lambda scene, store: scene.house.weather[store].drop(), _clear, lasting=False),
    Fault("killed for longer than the lease", _kill, _start),
    Fault("half-open", lambda scene, store: scene.house.weather[store].silent(), _clear),
    Fault(f"answers {SLOW_S:g} s late", lambda scene, store: scene.house.weather[store].slow(SLOW_S), _clear),
    Fault("refused", lambda scene, store: scene.house.weather[store].refuse(), _clear),
)


def cases(stores: str) -> list[tuple[str, Fault]]:
    """Where leases are in etcd, both stores; where everything is in Redis, that one."""
    return [(store, fault) for fault in FAULTS for store in (("etcd", "redis") if stores == "etcd" else ("redis",))]


async def play(scene: Scene, number: int) -> Round:
    wanted = cases(scene.plan.stores)
    store, fault = wanted[number % len(wanted)]
    leader = await scene.ready(all_warm=True)
    lease_s = scene.plan.lease_ms / 1000
    leases = store == scene.plan.stores
    epoch = scene.house.terms()[-1].epoch
    since = time.time()
    await asyncio.to_thread(fault.begin, scene, store)
    begun = time.time()
    if fault.lasting:
        await asyncio.sleep(2.5 * lease_s)
    ended = time.time()
    await asyncio.to_thread(fault.end, scene, store)
    healed = time.time()
    served = (await scene.prober.leader(healed)).got
    await scene.load.progress()
    what = f"{store} {fault.name}"
    answered = [found.sent for found in scene.prober.history if since <= found.sent < ended]
    last = max(answered, default=since)
    if leases and fault.lasting:
        if last > begun + lease_s:
            scene.breach(Kind.AFTER_LEASE, f"{what}: {leader.name} answered what was asked {last - begun:.2f} s after it began, the lease is {lease_s} s")
        if last < since + lease_s / 2:
            scene.breach(Kind.SLOW, f"{what}: the leader stopped after {last - since:.2f} s, long before its deadline")
    elif not leases and scene.house.terms()[-1].epoch != epoch:
        scene.breach(Kind.TWO_LEADERS, f"{what}: leadership changed although the leases are elsewhere")
    if served - healed > _RECOVERED_S:
        scene.breach(Kind.SLOW, f"{what}: {served - healed:.1f} s until somebody led again")
    if scene.load.longest_s > LONGEST_CALL_S:
        scene.breach(Kind.HUNG, f"{what}: a call took {scene.load.longest_s:.1f} s")
    if fault.lasting:
        note = f"{what}: away for {healed - since:.1f} s, answered for {last - since:.2f} s, again {served - healed:.2f} s after the end"
    else:
        note = f"{what}: away for {healed - since:.2f} s, epoch {'unchanged' if scene.house.terms()[-1].epoch == epoch else 'changed'}"
    return await scene.settle(since, served, notes=[note])
