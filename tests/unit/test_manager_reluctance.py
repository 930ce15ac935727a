"""Deletions that cannot be proven are told once a minute and instance, with how many they were."""

from __future__ import annotations

import pytest

from kvcm.manager import reluctance
from kvcm.manager.reluctance import Reluctance

pytestmark = pytest.mark.unit

SECOND = 1_000_000


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition(":")[0] for record in caplog.records]


def test_the_first_is_told_at_once_and_many_make_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    told = Reluctance()
    for second in range(120):
        told.note("i", 4, 2 * SECOND, second * SECOND)
    told.note("j", 1, SECOND, 90 * SECOND)
    assert lines(caplog) == [
        "deletion_not_proven instance=i locations=4 retry_in_s=2",
        "deletion_not_proven instance=i locations=240 retry_in_s=2",
        "deletion_not_proven instance=j locations=1 retry_in_s=1",
    ]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(reluctance, "_MAX_INSTANCES", 3)
    told = Reluctance()
    for number in range(10):
        told.note(f"i{number}", 1, SECOND, 0)
        told.note(f"i{number}", 1, SECOND, 0)
    assert len(lines(caplog)) == 10
    assert len(told._said_us) <= 3
    assert len(told._unsaid) <= 3
