"""Where a KVCacheManager keeps what outlives a pod: leases, the registry, block metadata. Parts of its spec.

The registry is where the leases are unless the spec says otherwise, so that whoever leads next never finds an empty one by accident.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from kvcm.resources.base import Duration, Model, RelativePath
from kvcm.resources.duration import parse_duration
from kvcm.resources.manager_connections import BlockRedis, EtcdConnection, RedisConnection
from kvcm.resources.storage import Volume

SHORTEST_LEASE, LONGEST_LEASE = "1s", "5m"
LEASE_SENTENCE = f"leaseDuration must be from {SHORTEST_LEASE} to {LONGEST_LEASE}"
VOLUME_SENTENCE = "volume must be set when type is file, and only then"


def only_with(field: str, kind: str) -> str:
    """The sentence about a member that belongs to one type."""
    return f"{field} must be set when type is {kind}, and only then"


def not_without(field: str, kind: str) -> str:
    """The sentence about a member that one type alone may have."""
    return f"{field} is only for type {kind}"


def _lease(value: object) -> object:
    if not parse_duration(SHORTEST_LEASE) <= parse_duration(value) <= parse_duration(LONGEST_LEASE):  # type: ignore[arg-type]  # it refuses every other type
        raise ValueError(LEASE_SENTENCE)
    return value


def _no_directory(path: object) -> object:
    if isinstance(path, str) and path.endswith("/"):
        raise ValueError("must name a file, not a directory")
    return path


class Coordination(Model):
    """How managers agree on a leader. To change type while pods run stops all of them first."""

    type: Literal["memory", "etcd", "redis"] = Field(
        default="memory", description="Where the lease of the leader is. memory: within one process, for a single manager. etcd, redis: for several."
    )
    lease_duration: Annotated[Duration, BeforeValidator(_lease)] = Field(
        default="10s", description="How long a leader that is cut off goes on, and at most how long nobody leads after a crash: from 1s to 5m."
    )
    etcd: EtcdConnection | None = Field(default=None, description="For etcd: how to reach it.")
    redis: RedisConnection | None = Field(default=None, description="For redis: how to reach it.")

    @model_validator(mode="after")
    def _place_with_type(self) -> Coordination:
        for kind, place in (("etcd", self.etcd), ("redis", self.redis)):
            if (self.type == kind) != (place is not None):
                raise ValueError(only_with(kind, kind))
        return self


class RegistryStore(Model):
    """Where the manager keeps its storages, groups and instances. The operator brings lost storages and groups back; instances register again."""

    type: Literal["memory", "file", "etcd", "redis"] | None = Field(
        default=None,
        description="Unset: where the leases are (memory, etcd or redis as coordination.type). memory: lost with the pod. file: in a file on a volume, "
        "written at every change. etcd, redis: survives every pod.",
    )
    path: Annotated[RelativePath, BeforeValidator(_no_directory)] = Field(default="registry.json", description="For file: the file within the volume.")
    volume: Volume | None = Field(default=None, description="For file: the volume that holds it; it must be writable by the manager's user.")
    etcd: EtcdConnection | None = Field(default=None, description="For etcd: how to reach it; that of coordination when unset.")
    redis: RedisConnection | None = Field(default=None, description="For redis: how to reach it; that of coordination when unset.")

    @model_validator(mode="after")
    def _place_with_type(self) -> RegistryStore:
        if (self.type == "file") != (self.volume is not None):
            raise ValueError(VOLUME_SENTENCE)
        for kind, place in (("etcd", self.etcd), ("redis", self.redis)):
            if place is not None and self.type != kind:
                raise ValueError(not_without(kind, kind))
        return self


WriteMode = Literal["WriteThrough", "WriteBehind"]
WRITE_MODES = (
    "WriteThrough (the default): a write is acknowledged when Redis has it. "
    "WriteBehind: when it is queued; a crash loses what waits, usually some milliseconds' worth."
)


class ManagerMetadata(Model):
    """Where block metadata of groups is kept that do not say it themselves."""

    type: Literal["local", "redis"] = Field(
        default="local",
        description="For new groups. local: in memory, lost with the pod; a new leader begins empty. "
        "redis: survives every pod, and followers keep warm copies.",
    )
    write_mode: WriteMode | None = Field(default=None, description=f"For redis. {WRITE_MODES}")
    redis: BlockRedis | None = Field(default=None, description="For redis: how to reach it; that of coordination when unset.")

    @model_validator(mode="after")
    def _redis_with_type(self) -> ManagerMetadata:
        if self.type != "redis" and self.redis is not None:
            raise ValueError(not_without("redis", "redis"))
        if self.type != "redis" and self.write_mode is not None:
            raise ValueError(not_without("writeMode", "redis"))
        return self
