"""docs/kubernetes.md tells of each reason that a condition may have, once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcm.resources.conditions import Reason

pytestmark = pytest.mark.unit

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def test_the_table_has_every_reason_exactly_once() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| reason | what to do |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    assert all(remedy.strip() for _, remedy in rows)
    named = [reason for reasons, _ in rows for reason in re.findall(r"`(\w+)`", reasons)]
    assert sorted(named) == sorted(reason.value for reason in Reason)
