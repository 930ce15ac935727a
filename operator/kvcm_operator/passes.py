"""What the passes of Storage and InstanceGroup have in common: from a verdict to an outcome, and from trouble to a verdict."""

from __future__ import annotations

from typing import Literal

from kvcm.resources.conditions import Reason
from kvcm_operator.admin import AdminTrouble, Refused, Silent
from kvcm_operator.gate import Closed
from kvcm_operator.subject import Subject
from kvcm_operator.verdict import Verdict, refused, silent, stalled, status_of, waiting
from kvcm_operator.world import Event, Json, KubeForbidden, Outcome, World


def outcome(
    subject: Subject, world: World, verdict: Verdict, facts: Json, *, after: float | None = None, touched: bool = False, corrections: int = 0
) -> Outcome:
    status = status_of(subject, verdict, world.clock.wall_us(), facts)
    return Outcome(status, requeue_after=after, touched=touched, corrections=corrections)


def closed(subject: Subject, world: World, door: Closed) -> Outcome:
    """There is no manager to talk to now."""
    if door.gone:
        return outcome(subject, world, waiting(door.reason, door.message), {}, after=world.pace.waiting)
    return unseen(subject, world, door.reason, door.message)


def unseen(subject: Subject, world: World, reason: Reason, message: str, *, touched: bool = False) -> Outcome:
    verdict = silent(subject, reason, message, world.clock.wall_us(), world.pace.grace)
    return outcome(subject, world, verdict, {}, after=world.pace.retry, touched=touched)


def trouble(subject: Subject, world: World, error: AdminTrouble, facts: Json, *, touched: bool = False) -> Outcome:
    if isinstance(error, Silent):
        return unseen(subject, world, Reason.SERVER_UNREACHABLE, error.message, touched=touched)
    permanent = isinstance(error, Refused) and error.permanent
    verdict = stalled(Reason.SERVER_REFUSED, error.message) if permanent else refused(Reason.SERVER_REFUSED, error.message)
    return outcome(subject, world, verdict, facts, after=world.pace.waiting, touched=touched)


def forbidden(error: KubeForbidden) -> str:
    """A sentence about what the operator was not let do on the API server."""
    return f"the operator lacks a right on the API server: {error.message}"


def event(subject: Subject, kind: Literal["Normal", "Warning"], reason: str, message: str) -> Event:
    return Event(subject.ref, subject.uid, kind, reason, message)
