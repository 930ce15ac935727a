"""What clients must not notice: history that etcd compacts, logins that it forgets, certificates that are renewed, a stream that is cut.

No leader changes, no call fails, nobody waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from faults.breaches import Kind
from faults.house import Node, until
from faults.scene import Round, Scene
from faults.secrets import TOKEN_S
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.uri import parse_etcd_uri

_COMPACTIONS: Final = 20
_LAGGED: Final = 270
"""Steps of the load while a follower stands still: more entries than the stream keeps."""


async def _compaction(scene: Scene, leader: Node) -> str:
    """All history but the newest goes, again and again."""
    etcd, secrets = scene.house.etcd, scene.house.secrets
    assert etcd is not None
    client = EtcdClient(parse_etcd_uri(f"etcd://{etcd.address}/faults{secrets.query if secrets else ''}"))
    try:
        for _ in range(_COMPACTIONS):
            _, revision = await client.get(b"/faults/registry/fence")
            await client.compact(revision)
            await asyncio.sleep(0.1)
    finally:
        await client.close()
    return f"etcd compacted {_COMPACTIONS} times"


async def _tokens(scene: Scene, leader: Node) -> str:
    """Each login is forgotten several times."""
    await asyncio.sleep(2.5 * TOKEN_S)
    return f"logins of {TOKEN_S} s forgotten for {2.5 * TOKEN_S:g} s"


async def _certificates(scene: Scene, leader: Node) -> str:
    """Renewed on both sides, then every connection has to be made anew with them."""
    secrets = scene.house.secrets
    assert secrets is not None
    await asyncio.to_thread(secrets.renew)
    await asyncio.sleep(1.2)
    for _ in range(3):
        scene.house.weather["etcd"].drop()
        await asyncio.sleep(0.5)
    return "certificates of etcd and managers renewed, connections made anew"


async def _stream(scene: Scene, leader: Node) -> str:
    """A follower stands still while the stream is cut behind it."""
    follower = await scene.warm_follower(leader)
    before = _scans(follower)
    await asyncio.to_thread(follower.suspend)
    try:
        await scene.load.progress(_LAGGED)
    finally:
        follower.resume()
    await until(lambda: _scans(follower) > before, "the follower notices that the stream was cut, and scans")
    await scene.warm_follower(leader, all_of_them=True)
    return f"the stream cut before a follower that stood still: it scanned again ({_scans(follower) - before:.0f})"


def _scans(node: Node) -> float:
    return node.metrics().get("follower_resync_counter", 0)


def cases(stores: str) -> list[Callable[[Scene, Node], Awaitable[str]]]:
    return [_compaction, _tokens, _certificates, _stream] if stores == "etcd" else [_stream]


async def play(scene: Scene, number: int) -> Round:
    wanted = cases(scene.plan.stores)
    leader = await scene.ready(all_warm=True)
    epoch, errors = scene.house.terms()[-1].epoch, sum(scene.load.errors.values())
    since = time.time()
    what = await wanted[number % len(wanted)](scene, leader)
    await scene.load.progress()
    ended = time.time()
    if scene.house.terms()[-1].epoch != epoch:
        scene.breach(Kind.TWO_LEADERS, f"{what}: leadership changed")
    if sum(scene.load.errors.values()) != errors:
        scene.breach(Kind.HUNG, f"{what}: calls failed: {scene.load.errors}")
    return await scene.settle(since, ended, notes=[what])
