"""Conditions: their types, their reasons, and how a new list comes out of the old one. Pure.

Danger: tools match on reasons, so a reason is never renamed, only added; every one says here what it means and what to do. A transition time that
moves without cause wakes everybody who watches, so it changes with the status of its condition and with nothing else. And a condition that does
not name the generation it speaks about would let `kubectl wait` return for an old one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum

from kvcm.resources.base import Condition

MAX_MESSAGE_CHARS = 1024


class Value(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(Enum):
    """`name` on the wire is `.value`; `doc` says what it is about."""

    doc: str

    def __new__(cls, value: str, doc: str) -> ConditionType:
        member = object.__new__(cls)
        member._value_ = value
        member.doc = doc
        return member

    READY = "Ready", "The summary: what the spec asks for is so."
    SYNCED = "Synced", "The last comparison with the manager found it equal to the spec, or made it so. Unknown while it cannot be asked."
    RECONCILING = "Reconciling", "True while work on this generation goes on by itself; nobody has to help."
    STALLED = "Stalled", "True when only a person can help."
    AVAILABLE = "Available", "Managers only: it answers requests, whatever else is going on."
    PROGRESSING = "Progressing", "Managers only: pods are being started, replaced or stopped."


class Reason(Enum):
    """Why a condition has its value. `.value` is the wire's text, `doc` says what it means and what to do."""

    doc: str

    def __new__(cls, value: str, doc: str) -> Reason:
        member = object.__new__(cls)
        member._value_ = value
        member.doc = doc
        return member

    # All is well.
    READY = "Ready", "What the spec asks for is so."
    IN_SYNC = "InSync", "The manager has what the spec says."
    DRIFT_CORRECTED = "DriftCorrected", "Something was changed on the manager behind the operator's back and has been put right."
    SERVING = "Serving", "The manager answers requests."
    IDLE = "Idle", "There is nothing to do."
    NOT_STALLED = "NotStalled", "Nobody has to help."
    COMPLETE = "Complete", "All pods are as the spec says."

    # Work goes on by itself.
    RECONCILING = "Reconciling", "A new generation has been seen and is being worked on."
    MANAGER_NOT_READY = "ManagerNotReady", "The manager does not answer requests yet, or does not just now; it is waited for."
    SERVER_UNREACHABLE = "ServerUnreachable", "The manager's admin port does not answer; what was known is kept for a while and then unknown."
    STORAGE_NOT_REGISTERED = "StorageNotRegistered", "A storage that the group names is not on the manager; it is waited for."
    VOLUME_PENDING = "VolumePending", "The manager's pods do not have the storage's volume yet; they are restarted with it."
    ROOT_NOT_VERIFIED = "RootNotVerified", "The storage's root does not carry its mark, so it may not be mounted; nothing is deleted there meanwhile."
    STORAGE_UNAVAILABLE = "StorageUnavailable", "The manager has the storage and cannot use it; the message says why."
    SERVER_REFUSED = "ServerRefused", "The manager refused a change; the message says why. It is tried again unless Stalled is True."
    MANAGER_NOT_FOUND = "ManagerNotFound", "There is no KVCacheManager of the name in managerRef; it is waited for."
    MANAGER_SCALED_TO_ZERO = "ManagerScaledToZero", "The manager has no replicas, so there is nobody to configure."
    PODS_STARTING = "PodsStarting", "Pods of the manager are being started or are not ready yet."
    ROLLING_OUT = "RollingOut", "Pods of the manager are being replaced by ones of the new spec."
    NO_LEADER = "NoLeader", "Pods are up and none of them leads yet."
    ROLL_OUT_HALTED = (
        "RollOutHalted",
        "A pod of the new spec does not become ready, or an old one does not stop, so no other is replaced; the message says which and why.",
    )
    HANDING_OVER = "HandingOver", "The leader's pod is to be replaced or stopped; it is asked to step down first, and another one to take over is waited for."
    HANDOVER_FAILED = "HandoverFailed", "Nobody took over from the leader that was asked to step down. Its pod is left alone and it is asked again later."
    SCALING_DOWN = "ScalingDown", "There are more pods than the spec asks for; those with the highest numbers are being stopped."
    SCALED_TO_ZERO = "ScaledToZero", "The spec asks for no pods and there are none."
    CLUSTER_REFUSED = (
        "ClusterRefused",
        "The API server refused what the operator has to do there, by its rules, a quota or a missing right; the message says what.",
    )
    SECRET_NOT_FOUND = "SecretNotFound", "A Secret that the spec names does not exist or lacks an entry; it is waited for."
    DELETING = "Deleting", "The object is being deleted and what its deletion policy asks for is not done yet."
    IN_USE = "InUse", "Deleting waits because something still uses it; the message says what."
    PAUSED = "Paused", "Nobody looks at this object until it is no longer paused."

    # Only a person can help.
    INVALID_SPEC = "InvalidSpec", "The spec cannot mean anything; the message says which field to change."
    UNSUPPORTED = "Unsupported", "The spec is valid, but what it asks for is not built in this version."
    NAME_CONFLICT = "NameConflict", "An older resource describes the same name on the same manager; this one changes and deletes nothing."
    KIND_CONFLICT = "KindConflict", "The manager has a storage of this name and of another kind; a kind cannot change."
    ADOPTION_REFUSED = "AdoptionRefused", "The manager already has this name with other settings, and the adoption policy is AdoptIfEqual."
    VOLUME_CONFLICT = "VolumeConflict", "The storage's volume cannot be mounted: an older storage has its path, or no container can have a volume there."
    OBJECT_CONFLICT = "ObjectConflict", "An object that the manager needs exists and belongs to somebody else; the message says which."


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one condition should say now. The message is for people: no counters, no times, no addresses that vary."""

    type: ConditionType
    status: Value
    reason: Reason
    message: str = ""


def next_conditions(old: Sequence[Condition], wanted: Iterable[Wanted], generation: int, now: datetime) -> tuple[Condition, ...]:
    """The new list, in the order of `wanted`; conditions that are not wanted go.

    generation: the one that was looked at; every condition names it. now: aware; used where a status changes, and only there. Raises ValueError for
    a type that is wanted twice.
    """
    before = {condition.type: condition for condition in old}
    conditions = tuple(_next(before.get(item.type.value), item, generation, now) for item in wanted)
    if len({condition.type for condition in conditions}) != len(conditions):
        raise ValueError("a condition is wanted twice")
    return conditions


def _next(old: Condition | None, wanted: Wanted, generation: int, now: datetime) -> Condition:
    kept = old is not None and old.status == wanted.status.value
    return Condition.model_validate(
        {
            "type": wanted.type.value,
            "status": wanted.status.value,
            "reason": wanted.reason.value,
            "message": wanted.message[:MAX_MESSAGE_CHARS],
            "lastTransitionTime": old.last_transition_time if old is not None and kept else timestamp(now),
            "observedGeneration": generation,
        }
    )


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds, as Kubernetes writes it. Raises ValueError for a time without a zone."""
    if moment.tzinfo is None:
        raise ValueError("a time without a zone means nothing")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_VARYING = (
    ("a time", re.compile(r"\d{1,2}:\d{2}(:\d{2})?\b|\d{4}-\d{2}-\d{2}")),
    ("a duration", re.compile(r"\b(in|after|for|within|since) \d+(\.\d+)? ?(ms|s|m|h|min|seconds?|minutes?|hours?)\b")),
    ("a counter", re.compile(r"\b\d+ ?(/|of) ?\d+\b|\b(attempt|retry|try|round) \d+")),
    ("an address", re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")),
    ("an object's address", re.compile(r"\b0x[0-9a-f]{6,}\b")),
)


def varying_parts(message: str) -> list[str]:
    """What in a message looks as if it differed from pass to pass; for tests of whoever writes messages."""
    return [what for what, pattern in _VARYING if pattern.search(message)]
