"""AdminService: what concerns one node, leader or not: health, leadership, logging (wire contract 5.7)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from kvcm.common.errors import InvalidArgument, NotLeader
from kvcm.coordination.elector import Role
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.admin_replies import done, finish, required
from kvcm.service.cluster import ClusterView, CopyState, Endpoint
from kvcm.service.rpc import Call, Reply, Rpc

_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}
_ROLES: dict[Role | None, admin.NodeRole] = {
    Role.FOLLOWER: admin.NODE_ROLE_FOLLOWER,
    Role.PROMOTING: admin.NODE_ROLE_PROMOTING,
    Role.LEADER: admin.NODE_ROLE_LEADER,
    Role.DEMOTING: admin.NODE_ROLE_DEMOTING,
}
_COPY_STATES: dict[CopyState, admin.CopyState] = {
    CopyState.COLD: admin.COPY_STATE_COLD,
    CopyState.LOADING: admin.COPY_STATE_LOADING,
    CopyState.WARM: admin.COPY_STATE_WARM,
}
_log = logging.getLogger("kvcm.service.admin")


class Election(Protocol):
    """The part of `kvcm.coordination.runner.LeaderRunner` that an administrator may turn."""

    @property
    def campaign_delay_ms(self) -> int: ...

    @campaign_delay_ms.setter
    def campaign_delay_ms(self, value: int) -> None:
        """How long this node stays out of elections after losing or giving up leadership."""
        ...

    def demote(self) -> bool:
        """Not leader from this moment. False when there was nothing to step down from."""
        ...


def node_rpcs(cluster: ClusterView, election: Election, set_log_level: Callable[[int], None]) -> list[Rpc]:
    """`set_log_level` takes a level of the `logging` module."""
    service = _Node(cluster, election, set_log_level)
    common = admin.CommonResponse
    return [
        Rpc("CheckHealth", admin.CheckHealthRequest, admin.CheckHealthResponse, service.check_health, leader_only=False),
        Rpc("GetManagerClusterInfo", admin.GetManagerClusterInfoRequest, admin.GetManagerClusterInfoResponse, service.cluster_info, leader_only=False),
        Rpc("LeaderDemote", admin.LeaderDemoteRequest, common, service.demote, leader_only=False),
        Rpc("GetLeaderElectorConfig", admin.GetLeaderElectorConfigRequest, admin.GetLeaderElectorConfigResponse, service.get_elector, leader_only=False),
        Rpc("UpdateLeaderElectorConfig", admin.UpdateLeaderElectorConfigRequest, common, service.update_elector, leader_only=False),
        Rpc("UpdateLogger", admin.UpdateLoggerRequest, common, service.update_logger, leader_only=False),
    ]


class _Node:
    def __init__(self, cluster: ClusterView, election: Election, set_log_level: Callable[[int], None]) -> None:
        self._cluster = cluster
        self._election = election
        self._set_log_level = set_log_level

    async def check_health(self, request: admin.CheckHealthRequest, call: Call) -> Reply:
        known = self._cluster.snapshot()
        response = admin.CheckHealthResponse(is_leader=known.is_leader, is_health=known.is_health, elector_last_loop_time_ms=known.elector_last_loop_ms)
        response.header.status.message = known.problem
        return finish(response, call)

    async def cluster_info(self, request: admin.GetManagerClusterInfoRequest, call: Call) -> Reply:
        known = self._cluster.snapshot()
        response = admin.GetManagerClusterInfoResponse(
            self_leader_expiration_time=known.self_leader_expiration_us,
            self_node_id=known.self_node_id,
            leader_node_id=known.leader_node_id,
            leader_epoch=known.leader_epoch,
        )
        if known.leader_endpoint.node_id:
            _fill(response.leader_endpoint, known.leader_endpoint)
        for node in await self._cluster.nodes():
            state = response.nodes.add(role=_ROLES.get(node.role, admin.NODE_ROLE_UNKNOWN), epoch=node.epoch)
            _fill(state.endpoint, node.endpoint)
            if node.told_at_ms:
                # Clocks of two machines differ: nothing was said in the future.
                state.told_ms_ago = max(0, call.now_us // 1000 - node.told_at_ms)
            copies = node.copies
            if copies is not None:
                told = admin.NodeCopies(state=_COPY_STATES[copies.state], warm=copies.warm, filling=copies.filling)
                told.behind, told.behind_ms = copies.behind, copies.behind_ms
                state.copies.CopyFrom(told)
        return finish(response, call)

    async def demote(self, request: admin.LeaderDemoteRequest, call: Call) -> Reply:
        # The answer follows at once; draining goes on behind it, and this call is one of those that it waits for.
        if not self._election.demote():
            raise NotLeader("this node does not lead, so there is nothing to step down from")
        _log.info("demoted_by_request request_id=%s", call.request_id)
        return done(call)

    async def get_elector(self, request: admin.GetLeaderElectorConfigRequest, call: Call) -> Reply:
        return finish(admin.GetLeaderElectorConfigResponse(campaign_delay_time_ms=self._election.campaign_delay_ms), call)

    async def update_elector(self, request: admin.UpdateLeaderElectorConfigRequest, call: Call) -> Reply:
        self._election.campaign_delay_ms = request.campaign_delay_time_ms
        _log.info("campaign_delay_changed ms=%d request_id=%s", request.campaign_delay_time_ms, call.request_id)
        return done(call)

    async def update_logger(self, request: admin.UpdateLoggerRequest, call: Call) -> Reply:
        level = _LEVELS.get(required(request, "UpdateLogger", "log_level").upper())
        if level is None:
            raise InvalidArgument("log_level must be DEBUG, INFO, WARN or ERROR")
        self._set_log_level(level)
        # At the level it just got, so that the log tells from where on it is complete.
        _log.log(level, "log_level_changed level=%s request_id=%s", logging.getLevelName(level).lower(), call.request_id)
        return done(call)


def _fill(message: admin.NodeEndpoint, endpoint: Endpoint) -> None:
    for field in admin.NodeEndpoint.DESCRIPTOR.fields_by_name:
        setattr(message, field, getattr(endpoint, field))
