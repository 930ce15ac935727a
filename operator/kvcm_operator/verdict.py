"""What a pass thinks of an object, and how that becomes the conditions that kubectl, Flux and Argo CD read.

Rules held here for all kinds: the generation stands in the status and in every condition, so nobody takes an old answer for a new one; while the
server is silent Ready keeps its value for a grace period, but never across generations.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from kvcm.resources.base import Condition
from kvcm.resources.conditions import ConditionType, Reason, Value, Wanted, next_conditions
from kvcm_operator.subject import Subject, seconds_since
from kvcm_operator.world import Json

TRUE, FALSE, UNKNOWN = Value.TRUE, Value.FALSE, Value.UNKNOWN
_QUIET = (Reason.IN_SYNC, Reason.DRIFT_CORRECTED)
_REASONS = {reason.value: reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reconciling` and `stalled` are never both true: either time helps or a person."""

    ready: Value
    reason: Reason
    message: str
    synced: Value
    synced_reason: Reason
    reconciling: bool = False
    stalled: bool = False


def good(message: str, synced_reason: Reason = Reason.IN_SYNC) -> Verdict:
    return Verdict(TRUE, Reason.READY, message, TRUE, synced_reason)


def waiting(reason: Reason, message: str, *, synced: Value = UNKNOWN) -> Verdict:
    """Something else has to happen first; no human is needed yet."""
    return Verdict(FALSE, reason, message, synced, reason, reconciling=True)


def stalled(reason: Reason, message: str) -> Verdict:
    """Only a human can help."""
    return Verdict(FALSE, reason, message, FALSE, reason, stalled=True)


def refused(reason: Reason, message: str) -> Verdict:
    """The server said no; a later attempt may work."""
    return Verdict(FALSE, reason, message, FALSE, reason, reconciling=True)


def silent(subject: Subject, reason: Reason, message: str, wall_us: int, grace_s: float) -> Verdict:
    """The truth cannot be seen. Ready keeps what it said about this generation until the grace period is over, then it is Unknown."""
    ready, synced = subject.condition("Ready"), subject.condition("Synced")
    known = ready.get("status") if ready.get("observedGeneration") == subject.generation else None
    since = str(synced.get("lastTransitionTime") or "") if synced.get("status") == UNKNOWN else ""
    if known == TRUE and seconds_since(since, wall_us) < grace_s:
        return Verdict(TRUE, Reason.READY, str(ready.get("message") or ""), UNKNOWN, reason)
    # A generation that was never brought to the server is not merely unknown: it is still to be done.
    value = UNKNOWN if known in (TRUE, UNKNOWN) else FALSE
    return Verdict(value, reason, message, UNKNOWN, reason, reconciling=True)


def paused(subject: Subject, message: str) -> Verdict:
    """Nothing is looked at; Ready keeps what it said about this generation."""
    ready = subject.condition("Ready")
    known = ready.get("status") if ready.get("observedGeneration") == subject.generation else None
    value = Value(known) if known in (TRUE, FALSE) else UNKNOWN
    return Verdict(value, Reason.PAUSED, message, UNKNOWN, Reason.PAUSED, reconciling=value is UNKNOWN)


def status_of(subject: Subject, verdict: Verdict, wall_us: int, facts: Json, extra: tuple[Wanted, ...] = ()) -> Json:
    """The whole status: what this pass saw over what earlier passes saw; a fact of None is taken away. `extra`: further conditions."""
    wanted = (
        Wanted(ConditionType.READY, verdict.ready, verdict.reason, verdict.message),
        Wanted(ConditionType.SYNCED, verdict.synced, verdict.synced_reason, "" if verdict.synced_reason in _QUIET else verdict.message),
        _flag(ConditionType.RECONCILING, verdict.reconciling, verdict, Reason.IDLE),
        _flag(ConditionType.STALLED, verdict.stalled, verdict, Reason.NOT_STALLED),
        *extra,
    )
    new = next_conditions(_old(subject), wanted, subject.generation, datetime.fromtimestamp(wall_us / 1e6, UTC))
    merged = {**subject.status, **facts, "observedGeneration": subject.generation}
    merged["conditions"] = [condition.model_dump(mode="json", by_alias=True) for condition in new]
    return {name: value for name, value in merged.items() if value is not None}


def _flag(kind: ConditionType, raised: bool, verdict: Verdict, otherwise: Reason) -> Wanted:
    return Wanted(kind, TRUE, verdict.reason, verdict.message) if raised else Wanted(kind, FALSE, otherwise)


def _old(subject: Subject) -> list[Condition]:
    """Conditions that can be read; one that somebody else has spoilt is written anew."""
    found = []
    for item in subject.status.get("conditions") or []:
        try:
            found.append(Condition.model_validate(item))
        except ValueError:
            continue
    return found


def reason_of(text: object, default: Reason) -> Reason:
    """A reason that stands in a status."""
    return _REASONS.get(str(text), default)
