"""The judge of recorded statuses finds what it is there for. No cluster is needed for that."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.support.kube import Json, Seen
from e2e.support.record import judge

pytestmark = pytest.mark.e2e

_T1, _T2 = "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"


def _seen(generation: int, observed: int, ready: str = "", *, since: str = _T1, gone: bool = False, **flags: str) -> Seen:
    values = {"Ready": ready, **flags} if ready else dict(flags)
    conditions = [
        {"type": kind, "status": value, "reason": "R", "message": "", "lastTransitionTime": since, "observedGeneration": observed}
        for kind, value in values.items()
    ]
    metadata: Json = {"name": "x", "namespace": "n", "uid": "u", "generation": generation}
    if gone:
        metadata["deletionTimestamp"] = _T2
    status: dict[str, Any] = {"observedGeneration": observed, **({"conditions": conditions} if conditions else {})}
    return Seen("MODIFIED", {"kind": "Storage", "metadata": metadata, "status": status})


_FRESH, _DONE, _NEXT = _seen(1, -1), _seen(1, 1, "True"), _seen(2, 1, "True")


@pytest.mark.parametrize(
    "stream",
    [
        [_FRESH, _DONE],
        [_FRESH, _seen(1, 1, "False", Reconciling="True"), _seen(1, 1, "True", since=_T2, Reconciling="False")],
        [_FRESH, _DONE, _NEXT, _seen(2, 2, "True")],
        [_FRESH, _seen(1, 1, "False", Stalled="True"), _seen(1, 1, "True", since=_T2, Stalled="False")],
        [_FRESH, _DONE, _seen(2, 1, "True", gone=True), _seen(2, 2, "False", since=_T2, gone=True)],
    ],
)
def test_a_good_stream_is_good(stream: list[Seen]) -> None:
    assert judge("x", stream, dips=0) == []


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        ([_seen(1, 2, "True")], "has the status of generation 2"),
        ([_FRESH, _DONE, _seen(1, 1, "False", since=_T2), _seen(1, 1, "True", since=_T2)], "left Current 1 times"),
        ([_FRESH, _DONE, _seen(1, 1, "True", since=_T2)], "the time of Ready moved"),
        ([_FRESH, _seen(1, 1, "True", Reconciling="True")], "kubectl wait returns while kstatus says InProgress"),
        ([_FRESH, _seen(1, 1, "False", Reconciling="True", Stalled="True")], "both True"),
        ([_FRESH, _seen(1, 1)], "does not return"),
        ([_FRESH, _DONE, _seen(2, 0, "True")], "went back"),
        ([_FRESH, _DONE, _seen(2, 1)], "went away"),
    ],
)
def test_a_bad_stream_is_found(stream: list[Seen], problem: str) -> None:
    assert any(problem in found for found in judge("x", stream, dips=0)), judge("x", stream, dips=0)


def test_a_condition_about_another_generation_is_found() -> None:
    mixed = _seen(2, 2, "True")
    mixed.body["status"]["conditions"][0]["observedGeneration"] = 1
    assert any("other generations" in found for found in judge("x", [mixed], dips=0))


def test_a_dip_that_a_story_allows_is_fine() -> None:
    assert judge("x", [_FRESH, _DONE, _seen(1, 1, "Unknown", since=_T2), _seen(1, 1, "True", since=_T2)], dips=1) == []
