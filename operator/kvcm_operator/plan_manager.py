"""What can be said about a KVCacheManager from its pods and its own words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvcm.resources.conditions import ConditionType, Reason, Value, Wanted
from kvcm.resources.manager import KVCacheManagerResource
from kvcm_operator import names
from kvcm_operator.children import port_names
from kvcm_operator.rollout import Pods
from kvcm_operator.serving import Serving
from kvcm_operator.subject import Subject, mapping, timestamp
from kvcm_operator.verdict import FALSE, TRUE, Verdict, good, reason_of, silent, waiting
from kvcm_operator.world import Json

_MOVING = (Reason.ROLLING_OUT, Reason.PODS_STARTING, Reason.NO_LEADER)


@dataclass(frozen=True, slots=True)
class Sight:
    """Everything that one pass has seen. `outside`: the manager runs outside the cluster, so its pods tell nothing."""

    replicas: int
    pods: Pods
    serving: Serving
    outside: bool


def judge(subject: Subject, sight: Sight, wall_us: int, grace_s: float, synced: Reason) -> Verdict:
    """The questions in order: should there be pods, are they the right ones, are they ready, do they answer, do they serve?"""
    pods, serving = sight.pods, sight.serving
    if sight.replicas == 0:
        if pods.total:
            return waiting(Reason.ROLLING_OUT, "the pods are being stopped", synced=TRUE)
        return Verdict(FALSE, Reason.SCALED_TO_ZERO, "there are no pods, as the spec asks", TRUE, synced)
    if not sight.outside and (pods.rolling or pods.replace is not None):
        return waiting(Reason.ROLLING_OUT, "the pods are being replaced by ones with the new settings and volumes", synced=TRUE)
    if not sight.outside and pods.ready < sight.replicas:
        return waiting(Reason.PODS_STARTING, "the pods are not ready yet", synced=TRUE)
    if serving.healthy is None:
        return silent(subject, Reason.SERVER_UNREACHABLE, serving.why, wall_us, grace_s)
    if not serving.healthy:
        return waiting(Reason.NO_LEADER, "the manager answers and does not serve yet", synced=TRUE)
    return good("the manager serves outside the cluster, at an address given to the operator" if sight.outside else "the manager serves", synced)


def more_conditions(subject: Subject, verdict: Verdict, sight: Sight, note: str) -> tuple[Wanted, ...]:
    """Available and Progressing. `note`: something about pods that people should know."""
    if sight.serving.healthy or (sight.serving.healthy is None and verdict.ready is TRUE):
        available = Wanted(ConditionType.AVAILABLE, TRUE, Reason.SERVING, "")
    else:
        available = Wanted(ConditionType.AVAILABLE, FALSE, verdict.reason, verdict.message)
    moving = verdict.reason in _MOVING
    progressing = Wanted(
        ConditionType.PROGRESSING, TRUE if moving else FALSE, verdict.reason if moving else Reason.COMPLETE, verdict.message if moving else note
    )
    return available, progressing


def kept_conditions(subject: Subject, verdict: Verdict) -> tuple[Wanted, ...]:
    """When the pods were not looked at: what was known about them stays."""
    old = subject.condition("Available")
    value = TRUE if old.get("status") == "True" else FALSE
    reason = reason_of(old.get("reason"), verdict.reason)
    available = Wanted(ConditionType.AVAILABLE, value, reason, str(old.get("message") or ""))
    return available, Wanted(ConditionType.PROGRESSING, Value.FALSE, verdict.reason, "")


def facts(subject: Subject, resource: KVCacheManagerResource, sight: Sight, wall_us: int) -> Json:
    name, namespace = resource.metadata.name, resource.metadata.namespace
    ports = port_names(resource.spec.service.ports)
    host = f"{names.client_service(name)}.{namespace}.svc"
    found: Json = {
        "replicas": sight.pods.total,
        "readyReplicas": sight.pods.ready,
        "selector": names.selector_text(name),
        "version": sight.pods.image,
        "endpoints": {
            "metaGrpc": f"{host}:{ports['meta-grpc']}",
            "metaHttp": f"{host}:{ports['meta-http']}",
            "adminGrpc": f"{host}:{ports['admin-grpc']}",
            "adminHttp": f"{host}:{ports['admin-http']}",
        },
    }
    serving = sight.serving
    if serving.healthy is None and sight.replicas:
        return found  # what was known about the inside stays for now; the conditions say how much it is worth
    counts = {"storages": serving.storages, "groups": serving.groups, "instances": serving.instances}
    known = {what: number for what, number in counts.items() if number is not None}
    return {**found, "leader": _leader(subject, serving, sight, wall_us), "counts": known or None}


def _leader(subject: Subject, serving: Serving, sight: Sight, wall_us: int) -> Json | None:
    if not serving.leader:
        return None
    old = mapping(subject.status.get("leader"))
    same = old.get("nodeId") == serving.leader and (old.get("epoch") or 0) == serving.epoch
    leader: Json = {"nodeId": serving.leader, "since": (same and old.get("since")) or timestamp(wall_us)}
    if serving.epoch:
        leader["epoch"] = serving.epoch
    # In the cluster a node bears the name of its pod.
    return leader if sight.outside else {"pod": serving.leader, **leader}
