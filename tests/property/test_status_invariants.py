"""Invariants of conditions over random histories of passes (models of the status contract).

I-ST-1 an object is never current for a generation that no pass has looked at, and `kubectl wait` never returns for one.
I-ST-2 a transition time changes exactly when the status of its condition does.
I-ST-3 the same pass again changes nothing, whatever the clock says.
I-ST-4 one condition for each type, each naming the generation, each valid for the published schema.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.resources.base import Condition
from kvcm.resources.conditions import ConditionType, Reason, Value, Wanted, next_conditions
from kvcm.resources.kstatus import Kstatus, kstatus, wait_returns
from kvcm.resources.schema import KINDS, root_schema
from kvcm.resources.testing import violations, with_defaults

pytestmark = pytest.mark.property

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMAS = [root_schema(info)["properties"]["status"] for info in KINDS]
_WANTED = st.builds(Wanted, st.sampled_from(ConditionType), st.sampled_from(Value), st.sampled_from(Reason), st.text(max_size=20))
_PASS = st.lists(_WANTED, max_size=6, unique_by=lambda item: item.type)
# A pass looks at the present generation; between passes the spec may change any number of times.
_HISTORY = st.lists(st.tuples(st.integers(0, 2), _PASS, st.integers(0, 100)), max_size=8)


def _document(generation: int, observed: int, conditions: tuple[Condition, ...]) -> dict[str, Any]:
    found = [condition.model_dump(by_alias=True, exclude_none=True) for condition in conditions]
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": observed, "conditions": found}}


@settings(deadline=None, max_examples=60)
@given(_HISTORY, st.integers(1, 3))
def test_I_ST_1_never_current_for_an_unprocessed_generation(history: list[tuple[int, list[Wanted], int]], edits: int) -> None:
    generation, observed = 1, -1
    conditions: tuple[Condition, ...] = ()
    states: list[tuple[Kstatus, bool]] = []
    for changes, wanted, _ in history:
        generation += changes
        if generation != observed:
            document = _document(generation, observed, conditions)
            states.append((kstatus(document), wait_returns(document, "Ready")))
        conditions, observed = next_conditions(conditions, wanted, generation, START), generation
    document = _document(generation + edits, observed, conditions)
    states.append((kstatus(document), wait_returns(document, "Ready")))
    assert all(state is Kstatus.IN_PROGRESS and not returned for state, returned in states)


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_I_ST_1_a_fresh_object_is_in_progress(info: Any) -> None:
    fresh = with_defaults(root_schema(info), {"metadata": {"generation": 1}, "spec": {}})
    assert kstatus(fresh) is Kstatus.IN_PROGRESS
    assert not wait_returns(fresh, "Ready")


@settings(deadline=None, max_examples=60)
@given(_HISTORY)
def test_I_ST_2_a_time_changes_exactly_with_its_status(history: list[tuple[int, list[Wanted], int]]) -> None:
    conditions: tuple[Condition, ...] = ()
    generation, now = 1, START
    for changes, wanted, seconds in history:
        generation, now = generation + changes, now + timedelta(seconds=seconds + 1)
        before = {condition.type: condition for condition in conditions}
        conditions = next_conditions(conditions, wanted, generation, now)
        for condition in conditions:
            old = before.get(condition.type)
            same = old is not None and old.status == condition.status
            assert (old is not None and old.last_transition_time == condition.last_transition_time) is same


@settings(deadline=None, max_examples=60)
@given(_HISTORY, _PASS, st.integers(0, 10**6))
def test_I_ST_3_the_same_pass_again_changes_nothing(history: list[tuple[int, list[Wanted], int]], wanted: list[Wanted], seconds: int) -> None:
    conditions: tuple[Condition, ...] = ()
    for _, earlier, _ in history:
        conditions = next_conditions(conditions, earlier, 1, START)
    once = next_conditions(conditions, wanted, 2, START)
    assert next_conditions(once, wanted, 2, START + timedelta(seconds=seconds)) == once


@settings(deadline=None, max_examples=60)
@given(_PASS, _PASS, st.integers(1, 10**9))
def test_I_ST_4_conditions_are_a_map_and_fit_the_schema(first: list[Wanted], second: list[Wanted], generation: int) -> None:
    conditions = next_conditions(next_conditions((), first, 1, START), second, generation, START)
    assert [condition.type for condition in conditions] == [item.type.value for item in second]
    assert all(condition.observed_generation == generation for condition in conditions)
    status = _document(generation, generation, conditions)["status"]
    for schema in SCHEMAS:
        assert violations(schema, status) == []
