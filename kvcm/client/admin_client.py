"""Typed calls to a manager's AdminService over gRPC, for the command line, the operator and other tools.

    KvcmError
    ├── ManagerUnreachable    nothing was sent: no connection could be made
    ├── AccessDenied          the manager wants a token or certificate, or another one; nothing was done
    ├── OutcomeUnknown        a change was sent and no answer came: read before repeating
    ├── AdminCallFailed       the manager answered with an error that has no class of its own (`method`, `wire_code`)
    └── InvalidArgument, Unsupported, NotFound, DuplicateEntity, CapacityReached, NotLeader, NotReady, StorageError   as the manager said

Every call runs on the caller's loop and has a deadline. Calls that only the leader answers follow it (admin_route); what concerns one node (cluster_info,
check_health, leader_demote, campaign delay, log level, metrics) goes to the node that was asked for: the first address that can be reached, or the leader
after `go_to_leader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from kvcm.client.admin_errors import AdminCallFailed, ManagerUnreachable, decoded
from kvcm.client.admin_node import NodeCalls
from kvcm.client.admin_route import DEFAULT_FAILOVER_S, LeaderRoute
from kvcm.client.admin_types import ClusterInfo, GroupView, Health, NodeEndpoint, StorageView, state_from_proto, usage_from_proto
from kvcm.client.meta_ops import build, locations_of
from kvcm.client.rpc_channel import DEFAULT_TIMEOUT_S
from kvcm.client.security import PLAIN, ClientSecurity
from kvcm.client.types import Metas
from kvcm.config.model import Instance, InstanceGroup
from kvcm.data_storage.model import Storage
from kvcm.protocol import admin_service_pb2 as pb
from kvcm.protocol import admin_service_pb2_grpc as pb_grpc
from kvcm.protocol.domain_codec import group_from_reply, group_to_proto, instance_from_info, storage_from_reply, storage_to_proto
from kvcm.protocol.instance_codec import instance_to_request

__all__ = ["DEFAULT_TIMEOUT_S", "AdminCallFailed", "AdminClient", "ClusterInfo", "Health", "ManagerUnreachable", "NodeEndpoint"]


class AdminClient(NodeCalls):
    """`address`: `host:port` of a manager's admin gRPC service, or several, or discovery URLs. Use it as an async context manager, on one event loop.

    `failover_s`: how long after its first failure a call may look for a leader and begin another attempt.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        trace_id: str = "kvcm",
        security: ClientSecurity = PLAIN,
        failover_s: float = DEFAULT_FAILOVER_S,
    ) -> None:
        """Raises InvalidClientConfig, Unsupported."""
        make: Any = pb_grpc.AdminServiceStub
        addresses = (address,) if isinstance(address, str) else tuple(address)
        self._rpc = LeaderRoute(addresses, make, timeout_s=timeout_s, security=security, failover_s=failover_s)
        self._trace = trace_id

    async def __aenter__(self) -> AdminClient:
        await self._rpc.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._rpc.close()

    async def list_storages(self) -> list[Storage]:
        return [view.storage for view in await self.describe_storages()]

    async def describe_storages(self) -> list[StorageView]:
        """Every storage with what the manager knows about it now, in one call."""
        reply = await self._rpc.read("ListStorage", pb.ListStorageRequest(trace_id=self._trace))
        disabled = frozenset(reply.disabled_storage_names)
        states = {state.name: state for state in decoded("ListStorage", state_from_proto, reply.states)}
        storages = decoded("ListStorage", storage_from_reply, reply.storage)
        return [StorageView(replace(storage, enabled=storage.name not in disabled), states.get(storage.name)) for storage in storages]

    async def add_storage(self, storage: Storage) -> None:
        await self._rpc.write("AddStorage", pb.AddStorageRequest(trace_id=self._trace, storage=storage_to_proto(storage)))

    async def update_storage(self, storage: Storage, *, force: bool = False) -> None:
        """`force`: also when instance groups use the storage and its bytes would be looked for elsewhere."""
        await self._rpc.write("UpdateStorage", pb.UpdateStorageRequest(trace_id=self._trace, storage=storage_to_proto(storage), force_update=force))

    async def enable_storage(self, name: str) -> None:
        await self._rpc.write("EnableStorage", pb.EnableStorageRequest(trace_id=self._trace, storage_unique_name=name))

    async def disable_storage(self, name: str) -> None:
        await self._rpc.write("DisableStorage", pb.DisableStorageRequest(trace_id=self._trace, storage_unique_name=name))

    async def remove_storage(self, name: str, *, force: bool = False) -> None:
        """`force`: also when instance groups use it; their blocks there are lost."""
        await self._rpc.write("RemoveStorage", pb.RemoveStorageRequest(trace_id=self._trace, storage_unique_name=name), force=force)

    async def list_groups(self) -> list[InstanceGroup]:
        return [view.group for view in await self.describe_groups()]

    async def describe_groups(self) -> list[GroupView]:
        """Every group with what it holds now, in one call."""
        reply = await self._rpc.read("ListInstanceGroup", pb.ListInstanceGroupRequest(trace_id=self._trace))
        used = {usage.name: usage for usage in map(usage_from_proto, reply.usage)}
        return [GroupView(group, used.get(group.name)) for group in decoded("ListInstanceGroup", group_from_reply, reply.instance_group)]

    async def describe_group(self, name: str) -> GroupView:
        """One group. Raises NotFound."""
        reply = await self._rpc.read("GetInstanceGroup", pb.GetInstanceGroupRequest(trace_id=self._trace, name=name))
        (group,) = decoded("GetInstanceGroup", group_from_reply, [reply.instance_group])
        return GroupView(group, usage_from_proto(reply.usage) if reply.HasField("usage") else None)

    async def create_group(self, group: InstanceGroup) -> None:
        await self._rpc.write("CreateInstanceGroup", pb.CreateInstanceGroupRequest(trace_id=self._trace, instance_group=group_to_proto(group)))

    async def update_group(self, group: InstanceGroup, current_version: int) -> None:
        """`group.version` must be greater than `current_version`, which must be the stored one; otherwise the manager refuses."""
        request = pb.UpdateInstanceGroupRequest(trace_id=self._trace, instance_group=group_to_proto(group), current_version=current_version)
        await self._rpc.write("UpdateInstanceGroup", request)

    async def remove_group(self, name: str, *, force: bool = False) -> None:
        """`force`: also when instances are registered in it."""
        await self._rpc.write("RemoveInstanceGroup", pb.RemoveInstanceGroupRequest(trace_id=self._trace, name=name), force=force)

    async def list_instances(self, group: str) -> list[Instance]:
        """Instances of one group; the manager wants a group's name and answers an unknown one with nothing."""
        reply = await self._rpc.read("ListInstanceInfo", pb.ListInstanceInfoRequest(trace_id=self._trace, instance_group_name=group))
        return decoded("ListInstanceInfo", instance_from_info, reply.instance_info)

    async def get_instance(self, instance_id: str) -> Instance:
        """Raises NotFound."""
        reply = await self._rpc.read("GetInstanceInfo", pb.GetInstanceInfoRequest(trace_id=self._trace, instance_id=instance_id))
        (instance,) = decoded("GetInstanceInfo", instance_from_info, [reply.instance_info])
        return instance

    async def register_instance(self, instance: Instance) -> None:
        """Also an instance that is registered already with the same identity. The quota group comes from the instance group."""
        request = pb.RegisterInstanceRequest(trace_id=self._trace)
        instance_to_request(instance, request)
        await self._rpc.write("RegisterInstance", request)

    async def remove_instance(self, instance_id: str, *, force: bool = False) -> None:
        """End an instance and all its blocks. Raises NotFound."""
        await self._rpc.write("RemoveInstance", pb.RemoveInstanceRequest(trace_id=self._trace, instance_id=instance_id), force=force)

    async def get_cache_meta(self, instance_id: str, keys: Sequence[int] = (), tokens: Sequence[int] = ()) -> Metas:
        """Any location and a JSON text about each block, whatever its state."""
        request = build(pb.GetCacheMetaRequest, trace_id=self._trace, instance_id=instance_id, block_keys=keys, token_ids=tokens)
        reply = await self._rpc.read("GetCacheMeta", request)
        return Metas(locations_of(reply.locations), tuple(reply.metas))

    async def remove_cache(self, instance_id: str, keys: Sequence[int] = (), tokens: Sequence[int] = ()) -> None:
        """Ask for the deletion of whole blocks; it happens later."""
        request = build(pb.RemoveCacheRequest, trace_id=self._trace, instance_id=instance_id, block_keys=keys, token_ids=tokens)
        await self._rpc.write("RemoveCache", request)
