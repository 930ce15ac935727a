"""One pass over one Storage: guards in order, then read the manager, compare, make the smallest calls, say what is so.

The order of the guards is the order in which a reader would ask: is it leaving, is it paused, does it make sense, is it built, is the name
its own, is there a manager, are its bytes within the manager's reach. Only then is the manager asked. Nothing is remembered between passes
but what stands in the status, so a pass that is cut off anywhere is simply done again.
"""

from __future__ import annotations

from dataclasses import replace

from kvcm.client.admin_types import StorageView
from kvcm.common.errors import Unsupported
from kvcm.resources.conditions import Reason
from kvcm.resources.errors import ResourceError
from kvcm.resources.parse import parse_resource
from kvcm.resources.storage import StorageResource
from kvcm.resources.translate import check_built, type_word
from kvcm_operator import release
from kvcm_operator.admin import AdminTrouble, Silent, Speaker
from kvcm_operator.children_volumes import volumes
from kvcm_operator.gate import Closed, Open, look
from kvcm_operator.mounts import Mounted, mounted
from kvcm_operator.owners import rival
from kvcm_operator.passes import closed, event, forbidden, outcome, trouble, unseen
from kvcm_operator.plan_storage import plan_storage
from kvcm_operator.subject import Subject
from kvcm_operator.verdict import FALSE, TRUE, good, paused, stalled, waiting
from kvcm_operator.world import STORAGE, Json, KubeForbidden, Outcome, World

MAX_ROUNDS = 3
_UNREGISTERED: Json = {"registered": False, "enabled": None, "type": None, "rootVerified": None}


async def reconcile(resource: Json, world: World) -> Outcome:
    subject = Subject(resource)
    try:
        return await _reconcile(subject, world)
    except KubeForbidden as error:
        return unseen(subject, world, Reason.CLUSTER_REFUSED, forbidden(error))


async def _reconcile(subject: Subject, world: World) -> Outcome:
    if subject.deleting:
        return await release.storage(subject, world)
    if subject.paused:
        return outcome(subject, world, paused(subject, "paused by annotation"), {})
    try:
        storage = parse_resource(subject.document())
        assert isinstance(storage, StorageResource)
        check_built(storage)
    except ResourceError as error:
        return outcome(subject, world, stalled(Reason.INVALID_SPEC, error.message), {})
    except Unsupported as error:
        return outcome(subject, world, stalled(Reason.UNSUPPORTED, error.message), _UNREGISTERED)
    if subject.server_name != storage.server_name:
        message = f"the name on the manager cannot change; it is {subject.server_name}"
        return outcome(subject, world, stalled(Reason.INVALID_SPEC, message), {})
    siblings = await world.kube.list(STORAGE, subject.ref.namespace)
    older = rival(subject, siblings)
    if older is not None:
        message = f"the older Storage {older.ref.name} describes {storage.server_name} already; this one changes and deletes nothing"
        return outcome(subject, world, stalled(Reason.NAME_CONFLICT, message), {**_UNREGISTERED, "serverName": None})
    door = await look(world, subject.ref.namespace, subject.manager_name)
    if isinstance(door, Closed):
        return closed(subject, world, door)
    if not door.override and storage.spec.volume is not None:
        match await mounted(world, storage):
            case Mounted.NO if subject.ref.name in volumes(door.manager, siblings, None).refused:
                message = "spec.volume cannot be mounted: an older Storage has another volume at this path, or a container cannot have one there"
                return outcome(subject, world, stalled(Reason.VOLUME_CONFLICT, message), {})
            case Mounted.NO:
                message = "the manager's pod does not have the volume yet; it will be restarted with it"
                return outcome(subject, world, waiting(Reason.VOLUME_PENDING, message), {}, after=world.pace.waiting)
            case Mounted.UNKNOWN:
                return unseen(subject, world, Reason.MANAGER_NOT_READY, "the manager has no pod")
    return await _serve(subject, storage, door, world)


async def _serve(subject: Subject, storage: StorageResource, door: Open, world: World) -> Outcome:
    work = _Work(subject, storage, world)
    try:
        async with world.admin.connect(door.namespace, door.manager, door.port) as api:
            return await work.run(Speaker(api))
    except AdminTrouble as error:
        return trouble(subject, world, error, {}, touched=work.touched)


class _Work:
    def __init__(self, subject: Subject, storage: StorageResource, world: World) -> None:
        self._subject = subject
        self._storage = storage
        self._world = world
        self.touched = False
        self.drifted = False

    async def run(self, speaker: Speaker) -> Outcome:
        """Compare and repair until nothing differs; each round starts from what the manager says, because an answer may have been lost."""
        owned = self._subject.status.get("registered") is True
        for _ in range(MAX_ROUNDS):
            view = (await speaker.storages()).get(self._storage.server_name)
            plan = plan_storage(self._storage, view.storage if view is not None else None, owned=owned)
            if plan.refusal is not None:
                facts = _facts(view) if owned and view is not None else _UNREGISTERED
                return outcome(self._subject, self._world, stalled(plan.refusal.reason, plan.refusal.message), facts)
            if not plan.calls and view is not None:
                return self._agreed(view)
            # Whatever differs after the first call is of our own making.
            if self._subject.settled and not self.touched:
                await self._report_drift()
            owned = True
            for call in plan.calls:
                self.touched = True
                await speaker.storage(call, plan.desired)
        raise Silent("the manager does not keep what it is told; it will be tried again")

    def _agreed(self, view: StorageView) -> Outcome:
        synced = Reason.DRIFT_CORRECTED if self.drifted else Reason.IN_SYNC
        verdict = good("registered with the manager" if view.storage.enabled else "registered with the manager and disabled", synced_reason=synced)
        state = view.state
        if state is not None and state.root_verified is False:
            message = "the storage's root does not carry its mark: it may not be mounted in the manager; nothing is deleted there meanwhile"
            verdict = replace(verdict, ready=FALSE, reason=Reason.ROOT_NOT_VERIFIED, message=message, reconciling=True)
        elif state is not None and state.problem:
            verdict = replace(verdict, ready=FALSE, reason=Reason.STORAGE_UNAVAILABLE, message=state.problem, reconciling=True)
        after = None if verdict.ready is TRUE else self._world.pace.waiting
        return outcome(self._subject, self._world, verdict, _facts(view), after=after, touched=self.touched, corrections=int(self.drifted))

    async def _report_drift(self) -> None:
        """Before the repair: afterwards there would be nothing left to see, should this process end in between.

        The sentence does not say what differed: a repair that is cut off half-way is the same news, and must not look like another.
        """
        self.drifted = True
        if self._subject.condition("Synced").get("reason") != "DriftCorrected":
            message = f"storage {self._storage.server_name} differed on the manager without a change of this resource; putting it right"
            await self._world.kube.emit(event(self._subject, "Warning", "DriftCorrected", message))


def _facts(view: StorageView) -> Json:
    storage, state = view.storage, view.state
    return {
        "serverName": storage.name,
        "registered": True,
        "enabled": storage.enabled,
        "type": type_word(storage.type),
        "rootVerified": state.root_verified if state is not None else None,
    }
