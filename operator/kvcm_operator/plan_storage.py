"""Which calls bring one storage on a manager to what its resource says. Pure.

Unlike `kvcm.resources.plan`, which serves one apply by a person, this knows whether the storage was ours before: an adoption policy is asked only
once, and what differs later is drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvcm.data_storage.model import Storage
from kvcm.resources.conditions import Reason
from kvcm.resources.normalise import FieldChange, diff
from kvcm.resources.storage import StorageResource
from kvcm.resources.translate import storage_from_resource, type_word


class StorageCall(StrEnum):
    ADD = "add"
    UPDATE = "update"
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing may be done until somebody changes something."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """`calls` in order, each about `desired`; empty when the server is as it should be."""

    desired: Storage
    calls: tuple[StorageCall, ...] = ()
    changes: tuple[FieldChange, ...] = ()
    refusal: Refusal | None = None


def plan_storage(resource: StorageResource, actual: Storage | None, *, owned: bool) -> StoragePlan:
    """`owned`: an earlier pass of this resource made or adopted the storage. Raises UnsupportedResource for kinds that are not built."""
    desired = storage_from_resource(resource, actual)
    if actual is None:
        calls = [StorageCall.ADD] if desired.enabled else [StorageCall.ADD, StorageCall.DISABLE]
        return StoragePlan(desired, tuple(calls))
    if actual.type is not desired.type:
        return StoragePlan(desired, refusal=_other_kind(desired, actual))
    changes = tuple(diff(desired, actual))
    if changes and not owned and resource.spec.adoption_policy == "AdoptIfEqual":
        return StoragePlan(desired, changes=changes, refusal=_not_equal(desired, changes))
    steps: list[StorageCall] = []
    if any(change.path != "enabled" for change in changes):
        steps.append(StorageCall.UPDATE)
    if desired.enabled != actual.enabled:
        steps.append(StorageCall.ENABLE if desired.enabled else StorageCall.DISABLE)
    return StoragePlan(desired, tuple(steps), changes)


def changed_fields(changes: Sequence[FieldChange]) -> str:
    """Names of fields only: values may be long, and tell more than a log should."""
    return ", ".join(change.path for change in changes)


def _other_kind(desired: Storage, actual: Storage) -> Refusal:
    return Refusal(
        Reason.KIND_CONFLICT,
        f"the manager has a storage {desired.name} of kind {type_word(actual.type)}, this resource describes kind {type_word(desired.type)}; "
        "a kind cannot change: use another name, or remove the storage from the manager",
    )


def _not_equal(desired: Storage, changes: Sequence[FieldChange]) -> Refusal:
    return Refusal(
        Reason.ADOPTION_REFUSED,
        f"the manager already has a storage {desired.name} that differs in {changed_fields(changes)}, and adoptionPolicy is AdoptIfEqual; "
        "make them equal, or set adoptionPolicy to Adopt",
    )
