"""Managers of several pods for a `House`: an election among the pods that run, and the admin API of each by its address.

`Nodes.step` is one moment: a pod that is gone leads no more, one that has won serves, a free leadership is taken by the first that may. What a pod knows of
others is what is so. The registry outlives every pod, as in etcd.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from kvcm.client.admin_client import ManagerUnreachable
from kvcm.client.admin_testing import FakeAdmin
from kvcm.client.admin_types import ClusterInfo, CopyState, Health, NodeCopies, NodeEndpoint, NodeRole, NodeState
from kvcm.common.clock import FakeClock
from kvcm.common.errors import NotLeader, NotReady
from kvcm_operator.testing import FakeDirectory, FakeKube
from kvcm_operator.world import Door, Json, Ref

_OF_A_NODE = ("cluster_info", "check_health", "campaign_delay_ms", "set_campaign_delay", "leader_demote")


class FakeNode:
    """One pod's manager. `silent`: it answers nobody. `follows`: it never stands for election. `filling`: it still reads block metadata.

    `stuck`: it never comes to serving.
    """

    def __init__(self, nodes: Nodes, name: str, uid: str) -> None:
        self._nodes = nodes
        self.name = name
        self.uid = uid
        self.silent = False
        self.follows = False
        self.filling = False
        self.stuck = False
        self.delay_ms = 0
        self.left_at_us: int | None = None

    async def cluster_info(self) -> ClusterInfo:
        nodes = self._nodes
        return ClusterInfo(self.name, nodes.leader, -1, None, nodes.epoch if nodes.leader else 0, nodes.states())

    async def check_health(self) -> Health:
        nodes = self._nodes
        return Health(bool(nodes.leader) and (nodes.serves or nodes.leader != self.name), nodes.leader == self.name, 0)

    async def campaign_delay_ms(self) -> int:
        return self.delay_ms

    async def set_campaign_delay(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms

    async def leader_demote(self) -> None:
        if self._nodes.leader != self.name:
            raise NotLeader("this node does not lead, so there is nothing to step down from")
        self._nodes.demoted.append(self.name)
        self.left_at_us = self._nodes.clock.monotonic_us()
        self._nodes.depose()


class Nodes:
    """`by_name`: what runs. `registry`: what all share. `demoted`: who was asked to step down, in order. `history`: who led, in order.

    `on_start`: sees every node that starts.
    """

    def __init__(self, kube: FakeKube, directory: FakeDirectory, clock: FakeClock, namespace: str, manager: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self.clock = clock
        self.registry = FakeAdmin()
        self.by_name: dict[str, FakeNode] = {}
        self.leader = ""
        self.epoch = 0
        self.serves = False
        self.demoted: list[str] = []
        self.history: list[str] = []
        self.on_start: Callable[[FakeNode], None] = lambda node: None
        directory.managers[namespace, manager] = _Service(self)  # type: ignore[assignment]  # it has the methods of one
        directory.nodes = self

    def started(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        self.by_name[name] = FakeNode(self, name, pod["metadata"]["uid"])
        self.on_start(self.by_name[name])

    def step(self) -> None:
        for name, node in list(self.by_name.items()):
            ref = Ref("Pod", self._namespace, name)
            if not self._kube.has(ref) or self._kube.body(ref)["metadata"]["uid"] != node.uid:
                del self.by_name[name]
        if self.leader and self.leader not in self.by_name:
            self.depose()
        if self.leader:
            self.serves = not self.by_name[self.leader].stuck
            return
        now = self.clock.monotonic_us()
        for name in sorted(self.by_name):
            node = self.by_name[name]
            kept_out = node.left_at_us is not None and now < node.left_at_us + node.delay_ms * 1000
            if self._ready(name) and not (node.follows or kept_out):
                self.elect(name, serves=False)
                return

    def elect(self, name: str, *, serves: bool = True) -> None:
        self.leader, self.epoch, self.serves = name, self.epoch + 1, serves
        self.history.append(name)

    def depose(self) -> None:
        self.leader, self.serves = "", False

    def states(self) -> tuple[NodeState, ...]:
        return tuple(self._state(name, node) for name, node in self.by_name.items())

    def _state(self, name: str, node: FakeNode) -> NodeState:
        leads = name == self.leader
        copies = None if leads else NodeCopies(CopyState.LOADING if node.filling else CopyState.WARM)
        return NodeState(NodeEndpoint(name, "", 0, 0, 0, 0, ""), self._role(name), self.epoch if leads else 0, copies)

    def connect(self, doors: Sequence[Door], on_call: Callable[[str], Any] | None) -> AbstractAsyncContextManager[Sequence[Any]]:
        return self._connect(doors, on_call)

    @asynccontextmanager
    async def _connect(self, doors: Sequence[Door], on_call: Callable[[str], Any] | None) -> AsyncIterator[Sequence[Any]]:
        yield [_NodeLine(self, door, on_call) for door in doors]

    def at(self, door: Door) -> FakeNode | None:
        """Behind its own door only: another port, token or TLS than its pod was started with leads to nobody."""
        for name, node in self.by_name.items():
            ref = Ref("Pod", self._namespace, name)
            if self._kube.has(ref) and _opens(self._kube.body(ref), door) and not node.silent:
                return node
        return None

    def some_ready(self) -> FakeNode | None:
        return next((node for name, node in sorted(self.by_name.items()) if self._ready(name) and not node.silent), None)

    def _ready(self, name: str) -> bool:
        ref = Ref("Pod", self._namespace, name)
        body: Json = self._kube.body(ref) if self._kube.has(ref) else {"metadata": {"deletionTimestamp": ""}}
        return "deletionTimestamp" not in body["metadata"] and any(one["status"] == "True" for one in body["status"].get("conditions", []))

    def _role(self, name: str) -> NodeRole:
        if name != self.leader:
            return NodeRole.FOLLOWER
        return NodeRole.LEADER if self.serves else NodeRole.PROMOTING


def _opens(pod: Json, door: Door) -> bool:
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    secrets = {one["name"]: one["secret"]["secretName"] for one in pod["spec"]["volumes"] if "secret" in one}
    there = (pod["status"].get("podIP"), ports["admin-grpc"], secrets.get("admin-token", ""), secrets.get("tls", ""))
    return there == (door.host, door.port, door.token_secret, door.tls_secret)


class _NodeLine:
    """A connection to one pod's address."""

    def __init__(self, nodes: Nodes, door: Door, on_call: Callable[[str], Any] | None) -> None:
        self._nodes = nodes
        self._door = door
        self._on_call = on_call

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            if self._on_call is not None:
                await self._on_call(method)
            node = self._nodes.at(self._door)
            if node is None:
                raise ManagerUnreachable("this node cannot be reached")
            return await getattr(node, method)(*arguments)

        return call


class _Service:
    """Any ready node for what concerns a node, the leader for the rest."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            node = self._nodes.some_ready()
            if node is None:
                raise ManagerUnreachable("no node can be reached")
            if method in _OF_A_NODE:
                return await getattr(node, method)(*arguments)
            if not self._nodes.serves:
                raise NotReady("no node leads")
            return await getattr(self._nodes.registry, method)(*arguments)

        return call
