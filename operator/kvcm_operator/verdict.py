"""What a pass thinks of an object, and how that becomes the conditions that kubectl, Flux and Argo CD read (models of the status contract).

Rules held here for all kinds: the generation stands in the status and in every condition, so nobody takes an old answer for a new one;
a transition time changes with the status alone; while the server is silent Ready keeps its value for a grace period, but never across generations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvcm_operator.subject import Subject, seconds_since, timestamp
from kvcm_operator.world import Json

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
MAX_MESSAGE_CHARS = 1024


class Silence(StrEnum):
    """Reasons that say only that the truth cannot be seen now."""

    SERVER_UNREACHABLE = "ServerUnreachable"
    MANAGER_NOT_READY = "ManagerNotReady"
    STORAGE_NOT_REGISTERED = "StorageNotRegistered"


@dataclass(frozen=True, slots=True)
class Verdict:
    ready: str
    reason: str
    message: str
    synced: str
    synced_reason: str
    reconciling: bool = False
    stalled: bool = False


def good(message: str, *, reason: str = "Ready", synced_reason: str = "InSync") -> Verdict:
    return Verdict(TRUE, reason, message, TRUE, synced_reason)


def waiting(reason: str, message: str, *, synced: str = UNKNOWN) -> Verdict:
    """Something else has to happen first; no human is needed yet."""
    return Verdict(FALSE, reason, message, synced, reason, reconciling=True)


def stalled(reason: str, message: str, *, synced: str = FALSE) -> Verdict:
    """Only a human can help."""
    return Verdict(FALSE, reason, message, synced, reason, stalled=True)


def refused(reason: str, message: str) -> Verdict:
    """The server said no; a later attempt may work."""
    return Verdict(FALSE, reason, message, FALSE, reason, reconciling=True)


def silent(subject: Subject, reason: Silence, message: str, wall_us: int, grace_s: float) -> Verdict:
    """The truth cannot be seen. Ready keeps what it said about this generation until the grace period is over, then it is Unknown."""
    ready, synced = subject.condition("Ready"), subject.condition("Synced")
    known = ready.get("status") if ready.get("observedGeneration") == subject.generation else None
    since = str(synced.get("lastTransitionTime") or "") if synced.get("status") == UNKNOWN else ""
    if known == TRUE and seconds_since(since, wall_us) < grace_s:
        return Verdict(TRUE, str(ready.get("reason")), str(ready.get("message") or ""), UNKNOWN, reason)
    # A generation that was never brought to the server is not merely unknown: it is still to be done.
    value = UNKNOWN if known in (TRUE, UNKNOWN) else FALSE
    return Verdict(value, reason, message, UNKNOWN, reason, reconciling=True)


def paused(subject: Subject, message: str) -> Verdict:
    """Nothing is looked at; Ready keeps what it said about this generation."""
    ready = subject.condition("Ready")
    seen = ready.get("observedGeneration") == subject.generation and ready.get("status") in (TRUE, FALSE)
    return Verdict(str(ready["status"]) if seen else UNKNOWN, "Paused", message, UNKNOWN, "Paused", reconciling=not seen)


def conditions(subject: Subject, verdict: Verdict, wall_us: int, extra: tuple[tuple[str, str, str, str], ...] = ()) -> list[Json]:
    """The whole list, in a stable order. `extra`: further conditions as (type, status, reason, message)."""
    working = (TRUE, verdict.reason, verdict.message) if verdict.reconciling else (FALSE, "Idle", "")
    stuck = (TRUE, verdict.reason, verdict.message) if verdict.stalled else (FALSE, "NotStalled", "")
    wanted = [
        ("Ready", verdict.ready, verdict.reason, verdict.message),
        ("Synced", verdict.synced, verdict.synced_reason, "" if verdict.synced_reason in ("InSync", "DriftCorrected") else verdict.message),
        ("Reconciling", *working),
        ("Stalled", *stuck),
        *extra,
    ]
    return [_condition(subject, *item, timestamp(wall_us)) for item in wanted]


def status_of(subject: Subject, verdict: Verdict, wall_us: int, facts: Json, extra: tuple[tuple[str, str, str, str], ...] = ()) -> Json:
    """The whole status: what this pass saw over what earlier passes saw; a fact of None is taken away."""
    merged = {**subject.status, **facts}
    merged["observedGeneration"] = subject.generation
    merged["conditions"] = conditions(subject, verdict, wall_us, extra)
    return {name: value for name, value in merged.items() if value is not None}


def _condition(subject: Subject, kind: str, status: str, reason: str, message: str, now: str) -> Json:
    old = subject.condition(kind)
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:MAX_MESSAGE_CHARS],
        "lastTransitionTime": since or now,
        "observedGeneration": subject.generation,
    }
