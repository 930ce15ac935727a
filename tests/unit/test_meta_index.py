"""The index of one instance: outcomes of a mutation, and what happens when the store, the caller or the plan gives up half-way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.data_storage.model import StorageType
from kvcm.meta.backend_local import LocalBackend
from kvcm.meta.errors import KeyLimitReached, KeysBusy, StateChanged
from kvcm.meta.index import PAGE_KEYS, MetaIndex, Outcome
from kvcm.meta.location import Block, condemn, promote
from kvcm.meta.testing import Census, Fault, Scheduler, SuspendingBackend, published, written
from kvcm.meta.usage import UsageCounter

pytestmark = pytest.mark.unit

A, B, C = written("a"), written("b", storage_slot=1), written("c", type_code=StorageType.VCNS_HF3FS)


def put(*blocks: Block) -> Callable[[int, int, Block], Block]:
    return lambda position, key, block: blocks[position]


def index_on(backend: SuspendingBackend, limit: int = 100, **more: float) -> MetaIndex:
    return MetaIndex(backend, max_key_count=limit, tier_capacity=4, **more)  # type: ignore[arg-type]


def test_a_mutation_is_stored_published_and_counted() -> None:
    async def story() -> None:
        backend, group = SuspendingBackend(), UsageCounter()
        index = MetaIndex(backend, max_key_count=10, usage=UsageCounter(group))
        assert await index.mutate([1, 2], put((A,), (B, C)), 3) == [Outcome(True), Outcome(True)]
        assert published(index) == backend.store == {1: (A,), 2: (B, C)}
        assert backend.highest_fence == 3
        assert (group.total, group.keys, index.key_count, dict(index.storage_slots())) == (300, 2, 2, {0: 2, 1: 1})
        assert group.by_type() == {StorageType.NFS: 200, StorageType.HF3FS: 100}
        out: list[bytes | bytearray] = []
        assert index.serving_run([1], out) == 0
        await index.mutate([1, 2], put((promote(A),), ()), 3)
        assert (index.serving_run([1, 2], out), b"".join(out)) == (1, A.wire)
        assert (group.total, group.keys, dict(index.storage_slots())) == (100, 1, {0: 1})

    asyncio.run(story())


def test_nothing_to_do_is_no_call_of_the_store() -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = index_on(backend)
        await index.mutate([1], put((A,)), 1)
        assert await index.mutate([1, 2, 2], put((A,), (), ()), 1) == [Outcome(False)] * 3
        assert await index.mutate([], put(), 1) == []
        assert len(backend.history) == 1

    asyncio.run(story())


def test_nothing_is_visible_before_the_store_has_it() -> None:
    async def story() -> None:
        scheduler = Scheduler()
        backend = SuspendingBackend(scheduler, suspend_answers=True)
        index = index_on(backend)
        task = asyncio.ensure_future(index.mutate([1], put((A,)), 1))
        await scheduler.settle()
        assert (index.get(1), scheduler.pending()) == ((), ["apply [1]"])
        await scheduler.release()
        assert (backend.store, index.get(1), index.usage.total) == ({1: (A,)}, (), 0)
        await scheduler.release()
        assert (index.get(1), await task) == ((A,), [Outcome(True)])

    asyncio.run(story())


def test_one_refused_block_does_not_touch_the_others() -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        backend.failing_keys = {2}
        index = index_on(backend)
        first, second, third = await index.mutate([1, 2, 3], put((A,), (B,), (C,)), 1)
        assert (first, third) == (Outcome(True), Outcome(True))
        assert isinstance(second.error, StorageError)
        assert published(index) == {1: (A,), 3: (C,)}

    asyncio.run(story())


def test_who_relied_on_an_earlier_occurrence_that_failed_is_told_too() -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = index_on(backend)
        backend.failing_keys = {1}

        def plan(position: int, key: int, block: Block) -> Block | None:
            if position == 3:
                raise StateChanged("own trouble")
            return (A,) if position == 1 else None  # positions 2 and 4 find the block "present"

        outcomes = await index.mutate([1, 1, 1, 1, 1, 2], plan, 1)
        assert outcomes[0] == outcomes[5] == Outcome(False)
        assert [type(outcome.error) for outcome in outcomes[1:5]] == [StorageError, StorageError, StateChanged, StorageError]

    asyncio.run(story())


def test_a_plan_may_refuse_one_position_and_a_bug_in_it_changes_nothing() -> None:
    async def story() -> None:
        index = index_on(SuspendingBackend())

        def refuse(position: int, key: int, block: Block) -> Block:
            if key == 2:
                raise StateChanged("not this one")
            return (A,)

        outcomes = await index.mutate([1, 2, 3], refuse, 1)
        assert [outcome.changed for outcome in outcomes] == [True, False, True]

        def bug(position: int, key: int, block: Block) -> Block:
            if key == 5:
                raise ZeroDivisionError
            return (B,)

        with pytest.raises(ZeroDivisionError):
            await index.mutate([4, 5], bug, 1)
        assert set(published(index)) == {1, 3}
        assert await index.mutate([4, 5], put((A,), (A,)), 1) == [Outcome(True)] * 2

    asyncio.run(story())


# -- outcomes that nobody knows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "done"),
    [
        (Fault.REFUSE, []),
        (Fault.LOST_REQUEST, []),
        (Fault.LOST_ANSWER, [1, 2, 3]),
        (Fault.LOST_HALF_WAY, [1, 3]),
        (Fault.BUG, [1, 2, 3]),
    ],
)
def test_memory_follows_what_the_store_really_took(fault: Fault, done: list[int]) -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        backend.faults.append(fault)
        index = index_on(backend)
        outcomes = await index.mutate([1, 2, 3], put((A,), (B,), (C,)), 1)
        assert [key for key, outcome in zip([1, 2, 3], outcomes, strict=True) if outcome.changed] == done
        assert sorted(published(index)) == done
        assert published(index) == backend.store
        assert Census.reported_by(index) == Census.of(backend.store.values())
        for outcome in outcomes:
            # Looked up and known: nobody has to fear repeating the call.
            assert not isinstance(outcome.error, OutcomeUnknown)

    asyncio.run(story())


def test_an_unreadable_outcome_keeps_the_last_known_state_and_the_next_change_mends_the_store() -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = index_on(backend)
        await index.mutate([1], put((A,)), 1)
        backend.faults.append(Fault.LOST_ANSWER)
        backend.failing_reads = 1
        (outcome,) = await index.mutate([1], put((promote(A),)), 1)
        assert isinstance(outcome.error, OutcomeUnknown)
        assert isinstance(outcome.error.__cause__, StorageError)
        assert (index.get(1), backend.store[1]) == ((A,), (promote(A),))
        assert await index.mutate([1], put((condemn(A),)), 1) == [Outcome(True)]
        assert published(index) == backend.store == {1: (condemn(A),)}

    asyncio.run(story())


def test_a_block_that_is_neither_old_nor_new_is_published_as_it_is() -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = index_on(backend)
        await index.mutate([1, 2], put((A,), (A,)), 1)
        backend.store = {1: (B, C)}
        backend.faults.append(Fault.LOST_REQUEST)
        outcomes = await index.mutate([1, 2], put((promote(A),), (promote(A),)), 1)
        assert [type(outcome.error) for outcome in outcomes] == [StateChanged, StateChanged]
        assert published(index) == {1: (B, C)}
        assert Census.reported_by(index) == Census.of([(B, C)])

    asyncio.run(story())


def test_a_backend_that_fails_while_reading_back_in_an_unheard_of_way(caplog: pytest.LogCaptureFixture) -> None:
    class Worse(SuspendingBackend):
        async def read(self, keys: object) -> Mapping[int, Block]:
            raise ZeroDivisionError

    async def story() -> None:
        backend = Worse()
        backend.faults.append(Fault.LOST_REQUEST)
        index = index_on(backend)
        (outcome,) = await index.mutate([1], put((A,)), 1)
        assert isinstance(outcome.error, OutcomeUnknown)
        assert await index.mutate([1], put((A,)), 1) == [Outcome(True)]

    asyncio.run(story())
    assert "metadata_backend_bug" in caplog.text


def test_a_newer_leader_ends_all_changes_of_this_one() -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = index_on(backend)
        await index.mutate([1], put((A,)), 2)
        backend.highest_fence = 3
        (outcome,) = await index.mutate([1], put((promote(A),)), 2)
        assert outcome.error is not None
        assert "newer leader" in outcome.error.message
        assert published(index) == backend.store == {1: (A,)}

    asyncio.run(story())


# -- cancelled callers -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2], ids=["sent", "stored", "read back"])
def test_a_cancelled_caller_leaves_its_change_to_run_to_the_end(steps: int) -> None:
    async def story() -> None:
        scheduler = Scheduler()
        backend = SuspendingBackend(scheduler, suspend_answers=True)
        backend.faults.append(Fault.LOST_ANSWER)
        index = index_on(backend)
        caller = asyncio.ensure_future(index.mutate([1], put((A,)), 1))
        await scheduler.settle()
        for _ in range(steps):
            await scheduler.release()
        caller.cancel()
        second = asyncio.ensure_future(index.mutate([1], lambda _, __, block: (*block, B), 1))
        await scheduler.settle()
        assert caller.cancelled()
        assert len(scheduler.pending()) == 1, "the second change waits until the first is through"
        await scheduler.release_all()
        assert await second == [Outcome(True)]
        assert published(index) == backend.store == {1: (A, B)}
        assert Census.reported_by(index) == Census.of([(A, B)])

    asyncio.run(story())


def test_a_caller_cancelled_while_it_waits_for_keys_has_done_nothing() -> None:
    async def story() -> None:
        scheduler = Scheduler()
        backend = SuspendingBackend(scheduler)
        index = index_on(backend)
        first = asyncio.ensure_future(index.mutate([1], put((A,)), 1))
        second = asyncio.ensure_future(index.mutate([1, 2], put((B,), (B,)), 1))
        await scheduler.settle()
        second.cancel()
        await scheduler.release_all()
        assert second.cancelled()
        assert await first == [Outcome(True)]
        assert backend.history == [{1: (A,)}]

    asyncio.run(story())


def test_closing_waits_for_changes_under_way() -> None:
    async def story() -> None:
        scheduler = Scheduler()
        backend = SuspendingBackend(scheduler)
        index = index_on(backend)
        opening = asyncio.ensure_future(index.open())
        await scheduler.release_all()
        await opening
        caller = asyncio.ensure_future(index.mutate([1], put((A,)), 1))
        await scheduler.settle()
        caller.cancel()
        closing = asyncio.ensure_future(index.close())
        await scheduler.settle()
        assert (closing.done(), backend.opened) == (False, True)
        await scheduler.release_all()
        await closing
        assert (backend.opened, backend.store) == (False, {1: (A,)})

    asyncio.run(story())


def test_who_waits_too_long_for_keys_is_told_and_has_done_nothing() -> None:
    async def story() -> None:
        scheduler = Scheduler()
        backend = SuspendingBackend(scheduler)
        index = index_on(backend, gate_wait_s=0)
        first = asyncio.ensure_future(index.mutate([1], put((A,)), 1))
        await scheduler.settle()
        with pytest.raises(KeysBusy):
            await index.mutate([1, 2], put((B,), (B,)), 1)
        await scheduler.release_all()
        await first
        assert published(index) == {1: (A,)}

    asyncio.run(story())


# -- the limit ---------------------------------------------------------------------------------------------------------------------------------


def test_the_room_of_a_change_under_way_is_taken() -> None:
    async def story() -> None:
        scheduler = Scheduler()
        index = index_on(SuspendingBackend(scheduler), limit=2)
        results = await scheduler.run([index.mutate([key, key + 10], put((A,), (B,)), 1) for key in (1, 2)])
        errors = [outcome.error for result in results if isinstance(result, list) for outcome in result]
        assert [type(error) for error in errors] == [type(None), type(None), KeyLimitReached, KeyLimitReached]
        assert index.key_count == 2

    asyncio.run(story())


def test_the_room_of_a_change_that_failed_is_free_again() -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = index_on(backend, limit=1)
        for fault in (Fault.REFUSE, Fault.LOST_REQUEST):
            backend.faults.append(fault)
            (outcome,) = await index.mutate([1], put((A,)), 1)
            assert outcome.error is not None
        assert await index.mutate([2], put((A,)), 1) == [Outcome(True)]

    asyncio.run(story())


def test_a_duplicate_takes_room_once_and_a_limit_fails_only_what_is_new() -> None:
    async def story() -> None:
        index = index_on(SuspendingBackend(), limit=2)

        def add(position: int, key: int, block: Block) -> Block:
            return (*block, written(f"{position}"))

        outcomes = await index.mutate([1, 1, 1, 2, 3, 2, 3], add, 1)
        assert [outcome.changed for outcome in outcomes] == [True, True, True, True, False, True, False]
        assert {type(outcome.error) for outcome in outcomes if outcome.error} == {KeyLimitReached}
        assert {key: len(block) for key, block in published(index).items()} == {1: 3, 2: 2}
        index.max_key_count = 3
        assert await index.mutate([3], put((A,)), 1) == [Outcome(True)]
        index.max_key_count = 1
        assert await index.mutate([3], put((promote(A),)), 1) == [Outcome(True)]
        assert (await index.mutate([4], put((A,)), 1))[0].error is not None

    asyncio.run(story())


# -- recovery ----------------------------------------------------------------------------------------------------------------------------------


def test_recovery_loads_and_counts_everything_once_even_if_a_scan_repeats_itself() -> None:
    class Repeating(SuspendingBackend):
        async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
            yield [(1, (A,)), (1, (A,)), (2, (promote(B),))]
            yield [(2, (promote(B),)), (3, ())]

    async def story() -> None:
        index = index_on(Repeating())
        assert await index.recover() == 2
        assert published(index) == {1: (A,), 2: (promote(B),)}
        assert Census.reported_by(index) == Census.of([(A,), (B,)])

    asyncio.run(story())


def test_recovery_lets_others_run_between_pages() -> None:
    async def story() -> None:
        turns: list[int] = []

        class Eager(SuspendingBackend):
            """Has every page at hand and never suspends."""

            async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
                for page in range(5):
                    turns.append(page)
                    yield [(page, (A,))]

        async def other() -> None:
            while len(turns) < 3:  # noqa: ASYNC110 (turns of the loop are what is counted)
                await asyncio.sleep(0)
            turns.append(-1)

        index = index_on(Eager())
        await asyncio.gather(index.recover(), other())
        assert turns.index(-1) == 3

    asyncio.run(story())


def test_the_barrier_is_the_stores_and_its_failure_reaches_the_caller() -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = index_on(backend)
        await index.sync([1, 2])
        assert backend.synced == [(1, 2)]
        backend.failing_syncs = 1
        with pytest.raises(StorageError):
            await index.sync([1])

    asyncio.run(story())


def test_pages_have_a_default_size() -> None:
    async def story() -> None:
        index = MetaIndex(LocalBackend(), max_key_count=1_000)
        keys = list(range(PAGE_KEYS + 1))
        await index.mutate(keys, lambda *_: (A,), 1)
        assert [len(page) for page in index.pages()] == [PAGE_KEYS, 1]

    asyncio.run(story())
