"""One pass over one KVCacheManager: guards in order, then its objects, its pods, and what it says about itself.

Nothing is asked of the manager before its objects are right (but who leads, when pods are to go), and no pod is deleted for another reason than an old
template. A pass takes away at most one thing: a pod, a leadership, or the surplus of a smaller size. One that is cut off anywhere is simply done again:
objects are compared, not remembered.
"""

from __future__ import annotations

from dataclasses import replace

from kvcm.common.errors import Conflict, KvcmError
from kvcm.resources.conditions import Reason
from kvcm.resources.errors import ResourceError
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.parse import parse_manager
from kvcm_operator import names
from kvcm_operator.children import build
from kvcm_operator.children_apply import Applied, ChildLeaving, ChildRefused, NotOurs, need, new, ref_to, wished_otherwise, write
from kvcm_operator.children_diff import differences
from kvcm_operator.children_secret import check_own, missing_entry, token_secret_body, wanted_entries
from kvcm_operator.children_volumes import Volumes, volumes
from kvcm_operator.move import moving_conditions, moving_facts, moving_verdict, must_stop_first, stop_all
from kvcm_operator.passes import event, forbidden
from kvcm_operator.plan_manager import Sight, down_conditions, facts, judge, kept_conditions, more_conditions
from kvcm_operator.release import going_away
from kvcm_operator.rivals import names_its_place, rivals
from kvcm_operator.rollout import LOOK_S, plan
from kvcm_operator.rollout_act import carry_out, hear
from kvcm_operator.rollout_fleet import Fleet, fleet_of
from kvcm_operator.rollout_handover import remembered
from kvcm_operator.rollout_leader import Leadership, aged
from kvcm_operator.scale import Size, size
from kvcm_operator.serving import SILENT, ask
from kvcm_operator.subject import Subject, mapping
from kvcm_operator.verdict import TRUE, Verdict, paused, refused, silent, stalled, status_of, waiting
from kvcm_operator.world import GROUP, MANAGER, STORAGE, Json, KubeForbidden, Outcome, Ref, World


async def reconcile(resource: Json, world: World) -> Outcome:
    subject = Subject(resource)
    try:
        return await _reconcile(subject, world)
    except KubeForbidden as error:
        verdict = silent(subject, Reason.CLUSTER_REFUSED, forbidden(error), world.clock.wall_us(), world.pace.grace)
        return replace(_unseen(subject, world, verdict), requeue_after=world.pace.waiting)


async def _reconcile(subject: Subject, world: World) -> Outcome:
    if subject.deleting:
        return await _release(subject, world)
    if subject.paused or subject.spec.get("paused") is True:
        return _unseen(subject, world, paused(subject, "paused by annotation or by spec.paused"))
    try:
        manager = parse_manager(subject.document())
    except ResourceError as error:
        return await _left_alone(subject, world, stalled(Reason.INVALID_SPEC, error.message))
    image = manager.spec.image or world.default_image
    if not image:
        return _unseen(subject, world, stalled(Reason.INVALID_SPEC, "spec.image: must be set, because this operator was given no image of its own"))
    work = _Work(subject, manager, image, world)
    try:
        await work.bring()
    except _Moving as found:
        status = status_of(subject, moving_verdict(found.fleet), world.clock.wall_us(), moving_facts(found.fleet), moving_conditions())
        return Outcome(status, requeue_after=LOOK_S, touched=work.touched)
    except _SecretMissing as error:
        return await _left_alone(subject, world, waiting(Reason.SECRET_NOT_FOUND, error.message), touched=work.touched)
    except NotOurs as error:
        return await _left_alone(subject, world, stalled(Reason.OBJECT_CONFLICT, error.message), touched=work.touched)
    except ChildRefused as error:
        return await _left_alone(subject, world, refused(Reason.CLUSTER_REFUSED, error.message), touched=work.touched)
    except (ChildLeaving, Conflict):
        verdict = waiting(Reason.RECONCILING, "an object of the manager is being deleted or changed by somebody else; it will be tried again")
        return _unseen(subject, world, verdict, touched=work.touched)
    return await work.look()


class _SecretMissing(KvcmError):
    pass


class _Moving(KvcmError):
    def __init__(self, fleet: Fleet) -> None:
        super().__init__("leases move to another place")
        self.fleet = fleet


class _Work:
    def __init__(self, subject: Subject, manager: KVCacheManagerResource, image: str, world: World) -> None:
        self._subject = subject
        self._manager = manager
        self._image = image
        self._world = world
        self._volumes = Volumes((), ())
        self._set_ref = Ref("StatefulSet", subject.ref.namespace, names.stateful_set(subject.ref.name))
        self._outside = world.admin.overridden(subject.ref.namespace, subject.ref.name)
        # With a coordinator of its own in its memory each pod leads itself.
        self._elects = manager.spec.coordination.type != "memory"
        self._leader: Leadership | None = None
        self._cold: frozenset[str] = frozenset()
        self._wish: Json = {}
        self.touched = False
        self.corrections = 0

    async def bring(self) -> None:
        """The objects as they should be. All are compared before the first is written, so that a drift is reported before it is repaired."""
        kube, subject = self._world.kube, self._subject
        await self._secrets()
        fleet = await self._fleet()
        if must_stop_first(self._manager, fleet):
            self.touched = await stop_all(subject, self._manager, self._world)
            raise _Moving(fleet)
        if self._elects and not self._outside:
            heard = await hear(subject, self._world, fleet)
            self._leader, self._cold = aged(heard.leader, subject.status, self._world.clock.wall_us()), heard.cold
        wanted = size(self._manager.spec.replicas, fleet, self._leader)
        storages = await kube.list(STORAGE, subject.ref.namespace)
        self._volumes = volumes(subject.ref.name, storages, await kube.get(self._set_ref))
        desired = build(self._sized(wanted), subject.uid, self._image, self._volumes.mounts, bound=await self._bound())
        self._wish = desired[-1]
        actual = [await kube.get(ref_to(body)) for body in desired]
        # A newer operator wishes for more than the one that settled this: what is new then was not removed by anybody.
        expected = subject.settled and not any(map(wished_otherwise, desired, actual))
        needs = [need(body, found, expected=expected) for body, found in zip(desired, actual, strict=True)]
        self.corrections = sum(item.result is Applied.CORRECTED for item in needs)
        if self.corrections and subject.condition("Synced").get("reason") != Reason.DRIFT_CORRECTED.value:
            message = "an object of the manager was removed or changed without a change of this resource; putting it right"
            await kube.emit(event(subject, "Warning", Reason.DRIFT_CORRECTED.value, message))
        if fleet.exists and wanted.replicas < fleet.size:
            message = "stopping the pods with the highest numbers, which the spec no longer asks for"
            await kube.emit(event(subject, "Normal", Reason.SCALING_DOWN.value, message))
        for body, item in zip(desired, needs, strict=True):
            if item.result is not Applied.UNCHANGED:
                self.touched = True
                await write(kube, body, item, expected=expected)

    def _sized(self, wanted: Size) -> KVCacheManagerResource:
        """With the size that is right now: the hash of what is wished then tells a later size from a change by somebody else."""
        if not wanted.held:
            return self._manager
        return self._manager.model_copy(update={"spec": self._manager.spec.model_copy(update={"replicas": wanted.replicas})})

    async def _bound(self) -> bool:
        """Is there a RoleBinding of ours from a time when its pods elected a leader?"""
        ref = Ref("RoleBinding", self._subject.ref.namespace, names.role_binding(self._subject.ref.name))
        actual = None if self._elects else await self._world.kube.get(ref)
        owners = mapping(mapping(actual).get("metadata")).get("ownerReferences") or []
        return any(one.get("uid") == self._subject.uid for one in owners)

    async def _secrets(self) -> None:
        """Those that pods will mount. Raises _SecretMissing for one that a user has to bring."""
        kube, subject = self._world.kube, self._subject
        # No pod, no mount: whoever stops everything need not bring a Secret back for it.
        wanted = wanted_entries(self._manager) if self._manager.spec.replicas else {}
        missing = missing_entry(wanted, {ref: await kube.get(ref) for ref in wanted})
        if missing:
            raise _SecretMissing(missing)
        if self._manager.spec.admin_token.type != "generated":
            return
        actual = await kube.get(Ref("Secret", subject.ref.namespace, names.admin_token(subject.ref.name)))
        if actual is not None:
            check_own(actual, self._manager, subject.uid)
            return
        self.touched = True
        await new(kube, token_secret_body(self._manager, subject.uid, self._world.make_token()))

    async def look(self) -> Outcome:
        subject, world = self._subject, self._world
        replicas = self._manager.spec.replicas
        before = remembered(subject.status)
        fleet = await self._fleet(self._wish)
        todo = plan(replicas, fleet, self._leader, before, world.clock.wall_us(), self._cold)
        if todo.replace is not None or todo.demote is not None:
            self.touched = True
            todo = await carry_out(subject, world, todo, before)
        serving = await ask(subject, world, self._leader) if replicas and (self._outside or fleet.ready) else SILENT
        sight = Sight(replicas, fleet, self._leader, todo, serving, self._outside)
        now = world.clock.wall_us()
        synced = Reason.DRIFT_CORRECTED if self.corrections else Reason.IN_SYNC
        verdict = judge(subject, sight, now, world.pace.grace, synced)
        extra = more_conditions(subject, verdict, sight, await self._note())
        status = status_of(subject, verdict, now, facts(subject, self._manager, sight, now), extra)
        after = world.pace.retry if verdict.reconciling or (serving.healthy is None and replicas) else None
        if after is not None and todo.again_s is not None:
            after = min(after, todo.again_s)
        return Outcome(status, requeue_after=after, touched=self.touched, corrections=self.corrections)

    async def _fleet(self, wish: Json | None = None) -> Fleet:
        return await _fleet_of(self._subject, self._world, wish)

    async def _note(self) -> str:
        refused_ = ", ".join(self._volumes.refused)
        notes = [f"not mounted, because the path is taken or cannot have a volume: {refused_}"] if refused_ else []
        if self._manager.spec.replicas > 1 and self._manager.spec.metadata_backend.type == "local":
            notes.append("block metadata of groups is in the leader's memory (metadataBackend is local), so whoever leads next begins with an empty index")
        if names_its_place(self._manager):
            notes += filter(None, [rivals(self._manager, self._subject.uid, await self._world.kube.list(MANAGER, ""))])
        return "; ".join(notes)


async def _left_alone(subject: Subject, world: World, verdict: Verdict, *, touched: bool = False) -> Outcome:
    """Nothing can be done with its pods, perhaps for days. So what was known about them stays for as long as one of them is ready."""
    outcome = _unseen(subject, world, verdict, touched=touched)
    if world.admin.overridden(subject.ref.namespace, subject.ref.name):
        return outcome
    fleet = await _fleet_of(subject, world)
    if not fleet.exists or fleet.ready:
        return outcome
    status = status_of(subject, verdict, world.clock.wall_us(), {"readyReplicas": 0, "leader": None}, down_conditions(verdict))
    return replace(outcome, status=status)


async def _fleet_of(subject: Subject, world: World, wish: Json | None = None) -> Fleet:
    """`wish`: what the StatefulSet should be. While it is something else again, a pod that is deleted comes back as something else too."""
    namespace, name = subject.ref.namespace, subject.ref.name
    stateful_set = await world.kube.get(Ref("StatefulSet", namespace, names.stateful_set(name)))
    fleet = fleet_of(stateful_set, await world.kube.list("Pod", namespace, names.selector(name)), world.clock.wall_us())
    strange = wish is not None and stateful_set is not None and differences(wish, stateful_set)
    return replace(fleet, seen=False) if strange else fleet


def _unseen(subject: Subject, world: World, verdict: Verdict, *, touched: bool = False) -> Outcome:
    """A pass that ended before the pods."""
    status = status_of(subject, verdict, world.clock.wall_us(), {}, kept_conditions(subject, verdict))
    return Outcome(status, requeue_after=world.pace.waiting if verdict.reconciling and verdict.ready is not TRUE else None, touched=touched)


async def _release(subject: Subject, world: World) -> Outcome:
    """Its objects go with it (they name it as their owner). Only dependents that want to be removed from its registry first are waited for."""
    if not subject.held or subject.forced:
        return Outcome(finished=True, touched=True)
    # Whoever deletes all at once does so one by one, the manager often first: so it waits once for what may be the next.
    waited = subject.condition("Ready").get("reason") == Reason.DELETING.value
    for kind in (GROUP, STORAGE):
        for other in map(Subject, await world.kube.list(kind, subject.ref.namespace)):
            if other.manager_name != subject.ref.name:
                continue
            if going_away(other):
                return _unseen(subject, world, waiting(Reason.DELETING, "resources of this manager that are being deleted go first"))
            if not waited and not other.deleting and other.spec.get("deletionPolicy") == "Delete":
                message = f"{kind} {other.ref.name} would be removed from its registry; the manager waits a moment, should it be deleted too"
                return _unseen(subject, world, waiting(Reason.DELETING, message))
    return Outcome(finished=True, touched=True)
