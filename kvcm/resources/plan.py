"""What has to be done so that a manager matches a set of resources.

Pure: resources and the manager's present objects go in, ordered steps come out. Storages come before groups, because a group may name only
storages that exist. Every problem of the whole set is found before anything is done. Nothing is ever removed: deleting is the operator's matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvcm.common.errors import Unsupported
from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import Storage
from kvcm.resources.errors import Problem, ResourceError, UnsupportedResource
from kvcm.resources.group import InstanceGroupResource
from kvcm.resources.normalise import FieldChange, diff
from kvcm.resources.parse import Resource
from kvcm.resources.storage import StorageResource
from kvcm.resources.translate import check_built, group_from_resource, storage_from_resource, type_word


class Action(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    ENABLE = "enable"
    DISABLE = "disable"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A resource and the place it was read from (for messages)."""

    resource: Resource
    where: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One call to the manager, or none for UNCHANGED. `current_version` belongs to an update of a group."""

    action: Action
    kind: str
    name: str
    changes: tuple[FieldChange, ...] = ()
    storage: Storage | None = None
    group: InstanceGroup | None = None
    current_version: int = 0
    source: Sourced | None = None
    # Metadata names of Storage resources -> names on the server, to plan a group's step again.
    server_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[Step, ...]
    notices: tuple[str, ...] = ()

    @property
    def changes(self) -> int:
        return sum(step.action is not Action.UNCHANGED for step in self.steps)


def build_plan(resources: Sequence[Sourced], storages: Sequence[Storage], groups: Sequence[InstanceGroup]) -> Plan:
    """Steps in the order to run them. Raises ResourceError with all problems, UnsupportedResource for kinds that are not built."""
    check_set(resources)
    known_storages = {storage.name: storage for storage in storages}
    known_groups = {group.name: group for group in groups}
    wanted_storages = [item for item in resources if isinstance(item.resource, StorageResource)]
    wanted_groups = [item for item in resources if isinstance(item.resource, InstanceGroupResource)]
    server_names = {item.resource.metadata.name: item.resource.server_name for item in wanted_storages}
    steps: list[Step] = []
    problems: list[Problem] = []
    for item in wanted_storages:
        try:
            steps += storage_steps(item, known_storages.get(item.resource.server_name))
        except ResourceError as error:
            problems += error.problems
    present = {*known_storages, *server_names.values()}
    for item in wanted_groups:
        try:
            steps.append(group_step(item, known_groups.get(item.resource.server_name), present, server_names))
        except ResourceError as error:
            problems += error.problems
    if problems:
        raise ResourceError(problems)
    return Plan(tuple(steps), tuple(_notices(resources, steps)))


def check_set(resources: Sequence[Sourced]) -> None:
    """Refuse a set that contradicts itself: two resources for one name, several managers, kinds that are not built."""
    problems: list[Problem] = []
    first: dict[tuple[str, str], Sourced] = {}
    managers: dict[str, Sourced] = {}
    for item in resources:
        resource = item.resource
        other = first.setdefault((resource.kind, resource.server_name), item)
        if other is not item:
            place = f" (the other is in {other.where})" if other.where else ""
            problems.append(Problem(f"two resources describe the {resource.kind} {resource.server_name}{place}", where=item.where))
        managers.setdefault(resource.spec.manager_ref.name, item)
    if len(managers) > 1:
        names = ", ".join(sorted(managers))
        problems.append(Problem(f"the resources belong to several managers ({names}); apply the files of one manager at a time"))
    if problems:
        raise ResourceError(problems)
    for item in resources:
        try:
            check_built(item.resource)
        except Unsupported as error:
            raise UnsupportedResource(f"{item.where}: {error.message}" if item.where else error.message) from None


def storage_steps(item: Sourced, actual: Storage | None) -> list[Step]:
    """Steps for one Storage resource against what the manager has under its name. Raises ResourceError, UnsupportedResource."""
    resource = item.resource
    assert isinstance(resource, StorageResource)
    desired = storage_from_resource(resource, actual)

    def step(action: Action, changes: Sequence[FieldChange] = ()) -> Step:
        return Step(action, "Storage", desired.name, tuple(changes), storage=desired, source=item)

    if actual is None:
        made = [step(Action.CREATE)]
        return made if desired.enabled else [*made, step(Action.DISABLE)]
    if actual.type is not desired.type:
        raise ResourceError(
            [
                Problem(
                    f"Storage {desired.name} is of kind {type_word(actual.type)} on the manager and of kind {type_word(desired.type)} here; "
                    "a kind cannot change, use another name or remove the storage from the manager first",
                    where=item.where,
                )
            ]
        )
    changes = diff(desired, actual)
    if not changes:
        return [step(Action.UNCHANGED)]
    if resource.spec.adoption_policy == "AdoptIfEqual":
        fields = ", ".join(change.path for change in changes)
        raise ResourceError(
            [
                Problem(
                    f"Storage {desired.name} exists on the manager and differs in {fields}, and adoptionPolicy is AdoptIfEqual; "
                    "make them equal, or set adoptionPolicy to Adopt to let the manager's storage be changed",
                    where=item.where,
                )
            ]
        )
    switch = step(Action.ENABLE if desired.enabled else Action.DISABLE, [change for change in changes if change.path == "enabled"])
    settings = [change for change in changes if change.path != "enabled"]
    steps = [step(Action.UPDATE, settings)] if settings else []
    return steps if desired.enabled == actual.enabled else [*steps, switch]


def group_step(item: Sourced, actual: InstanceGroup | None, present_storages: set[str], server_names: Mapping[str, str]) -> Step:
    """The step for one InstanceGroup resource. `present_storages`: server names that exist or will by then. Raises ResourceError."""
    resource = item.resource
    assert isinstance(resource, InstanceGroupResource)
    desired = group_from_resource(resource, actual, server_names)
    missing = [name for name in desired.storage_candidates if name not in present_storages]
    if missing:
        raise ResourceError(
            [
                Problem(
                    f"InstanceGroup {desired.name} names the storage {name}, which is neither among the applied files nor on the manager",
                    "spec.storages",
                    item.where,
                )
                for name in missing
            ]
        )
    changes = tuple(diff(desired, actual)) if actual is not None else ()
    action = Action.CREATE if actual is None else Action.UPDATE if changes else Action.UNCHANGED
    version = actual.version if actual is not None else 0
    return Step(
        action,
        "InstanceGroup",
        desired.name,
        changes,
        group=replace(desired, version=version + 1),
        current_version=version,
        source=item,
        server_names=server_names,
    )


def _notices(resources: Sequence[Sourced], steps: Sequence[Step]) -> list[str]:
    notices = [
        f"Storage {item.resource.server_name}: its volume is mounted by the operator only; here the directory must already be in place"
        for item in resources
        if isinstance(item.resource, StorageResource) and item.resource.spec.volume is not None
    ]
    notices += [
        f"InstanceGroup {step.name}: the new metadata index settings reach instances that register later, and the others when a manager next takes the lead"
        for step in steps
        if step.action is Action.UPDATE and any(change.path.startswith("metadataIndex.") for change in step.changes)
    ]
    return notices
