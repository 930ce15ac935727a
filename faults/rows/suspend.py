"""SIGSTOP of the leader beyond its lease, then SIGCONT, with changes held back on their way to the stores.

Before the leader is stopped it is asked for two changes whose bytes are kept at the gates: blocks of instance `held` (Redis), and a new group (registry).
They arrive after the next leader has raised the fences and before the old one goes on. The stores must refuse them, and the old leader must not answer
anything that it finds waiting.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import grpc

from faults.breaches import Kind
from faults.house import HELD, Node, named, until
from faults.scene import Round, Scene
from kvcm.client import AdminClient, AsyncMetaClient, QueryType
from kvcm.client.errors import ClientError
from kvcm.client.rpc_channel import RpcChannel
from kvcm.common.errors import KvcmError
from kvcm.protocol import admin_service_pb2 as admin_pb
from kvcm.protocol import meta_service_pb2 as pb
from kvcm.protocol.admin_service_pb2_grpc import AdminServiceStub
from kvcm.protocol.domain_codec import group_to_proto

_BLOCKS = 8
_FENCE = re.compile(rb'\$37\r\n([0-9]{20})\.|/registry/fence.{0,40}"epoch":([0-9]+)', re.DOTALL)
_BEYOND_S = 0.7
_START = "/kv_cache_manager.proto.meta.MetaService/StartWriteCache"
_PATIENCE_S = 60.0


async def play(scene: Scene, number: int) -> Round:
    await _prepare(scene)
    leader = await scene.ready()
    await scene.sync(leader)
    house, keys = scene.house, list(range(1 + number * _BLOCKS, 1 + (number + 1) * _BLOCKS))
    registry = house.registry_gates[leader.name]
    group = f"late-{number}"
    for gate in (house.held_gate, registry):
        await asyncio.to_thread(gate.hold, leader.pid)
    calls = [asyncio.create_task(_start_write(leader, keys)), asyncio.create_task(_create_group(leader, group))]
    for gate in (house.held_gate, registry):
        await asyncio.to_thread(gate.wait_held)
    since = time.time()
    await asyncio.to_thread(leader.suspend)
    stopped = time.time()
    try:
        served = (await scene.prober.leader(stopped, other_than=leader.name)).got
        # What it had queued (write-behind) is refused like everything else of it.
        tail = scene.ledger.crashed() if scene.plan.mode == "behind" else 0
        # The lease is over when somebody else serves; stay away for a while all the same, so that something waits.
        await asyncio.sleep(_BEYOND_S)
        answers = [await asyncio.to_thread(gate.release, leader.pid) for gate in (house.held_gate, registry)]
        scene.ledger.suspended(leader.name, stopped, time.time())
    finally:
        await asyncio.to_thread(leader.resume)
    notes = []
    for call, what in zip(calls, ("StartWrite", "CreateInstanceGroup"), strict=True):
        said = await asyncio.wait_for(call, _PATIENCE_S)
        notes.append(f"{what} held back: {said}")
        if said == "OK":
            scene.breach(Kind.LANDED, f"{leader.name} acknowledged a {what} that it could not have stored any more")
    notes.append(f"the late blocks arrived at Redis: {_refusal(answers[0])}")
    notes.append(f"the late group arrived at {scene.plan.stores}: {_refusal(answers[1])}")
    await until(lambda: f"epoch {_own_epoch(scene, leader)}" in leader.manager.log and "leader -> demoting" in leader.manager.log, "it has stepped down")
    await _nothing_landed(scene, keys, group)
    return await scene.settle(since, served, tail, notes)


async def _prepare(scene: Scene) -> None:
    """The second group and instance, once."""
    if not scene.held_ready:
        await scene.house.add_held_group()
        async with await AsyncMetaClient.connect(scene.house.client_config(HELD)):
            pass  # it registers the instance
        scene.house.instances += 1
        scene.held_ready = True


def _own_epoch(scene: Scene, leader: Node) -> int:
    return max((term.epoch for term in scene.house.terms() if term.node == leader.name), default=0)


async def _start_write(leader: Node, keys: list[int]) -> str:
    """Past any routing: this node, and only once."""
    request = pb.StartWriteCacheRequest(trace_id="late", instance_id=HELD, block_keys=keys, write_timeout_seconds=60)
    async with grpc.aio.insecure_channel(leader.address, [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.unary_unary(_START, pb.StartWriteCacheRequest.SerializeToString, pb.StartWriteCacheResponse.FromString)
        try:
            reply = await call(request, timeout=_PATIENCE_S / 2)
        except grpc.RpcError as error:
            return f"{error.code().name}"
    return str(pb.ErrorCode.Name(reply.header.status.code))


async def _create_group(leader: Node, name: str) -> str:
    """Likewise: a client that follows would repeat it at the next leader."""
    address = leader.manager.admin_address
    async with AdminClient(address) as admin, RpcChannel(address, AdminServiceStub, timeout_s=_PATIENCE_S / 2) as channel:
        try:
            (template,) = [group for group in await admin.list_groups() if group.name == "default"]
            request = admin_pb.CreateInstanceGroupRequest(trace_id="late", instance_group=group_to_proto(named(template, name)))
            await channel.write("CreateInstanceGroup", request)
        except KvcmError as error:
            return f"{type(error).__name__}"
    return "OK"


async def _nothing_landed(scene: Scene, keys: list[int], group: str) -> None:
    """Neither in the stores nor at the leader."""
    patterns = [f"kvcache:instance_{HELD}:cache_{key}" for key in keys]
    landed = [pattern for pattern in patterns if await asyncio.to_thread(scene.house.redis.call, "EXISTS", pattern)]
    for name in landed:
        scene.breach(Kind.LANDED, f"{name} is in Redis")
    async with AdminClient([node.manager.admin_address for node in scene.house.nodes], failover_s=_PATIENCE_S) as admin:
        if any(found.name == group for found in await admin.list_groups()):
            scene.breach(Kind.LANDED, f"group {group} is in the registry")
    async with await AsyncMetaClient.connect(scene.house.client_config(HELD)) as client:
        try:
            found = await client.match_location(QueryType.BATCH_GET, keys)
        except ClientError as error:
            scene.breach(Kind.HUNG, f"instance {HELD} cannot be read: {error.message}")
            return
        for key, location in zip(keys, found.locations, strict=True):
            if location.hit:
                scene.breach(Kind.LANDED, f"block {key} of instance {HELD} is served")


def _refusal(answer: bytes) -> str:
    """Both stores answer a change of an older epoch with their fence: Redis' scripts as `epoch.token`, etcd's transaction with the fence's record."""
    found = _FENCE.search(answer)
    return f"refused, its fence is at epoch {int(found[1] or found[2])}" if found else "no fence was shown"
