"""The cluster view of a running node: its own role from the elector, other nodes from the coordinator (wire contract 4.16, 5.7).

Danger: believing what was true long ago. A leader that was last seen longer than a lease ago is not known any more; nor is the role of a node whose
leadership was overtaken by a newer one, whatever it last published.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from kvcm.common.clock import Clock
from kvcm.common.errors import KvcmError, reason_of
from kvcm.coordination.elector import Role
from kvcm.coordination.port import NODE_INFO_EVERY_MS, Coordinator
from kvcm.coordination.runner import LeaderRunner
from kvcm.service.cluster import ClusterSnapshot, CopiesView, Endpoint, NodeView
from kvcm.service.lifecycle import LeaderGate
from kvcm.service.node_info import node_text, parse_endpoint, parse_node
from kvcm.service.rpc import ASK_THE_LEADER

_CALL_S = 2.0
# Clients that were sent on by the old leader ask the others at once: what these know must not be much older than the election itself.
_LOOK_EVERY_S = 0.2
_STALE_LOOP_MS = 3_000
_MIN_KNOWN_MS = 5_000
# Whoever asks for the nodes again so soon gets the same answer.
_NODES_FOR_US = 1_000_000
_log = logging.getLogger("kvcm.service.cluster")


class LiveCluster:
    """`own`: how this node is reached. Start it after the listeners, when the real ports are known. `copies`: of this node while it follows."""

    def __init__(
        self,
        own: Endpoint,
        runner: LeaderRunner,
        gate: LeaderGate,
        coordinator: Coordinator,
        clock: Clock,
        loop_interval_ms: int,
        lease_ms: int = 10_000,
        copies: Callable[[], CopiesView | None] = lambda: None,
    ) -> None:
        self._copies = copies
        self._own = own
        self._runner = runner
        self._gate = gate
        self._coordinator = coordinator
        self._clock = clock
        self._stale_ms = max(_STALE_LOOP_MS, 10 * loop_interval_ms)
        self._known_us = max(_MIN_KNOWN_MS, lease_ms) * 1000
        self._leader_id = ""
        self._leader = Endpoint()
        self._epoch = 0
        self._looked_at_us: int | None = None
        self._published: NodeView | None = None
        self._publish_at_us = 0
        self._nodes: tuple[NodeView, ...] = ()
        self._nodes_at_us: int | None = None
        self._nodes_unknown = False
        self._listing = asyncio.Lock()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def own(self) -> Endpoint:
        return self._own

    def publish(self, own: Endpoint) -> None:
        """The real ports are known: say so to the other nodes."""
        self._own = own
        self._published = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Also tells the other nodes that this one is gone. Bounded."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            async with asyncio.timeout(_CALL_S):
                await self._coordinator.remove_node_info(self._own.node_id)
        except (KvcmError, TimeoutError):
            pass  # it is forgotten by itself

    def snapshot(self) -> ClusterSnapshot:
        """What is known now; never waits. At most a fifth of a second old about other nodes while the coordinator answers, exact about this one."""
        own_id = self._own.node_id
        serving = self._gate.may_serve()
        leader_id, leader, epoch = self._leader_id, self._leader, self._epoch
        holds = self._runner.deadline_us > 0
        if serving or holds:
            leader_id, leader, epoch = own_id, self._own, self._runner.epoch
        elif leader_id == own_id or not self._seen_lately():
            leader_id, leader, epoch = "", Endpoint(), 0
        last_loop = self._runner.last_loop_wall_ms
        fresh = self._clock.wall_us() // 1000 - last_loop < self._stale_ms
        healthy = fresh and bool(leader_id) and (serving or leader_id != own_id)
        return ClusterSnapshot(
            self_node_id=own_id,
            leader_node_id=leader_id,
            leader_endpoint=leader,
            leader_epoch=epoch,
            self_leader_expiration_us=self._runner.lease_ends_wall_us(),
            elector_last_loop_ms=last_loop,
            is_leader=serving,
            is_health=healthy,
            problem="" if healthy else self._problem(fresh, leader_id),
        )

    def why_not_leader(self) -> str:
        """A sentence for whoever asked this node what only a leader answers."""
        if self.snapshot().leader_node_id:
            return ASK_THE_LEADER
        if self._failing:
            return "nobody leads now: the coordinator (kvcm.coordination.uri) does not answer this node"
        return "nobody leads now, as far as this node knows; try again soon"

    def _problem(self, fresh: bool, leader_id: str) -> str:
        if not fresh:
            return "the election loop does not run"
        if leader_id:
            return "this node is taking over"
        failure = self._runner.last_failure
        return f"no leader is known; {failure}" if failure else "no leader is known"

    async def nodes(self) -> tuple[NodeView, ...]:
        """`ClusterView.nodes`. While the coordinator does not answer: the nodes of the last time."""
        async with self._listing:
            now = self._clock.monotonic_us()
            if self._nodes_at_us is None or now >= self._nodes_at_us + _NODES_FOR_US:
                try:
                    async with asyncio.timeout(_CALL_S):
                        found = await self._coordinator.list_nodes()
                except (KvcmError, TimeoutError) as error:
                    if not self._nodes_unknown:  # once, when it begins
                        _log.warning("nodes_unknown: the coordinator cannot be asked for the nodes (%s); those of the last time are told", reason_of(error))
                    self._nodes_unknown = True
                else:
                    self._nodes_unknown = False
                    parsed = [parse_node(node.info) for node in found]
                    self._nodes = tuple(node for node in parsed if node is not None and node.endpoint.node_id)
                self._nodes_at_us = now
        known = self.snapshot()
        own = replace(self._own_view(), told_at_ms=self._clock.wall_us() // 1000)
        others = [self._believable(node, known) for node in self._nodes if node.endpoint.node_id != self._own.node_id]
        return tuple(sorted([own, *others], key=lambda node: node.endpoint.node_id))

    def _own_view(self) -> NodeView:
        role = self._runner.role
        return NodeView(self._own, role, self._runner.epoch, self._copies() if role is Role.FOLLOWER else None)

    @staticmethod
    def _believable(node: NodeView, known: ClusterSnapshot) -> NodeView:
        if node.endpoint.node_id == known.leader_node_id:
            # It has the lease. Whether it serves already is in its own words, if they are of this term; another make of manager has none.
            if node.role in (Role.LEADER, Role.PROMOTING, Role.DEMOTING) and node.epoch == known.leader_epoch:
                return node
            return replace(node, role=Role.LEADER if node.role is None else Role.PROMOTING, epoch=known.leader_epoch, copies=None)
        overtaken = node.role in (Role.LEADER, Role.PROMOTING) and bool(known.leader_node_id)
        return replace(node, role=None) if overtaken else node

    async def look(self) -> None:
        """Ask the coordinator once. Raises KvcmError or TimeoutError."""
        async with asyncio.timeout(_CALL_S):
            now = self._clock.monotonic_us()
            view = self._own_view()
            # What a copy lacks changes all the time; only whether it lacks anything that matters is news.
            news = replace(view, copies=CopiesView(view.copies.state) if view.copies is not None else None)
            if now >= self._publish_at_us or news != self._published:
                text = node_text(view.endpoint, self._runner.role, view.epoch, view.copies, self._clock.wall_us() // 1000)
                await self._coordinator.put_node_info(self._own.node_id, text)
                self._published, self._publish_at_us = news, now + NODE_INFO_EVERY_MS * 1000
            leader = await self._coordinator.observe()
            if leader is None:
                self._leader_id, self._leader, self._epoch = "", Endpoint(), 0
            # A node that has lost and won again may have started anew in between, with other ports.
            elif (leader.node_id, leader.epoch) != (self._leader_id, self._epoch) or not self._leader.node_id:
                info = await self._coordinator.get_node_info(leader.node_id)
                self._leader_id, self._leader, self._epoch = leader.node_id, parse_endpoint(info), leader.epoch
            self._looked_at_us = now

    def _seen_lately(self) -> bool:
        return self._looked_at_us is not None and self._clock.monotonic_us() < self._looked_at_us + self._known_us

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
                if self._failing:
                    _log.info("coordinator_answers_again leader=%s epoch=%d", self._leader_id or "none", self._epoch)
                self._failing = False
            except (KvcmError, TimeoutError) as error:
                if not self._failing:
                    _log.warning("leader_unknown: the coordinator cannot be asked who leads (%s)", reason_of(error))
                self._failing = True
            await asyncio.sleep(_LOOK_EVERY_S)
