"""The custom resource `InstanceGroup`: instances that share a quota and storages (design section 4).

Not in the model until they are built, so that setting them is an error and not a silent nothing: admission under pressure, migrations,
the policy and the threshold of reclaim. Kinds of storage that are not built are valid here, as
in `storage.py`, and refused by `translate.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from kvcm.resources.base import (
    API_VERSION,
    MAX_NAME_CHARS,
    SERVER_NAME,
    DeletionPolicy,
    Duration,
    FileUri,
    ManagerRef,
    Model,
    ObjectMeta,
    Quantity,
    ResourceStatus,
    ServerName,
)
from kvcm.resources.manager_stores import WRITE_MODES, WriteMode, not_without

MAX_STORAGES = 32
# A manager holds no more in all its groups together, so a higher limit would be none.
MAX_INSTANCES = 65_536
MAX_KEYS = 10_000_000_000

PlacementPreference = Literal[
    "PreferThreeFS",
    "AlwaysThreeFS",
    "PreferMooncake",
    "AlwaysMooncake",
    "PreferTairMemPool",
    "AlwaysTairMemPool",
    "PreferVcnsThreeFS",
    "AlwaysVcnsThreeFS",
    "PreferTairMemPoolSSD",
    "AlwaysTairMemPoolSSD",
]

_NOT_BUILT_YET = "Not built yet: applying it is refused."


class QuotaByType(Model):
    """Limits per kind of storage; a kind that is not listed is limited by the total only."""

    nfs: Quantity | None = Field(default=None, description="Bytes in nfs storages.")
    three_fs: Quantity | None = Field(default=None, alias="threeFS", description="Bytes in threeFS and vcnsThreeFS storages together.")
    mooncake: Quantity | None = Field(default=None, description=f"Bytes in mooncake storages. {_NOT_BUILT_YET}")
    tair_mem_pool: Quantity | None = Field(default=None, description=f"Bytes in tairMemPool storages on DRAM. {_NOT_BUILT_YET}")
    tair_mem_pool_ssd: Quantity | None = Field(default=None, alias="tairMemPoolSSD", description=f"Bytes in tairMemPool storages on SSD. {_NOT_BUILT_YET}")
    dummy: Quantity | None = Field(default=None, description="Bytes in dummy storages.")


class GroupQuota(Model):
    total: Quantity = Field(
        description='Bytes of all blocks of the group, such as "64Gi". Writes that do not fit are refused until blocks are removed; with 0, all of them.'
    )
    by_type: QuotaByType | None = Field(default=None, description="Further limits per kind of storage.")


class Placement(Model):
    preference: PlacementPreference = Field(
        default="PreferThreeFS",
        description="Kind of storage for new blocks. Prefer: the first of this kind, else the first that can be written, in the order of "
        "storages. Always: this kind or none. Mooncake and TairMemPool are not built yet: applying them is refused.",
    )


class Reclaim(Model):
    """How blocks go that were given up."""

    delay_before_delete: Duration = Field(
        default="1s", description="Time between giving a block up and deleting its bytes, for engines that are still reading."
    )


class MetadataBackend(Model):
    """Where the metadata of blocks is kept."""

    type: Literal["local", "file", "redis"] = Field(
        description="local: in memory, lost with the process; a new leader begins empty. file: in a file, written at every change, for one manager. "
        "redis: in the manager's Redis (spec.metadataBackend of KVCacheManager, or kvcm.meta.redis_uri), which survives it."
    )
    write_mode: WriteMode | None = Field(default=None, description=f"For redis. {WRITE_MODES}")
    uri: FileUri | None = Field(
        default=None,
        description="For file: file:///directory/name with an absolute path on the manager. Each instance has a file of its own, name.<instance id>, "
        "in that directory, which is made when it is missing.",
    )

    @model_validator(mode="after")
    def _fields_with_type(self) -> MetadataBackend:
        if (self.type == "file") != (self.uri is not None):
            raise ValueError("uri must be set when type is file, and only then")
        if self.type != "redis" and self.write_mode is not None:
            raise ValueError(not_without("writeMode", "redis"))
        return self


class MetadataIndex(Model):
    """The index of an instance's blocks. Changes reach instances that register later, and the others when a manager next takes the lead."""

    max_keys: Annotated[int, Field(ge=1, le=MAX_KEYS)] = Field(default=1_000_000, description="Blocks that one instance may hold.")
    backend: MetadataBackend | None = Field(
        default=None,
        description="Unset: that of the manager's spec.metadataBackend for a new group (local unless it says otherwise), unchanged for an existing one. "
        "An instance that changes its backend starts empty in the new one.",
    )


_StorageName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS, pattern=SERVER_NAME)]


class InstanceGroupSpec(Model):
    """What the instances of one group share."""

    manager_ref: ManagerRef = Field(description="The manager that serves this group.")
    name: ServerName | None = Field(default=None, description="Name on the manager, which engines register with; metadata.name when unset. It never changes.")
    storages: Annotated[tuple[_StorageName, ...], Field(min_length=1, max_length=MAX_STORAGES, strict=False)] = Field(
        description="Storages for new blocks, best first: names of Storage resources or names that the manager already knows.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    quota: GroupQuota = Field(description="How many bytes the group may hold.")
    max_instances: Annotated[int, Field(ge=1, le=MAX_INSTANCES)] = Field(default=100, description="Instances that may register.")
    placement: Placement = Field(default_factory=Placement, description="Which storage gets new blocks.")
    reclaim: Reclaim = Field(default_factory=Reclaim, description="How blocks go that were given up.")
    metadata_index: MetadataIndex = Field(default_factory=MetadataIndex, description="The index of blocks.")
    deletion_policy: DeletionPolicy = Field(
        default="Retain", description="What deleting this resource does to the group on the manager; Delete waits while instances exist."
    )

    @field_validator("storages")
    @classmethod
    def _no_duplicates(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError("names a storage twice")
        return names


class InstanceGroupStatus(ResourceStatus):
    """What the operator last saw."""

    server_name: str | None = Field(default=None, max_length=253, description="Name on the manager.")
    version: int | None = Field(default=None, ge=0, description="Version of the group on the manager.")
    instances: int | None = Field(default=None, ge=0, description="Registered instances.")
    keys: int | None = Field(default=None, ge=0, description="Blocks of all instances.")
    used_bytes: int | None = Field(default=None, ge=0, description="Bytes of all blocks.")
    usage_percent: int | None = Field(default=None, ge=0, description="Used bytes as a share of the total quota.")


class InstanceGroupResource(Model):
    """Instances that share a quota and storages."""

    api_version: Literal[API_VERSION]  # type: ignore[valid-type]  # a constant shared with the generator
    kind: Literal["InstanceGroup"]
    metadata: ObjectMeta
    spec: InstanceGroupSpec
    status: InstanceGroupStatus | None = None

    @property
    def server_name(self) -> str:
        return self.spec.name or self.metadata.name
