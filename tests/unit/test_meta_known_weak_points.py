"""Behaviour section 27, *Metadata*: one test per known weak point that concerns what is built. The names follow the lines there.

Lines about parts that are not built (search cache, redis sampling, write-behind, memory_primary, LRU pools) come with those parts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import StorageError
from kvcm.data_storage.model import StorageType
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta.backend_file import FileBackend
from kvcm.meta.backend_local import LocalBackend
from kvcm.meta.errors import KeyLimitReached, StateChanged
from kvcm.meta.index import MetaIndex, Outcome
from kvcm.meta.journal import Journal
from kvcm.meta.location import Block, Location, condemn, promote, replace
from kvcm.meta.record import DamagedRecord, RecordCodec
from kvcm.meta.testing import Census, Fault, Scheduler, SuspendingBackend, published, written
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

CODEC = RecordCodec(ProtoLocationEncoder(), lambda name: 0)


def add(position: int, key: int, block: Block) -> Block:
    return (*block, written(f"{position}"))


def compare_and_set(old: Location, new: Location) -> Callable[[int, int, Block], Block]:
    def plan(position: int, key: int, block: Block) -> Block:
        changed = replace(block, old, new)
        if changed is None:
            raise StateChanged("lost")
        return changed

    return plan


def test_duplicate_keys_in_one_read_modify_write_batch_lose_no_update() -> None:
    async def story() -> None:
        index = MetaIndex(SuspendingBackend(), max_key_count=10)
        await index.mutate([7, 8, 7, 7], add, 1)
        assert [loc.location_id for loc in index.get(7)] == ["0", "2", "3"]

    asyncio.run(story())


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOST_REQUEST])
def test_a_compare_and_set_is_not_reported_done_when_the_write_failed(fault: Fault) -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = MetaIndex(backend, max_key_count=10)
        await index.mutate([1], add, 1)
        (writing,) = index.get(1)
        backend.faults.append(fault)
        (outcome,) = await index.mutate([1], compare_and_set(writing, condemn(writing)), 1)
        assert not outcome.changed
        assert isinstance(outcome.error, StorageError)
        assert index.get(1) == backend.store[1] == (writing,)

    asyncio.run(story())


def test_a_compare_and_set_has_exactly_one_winner() -> None:
    async def story() -> None:
        scheduler = Scheduler()
        index = MetaIndex(SuspendingBackend(scheduler), max_key_count=10)
        await scheduler.run([index.mutate([1], add, 1)])
        (writing,) = index.get(1)
        results = await scheduler.run([index.mutate([1], compare_and_set(writing, condemn(writing)), 1) for _ in range(4)])
        outcomes = [outcome for result in results if isinstance(result, list) for outcome in result]
        assert [outcome.changed for outcome in outcomes].count(True) == 1
        assert sum(isinstance(outcome.error, StateChanged) for outcome in outcomes) == 3

    asyncio.run(story())


@pytest.mark.parametrize("fault", [None, *Fault])
def test_key_count_does_not_drift_after_a_crash_because_recovery_counts_anew(fault: Fault | None) -> None:
    async def story() -> None:
        backend = SuspendingBackend()
        index = MetaIndex(backend, max_key_count=3)
        await index.mutate([1, 2, 3], add, 1)
        backend.faults.append(fault)
        backend.failing_reads = 1
        await index.mutate([2, 3], lambda *_: (), 1)  # and here the process ends, whatever it believes
        after = MetaIndex(backend, max_key_count=3)
        assert await after.recover() == after.key_count == after.usage.keys == len(backend.store)
        assert Census.reported_by(after) == Census.of(backend.store.values())
        room = 3 - len(backend.store)
        outcomes = await after.mutate([11, 12, 13], add, 1)
        assert [outcome.changed for outcome in outcomes] == [True] * room + [False] * (3 - room)

    asyncio.run(story())


def test_duplicate_keys_in_one_put_count_once() -> None:
    async def story() -> None:
        index = MetaIndex(LocalBackend(), max_key_count=1)
        assert await index.mutate([5, 5, 5], lambda *_: (written("a"),), 1) == [Outcome(True), Outcome(False), Outcome(False)]
        assert (index.key_count, index.usage.keys, index.usage.total) == (1, 1, 100)

    asyncio.run(story())


def test_usage_is_the_sum_of_sizes_also_for_blocks_with_part_of_the_specs() -> None:
    async def story() -> None:
        index = MetaIndex(LocalBackend(), max_key_count=10)
        sizes = [100, 37, 0]  # the registered specs would be 100 bytes together
        await index.mutate([1, 2, 3], lambda position, key, block: (written("a", size=sizes[position]),), 1)
        assert index.usage.by_type() == {StorageType.NFS: 137}
        assert (index.usage.total, index.key_count) == (137, 3)

    asyncio.run(story())


@pytest.mark.parametrize("size", ["", "12x", "-5", "1e3", " 7", "0x10", "٣", "9" * 40])
def test_a_garbage_size_parameter_is_damage_and_never_zero(size: str) -> None:
    record: dict[str, Any] = {"id": "a", "status": 3, "type": 4, "create_time": 1, "location_specs": [{"name": "t", "uri": f"file://s/p?size={size}"}]}
    with pytest.raises(DamagedRecord):
        CODEC.from_dict(record)
    record["location_specs"][0]["uri"] = "file://s/p?size=12"
    assert CODEC.from_dict(record).size == 12


def test_the_file_backend_does_not_rewrite_the_whole_file_per_mutation(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "meta", fsync=False)
    journal.open()
    journal.append({str(key): ["x" * 100] for key in range(5_000)}, 1)
    before = (tmp_path / "meta").stat()
    for number in range(10):
        journal.append({str(number): ["y" * 100]}, 1)
    after = (tmp_path / "meta").stat()
    assert after.st_ino == before.st_ino
    assert after.st_size - before.st_size < 10 * 150
    journal.close()


def test_what_the_file_backend_is_given_is_really_kept(tmp_path: Path) -> None:
    """Upstream's metadata put did nothing: here counters are no records, they are counted from the blocks."""

    async def story() -> None:
        pool = BlockingPool()
        encoder = ProtoLocationEncoder()
        wire = encoder.encode(StorageType.NFS, [("t", "file://s/p?size=100")])
        location = promote(written("a")._replace(wire=wire))
        for expected in (0, 1):
            index = MetaIndex(FileBackend(f"file://{tmp_path}/meta", "i", CODEC, pool), max_key_count=10)
            await index.open()
            assert await index.recover() == expected
            assert index.usage.total == 100 * expected
            await index.mutate([1], lambda *_: (location,), 1)
            await index.close()
        pool.close(1)

    asyncio.run(story())


def test_an_empty_record_is_no_authoritative_hit(tmp_path: Path) -> None:
    """A key whose stored block is empty does not exist, in the file as in any other store."""
    (tmp_path / "meta.i").write_text(json.dumps({"f": 1, "c": {"1": [], "2": None}}) + "\n")

    class Empty(SuspendingBackend):
        async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
            yield [(1, ())]

    async def story() -> None:
        pool = BlockingPool()
        for backend in (FileBackend(f"file://{tmp_path}/meta", "i", CODEC, pool), Empty()):
            index = MetaIndex(backend, max_key_count=1)
            await index.open()
            assert await index.recover() == index.key_count == index.usage.keys == 0
            assert (index.get(1), 1 in published(index), index.serving_run([1], [])) == ((), False, 0)
            assert (await index.mutate([2], lambda *_: (), 1), index.key_count) == ([Outcome(False)], 0)
            await index.close()
        pool.close(1)

    asyncio.run(story())


@pytest.mark.parametrize("stride", [1, 16, 1 << 20, 1 << 40])
def test_keys_with_equal_low_bits_do_not_wait_for_each_other(stride: int) -> None:
    async def story() -> None:
        scheduler = Scheduler()
        index = MetaIndex(SuspendingBackend(scheduler), max_key_count=100, gate_wait_s=0)
        results = await scheduler.run([index.mutate([number * stride], add, 1) for number in range(32)], lambda count: count - 1)
        assert results == [[Outcome(True)]] * 32

    asyncio.run(story())


def test_looking_at_blocks_for_maintenance_does_not_heat_them() -> None:
    async def story() -> None:
        index = MetaIndex(SuspendingBackend(), max_key_count=100)
        keys = list(range(10))
        await index.mutate(keys, add, 1)
        index.access.touch_chain(9, 77)
        for page in index.pages(3):
            for key in page:
                index.get(key)
            index.serving_run(page, [])
            await index.sync(page)
            await index.mutate(page, lambda _, __, block: tuple(condemn(loc) for loc in block), 1)
        assert index.access.snapshot(keys) == [None] * 9 + [77]

    asyncio.run(story())


def test_no_block_is_dropped_silently_to_make_room() -> None:
    """I-MB-6: a full index refuses what is new and keeps what is there."""

    async def story() -> None:
        index = MetaIndex(LocalBackend(), max_key_count=50, tier_capacity=8)
        await index.mutate(range(50), add, 1)
        outcomes = await index.mutate(range(25, 75), lambda _, __, block: None if block else (written("n"),), 1)
        assert [outcome for outcome in outcomes[:25] if outcome != Outcome(False)] == []
        assert all(isinstance(outcome.error, KeyLimitReached) for outcome in outcomes[25:])
        assert sorted(published(index)) == list(range(50))

    asyncio.run(story())
