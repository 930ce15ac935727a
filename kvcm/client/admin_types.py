"""What a manager tells about its storages and groups beside their configuration.

A manager of another make sends none of it: then `state` and `usage` are None, which is not the same as "broken" or "empty".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import Storage, StorageType
from kvcm.protocol import admin_service_pb2 as pb

_ROOTS: dict[int, bool | None] = {pb.ROOT_STATE_VERIFIED: True, pb.ROOT_STATE_LOST: False}


@dataclass(frozen=True, slots=True)
class StorageState:
    """A storage as the manager sees it now.

    available: opened, enabled and not known to be broken. root_verified: at the last look, the root carried the marker of this storage (True), did
    not (False), or that is not known or no such kind (None). problem: a sentence, empty when nothing is wrong; being disabled is no problem.
    """

    name: str
    type: StorageType
    enabled: bool
    available: bool
    root_verified: bool | None
    problem: str


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What a group holds now. `used_bytes` counts every block whose bytes may exist, also those being written and deleted."""

    name: str
    instances: int
    keys: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class StorageView:
    storage: Storage
    state: StorageState | None


@dataclass(frozen=True, slots=True)
class GroupView:
    group: InstanceGroup
    usage: GroupUsage | None


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


class NodeRole(Enum):
    """`PROMOTING`: it has won and is getting ready. `UNKNOWN`: it says nothing, or what it last said was overtaken."""

    UNKNOWN = "unknown"
    FOLLOWER = "follower"
    PROMOTING = "promoting"
    LEADER = "leader"
    DEMOTING = "demoting"

    @classmethod
    def of(cls, number: int) -> NodeRole:
        return _NODE_ROLES.get(number, cls.UNKNOWN)


_NODE_ROLES: dict[int, NodeRole] = {
    pb.NODE_ROLE_FOLLOWER: NodeRole.FOLLOWER,
    pb.NODE_ROLE_PROMOTING: NodeRole.PROMOTING,
    pb.NODE_ROLE_LEADER: NodeRole.LEADER,
    pb.NODE_ROLE_DEMOTING: NodeRole.DEMOTING,
}


class CopyState(Enum):
    """How ready a follower is to take over. `COLD`: it has not looked yet what there is to copy. `WARM`: it could serve at once."""

    UNKNOWN = "unknown"
    COLD = "cold"
    LOADING = "loading"
    WARM = "warm"

    @classmethod
    def of(cls, number: int) -> CopyState:
        return _COPY_STATES.get(number, cls.UNKNOWN)


_COPY_STATES: dict[int, CopyState] = {
    pb.COPY_STATE_COLD: CopyState.COLD,
    pb.COPY_STATE_LOADING: CopyState.LOADING,
    pb.COPY_STATE_WARM: CopyState.WARM,
}


@dataclass(frozen=True, slots=True)
class NodeCopies:
    """The copies of instances' block metadata on a follower. `state` is at most some seconds old, the numbers at most ten.

    `warm`, `filling`: complete copies, and those that are still being read. `behind`: changes that the complete ones do not have yet; `behind_ms`: for how
    long the one that is furthest behind has missed some.
    """

    state: CopyState
    warm: int = 0
    filling: int = 0
    behind: int = 0
    behind_ms: int = 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as it described itself a moment ago. `epoch`: of the leadership it has or had last, 0 for none since it started.

    `copies`: of a follower; None where nothing is said. `told_ms_ago`: how long ago it did, None where that is not said; beyond some 10 s it may be gone.
    """

    endpoint: NodeEndpoint
    role: NodeRole
    epoch: int
    copies: NodeCopies | None = None
    told_ms_ago: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """`leader_expiration_us`: Unix time at which the asked node's leadership ends unless renewed, -1 when it does not lead. `leader_epoch`: 0 unknown.

    `nodes`: every node of the service that described itself within the last minute; empty from a manager of another make.
    """

    self_node_id: str
    leader_node_id: str
    leader_expiration_us: int
    leader: NodeEndpoint | None
    leader_epoch: int = 0
    nodes: tuple[NodeState, ...] = ()


class AccountRole(Enum):
    USER = "user"
    ADMIN = "admin"

    @classmethod
    def of(cls, number: int) -> AccountRole:
        """A role that this version does not know may do as little as possible."""
        return cls.ADMIN if number == pb.ROLE_ADMIN else cls.USER


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    role: AccountRole


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One series: an int for a counter, a float for a gauge."""

    name: str
    value: int | float | str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """`timestamp_ms`: Unix time at which the manager collected them."""

    timestamp_ms: int
    samples: tuple[MetricSample, ...]
    extra: str


@dataclass(frozen=True, slots=True)
class QuarantinedCopy:
    """A copy between storages whose end is not known. Times are Unix microseconds."""

    operation_id: str
    group: str
    instance_id: str
    key: int
    source: str
    target: str
    total_bytes: int
    created_us: int
    updated_us: int
    last_error: str


def endpoint_from_proto(message: Any) -> NodeEndpoint:
    ports = (message.meta_rpc_port, message.meta_http_port, message.admin_rpc_port, message.admin_http_port)
    return NodeEndpoint(message.node_id, message.host, *ports, message.custom_info)


def sample_from_proto(message: Any) -> MetricSample:
    kind = message.metric_value.WhichOneof("value")
    value = getattr(message.metric_value, kind) if kind else ""
    return MetricSample(message.metric_name, value, {tag.tag_key: tag.tag_value for tag in message.metric_tags})


def quarantined_from_proto(message: Any) -> QuarantinedCopy:
    return QuarantinedCopy(
        operation_id=message.operation_id,
        group=message.instance_group_name,
        instance_id=message.instance_id,
        key=message.block_key,
        source=message.source_storage_name,
        target=message.target_storage_name,
        total_bytes=message.total_bytes,
        created_us=message.create_time_us,
        updated_us=message.update_time_us,
        last_error=message.last_error,
    )


def state_from_proto(message: Any) -> StorageState:
    """Raises ValueError for a storage type that this version does not know."""
    return StorageState(
        name=message.name,
        type=StorageType(message.type),
        enabled=message.enabled,
        available=message.available,
        # A state that a later version adds is "not known" here.
        root_verified=_ROOTS.get(message.root_verified),
        problem=message.problem,
    )


def usage_from_proto(message: Any) -> GroupUsage:
    return GroupUsage(message.name, message.instances, message.keys, message.used_bytes)
