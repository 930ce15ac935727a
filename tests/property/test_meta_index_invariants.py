"""I-MI-1 .. I-MI-7 and I-MB-1 (behaviour 8.4, 9.8), and memory against store, with random overlaps, faults and cancelled callers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import KvcmError, OutcomeUnknown, StorageError
from kvcm.meta.errors import KeyLimitReached, StateChanged
from kvcm.meta.index import MetaIndex, Outcome
from kvcm.meta.location import Block
from kvcm.meta.testing import Census, Fault, SuspendingBackend, published, written
from kvcm.meta.testing_moves import Dice, IndexWorld, Move, Step

pytestmark = pytest.mark.property


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Backends with bugs are logged with their traceback, each time; here that is most of the time spent."""
    logger = logging.getLogger("kvcm.meta.index")
    logger.disabled = True
    yield
    logger.disabled = False


STORIES = st.integers(0, 2**32 - 1)
CALL = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Move)), min_size=1, max_size=8)
GENERAL = settings(deadline=None, max_examples=100)


class Composite(IndexWorld):
    """Calls that name a key twice make two transitions at once; what a reader sees between them is not a single arrow."""

    def _compare(self, old: object, new: object) -> None:
        return


def world_of(dice: Dice, *, limit: int = 1_000, cancels: bool = False) -> IndexWorld:
    """A world in which things go wrong as the dice say; in every second one the store calls at the end of a change."""
    world = Composite(limit=limit, suspend_answers=cancels, direct=dice.choose(2) == 0)
    world.backend.faults.extend(dice.faults())
    world.backend.failing_reads = dice.failing_reads()
    return world


@GENERAL
@given(STORIES)
def test_I_MI_1_overlapping_calls_on_a_block_act_as_if_one_came_after_the_other(number: int) -> None:
    async def story() -> None:
        dice, world = Dice(number), Composite(direct=number % 2 == 0)
        await world.run(dice.calls(), dice.choose)
        blocks = published(world.index)
        for key in range(4):
            # Each plan is an edge from the block it saw to the block it made. There is one order in which all of them lead from nothing to what is there
            # now exactly if every state is left as often as it is reached; states but the empty one never come twice, since every location is new.
            balance: Counter[Block] = Counter({blocks.get(key, ()): 1})
            balance[()] -= 1
            for edge in world.edges:
                if edge.key == key:
                    balance[edge.seen] += 1
                    balance[edge.wanted] -= 1
            assert not any(balance.values()), "a call planned on a state that another one did not leave"

    asyncio.run(story())


@GENERAL
@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), STORIES)
def test_I_MI_1_no_addition_is_lost(keys: list[int], number: int) -> None:
    async def story() -> None:
        world = IndexWorld(direct=number % 2 == 0)
        await world.run([[(key, Move.BEGIN)] for key in keys], Dice(number).choose)
        assert {key: len(block) for key, block in published(world.index).items()} == {key: keys.count(key) for key in set(keys)}

    asyncio.run(story())


@GENERAL
@given(CALL, st.sets(st.integers(0, 3)), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 4))
def test_I_MI_2_one_answer_a_position_with_duplicates_and_failures(calls: list[Step], refused: set[int], there: list[int], limit: int) -> None:
    async def story() -> None:
        world = Composite(limit=max(limit, len(set(there))))
        world.backend = type(world.backend)()
        world.index = MetaIndex(world.backend, max_key_count=world.limit)
        await world.call([(key, Move.BEGIN) for key in there] or [(0, Move.LOOK)])
        before = published(world.index)
        world.backend.failing_keys = refused
        outcomes = await world.call(calls)
        assert len(outcomes) == len(calls)
        room = world.limit - len(before)
        changed: set[int] = set()
        for (key, move), outcome in zip(calls, outcomes, strict=True):
            if move is Move.FAIL:
                assert isinstance(outcome.error, StateChanged)
                continue
            if move is Move.LOOK and key not in changed:
                assert outcome == Outcome(False)
                continue
            if move is Move.BEGIN and key not in before and key not in changed and room == 0:
                assert isinstance(outcome.error, KeyLimitReached)
                continue
            if move is Move.BEGIN:
                room -= key not in before and key not in changed
                changed.add(key)
            elif outcome.changed or outcome.error:
                changed.add(key)
            # Whoever acted on a change that the store refused is told so, whether it changed something more or not.
            if key in changed and key in refused:
                assert (outcome.changed, type(outcome.error)) == (False, StorageError)
            else:
                assert outcome.error is None
                assert outcome.changed or move is not Move.BEGIN
        for key in refused:
            assert world.index.get(key) == before.get(key, ())

    asyncio.run(story())


@GENERAL
@given(st.integers(1, 8))
def test_I_MI_2_a_duplicate_sees_the_effect_of_its_earlier_occurrence(count: int) -> None:
    async def story() -> None:
        index = MetaIndex(SuspendingBackend(), max_key_count=1)
        seen: list[int] = []

        def plan(position: int, key: int, block: Block) -> Block:
            seen.append(len(block))
            return (*block, written(f"{position}"))

        assert await index.mutate([7] * count, plan, 1) == [Outcome(True)] * count
        assert seen == list(range(count))
        assert [loc.location_id for loc in index.get(7)] == [f"{position}" for position in range(count)]

    asyncio.run(story())


@GENERAL
@given(STORIES)
def test_I_MI_3_a_call_has_failed_exactly_where_the_block_is_not_as_planned(number: int) -> None:
    """There is no aggregate code in the index: each position tells, and the manager sums up. So each position has to be right."""

    async def story() -> None:
        dice, world = Dice(number), IndexWorld()
        world.backend.faults.extend(dice.faults())
        world.backend.failing_keys = dice.some_keys()
        for steps in dice.calls(distinct=True):
            before = published(world.index)
            task = asyncio.ensure_future(world.call(steps))
            await world.scheduler.release_all()
            for (key, _), outcome in zip(steps, await task, strict=True):
                assert not (outcome.changed and outcome.error)
                if outcome.changed:
                    assert world.index.get(key) != before.get(key, ())
                    assert world.index.get(key) == world.backend.store.get(key, ())
                else:
                    assert world.index.get(key) == before.get(key, ()), "something happened to a block whose caller was told that nothing did"

    asyncio.run(story())


@GENERAL
@given(STORIES, st.booleans())
def test_I_MI_4_counters_equal_a_recount_at_every_moment(number: int, cancels: bool) -> None:
    """The watcher counts after every step: keys, bytes by type, locations by storage."""

    async def story() -> None:
        dice = Dice(number, cancels=cancels)
        world = world_of(dice, cancels=cancels)
        await world.run(dice.calls(), dice.choose, dice.cancel)

    asyncio.run(story())


@GENERAL
@given(STORIES, st.integers(0, 3), st.booleans())
def test_I_MI_5_the_limit_holds_at_every_moment_and_existing_blocks_stay_updatable(number: int, limit: int, cancels: bool) -> None:
    """The watcher compares with the limit after every step, also while new blocks of several calls are on their way to the store."""

    async def story() -> None:
        dice = Dice(number, keys=6, cancels=cancels)
        world = world_of(dice, limit=limit, cancels=cancels)
        await world.run(dice.calls(), dice.choose, dice.cancel)
        world.backend.faults.clear()
        await fill(world)
        assert world.index.key_count == limit
        for key in published(world.index):
            task = asyncio.ensure_future(world.call([(key, Move.BEGIN), (99, Move.BEGIN)]))
            await world.scheduler.release_all()
            updated, added = await task
            assert updated == Outcome(True)
            assert isinstance(added.error, KeyLimitReached)
            assert world.index.get(99) == () == world.backend.store.get(99, ())

    asyncio.run(story())


async def fill(world: IndexWorld) -> None:
    """New blocks up to the limit, one by one."""
    for key in range(100, 100 + world.limit - world.index.key_count):
        task = asyncio.ensure_future(world.call([(key, Move.BEGIN)]))
        await world.scheduler.release_all()
        assert await task == [Outcome(True)]


@GENERAL
@given(STORIES, st.lists(st.integers(0, 5), max_size=8))
def test_I_MI_6_nothing_but_a_read_of_a_caller_touches_an_access_time(number: int, read: list[int]) -> None:
    async def story() -> None:
        dice, world = Dice(number, keys=6), IndexWorld()
        await world.run([[(key, Move.BEGIN)] for key in range(6)], lambda count: 0)
        world.index.access.touch_keys(read, 50)
        times = world.index.access.snapshot(range(6))
        assert times == [50 if key in read else None for key in range(6)]
        await world.run(dice.calls(distinct=True), dice.choose)
        world.index.serving_run(list(range(6)), [])
        sync = asyncio.ensure_future(world.index.sync([0, 1]))
        await world.scheduler.release_all()
        await sync
        assert list(world.index.pages(2))
        removed = {edge.key for edge in world.edges if not edge.wanted}
        for key, (before, after) in enumerate(zip(times, world.index.access.snapshot(range(6)), strict=True)):
            assert after == (None if key in removed else before)

    asyncio.run(story())


@GENERAL
@given(st.integers(0, 80), st.integers(1, 24), st.integers(1, 9), st.integers(1, 12), STORIES)
def test_I_MI_7_a_scan_meets_every_block_that_exists_all_the_while_and_ends(count: int, tier: int, page: int, at_once: int, number: int) -> None:
    dice = random.Random(number)
    first = dice.sample(range(80), count)
    changes = [(dice.randrange(100), dice.random() < 0.2) for _ in range(90)]

    async def story() -> None:
        index = MetaIndex(SuspendingBackend(), max_key_count=1_000, tier_capacity=tier)
        if first:
            await index.mutate(first, lambda position, key, block: (written(f"{key}"),), 1)
        stays, now_there = set(first), set(first)
        seen: list[int] = []
        left = list(changes)
        for keys in index.pages(page):
            assert 0 < len(keys) <= page
            seen.extend(keys)
            now, left = left[:at_once], left[at_once:]
            for key, add in now:
                await index.mutate([key], lambda position, key, block, add=add: (written(f"{key}"),) if add else (), 1)  # type: ignore[misc]
                if add:
                    now_there.add(key)
                else:
                    stays.discard(key)
                    now_there.discard(key)
        assert stays <= set(seen)
        assert set(seen) <= set(first) | {key for key, _ in changes}
        assert set(published(index)) == now_there

    asyncio.run(story())


@GENERAL
@given(STORIES, st.booleans())
def test_I_MB_1_what_a_caller_was_told_is_done_it_can_read(number: int, answers: bool) -> None:
    """IndexWorld.call reads back each of its own writes the moment it gets its answer."""

    async def story() -> None:
        dice = Dice(number)
        await world_of(dice, cancels=answers).run(dice.calls(), dice.choose)

    asyncio.run(story())


@GENERAL
@given(STORIES, st.booleans())
def test_memory_equals_the_store_wherever_somebody_can_say_what_it_holds(number: int, cancels: bool) -> None:
    async def story() -> None:
        dice = Dice(number, cancels=cancels)
        world = world_of(dice, cancels=cancels)
        world.backend.failing_keys = dice.some_keys()
        await world.run(dice.calls(), dice.choose, dice.cancel)
        doubtful = world.backend.doubtful
        assert settled(published(world.index), doubtful) == settled(world.backend.store, doubtful)
        await check_recovery(world.backend)
        await heal(world)

    asyncio.run(story())


def settled(blocks: dict[int, Block], doubtful: set[int]) -> dict[int, Block]:
    return {key: block for key, block in blocks.items() if key not in doubtful}


async def check_recovery(backend: SuspendingBackend) -> None:
    """Whoever comes next loads exactly what is stored and counts it anew."""
    again = SuspendingBackend()
    again.store = dict(backend.store)
    index = MetaIndex(again, max_key_count=0)
    assert await index.recover() == len(again.store)
    assert published(index) == again.store
    assert Census.reported_by(index) == Census.of(again.store.values())


async def heal(world: IndexWorld) -> None:
    """The next change of a doubtful block makes memory and store equal again."""
    world.backend.faults.clear()
    world.backend.failing_reads = 0
    world.backend.failing_keys = set()
    for key in sorted(world.backend.doubtful):
        task = asyncio.ensure_future(world.call([(key, Move.BEGIN)]))
        await world.scheduler.release_all()
        assert await task == [Outcome(True)]
    assert published(world.index) == world.backend.store


@GENERAL
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.sampled_from(Fault), st.booleans())
def test_an_error_never_claims_more_than_is_known(keys: Sequence[int], fault: Fault, unreadable: bool) -> None:
    """A failure that was resolved can be repeated; one that was not says so."""

    async def story() -> None:
        backend = SuspendingBackend()
        index = MetaIndex(backend, max_key_count=10)
        backend.faults.append(fault)
        backend.failing_reads = int(unreadable)
        outcomes = await index.mutate(keys, lambda position, key, block: (*block, written(f"{position}")), 1)
        errors: set[type[KvcmError]] = {type(outcome.error) for outcome in outcomes if outcome.error is not None}
        if fault is Fault.REFUSE:
            assert errors == {StorageError}
        elif unreadable:
            assert errors == {OutcomeUnknown}
        else:
            assert errors <= {StorageError}
        assert all(outcome.error.retryable is not (errors == {OutcomeUnknown}) for outcome in outcomes if outcome.error is not None)

    asyncio.run(story())
