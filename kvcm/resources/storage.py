"""The custom resource `Storage`: one named place for KV bytes on one manager (design section 4).

`mooncake` and `tairMemPool` are valid here so that their resources can be written and reviewed; applying them is refused by `translate.py`
until their backends are built.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from kvcm.resources.base import (
    API_VERSION,
    FULL_WORD,
    WORD,
    AbsolutePath,
    DeletionPolicy,
    Host,
    KeyCountPerFile,
    ManagerRef,
    Model,
    ObjectMeta,
    Port,
    RelativePath,
    ResourceName,
    ResourceStatus,
    ServerName,
    ServiceUri,
)

_KEYS_PER_FILE = "Blocks packed into one file. With 1, deleting a block frees its bytes at once."
_Word = Annotated[str, StringConstraints(max_length=253, pattern=WORD)]
_Device = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=FULL_WORD)]


class NfsBackend(Model):
    """A directory on a mounted file system: NFS or a local disk."""

    root_path: AbsolutePath = Field(description="Absolute directory that holds the blocks, as the manager and the engines see it.")
    key_count_per_file: KeyCountPerFile = Field(default=1, description=_KEYS_PER_FILE)


class ThreeFSBackend(Model):
    """A directory on a mounted 3FS."""

    mountpoint: AbsolutePath = Field(description="Where 3FS is mounted.")
    root_dir: RelativePath = Field(description="Directory below the mount point that holds the blocks.")
    cluster_name: _Word | None = Field(default=None, description="Name of the 3FS cluster; handed to clients, the manager does not use it.")
    key_count_per_file: KeyCountPerFile = Field(default=1, description=_KEYS_PER_FILE)
    touch_file_when_create: bool = Field(default=False, description="Create the file when a block is allocated instead of when it is written.")


class VcnsThreeFSBackend(ThreeFSBackend):
    """A 3FS that clients reach through a remote service; the manager itself uses the mount point."""

    remote_host: Host = Field(description="Host of the remote service; handed to clients.")
    remote_port: Port = Field(description="Port of the remote service; handed to clients.")
    meta_storage_uri: ServiceUri = Field(description="Where the remote service keeps its metadata, without credentials; handed to clients.")


class MooncakeBackend(Model):
    """A Mooncake store. Not built yet: applying it is refused."""

    local_hostname: Host = Field(description="Host name of this side of a transfer.")
    metadata_connstring: ServiceUri = Field(description="Where Mooncake keeps its metadata; without credentials.")
    protocol: Literal["tcp", "rdma"] = Field(description="Transport of the bytes.")
    rdma_device: _Device | None = Field(default=None, description="Device for rdma; must be set for rdma and only for it.")
    master_service_entry: ServiceUri = Field(description="host:port of the Mooncake master.")

    @model_validator(mode="after")
    def _device_with_rdma(self) -> MooncakeBackend:
        if (self.protocol == "rdma") != (self.rdma_device is not None):
            raise ValueError("rdmaDevice must be set when protocol is rdma, and only then")
        return self


class TairMemPoolBackend(Model):
    """A Tair memory pool. Not built yet: applying it is refused."""

    domain: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=FULL_WORD)] = Field(description="Domain of the pool.")
    timeout: Annotated[int, Field(ge=0, le=3_600_000)] = Field(default=0, description="Time-out handed to the pool's client; 0 is its default.")
    service_discovery_url: ServiceUri | None = Field(default=None, description="Where nodes of the pool are found; without credentials.")
    media_type: Literal["DRAM", "SSD"] | None = Field(default=None, description="Medium to allocate on; unset lets the pool decide.")


class PvcVolume(Model):
    claim_name: ResourceName = Field(description="PersistentVolumeClaim in the manager's namespace.")


class NfsVolume(Model):
    server: Host = Field(description="Host name or address of the NFS server.")
    path: AbsolutePath = Field(description="Path that the NFS server exports.")


class HostPathVolume(Model):
    path: AbsolutePath = Field(description="Directory on the node.")


class Volume(Model):
    """What the operator mounts into every manager pod at the storage's root. Exactly one member."""

    pvc: PvcVolume | None = None
    nfs: NfsVolume | None = None
    host_path: HostPathVolume | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Volume:
        if sum(member is not None for member in (self.pvc, self.nfs, self.host_path)) != 1:
            raise ValueError("set exactly one of pvc, nfs, hostPath")
        return self


Backend = NfsBackend | ThreeFSBackend | VcnsThreeFSBackend | MooncakeBackend | TairMemPoolBackend
FILE_SYSTEM_KINDS = ("nfs", "threeFS", "vcnsThreeFS", "dummy")


class StorageSpec(Model):
    """Exactly one backend block names the kind of store."""

    BACKENDS: ClassVar[dict[str, str]] = {
        "nfs": "nfs",
        "threeFS": "three_fs",
        "vcnsThreeFS": "vcns_three_fs",
        "mooncake": "mooncake",
        "tairMemPool": "tair_mem_pool",
        "dummy": "dummy",
    }

    manager_ref: ManagerRef = Field(description="The manager that serves this storage.")
    name: ServerName | None = Field(
        default=None, description="Name on the manager; metadata.name when unset. It is part of every location, so it never changes."
    )
    nfs: NfsBackend | None = None
    three_fs: ThreeFSBackend | None = Field(default=None, alias="threeFS")
    vcns_three_fs: VcnsThreeFSBackend | None = Field(default=None, alias="vcnsThreeFS")
    mooncake: MooncakeBackend | None = None
    tair_mem_pool: TairMemPoolBackend | None = None
    dummy: NfsBackend | None = Field(default=None, description="A directory for tests: locations are predictable, lost files are noticed on read.")
    volume: Volume | None = Field(default=None, description="Mounted into every manager pod at the storage's root; a new volume restarts the pods one by one.")
    enabled: bool = Field(default=True, description="A disabled storage gets no new blocks and is not read.")
    adoption_policy: Literal["Adopt", "AdoptIfEqual"] = Field(
        default="Adopt",
        description="What to do when the manager already has a storage of this name: take it over and bring it to this spec, or only when it equals this spec.",
    )
    deletion_policy: DeletionPolicy = Field(default="Retain", description="What deleting this resource does to the storage on the manager.")

    @property
    def kind(self) -> str:
        """The name of the backend block that is set, such as `nfs`."""
        return next(name for name, attribute in self.BACKENDS.items() if getattr(self, attribute) is not None)

    @property
    def backend(self) -> Backend:
        found: Backend = getattr(self, self.BACKENDS[self.kind])
        return found

    @model_validator(mode="after")
    def _exactly_one_backend(self) -> StorageSpec:
        found = [name for name, attribute in self.BACKENDS.items() if getattr(self, attribute) is not None]
        if len(found) != 1:
            raise ValueError(f"set exactly one of {', '.join(self.BACKENDS)} (found: {', '.join(found) or 'none'})")
        if self.volume is not None and found[0] not in FILE_SYSTEM_KINDS:
            raise ValueError(f"volume is only for {', '.join(FILE_SYSTEM_KINDS)}; remove it for {found[0]}")
        return self


class StorageStatus(ResourceStatus):
    """What the operator last saw."""

    server_name: str | None = Field(default=None, max_length=253, description="Name on the manager.")
    registered: bool | None = Field(default=None, description="The manager has this storage.")
    enabled: bool | None = Field(default=None, description="The manager uses this storage.")
    type: str | None = Field(default=None, max_length=64, description="Kind of store as the manager names it.")
    root_verified: bool | None = Field(default=None, description="The store's root carries this storage's identity; while false nothing is deleted.")


class StorageResource(Model):
    """One named place for KV bytes on one manager."""

    api_version: Literal[API_VERSION]  # type: ignore[valid-type]  # a constant shared with the generator
    kind: Literal["Storage"]
    metadata: ObjectMeta
    spec: StorageSpec
    status: StorageStatus | None = None

    @property
    def server_name(self) -> str:
        return self.spec.name or self.metadata.name
