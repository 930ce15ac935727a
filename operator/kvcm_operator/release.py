"""Let go of a Storage or an InstanceGroup that is being deleted.

The guards say, in order, why nothing has to be done any more; what is left is a removal that may have to wait. Danger: a finalizer that is released
by accident leaves an entry behind that nobody will ever remove, so every way out of here is deliberate, and the ones that leave something are events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kvcm.common.errors import Unsupported
from kvcm.resources.conditions import Reason, Value
from kvcm.resources.errors import ResourceError
from kvcm.resources.group import InstanceGroupResource
from kvcm.resources.parse import parse_resource
from kvcm.resources.storage import StorageResource
from kvcm_operator.admin import AdminTrouble, Speaker
from kvcm_operator.gate import Closed, look
from kvcm_operator.owners import rival, server_names
from kvcm_operator.passes import event, outcome
from kvcm_operator.plan_group import plan_group
from kvcm_operator.plan_storage import plan_storage
from kvcm_operator.subject import Subject
from kvcm_operator.verdict import FALSE, UNKNOWN, waiting
from kvcm_operator.world import GROUP, STORAGE, Outcome, World


@dataclass(frozen=True, slots=True)
class _Use:
    """Why an entry cannot go. `passing`: whoever uses it is on its way out itself."""

    message: str
    passing: bool = False


_Remove = Callable[[Subject, World, Speaker], Awaitable[_Use | None]]
"""Remove the entry; what uses it still, None when it is gone."""


async def storage(subject: Subject, world: World) -> Outcome:
    return await _release(subject, world, _remove_storage)


async def group(subject: Subject, world: World) -> Outcome:
    return await _release(subject, world, _remove_group)


async def _release(subject: Subject, world: World, remove: _Remove) -> Outcome:
    done = Outcome(finished=True, touched=True)
    # 1. Nothing of ours holds it.
    if not subject.held:
        return done
    # 2. The entry is meant to stay.
    if subject.spec.get("deletionPolicy") != "Delete":
        return done
    # 3. An administrator ends the wait, whatever it is for.
    if subject.forced:
        return _leave(subject, "ForceReleased", "released by annotation; an entry on the manager may be left")
    # 4. Somebody else's entry: the loser of a conflict deletes nothing.
    if rival(subject, await world.kube.list(subject.ref.kind, subject.ref.namespace)) is not None:
        return done
    if subject.paused:
        return _keep(subject, world, Reason.PAUSED, "paused by annotation; the deletion waits")
    # 5. Nobody to tell: the manager is gone for good, or was told to be away.
    door = await look(world, subject.ref.namespace, subject.manager_name)
    if isinstance(door, Closed):
        if door.gone:
            return _leave(subject, "OrphanedOnDelete", f"{door.message}; an entry of this name may be left in its registry")
        return _keep(subject, world, Reason.DELETING, f"the removal waits: {door.message}", synced=UNKNOWN)
    try:
        async with world.admin.connect(door.namespace, door.manager, door.port) as api:
            use = await remove(subject, world, Speaker(api))
    except AdminTrouble as error:
        # 6. The manager is leaving too. One call may fail for reasons that pass; when the next one fails as well, it will not get better.
        if door.leaving and subject.condition("Ready").get("reason") == Reason.DELETING.value:
            return _leave(subject, "OrphanedOnDelete", "the manager is being deleted and does not remove the entry any more")
        return _keep(subject, world, Reason.DELETING, f"the removal waits: {error.message}", synced=UNKNOWN)
    if use is None:
        return done
    # Whoever deletes all at once does so one by one: the user of this one may be the next. So it waits once, and says so.
    if door.leaving and not use.passing and subject.condition("Ready").get("reason") == Reason.IN_USE.value:
        return _leave(subject, "OrphanedOnDelete", f"the manager is being deleted, and {use.message}")
    return _keep(subject, world, Reason.IN_USE, f"the removal waits: {use.message}")


async def _remove_storage(subject: Subject, world: World, speaker: Speaker) -> _Use | None:
    name = subject.server_name
    actual = (await speaker.storages()).get(name)
    if actual is None:
        return None
    if subject.status.get("registered") is not True:
        # It never got so far as to own anything, unless its last pass was cut off: then the entry is exactly what it asked for.
        try:
            resource = parse_resource(subject.document())
            assert isinstance(resource, StorageResource)
            plan = plan_storage(resource, actual.storage, owned=False)
        except (ResourceError, Unsupported):
            return None
        if plan.refusal is not None or plan.calls:
            return None
    # First the resources, then the manager: a group that goes in between is found here or uses nothing any more there. The other way round it would be
    # found nowhere and use the storage all the same.
    groups = [other for other in map(Subject, await world.kube.list(GROUP, subject.ref.namespace)) if other.manager_name == subject.manager_name]
    users = sorted(view.group.name for view in (await speaker.groups()).values() if name in view.group.storage_candidates)
    if users:
        going = {other.server_name for other in groups if going_away(other)}
        return _Use(f"instance group {users[0]} uses it on the manager", passing=going.issuperset(users))
    for other in groups:
        named = other.spec.get("storages") or []
        if not other.deleting and (subject.ref.name in named or name in named):
            return _Use(f"InstanceGroup {other.ref.name} names it")
    await speaker.remove_storage(name)
    return None


async def _remove_group(subject: Subject, world: World, speaker: Speaker) -> _Use | None:
    name = subject.server_name
    if subject.status.get("serverName") is None and not await _cut_off(subject, world, speaker):
        return None
    if name not in await speaker.groups():
        return None
    if await speaker.instances(name):
        return _Use("instances are registered with the group")
    await speaker.remove_group(name)
    return None


def going_away(other: Subject) -> bool:
    """It is being deleted, and will take its entry on the manager along."""
    return other.deleting and other.held and not other.paused and not other.forced and other.spec.get("deletionPolicy") == "Delete"


async def _cut_off(subject: Subject, world: World, speaker: Speaker) -> bool:
    """Did a pass register this very group and end before it could say so? Then the entry is exactly what the spec asks for."""
    try:
        resource = parse_resource(subject.document())
        assert isinstance(resource, InstanceGroupResource)
        names = server_names(await world.kube.list(STORAGE, subject.ref.namespace), subject.manager_name)
        actual = (await speaker.groups()).get(resource.server_name)
        plan = plan_group(resource, actual.group if actual is not None else None, names, await speaker.storages())
    except (ResourceError, Unsupported):
        return False
    return plan.call is None and not plan.missing


def _leave(subject: Subject, reason: str, message: str) -> Outcome:
    return Outcome(finished=True, touched=True, events=(event(subject, "Warning", reason, message),))


def _keep(subject: Subject, world: World, reason: Reason, message: str, *, synced: Value = FALSE) -> Outcome:
    return outcome(subject, world, waiting(reason, message, synced=synced), {}, after=world.pace.retry)
