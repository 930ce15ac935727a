"""Conditions and how tools read them: tables for kstatus and `kubectl wait`, and the rules for reasons and messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kvcm.resources.conditions import MAX_MESSAGE_CHARS, ConditionType, Reason, Value, Wanted, next_conditions, timestamp, varying_parts
from kvcm.resources.kstatus import Kstatus, kstatus, wait_returns

pytestmark = pytest.mark.unit

_READY_OF_1 = {"type": "Ready", "status": "True", "observedGeneration": 1}
NOW = datetime(2026, 11, 30, 8, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=90)


def _document(generation: int, observed: int | None, deleted: bool = False, **conditions: str) -> dict[str, Any]:
    status: dict[str, Any] = {} if observed is None else {"observedGeneration": observed}
    if conditions:
        status["conditions"] = [{"type": kind, "status": value, "observedGeneration": observed} for kind, value in conditions.items()]
    metadata: dict[str, Any] = {"generation": generation}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    return {"metadata": metadata, "status": status}


@pytest.mark.parametrize(
    ("document", "state"),
    [
        (_document(1, -1), Kstatus.IN_PROGRESS),
        (_document(1, 1, Ready="True"), Kstatus.CURRENT),
        (_document(2, 1, Ready="True"), Kstatus.IN_PROGRESS),
        (_document(1, 1, Ready="False"), Kstatus.IN_PROGRESS),
        (_document(1, 1, Ready="Unknown"), Kstatus.IN_PROGRESS),
        (_document(1, 1, Ready="True", Reconciling="True"), Kstatus.IN_PROGRESS),
        (_document(1, 1, Ready="False", Stalled="True"), Kstatus.FAILED),
        (_document(1, 1, Ready="True", Stalled="False", Reconciling="False"), Kstatus.CURRENT),
        (_document(2, 1, Ready="False", Stalled="True"), Kstatus.IN_PROGRESS),
        (_document(1, 1, deleted=True, Ready="True"), Kstatus.TERMINATING),
        (_document(1, None), Kstatus.CURRENT),
        ({"metadata": {}, "status": None}, Kstatus.CURRENT),
        ({}, Kstatus.CURRENT),
        ({"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "conditions": "odd"}}, Kstatus.CURRENT),
    ],
)
def test_kstatus(document: dict[str, Any], state: Kstatus) -> None:
    assert kstatus(document) is state


@pytest.mark.parametrize(
    ("document", "returns"),
    [
        (_document(1, 1, Ready="True"), True),
        (_document(2, 1, Ready="True"), False),
        (_document(1, 1, Ready="False"), False),
        (_document(1, 1, Synced="True"), False),
        (_document(1, -1), False),
        (
            {"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}},
            False,
        ),
        ({"metadata": {"generation": 2}, "status": {"conditions": [{"type": "ready", "status": "true"}]}}, True),
        ({}, False),
    ],
)
def test_kubectl_wait(document: dict[str, Any], returns: bool) -> None:
    assert wait_returns(document, "Ready") is returns


def test_a_time_moves_with_the_status_only() -> None:
    ready = Wanted(ConditionType.READY, Value.FALSE, Reason.RECONCILING, "working")
    first = next_conditions((), [ready], 1, NOW)
    assert first[0].last_transition_time == "2026-11-30T08:00:00Z"
    second = next_conditions(first, [Wanted(ConditionType.READY, Value.FALSE, Reason.VOLUME_PENDING, "waits")], 2, LATER)
    assert (second[0].last_transition_time, second[0].observed_generation, second[0].reason) == ("2026-11-30T08:00:00Z", 2, "VolumePending")
    third = next_conditions(second, [Wanted(ConditionType.READY, Value.TRUE, Reason.READY)], 2, LATER)
    assert (third[0].last_transition_time, third[0].message) == ("2026-11-30T08:01:30Z", "")


def test_odd_input_is_bounded_or_refused() -> None:
    wanted = Wanted(ConditionType.READY, Value.TRUE, Reason.READY, "x" * 5000)
    assert len(next_conditions((), [wanted], 1, NOW)[0].message) == MAX_MESSAGE_CHARS
    with pytest.raises(ValueError, match="twice"):
        next_conditions((), [wanted, wanted], 1, NOW)
    with pytest.raises(ValueError, match="zone"):
        next_conditions((), [wanted], 1, datetime(2026, 1, 1))  # the point of it
    assert timestamp(NOW.astimezone(timezone(timedelta(hours=5)))) == "2026-11-30T08:00:00Z"


def test_reasons_and_types_are_documented_and_fit_for_tools() -> None:
    for member in (*Reason, *ConditionType):
        assert re.fullmatch(r"[A-Z][A-Za-z]{2,63}", member.value), member
        assert member.doc.endswith("."), member
        assert varying_parts(member.doc) == []
    assert len({reason.doc for reason in Reason}) == len(list(Reason))


# Tools match on these: a reason may be added here, never renamed or taken away.
PUBLISHED = (
    "AdoptionRefused ClusterRefused Complete Deleting DriftCorrected HandingOver HandoverFailed Idle InSync InUse InvalidSpec KindConflict "
    "ManagerNotFound ManagerNotReady ManagerScaledToZero NameConflict NoLeader NotStalled ObjectConflict Paused PodsStarting Ready Reconciling "
    "RollOutHalted RollingOut RootNotVerified ScaledToZero ScalingDown SecretNotFound ServerRefused ServerUnreachable Serving StorageNotRegistered "
    "StorageUnavailable Unsupported VolumeConflict VolumePending"
)


def test_no_reason_is_ever_renamed() -> None:
    assert sorted(reason.value for reason in Reason) == PUBLISHED.split()
    assert [kind.value for kind in ConditionType] == ["Ready", "Synced", "Reconciling", "Stalled", "Available", "Progressing"]


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("waits for the Storage demo-2 to be registered", []),
        ("replicas must be 0 or 1", []),
        ("retried in 30 s", ["a duration"]),
        ("2/3 pods are ready", ["a counter"]),
        ("2 of 3 pods are ready, attempt 4", ["a counter"]),
        ("since 2026-11-30T08:00:00Z", ["a time"]),
        ("no answer from 10.244.0.7:6491", ["an address"]),
        ("<Task at 0x7f00aabbccdd>", ["an object's address"]),
    ],
)
def test_messages_that_vary_are_found(message: str, parts: list[str]) -> None:
    assert varying_parts(message) == parts
