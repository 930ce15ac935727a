"""When leases move to another place, all pods of the old place go before the first of the new one comes.

Danger: pods that elect in different places know nothing of each other, so each place would have a leader, both at work. A roll-out one by one would make
exactly that. And the settings of running pods must not change meanwhile: a container that is started again reads the newest. So while pods of the old
place are there, nothing of the manager is written but the size of its StatefulSet.
"""

from __future__ import annotations

from kvcm.resources.conditions import ConditionType, Reason, Value, Wanted
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.manager_uris import coordination_place
from kvcm_operator.children import owner
from kvcm_operator.children_apply import check_owner
from kvcm_operator.passes import event
from kvcm_operator.rollout_fleet import Fleet, lingering
from kvcm_operator.subject import Subject, mapping
from kvcm_operator.verdict import Verdict, waiting
from kvcm_operator.world import Json, Ref, World

MOVING = "all pods are stopped before new ones start, because leases move: pods of the old and of the new place would each have a leader"


def must_stop_first(resource: KVCacheManagerResource, fleet: Fleet) -> bool:
    """Pure. A single pod cannot meet another one: the StatefulSet replaces it when it is gone."""
    wanted = coordination_place(resource)
    strangers = [node for node in fleet.nodes if not same_place(node.place, wanted)]
    return bool(strangers) and max(len(fleet.nodes), fleet.size, resource.spec.replicas) > 1


def same_place(one: str, other: str) -> bool:
    """Kind and name, then endpoints: one that both have is enough, so that members of an etcd can come and go. Pure."""
    first, second = one.split(" "), other.split(" ")
    return first[0] == second[0] and (len(first) == len(second) == 1 or bool(set(first[1:]) & set(second[1:])))


async def stop_all(subject: Subject, resource: KVCacheManagerResource, world: World) -> bool:
    """One step; False when nothing was left to do but to wait. Raises NotOurs, ChildLeaving, Conflict and what the API server raises."""
    stateful_set = await world.kube.get(Ref("StatefulSet", subject.ref.namespace, subject.ref.name))
    if stateful_set is None or mapping(stateful_set.get("spec")).get("replicas") == 0:
        return False
    check_owner("StatefulSet", mapping(stateful_set.get("metadata")), owner(resource, subject.uid), "give the manager another name")
    await world.kube.emit(event(subject, "Normal", Reason.ROLLING_OUT.value, MOVING))
    await world.kube.replace({**stateful_set, "spec": {**stateful_set["spec"], "replicas": 0}})
    return True


def moving_verdict(fleet: Fleet) -> Verdict:
    return waiting(Reason.ROLLING_OUT, f"{MOVING}{lingering(fleet.nodes)}")


def moving_conditions() -> tuple[Wanted, ...]:
    return (
        Wanted(ConditionType.AVAILABLE, Value.FALSE, Reason.ROLLING_OUT, MOVING),
        Wanted(ConditionType.PROGRESSING, Value.TRUE, Reason.ROLLING_OUT, MOVING),
    )


def moving_facts(fleet: Fleet) -> Json:
    return {"replicas": len(fleet.living), "readyReplicas": fleet.ready, "updatedReplicas": 0, "leader": None}
