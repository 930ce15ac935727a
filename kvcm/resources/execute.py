"""Run a plan against a manager through a small port.

Dangers: a call whose answer is lost may have worked, and between reading and writing somebody else may change a group. Both end the same way:
read the manager again, compare, and decide anew, a bounded number of times. A step is never repeated blindly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcm.common.errors import InternalError, KvcmError, OutcomeUnknown
from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import Storage
from kvcm.resources.plan import Action, Plan, Sourced, Step, build_plan, group_step, storage_steps

MAX_ATTEMPTS = 3


class AdminPort(Protocol):
    """What applying needs of a manager. Every call has its own deadline and raises a KvcmError; OutcomeUnknown for a write without answer."""

    async def list_storages(self) -> list[Storage]: ...

    async def add_storage(self, storage: Storage) -> None: ...

    async def update_storage(self, storage: Storage) -> None: ...

    async def enable_storage(self, name: str) -> None: ...

    async def disable_storage(self, name: str) -> None: ...

    async def list_groups(self) -> list[InstanceGroup]: ...

    async def create_group(self, group: InstanceGroup) -> None: ...

    async def update_group(self, group: InstanceGroup, current_version: int) -> None: ...


class StepFailed(KvcmError):
    """A step did not work; what was done before it stays done. `done` is the number of changes made, `cause` the manager's error."""

    def __init__(self, step: Step, done: int, cause: KvcmError) -> None:
        before = f" ({done} changes were made before it)" if done else ""
        super().__init__(f"could not {step.action} {step.kind} {step.name}{before}: {cause.message}")
        self.step = step
        self.done = done
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Outcome:
    """`changed`: calls that changed the manager."""

    changed: int


async def read_plan(resources: Sequence[Sourced], admin: AdminPort) -> Plan:
    """Compare the resources with what the manager has now."""
    return build_plan(resources, await admin.list_storages(), await admin.list_groups())


async def run_plan(plan: Plan, admin: AdminPort, on_done: Callable[[Step], None] = lambda _step: None) -> Outcome:
    """Run the steps in order and stop at the first that fails (StepFailed). `on_done` is called after each change."""
    changed = 0
    for step in plan.steps:
        if step.action is Action.UNCHANGED:
            continue
        try:
            await _run(step, admin)
        except KvcmError as error:
            raise StepFailed(step, changed, error) from error
        changed += 1
        on_done(step)
    return Outcome(changed)


async def _run(step: Step, admin: AdminPort) -> None:
    """One step; after an answer that is lost or a group that moved on, look again and do what is still missing."""
    current = step
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            await _call(current, admin)
            return
        except KvcmError as error:
            unknown = isinstance(error, OutcomeUnknown)
            may_be_outdated = current.group is not None and current.action is Action.UPDATE
            if attempt == MAX_ATTEMPTS or not (unknown or may_be_outdated):
                raise
            following = await _again(current, admin)
            if following is None:
                return
            # The group is where we left it, so the refusal is about its content and repeating cannot help.
            if not unknown and following.current_version == current.current_version:
                raise
            current = following


async def _again(step: Step, admin: AdminPort) -> Step | None:
    """The step that is still missing after reading the manager again, None when it is done."""
    if step.source is None:
        raise InternalError("a step without its resource cannot be planned again")
    if step.kind == "Storage":
        actual = {storage.name: storage for storage in await admin.list_storages()}
        steps = storage_steps(step.source, actual.get(step.name))
        return next((found for found in steps if found.action is step.action), None)
    groups = {group.name: group for group in await admin.list_groups()}
    present = {storage.name for storage in await admin.list_storages()}
    found = group_step(step.source, groups.get(step.name), present, step.server_names)
    return None if found.action is Action.UNCHANGED else found


async def _call(step: Step, admin: AdminPort) -> None:
    match step.action, step.storage, step.group:
        case Action.CREATE, Storage() as storage, _:
            await admin.add_storage(storage)
        case Action.UPDATE, Storage() as storage, _:
            await admin.update_storage(storage)
        case Action.ENABLE, Storage() as storage, _:
            await admin.enable_storage(storage.name)
        case Action.DISABLE, Storage() as storage, _:
            await admin.disable_storage(storage.name)
        case Action.CREATE, _, InstanceGroup() as group:
            await admin.create_group(group)
        case Action.UPDATE, _, InstanceGroup() as group:
            await admin.update_group(group, step.current_version)
        case _:
            raise InternalError(f"a step of kind {step.kind} cannot {step.action}")
