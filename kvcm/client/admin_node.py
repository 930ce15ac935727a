"""Admin calls about the manager itself: health, leadership, accounts, snapshots of the configuration, metrics, logging. Part of AdminClient."""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.client.admin_errors import decoded
from kvcm.client.admin_route import LeaderRoute
from kvcm.client.admin_types import (
    Account,
    AccountRole,
    ClusterInfo,
    CopyState,
    Health,
    MetricSample,
    MetricsReport,
    NodeCopies,
    NodeRole,
    NodeState,
    QuarantinedCopy,
    endpoint_from_proto,
    quarantined_from_proto,
    sample_from_proto,
)
from kvcm.client.meta_ops import build
from kvcm.protocol import admin_service_pb2 as pb


def _node(node: pb.NodeState) -> NodeState:
    told = node.copies
    copies = NodeCopies(CopyState.of(told.state), told.warm, told.filling, told.behind, told.behind_ms) if node.HasField("copies") else None
    told_ms_ago = node.told_ms_ago if node.HasField("told_ms_ago") else None
    return NodeState(endpoint_from_proto(node.endpoint), NodeRole.of(node.role), node.epoch, copies, told_ms_ago)


class NodeCalls:
    """Mixed into AdminClient, which owns the connection."""

    _rpc: LeaderRoute
    _trace: str

    async def cluster_info(self) -> ClusterInfo:
        """The node that answers and the one that leads; any node may be asked."""
        reply = await self._rpc.read_node("GetManagerClusterInfo", pb.GetManagerClusterInfoRequest(trace_id=self._trace))
        leader = endpoint_from_proto(reply.leader_endpoint) if reply.HasField("leader_endpoint") else None
        nodes = tuple(_node(node) for node in reply.nodes)
        return ClusterInfo(reply.self_node_id, reply.leader_node_id, reply.self_leader_expiration_time, leader, reply.leader_epoch, nodes)

    async def check_health(self) -> Health:
        reply = await self._rpc.read_node("CheckHealth", pb.CheckHealthRequest(trace_id=self._trace))
        return Health(reply.is_health, reply.is_leader, reply.elector_last_loop_time_ms)

    async def go_to_leader(self) -> None:
        """Ask the node that leads now from here on, also for what concerns one node. Raises NotLeader when none is found."""
        await self._rpc.to_leader()

    async def leader_demote(self) -> None:
        """Make the asked node give up leadership. Raises NotLeader when it does not lead. It may win again; see `set_campaign_delay`."""
        await (await self._rpc.node()).write("LeaderDemote", pb.LeaderDemoteRequest(trace_id=self._trace))

    async def campaign_delay_ms(self) -> int:
        """How long the asked node stays out of elections after it lost or gave up leadership."""
        reply = await self._rpc.read_node("GetLeaderElectorConfig", pb.GetLeaderElectorConfigRequest(trace_id=self._trace))
        return int(reply.campaign_delay_time_ms)

    async def set_campaign_delay(self, delay_ms: int) -> None:
        """On the asked node alone, until it restarts."""
        await (await self._rpc.node()).write(
            "UpdateLeaderElectorConfig", pb.UpdateLeaderElectorConfigRequest(trace_id=self._trace, campaign_delay_time_ms=delay_ms)
        )

    async def set_log_level(self, level: str) -> None:
        """DEBUG, INFO, WARN or ERROR in any case, on the asked node alone. Raises InvalidArgument for another."""
        await (await self._rpc.node()).write("UpdateLogger", pb.UpdateLoggerRequest(trace_id=self._trace, log_level=level))

    async def metrics(self) -> MetricsReport:
        """Every series of the asked node, as numbers; Prometheus reads GET /metrics instead."""
        reply = await self._rpc.read_node("GetMetrics", pb.GetMetricsRequest(trace_id=self._trace))
        samples: list[MetricSample] = decoded("GetMetrics", sample_from_proto, reply.metrics)
        return MetricsReport(reply.timestamp, tuple(samples), reply.extra_data)

    # -- accounts ------------------------------------------------------------------------------------------------------------------------------

    async def list_accounts(self) -> list[Account]:
        """Names and roles; passwords never leave the manager."""
        reply = await self._rpc.read("ListAccount", pb.ListAccountRequest(trace_id=self._trace))
        return [Account(account.user_name, AccountRole.of(account.role)) for account in reply.accounts]

    async def add_account(self, name: str, password: str, role: AccountRole) -> None:
        request = pb.AddAccountRequest(trace_id=self._trace, user_name=name, password=password)
        request.role = pb.ROLE_ADMIN if role is AccountRole.ADMIN else pb.ROLE_USER
        await self._rpc.write("AddAccount", request)

    async def delete_account(self, name: str) -> None:
        await self._rpc.write("DeleteAccount", pb.DeleteAccountRequest(trace_id=self._trace, user_name=name))

    # -- snapshots -----------------------------------------------------------------------------------------------------------------------------

    async def save_snapshot(self) -> str:
        """Storages, groups, instances and accounts (without passwords) as a text for `load_snapshot`."""
        reply = await self._rpc.read("GenConfigSnapshot", pb.GenConfigSnapshotRequest(trace_id=self._trace))
        return str(reply.config_snapshot)

    async def load_snapshot(self, text: str, *, force: bool = False) -> None:
        """Make everything that a snapshot names as it says, or nothing; what it does not name stays. `force`: also moves that would strand blocks."""
        await self._rpc.write("LoadConfigSnapshot", pb.LoadConfigSnapshotRequest(trace_id=self._trace, config_snapshot=text), force=force)

    # -- migration -----------------------------------------------------------------------------------------------------------------------------

    async def migrate_cache(self, instance_id: str, source: str, target: str, *, keys: Sequence[int] = (), sample_count: int = 0) -> tuple[int, int]:
        """Move blocks from storage `source` to `target`: those of `keys`, or `sample_count` that the manager picks. Returns (accepted, rejected)."""
        request = build(
            pb.MigrateCacheRequest, trace_id=self._trace, instance_id=instance_id, source_storage_name=source, target_storage_name=target, block_keys=keys
        )
        if sample_count:
            request.rule.sample_count = sample_count
        reply = await self._rpc.write("MigrateCache", request)
        return int(reply.accepted), int(reply.rejected)

    async def list_quarantined_copies(self, group: str) -> list[QuarantinedCopy]:
        """Copies of which nobody knows whether they still write."""
        reply = await self._rpc.read("ListAsyncCopyQuarantine", pb.ListAsyncCopyQuarantineRequest(trace_id=self._trace, instance_group_name=group))
        return decoded("ListAsyncCopyQuarantine", quarantined_from_proto, reply.records)

    async def release_quarantined_copy(self, operation_id: str, operator_name: str, evidence: str, *, confirmed: bool) -> None:
        """Free a copy's target. `confirmed`: the caller has made sure, as `evidence` says, that the copy can no longer write."""
        request = pb.BreakGlassReleaseAsyncCopyRequest(
            trace_id=self._trace,
            operation_id=operation_id,
            operator_name=operator_name,
            external_fencing_evidence=evidence,
            external_fencing_confirmed=confirmed,
        )
        await self._rpc.write("BreakGlassReleaseAsyncCopy", request)
