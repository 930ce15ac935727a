"""Which call brings one instance group on a manager to what its resource says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from kvcm.config.model import InstanceGroup, MetaBackendConfig
from kvcm.resources.group import InstanceGroupResource
from kvcm.resources.normalise import FieldChange, diff
from kvcm.resources.translate import group_from_resource


class GroupCall(StrEnum):
    CREATE = "create"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`missing`: names, as the spec has them, of storages that the manager does not have yet; then there is no call."""

    desired: InstanceGroup
    call: GroupCall | None = None
    current_version: int = 0
    changes: tuple[FieldChange, ...] = ()
    missing: tuple[str, ...] = ()


def plan_group(
    resource: InstanceGroupResource,
    actual: InstanceGroup | None,
    server_names: Mapping[str, str],
    registered: Collection[str],
    backend: MetaBackendConfig | None = None,
) -> GroupPlan:
    """`server_names`: Storage resources of the same manager -> their names there; `registered`: the storages that it has.

    `backend`: where the manager keeps block metadata of new groups that do not say it; in memory unless given.

    Raises UnsupportedResource for what is not built.
    """
    desired = group_from_resource(resource, actual, server_names, backend)
    missing = tuple(name for name in resource.spec.storages if server_names.get(name, name) not in registered)
    if missing:
        return GroupPlan(desired, missing=missing)
    if actual is None:
        return GroupPlan(replace(desired, version=1), GroupCall.CREATE)
    changes = tuple(diff(desired, actual))
    if not changes:
        return GroupPlan(actual, current_version=actual.version)
    return GroupPlan(replace(desired, version=actual.version + 1), GroupCall.UPDATE, actual.version, changes)
