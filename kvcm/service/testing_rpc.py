"""Both services over a whole manager without sockets: what a transport would do, on the test's loop.

    desk = RpcDesk(tmp_path)
    await desk.open()
    code, message, reply = await desk.call("GetCacheLocation", meta.GetCacheLocationRequest(instance_id="i", block_keys=[1]))

The desk starts with storages `s` (used by group `g`) and `spare`, groups `g` and `empty`, and instances `i` and `j`. Instance `i` serves keys 1 to 3 and
has a write of keys 7 and 8 open, whose session is `desk.session`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from kvcm.coordination.elector import Role
from kvcm.manager.testing import SIZE, ManagerWorld
from kvcm.metrics.families import AnyFamily
from kvcm.protocol.location_encoder import ProtoLocationEncoder
from kvcm.service.admin_service import build_admin_service
from kvcm.service.cluster import ClusterSnapshot, Endpoint, NodeView
from kvcm.service.meta_service import build_meta_service
from kvcm.service.rpc import Call, Dispatcher

T = TypeVar("T")
SERVED = [1, 2, 3]
OPEN = [7, 8]
MAX_KEYS = 24
CAPACITY = 64 * SIZE


@dataclass(slots=True)
class Lead:
    """A `LeaderCheck` that the test moves."""

    leads: bool = True
    lease_ends_us: int = 1 << 62

    def may_serve(self, now_us: int) -> bool:
        return self.leads

    def lease_holds(self, now_us: int) -> bool:
        return now_us < self.lease_ends_us


class Observed:
    """A `CallObserver` that keeps (rpc, code)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def observe(self, api: str, call: Call, code: int, elapsed_us: int) -> None:
        self.calls.append((api, code))


class OneNode:
    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot("node", "node", Endpoint("node", "host", 1, 2, 3, 4), is_leader=True, is_health=True)

    async def nodes(self) -> tuple[NodeView, ...]:
        return (NodeView(self.snapshot().leader_endpoint, Role.LEADER, 1),)


class Letter:
    """An `Origin` with given headers."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    def peer(self) -> str:
        return ""


class Seat:
    """An `Election` that steps down by ending the desk's lead."""

    def __init__(self, lead: Lead) -> None:
        self.campaign_delay_ms = 0
        self._lead = lead

    def demote(self) -> bool:
        led, self._lead.leads = self._lead.leads, False
        return led


class SomeMetrics:
    """A `MetricsView` of given families."""

    def __init__(self) -> None:
        self.families: list[AnyFamily] = []

    async def in_thread(self, work: Callable[[list[AnyFamily]], T]) -> T:
        return work(self.families)


class RpcDesk:
    def __init__(self, root: Path) -> None:
        self.world = ManagerWorld(root, ProtoLocationEncoder())
        self.lead = Lead()
        self.observed = Observed()
        self.session = ""
        self.log_levels: list[int] = []
        self.metrics = SomeMetrics()

    async def open(self) -> None:
        world = self.world
        await world.open()
        await world.add_storage("s")
        await world.add_storage("spare")
        await world.add_group(world.group("g", ["s"], capacity=CAPACITY, max_keys=MAX_KEYS))
        await world.add_group(world.group("empty", ["absent"]))
        specs, spec_groups = [("tp0", SIZE), ("tp1", SIZE)], [("A", ["tp0"]), ("B", ["tp1"]), ("none", [])]
        for instance_id in ("i", "j"):
            await world.manager.register(world.instance(instance_id, "g", specs, spec_groups))
        await world.put("i", SERVED)
        self.session = (await world.start("i", OPEN, timeout_s=600)).session_id
        self.dispatcher = Dispatcher(world.clock, self.lead, self.observed)
        cluster = OneNode()
        self.meta = build_meta_service(world.manager, world.registry, cluster)
        self.admin = build_admin_service(
            world.manager,
            world.registry,
            world.storages,
            cluster,
            Seat(self.lead),
            self.metrics,
            self.log_levels.append,
        )

    async def call(self, name: str, request: Message, **headers: str) -> tuple[int, str, Any]:
        """(code, message, reply) of an RPC of the request's own package, through the bytes of the wire. Headers: `_` stands for `-`."""
        package = self.meta if request.DESCRIPTOR.file.package.endswith(".meta") else self.admin
        rpc = package.rpcs[name]
        origin = Letter({name.replace("_", "-"): value for name, value in headers.items()})
        raw = await self.dispatcher.call(rpc, rpc.request_cls.FromString(request.SerializeToString()), origin)
        reply: Any = rpc.response_cls.FromString(raw)
        return reply.header.status.code, reply.header.status.message, reply

    def state(self) -> object:
        """Everything a refused call must leave alone: the registry, what is stored, open writes, deletions to come, files."""
        world = self.world
        registry = world.registry
        return (
            registry.list_storages(),
            registry.list_groups(),
            registry.list_instances(),
            registry.accounts.list(),
            sorted((instance_id, key, location.header, location.location_id) for instance_id, key, location in world.locations()),
            sorted((found.session_id, found.deadline_us, found.claimed) for found in world.manager.sessions._sessions.values()),
            [(storage.name, world.storages.available(storage.name)) for storage in world.storages.list()],
            [world.manager.group_usage(group.name).total for group in registry.list_groups()],
            world.manager.deleter.pending,
            world.files(),
        )
