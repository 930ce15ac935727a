"""What can be said about a KVCacheManager from its pods and its own words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvcm.resources.conditions import ConditionType, Reason, Value, Wanted
from kvcm.resources.manager import KVCacheManagerResource
from kvcm_operator import names
from kvcm_operator.children import port_names
from kvcm_operator.rollout import Plan
from kvcm_operator.rollout_fleet import Fleet, lingering
from kvcm_operator.rollout_leader import Leadership
from kvcm_operator.serving import Serving
from kvcm_operator.subject import Subject, mapping, timestamp
from kvcm_operator.verdict import FALSE, TRUE, Verdict, good, reason_of, silent, waiting
from kvcm_operator.world import Json

_MOVING = (Reason.ROLLING_OUT, Reason.PODS_STARTING, Reason.NO_LEADER, Reason.HANDING_OVER, Reason.SCALING_DOWN)
_STUCK = (Reason.ROLL_OUT_HALTED, Reason.HANDOVER_FAILED)


@dataclass(frozen=True, slots=True)
class Sight:
    """Everything that one pass has seen. `leader`: by the word of the pods, None when they elect none among them. `plan`: what is left to do with them.

    `outside`: the manager runs outside the cluster, so its pods tell nothing.
    """

    replicas: int
    fleet: Fleet
    leader: Leadership | None
    plan: Plan
    serving: Serving
    outside: bool


def judge(subject: Subject, sight: Sight, wall_us: int, grace_s: float, synced: Reason) -> Verdict:
    """The questions in order: should there be pods, are they the right ones, are they ready, do they answer, do they serve?"""
    serving = sight.serving
    if sight.replicas == 0:
        if sight.fleet.nodes:
            return waiting(Reason.SCALING_DOWN, f"the pods are being stopped{lingering(sight.fleet.nodes)}", synced=TRUE)
        return Verdict(FALSE, Reason.SCALED_TO_ZERO, "there are no pods, as the spec asks", TRUE, synced)
    if not sight.outside and sight.plan.reason is not None:
        return waiting(sight.plan.reason, sight.plan.message, synced=TRUE)
    if serving.healthy is None:
        return silent(subject, Reason.SERVER_UNREACHABLE, serving.why, wall_us, grace_s)
    if not serving.healthy:
        return waiting(Reason.NO_LEADER, "the manager answers and does not serve yet", synced=TRUE)
    return good("the manager serves outside the cluster, at an address given to the operator" if sight.outside else "the manager serves", synced)


def more_conditions(subject: Subject, verdict: Verdict, sight: Sight, note: str) -> tuple[Wanted, ...]:
    """Available and Progressing. `note`: something about pods that people should know."""
    # The Service may not be opened yet as the spec says, while the pods, asked one by one, tell that a leader serves.
    told = sight.serving.healthy is None and sight.leader is not None and sight.leader.known and sight.leader.serves
    if sight.serving.healthy or told or (sight.serving.healthy is None and verdict.ready is TRUE):
        available = Wanted(ConditionType.AVAILABLE, TRUE, Reason.SERVING, "")
    else:
        available = Wanted(ConditionType.AVAILABLE, FALSE, verdict.reason, verdict.message)
    if verdict.reason in _MOVING:
        progressing = Wanted(ConditionType.PROGRESSING, TRUE, verdict.reason, verdict.message)
    elif verdict.reason in _STUCK:
        progressing = Wanted(ConditionType.PROGRESSING, FALSE, verdict.reason, verdict.message)
    else:
        progressing = Wanted(ConditionType.PROGRESSING, FALSE, Reason.COMPLETE, note)
    return available, progressing


def kept_conditions(subject: Subject, verdict: Verdict) -> tuple[Wanted, ...]:
    """When the pods were not looked at: what was known about them stays."""
    old = subject.condition("Available")
    value = TRUE if old.get("status") == "True" else FALSE
    reason = reason_of(old.get("reason"), verdict.reason)
    available = Wanted(ConditionType.AVAILABLE, value, reason, str(old.get("message") or ""))
    return available, Wanted(ConditionType.PROGRESSING, Value.FALSE, verdict.reason, "")


def down_conditions(verdict: Verdict) -> tuple[Wanted, ...]:
    """When nothing can be done with the pods, and none is ready."""
    available = Wanted(ConditionType.AVAILABLE, FALSE, verdict.reason, "no pod is ready")
    return available, Wanted(ConditionType.PROGRESSING, Value.FALSE, verdict.reason, "")


def facts(subject: Subject, resource: KVCacheManagerResource, sight: Sight, wall_us: int) -> Json:
    name, namespace = resource.metadata.name, resource.metadata.namespace
    ports = port_names(resource.spec.service.ports)
    host, leader_host = f"{names.client_service(name)}.{namespace}.svc", f"{names.leader_service(name)}.{namespace}.svc"
    found: Json = {
        "replicas": len(sight.fleet.living),
        "readyReplicas": sight.fleet.ready,
        "updatedReplicas": sight.fleet.updated,
        "selector": names.selector_text(name),
        "version": sight.fleet.image,
        "handover": sight.plan.handover.fact() if sight.plan.handover is not None else None,
        "endpoints": {
            "metaGrpc": f"{host}:{ports['meta-grpc']}",
            "metaHttp": f"{host}:{ports['meta-http']}",
            "adminGrpc": f"{leader_host}:{ports['admin-grpc']}",
            "adminHttp": f"{leader_host}:{ports['admin-http']}",
        },
    }
    serving = sight.serving
    leader = _leader(subject, sight, wall_us)
    if serving.healthy is None and sight.replicas:
        # What was known about the inside stays for now; the conditions say how much it is worth.
        return {**found, "leader": leader} if leader is not None else found
    counts = {"storages": serving.storages, "groups": serving.groups, "instances": serving.instances}
    known = {what: number for what, number in counts.items() if number is not None}
    return {**found, "leader": leader, "counts": known or None}


def _leader(subject: Subject, sight: Sight, wall_us: int) -> Json | None:
    known = sight.leader if sight.leader is not None and sight.leader.known else None
    node, epoch = (known.pod, known.epoch) if known is not None else (sight.serving.leader, sight.serving.epoch)
    if not node:
        return None
    old = mapping(subject.status.get("leader"))
    same = old.get("nodeId") == node and (old.get("epoch") or 0) == epoch
    leader: Json = {"nodeId": node, "since": (same and old.get("since")) or timestamp(wall_us)}
    if epoch:
        leader["epoch"] = epoch
    # In the cluster a node bears the name of its pod.
    return leader if sight.outside else {"pod": node, **leader}
