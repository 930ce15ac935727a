"""One pass over one InstanceGroup. The same questions as for a Storage (see there), and one more: are its storages registered?

A group may name Storage resources or names that the manager knows from elsewhere; both are waited for, since they may be applied in any order.
"""

from __future__ import annotations

from kvcm.client.admin_types import GroupView
from kvcm.common.errors import Unsupported
from kvcm.resources.conditions import Reason
from kvcm.resources.errors import ResourceError
from kvcm.resources.group import InstanceGroupResource
from kvcm.resources.parse import parse_resource
from kvcm.resources.translate import check_built
from kvcm_operator import release
from kvcm_operator.admin import AdminTrouble, Refused, Silent, Speaker
from kvcm_operator.gate import Closed, Open, look
from kvcm_operator.owners import rival, server_names
from kvcm_operator.passes import closed, event, forbidden, outcome, trouble, unseen
from kvcm_operator.plan_group import plan_group
from kvcm_operator.subject import Subject
from kvcm_operator.verdict import good, paused, stalled, waiting
from kvcm_operator.world import GROUP, STORAGE, Json, KubeForbidden, Outcome, World

MAX_ROUNDS = 3
_IN_ONE_POD = ("local", "dummy")


async def reconcile(resource: Json, world: World) -> Outcome:
    subject = Subject(resource)
    try:
        return await _reconcile(subject, world)
    except KubeForbidden as error:
        return unseen(subject, world, Reason.CLUSTER_REFUSED, forbidden(error))


async def _reconcile(subject: Subject, world: World) -> Outcome:
    if subject.deleting:
        return await release.group(subject, world)
    if subject.paused:
        return outcome(subject, world, paused(subject, "paused by annotation"), {})
    try:
        group = parse_resource(subject.document())
        assert isinstance(group, InstanceGroupResource)
        check_built(group)
    except ResourceError as error:
        return outcome(subject, world, stalled(Reason.INVALID_SPEC, error.message), {})
    except Unsupported as error:
        return outcome(subject, world, stalled(Reason.UNSUPPORTED, error.message), {})
    if subject.server_name != group.server_name:
        message = f"the name on the manager cannot change; it is {subject.server_name}"
        return outcome(subject, world, stalled(Reason.INVALID_SPEC, message), {})
    older = rival(subject, await world.kube.list(GROUP, subject.ref.namespace))
    if older is not None:
        message = f"the older InstanceGroup {older.ref.name} describes {group.server_name} already; this one changes and deletes nothing"
        return outcome(subject, world, stalled(Reason.NAME_CONFLICT, message), {"serverName": None, "version": None})
    door = await look(world, subject.ref.namespace, subject.manager_name)
    if isinstance(door, Closed):
        return closed(subject, world, door)
    backend = group.spec.metadata_index.backend
    if backend is not None and backend.type == "redis" and door.backend.storage_type == "local" and not door.override:
        message = f"spec.metadataIndex.backend.type: KVCacheManager {door.manager} has no Redis for block metadata; its spec.metadataBackend says where one is"
        return outcome(subject, world, stalled(Reason.INVALID_SPEC, message), {})
    names = server_names(await world.kube.list(STORAGE, subject.ref.namespace), subject.manager_name)
    work = _Work(subject, group, names, world, door)
    try:
        async with world.admin.connect(door.namespace, door.manager, door.port) as api:
            return await work.run(Speaker(api))
    except AdminTrouble as error:
        return trouble(subject, world, error, {}, touched=work.touched)


class _Work:
    def __init__(self, subject: Subject, group: InstanceGroupResource, names: dict[str, str], world: World, door: Open) -> None:
        self._subject = subject
        self._group = group
        self._names = names
        self._world = world
        self._door = door
        self.touched = False
        self.drifted = False

    async def run(self, speaker: Speaker) -> Outcome:
        """Compare and repair until nothing differs; each round starts from what the manager says, because an answer may have been lost."""
        refusal: Refused | None = None
        tried = -1
        for _ in range(MAX_ROUNDS):
            view = (await speaker.groups()).get(self._group.server_name)
            plan = plan_group(self._group, view.group if view is not None else None, self._names, await speaker.storages(), self._door.backend)
            if plan.missing:
                return self._wait(plan.missing)
            if plan.call is None and view is not None:
                return self._agreed(view)
            # The group stands where it stood, so the refusal was about its content and not about somebody who was faster.
            if refusal is not None and plan.current_version == tried:
                raise refusal
            if self._subject.settled and not self.touched:
                await self._report_drift()
            self.touched, tried = True, plan.current_version
            try:
                await speaker.group(plan)
            except Refused as error:
                if error.permanent:
                    raise
                refusal = error
        raise refusal or Silent("the manager does not keep what it is told; it will be tried again")

    def _wait(self, missing: tuple[str, ...]) -> Outcome:
        known = [name for name in missing if name in self._names]
        names = ", ".join(missing)
        message = f"waits for the Storage {names} to be registered" if known else f"neither a Storage resource nor the manager knows {names}"
        if self._subject.settled:
            # They were there: a manager that has just been restarted gets them back in a moment.
            return unseen(self._subject, self._world, Reason.STORAGE_NOT_REGISTERED, message, touched=self.touched)
        verdict = waiting(Reason.STORAGE_NOT_REGISTERED, message)
        return outcome(self._subject, self._world, verdict, {}, after=self._world.pace.retry, touched=self.touched)

    def _agreed(self, view: GroupView) -> Outcome:
        kept = view.group.cache_config.meta_indexer.backend.storage_type
        note = "; its block metadata stays with one pod, so a new leader begins with an empty index" if self._door.several and kept in _IN_ONE_POD else ""
        verdict = good(f"registered with the manager{note}", Reason.DRIFT_CORRECTED if self.drifted else Reason.IN_SYNC)
        return outcome(self._subject, self._world, verdict, _facts(view), touched=self.touched, corrections=int(self.drifted))

    async def _report_drift(self) -> None:
        """Before the repair, and without saying what differed: see the same function for storages."""
        self.drifted = True
        if self._subject.condition("Synced").get("reason") != "DriftCorrected":
            message = f"instance group {self._group.server_name} differed on the manager without a change of this resource; putting it right"
            await self._world.kube.emit(event(self._subject, "Warning", "DriftCorrected", message))


def _facts(view: GroupView) -> Json:
    facts: Json = {"serverName": view.group.name, "version": view.group.version}
    usage, capacity = view.usage, view.group.quota.capacity
    if usage is None:
        # A manager of another make does not tell; what was seen before would only look like the truth.
        return {**facts, "instances": None, "keys": None, "usedBytes": None, "usagePercent": None}
    percent = usage.used_bytes * 100 // capacity if capacity > 0 else None
    return {**facts, "instances": usage.instances, "keys": usage.keys, "usedBytes": usage.used_bytes, "usagePercent": percent}
