"""Typed calls to a manager's AdminService over gRPC, for the command line and the operator.

    KvcmError
    ├── ManagerUnreachable    nothing was sent: no connection could be made
    ├── OutcomeUnknown        a change was sent and no answer came: read before repeating
    ├── AdminCallFailed       the manager answered with an error that has no class of its own (`method`, `wire_code`)
    └── InvalidArgument, Unsupported, NotFound, DuplicateEntity, CapacityReached, NotLeader, NotReady, StorageError   as the manager said

Every call runs on the caller's loop and has a deadline. Nothing is retried here: callers know better what may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, TypeVar

import grpc

from kvcm.client.admin_types import GroupView, StorageView, state_from_proto, usage_from_proto
from kvcm.common.errors import (
    CapacityReached,
    DuplicateEntity,
    ErrorCode,
    InvalidArgument,
    KvcmError,
    NotFound,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    StorageError,
    Unsupported,
)
from kvcm.config.model import Instance, InstanceGroup
from kvcm.data_storage.model import Storage
from kvcm.protocol import admin_service_pb2 as pb
from kvcm.protocol import admin_service_pb2_grpc as pb_grpc
from kvcm.protocol.domain_codec import group_from_reply, group_to_proto, instance_from_info, storage_from_reply, storage_to_proto

DEFAULT_TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 64 * 1024 * 1024
# Proxies of the environment are for the world outside; a manager is a neighbour.
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", MAX_REPLY_BYTES))


class ManagerUnreachable(NotReady):
    """No connection to the manager; nothing was sent."""

    fixer = "administrator"


class AdminCallFailed(KvcmError):
    """The manager refused or failed a call. `wire_code` is its code (wire contract 2.1)."""

    fixer = "administrator"

    def __init__(self, method: str, wire_code: int, message: str) -> None:
        super().__init__(message or f"the manager answered {method} with code {wire_code} and no explanation")
        self.method = method
        self.wire_code = wire_code


@dataclass(frozen=True, slots=True)
class Health:
    """`elector_last_loop_ms`: Unix time of the last round of the leader election."""

    healthy: bool
    leader: bool
    elector_last_loop_ms: int


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    node_id: str
    host: str
    meta_rpc_port: int
    meta_http_port: int
    admin_rpc_port: int
    admin_http_port: int
    custom_info: str


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """`leader_expiration_us`: Unix time at which the asked node's leadership ends unless renewed, -1 when it does not lead."""

    self_node_id: str
    leader_node_id: str
    leader_expiration_us: int
    leader: NodeEndpoint | None


_ERRORS: dict[int, type[KvcmError]] = {
    ErrorCode.UNSUPPORTED: Unsupported,
    ErrorCode.SERVICE_NOT_READY: NotReady,
    ErrorCode.INVALID_ARGUMENT: InvalidArgument,
    ErrorCode.DUPLICATE_ENTITY: DuplicateEntity,
    ErrorCode.REACH_MAX_ENTITY_CAPACITY: CapacityReached,
    ErrorCode.INSTANCE_NOT_EXIST: NotFound,
    ErrorCode.SERVER_NOT_LEADER: NotLeader,
    ErrorCode.IO_ERROR: StorageError,
}


_Item = TypeVar("_Item")


class AdminClient:
    """One connection to one manager (`host:port` of its admin gRPC service). Use it as an async context manager, on one event loop."""

    def __init__(self, address: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, trace_id: str = "kvcm") -> None:
        self._address = address
        self._timeout = timeout_s
        self._trace = trace_id
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> AdminClient:
        self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def list_storages(self) -> list[Storage]:
        return [view.storage for view in await self.describe_storages()]

    async def describe_storages(self) -> list[StorageView]:
        """Every storage with what the manager knows about it now, in one call."""
        reply = await self._read("ListStorage", pb.ListStorageRequest(trace_id=self._trace))
        disabled = frozenset(reply.disabled_storage_names)
        states = {state.name: state for state in _decoded("ListStorage", state_from_proto, reply.states)}
        storages = _decoded("ListStorage", storage_from_reply, reply.storage)
        return [StorageView(replace(storage, enabled=storage.name not in disabled), states.get(storage.name)) for storage in storages]

    async def add_storage(self, storage: Storage) -> None:
        await self._write("AddStorage", pb.AddStorageRequest(trace_id=self._trace, storage=storage_to_proto(storage)))

    async def update_storage(self, storage: Storage, *, force: bool = False) -> None:
        """`force`: also when instance groups use the storage and its bytes would be looked for elsewhere."""
        await self._write("UpdateStorage", pb.UpdateStorageRequest(trace_id=self._trace, storage=storage_to_proto(storage), force_update=force))

    async def enable_storage(self, name: str) -> None:
        await self._write("EnableStorage", pb.EnableStorageRequest(trace_id=self._trace, storage_unique_name=name))

    async def disable_storage(self, name: str) -> None:
        await self._write("DisableStorage", pb.DisableStorageRequest(trace_id=self._trace, storage_unique_name=name))

    async def remove_storage(self, name: str) -> None:
        await self._write("RemoveStorage", pb.RemoveStorageRequest(trace_id=self._trace, storage_unique_name=name))

    async def list_groups(self) -> list[InstanceGroup]:
        return [view.group for view in await self.describe_groups()]

    async def describe_groups(self) -> list[GroupView]:
        """Every group with what it holds now, in one call."""
        reply = await self._read("ListInstanceGroup", pb.ListInstanceGroupRequest(trace_id=self._trace))
        used = {usage.name: usage for usage in map(usage_from_proto, reply.usage)}
        return [GroupView(group, used.get(group.name)) for group in _decoded("ListInstanceGroup", group_from_reply, reply.instance_group)]

    async def describe_group(self, name: str) -> GroupView:
        """One group. Raises NotFound."""
        reply = await self._read("GetInstanceGroup", pb.GetInstanceGroupRequest(trace_id=self._trace, name=name))
        (group,) = _decoded("GetInstanceGroup", group_from_reply, [reply.instance_group])
        return GroupView(group, usage_from_proto(reply.usage) if reply.HasField("usage") else None)

    async def create_group(self, group: InstanceGroup) -> None:
        await self._write("CreateInstanceGroup", pb.CreateInstanceGroupRequest(trace_id=self._trace, instance_group=group_to_proto(group)))

    async def update_group(self, group: InstanceGroup, current_version: int) -> None:
        """`group.version` must be greater than `current_version`, which must be the stored one; otherwise the manager refuses."""
        request = pb.UpdateInstanceGroupRequest(trace_id=self._trace, instance_group=group_to_proto(group), current_version=current_version)
        await self._write("UpdateInstanceGroup", request)

    async def remove_group(self, name: str) -> None:
        await self._write("RemoveInstanceGroup", pb.RemoveInstanceGroupRequest(trace_id=self._trace, name=name))

    async def list_instances(self, group: str) -> list[Instance]:
        """Instances of one group; the manager wants a group's name and answers an unknown one with nothing."""
        reply = await self._read("ListInstanceInfo", pb.ListInstanceInfoRequest(trace_id=self._trace, instance_group_name=group))
        return _decoded("ListInstanceInfo", instance_from_info, reply.instance_info)

    async def cluster_info(self) -> ClusterInfo:
        reply = await self._read("GetManagerClusterInfo", pb.GetManagerClusterInfoRequest(trace_id=self._trace))
        found = reply.leader_endpoint if reply.HasField("leader_endpoint") else None
        leader = None
        if found is not None:
            leader = NodeEndpoint(
                found.node_id,
                found.host,
                found.meta_rpc_port,
                found.meta_http_port,
                found.admin_rpc_port,
                found.admin_http_port,
                found.custom_info,
            )
        return ClusterInfo(reply.self_node_id, reply.leader_node_id, reply.self_leader_expiration_time, leader)

    async def check_health(self) -> Health:
        reply = await self._read("CheckHealth", pb.CheckHealthRequest(trace_id=self._trace))
        return Health(reply.is_health, reply.is_leader, reply.elector_last_loop_time_ms)

    async def _read(self, method: str, request: Any) -> Any:
        return await self._call(method, request, NotReady)

    async def _write(self, method: str, request: Any) -> None:
        await self._call(method, request, OutcomeUnknown)

    async def _call(self, method: str, request: Any, unanswered: type[KvcmError]) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                stub: Any = pb_grpc.AdminServiceStub(await self._connected())  # type: ignore[no-untyped-call]  # generated
                call: Callable[..., Awaitable[Any]] = getattr(stub, method)
                # The deadline goes along, so that the manager stops too when we stop waiting.
                reply = await call(request, timeout=self._timeout)
        except TimeoutError:
            raise unanswered(self._silence(method, unanswered)) from None
        except grpc.aio.AioRpcError as error:
            raise self._transport_error(method, error, unanswered) from None
        _check(method, reply)
        return reply

    async def _connected(self) -> grpc.aio.Channel:
        """Wait for a connection, but not for a manager that refuses: then nothing was sent and the caller may be told so."""
        channel = self._channel
        if channel is None:
            raise ManagerUnreachable("the client is closed")
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                raise ManagerUnreachable(f"no manager can be reached at {self._address}; is it running, and is this its admin gRPC port?")
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
        return channel

    def _silence(self, method: str, unanswered: type[KvcmError]) -> str:
        lost = "; it may have been carried out" if unanswered is OutcomeUnknown else ""
        return f"the manager at {self._address} did not answer {method} within {self._timeout:g} s{lost}"

    def _transport_error(self, method: str, error: grpc.aio.AioRpcError, unanswered: type[KvcmError]) -> KvcmError:
        code = error.code()
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported(f"the server at {self._address} does not know {method}; is this the admin gRPC port of a manager?")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return unanswered(self._silence(method, unanswered))
        if code is grpc.StatusCode.UNAVAILABLE:
            lost = "; it may have been carried out" if unanswered is OutcomeUnknown else ""
            return unanswered(f"the connection to the manager at {self._address} broke during {method}{lost}")
        return AdminCallFailed(method, int(ErrorCode.UNKNOWN_ERROR), f"the call {method} failed in transport ({code.name})")


def _check(method: str, reply: Any) -> None:
    status = reply.header.status
    code = int(status.code)
    if code == ErrorCode.OK:
        return
    kind = _ERRORS.get(code)
    if kind is None:
        raise AdminCallFailed(method, code, status.message)
    raise kind(status.message or f"the manager refused {method} ({ErrorCode(code).name})")


def _decoded(method: str, decode: Callable[[Any], _Item], messages: Iterable[Any]) -> list[_Item]:
    """Domain objects of a reply; what this version cannot read is the manager's error and not the caller's."""
    try:
        return [decode(message) for message in messages]
    except (KvcmError, ValueError) as error:
        raise AdminCallFailed(
            method, int(ErrorCode.UNKNOWN_ERROR), f"the manager answered {method} with something this version cannot read: {error}"
        ) from error
