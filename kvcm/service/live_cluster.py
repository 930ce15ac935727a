"""The cluster view of a running node: its own role from the elector, other nodes from the coordinator (wire contract 4.16, 5.7)."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import asdict

from kvcm.common.clock import Clock
from kvcm.common.errors import KvcmError
from kvcm.coordination.port import NODE_INFO_EVERY_MS, Coordinator
from kvcm.coordination.runner import LeaderRunner
from kvcm.service.cluster import ClusterSnapshot, Endpoint
from kvcm.service.lifecycle import LeaderGate

_CALL_S = 2.0
_LOOK_EVERY_S = 0.5
_MAX_INFO_CHARS = 64 << 10
_STALE_LOOP_MS = 3_000
_log = logging.getLogger("kvcm.service.cluster")


class LiveCluster:
    """`own`: how this node is reached. Start it after the listeners, when the real ports are known."""

    def __init__(self, own: Endpoint, runner: LeaderRunner, gate: LeaderGate, coordinator: Coordinator, clock: Clock, loop_interval_ms: int) -> None:
        self._own = own
        self._runner = runner
        self._gate = gate
        self._coordinator = coordinator
        self._clock = clock
        self._stale_ms = max(_STALE_LOOP_MS, 10 * loop_interval_ms)
        self._leader_id = ""
        self._leader = Endpoint()
        self._epoch = 0
        self._publish_at_us = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def own(self) -> Endpoint:
        return self._own

    def publish(self, own: Endpoint) -> None:
        """The real ports are known: say so to the other nodes."""
        self._own = own
        self._publish_at_us = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def snapshot(self) -> ClusterSnapshot:
        """What is known now; never waits. At most half a second old about other nodes, exact about this one."""
        own_id = self._own.node_id
        serving = self._gate.may_serve()
        leader_id, leader, epoch = self._leader_id, self._leader, self._epoch
        holds = self._runner.deadline_us > 0
        if serving or holds:
            leader_id, leader, epoch = own_id, self._own, self._runner.epoch
        elif leader_id == own_id:
            leader_id, leader, epoch = "", Endpoint(), 0
        last_loop = self._runner.last_loop_wall_ms
        fresh = self._clock.wall_us() // 1000 - last_loop < self._stale_ms
        return ClusterSnapshot(
            self_node_id=own_id,
            leader_node_id=leader_id,
            leader_endpoint=leader,
            leader_epoch=epoch,
            self_leader_expiration_us=self._runner.lease_ends_wall_us(),
            elector_last_loop_ms=last_loop,
            is_leader=serving,
            is_health=fresh and bool(leader_id) and (serving or leader_id != own_id),
        )

    async def look(self) -> None:
        """Ask the coordinator once. Raises KvcmError or TimeoutError."""
        async with asyncio.timeout(_CALL_S):
            now = self._clock.monotonic_us()
            if now >= self._publish_at_us:
                await self._coordinator.put_node_info(self._own.node_id, json.dumps(asdict(self._own)))
                self._publish_at_us = now + NODE_INFO_EVERY_MS * 1000
            leader = await self._coordinator.observe()
            if leader is None:
                self._leader_id, self._leader, self._epoch = "", Endpoint(), 0
                return
            # A node that has lost and won again may have started anew in between, with other ports.
            if (leader.node_id, leader.epoch) != (self._leader_id, self._epoch) or not self._leader.node_id:
                info = await self._coordinator.get_node_info(leader.node_id)
                self._leader_id, self._leader, self._epoch = leader.node_id, parse_endpoint(info), leader.epoch

    async def _watch(self) -> None:
        failing = False
        while True:
            try:
                await self.look()
                failing = False
            except (KvcmError, TimeoutError) as error:
                if not failing:
                    _log.warning("leader_unknown: the coordinator cannot be asked who leads (%s)", error or "no answer in time")
                failing = True
            await asyncio.sleep(_LOOK_EVERY_S)


def parse_endpoint(info: str | None) -> Endpoint:
    """A node's published address; a blank one when it is missing or cannot be read."""
    if not info or len(info) > _MAX_INFO_CHARS:
        return Endpoint()
    try:
        found = json.loads(info)
        return Endpoint(
            node_id=str(found.get("node_id", "")),
            host=str(found.get("host", "")),
            meta_rpc_port=int(found.get("meta_rpc_port", 0)),
            meta_http_port=int(found.get("meta_http_port", 0)),
            admin_rpc_port=int(found.get("admin_rpc_port", 0)),
            admin_http_port=int(found.get("admin_http_port", 0)),
            custom_info=str(found.get("custom_info", "")),
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Endpoint()
