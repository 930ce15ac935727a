"""What a manager tells about its storages and groups beside their configuration.

A manager of another make sends none of it: then `state` and `usage` are None, which is not the same as "broken" or "empty".
"""

from __future__ import annotations

from dataclasses import dataclass
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
