"""I-LOC-1, 2, 6 and 7 (behaviour 10.2) at the index: whatever overlaps, fails or is cancelled.

I-LOC-3, 4 and 5 are about readers and bytes: see the manager's tests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.ids import RandomIds, SeededIds
from kvcm.data_storage.port import Truth
from kvcm.meta.errors import IllegalTransition
from kvcm.meta.location import AbsenceProof, Block, Status, bury, condemn, promote, prove_absence, replace
from kvcm.meta.testing import written
from kvcm.meta.testing_moves import LEGAL, Dice, IndexWorld

pytestmark = pytest.mark.property


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Backends with bugs are logged with their traceback, each time; here that is most of the time spent."""
    logger = logging.getLogger("kvcm.meta.index")
    logger.disabled = True
    yield
    logger.disabled = False


STORIES = st.integers(0, 2**32 - 1)
INVARIANTS = settings(deadline=None, max_examples=100)


@INVARIANTS
@given(STORIES, st.booleans())
def test_I_LOC_1_2_6_7_every_moment_that_a_reader_can_see(number: int, cancels: bool) -> None:
    """The watcher checks all four after every step (see IndexWorld.watch)."""
    dice = Dice(number, cancels=cancels)
    # A key at most once a call: then every transition is one that a reader can see.
    calls = dice.calls(distinct=True)

    async def story() -> None:
        world = IndexWorld(suspend_answers=cancels, direct=dice.choose(2) == 0)
        world.backend.faults.extend(dice.faults())
        world.backend.failing_reads = dice.failing_reads()
        await world.run(calls, dice.choose, dice.cancel)

    asyncio.run(story())


@INVARIANTS
@given(STORIES)
def test_I_LOC_1_what_the_store_is_given_is_in_the_table_too(number: int) -> None:
    dice = Dice(number)
    calls = dice.calls(distinct=True)

    async def story() -> IndexWorld:
        world = IndexWorld()
        await world.run(calls, dice.choose)
        return world

    states: dict[tuple[int, str], Status] = {}
    for change in asyncio.run(story()).backend.history:
        for key, block in change.items():
            now = {(key, loc.location_id): loc.status for loc in block}
            before = {mark: status for mark, status in states.items() if mark[0] == key}
            for mark in before.keys() | now.keys():
                was, becomes = before.get(mark), now.get(mark)
                assert was is becomes or (was, becomes) in LEGAL
                states.pop(mark, None)
            states.update(now)


@INVARIANTS
@given(st.lists(st.sampled_from(["promote", "condemn", "bury with proof", "bury with a foreign proof"]), max_size=8))
def test_I_LOC_1_the_functions_of_the_state_machine_know_no_other_arrow(attempts: list[str]) -> None:
    allowed = {("promote", Status.WRITING), ("condemn", Status.WRITING), ("condemn", Status.SERVING), ("bury with proof", Status.DELETING)}
    block: Block = (written("a"),)
    for attempt in attempts:
        if not block:
            return
        (location,) = block
        try:
            if attempt == "promote":
                block = (promote(location),)
            elif attempt == "condemn":
                block = (condemn(location),)
            else:
                block = bury(block, location, AbsenceProof("a" if attempt == "bury with proof" else "b"))
        except IllegalTransition:
            assert (attempt, location.status) not in allowed
        else:
            assert (attempt, location.status) in allowed
            assert (location.status, block[0].status if block else None) in LEGAL


def test_I_LOC_2_serving_has_one_door() -> None:
    serving = promote(written("a"))
    for other in (serving, condemn(serving), condemn(written("a"))):
        with pytest.raises(IllegalTransition):
            promote(other)
    assert replace((condemn(serving),), written("a"), serving) is None
    proof = prove_absence(serving, [Truth.ABSENT])
    assert proof is not None
    with pytest.raises(IllegalTransition):
        bury((serving,), serving, proof)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 2_000), st.integers(0, 1 << 30))
def test_I_LOC_6_ids_and_nonces_of_a_batch_differ(count: int, seed: int) -> None:
    for ids in (RandomIds(), SeededIds(seed)):
        assert len(set(ids.nonces(count))) == count
        assert all(len(location_id) == 8 for location_id in ids.location_ids(count))


@INVARIANTS
@given(st.lists(st.sampled_from(["promote", "condemn"]), max_size=4), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_I_LOC_7_no_transition_touches_what_was_set_at_the_beginning(path: list[str], created: int, checksum: int) -> None:
    location = first = written("a", create_time_us=created, previous_key=checksum)
    for name in path:
        try:
            location = promote(location, checksum) if name == "promote" else condemn(location)
        except IllegalTransition:
            continue
    kept = location.fields()._replace(status=Status.WRITING, checksum=0)
    assert (kept, location.wire) == (first.fields(), first.wire)
