"""I-MS-1 .. I-MS-9 (behaviour 4.4): what reads return, and what compare-and-set promises."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import KvcmError
from kvcm.config.model import QueryType
from kvcm.manager.chooser import STATIC_WEIGHTS
from kvcm.manager.errors import AllStoragesDown, WriteLost
from kvcm.manager.testing import ManagerWorld, path_of
from kvcm.manager.testing_story import numbers, run_story
from kvcm.meta.errors import IllegalTransition
from kvcm.meta.location import Block, Status, condemn
from kvcm.meta.location import replace as exchange
from kvcm.meta.testing import Scheduler
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.property

CODEC = ProtoLocationEncoder()
CHOICES = st.builds(numbers, st.integers(0, 1 << 32), st.integers(40, 400))
KEYS = st.lists(st.integers(0, 9), max_size=12)
STORAGES = ("fast", "slow", "spare")


def in_world(story: Callable[[ManagerWorld], Awaitable[None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(story, ManagerWorld(Path(folder), CODEC)))


async def _run(story: Callable[[ManagerWorld], Awaitable[None]], world: ManagerWorld) -> None:
    await story(world)


async def three_storages(world: ManagerWorld) -> None:
    await world.open()
    for name in STORAGES:
        await world.add_storage(name)
    await world.add_group(world.group("g", STORAGES))
    await world.manager.register(world.instance("i", "g"))


async def place(world: ManagerWorld, key: int, storage: str) -> None:
    """One copy of a block in a chosen storage."""
    await world.update_group("g", storage_candidates=(storage,))
    there = len(world.shard("i").index.get(key))
    await world.put("i", [key], replicas=there + 1)
    await world.update_group("g", storage_candidates=STORAGES)


def host(places: dict[str, str]) -> str:
    return next(iter(places.values())).split("//")[1].split("/")[0]


@given(CHOICES, st.sampled_from(["suspending", "local"]))
@settings(deadline=None, max_examples=40)
def test_I_MS_1_a_prefix_ends_only_at_a_block_that_cannot_be_read(choices: list[int], metadata: str) -> None:
    run_story(CODEC, choices, ("start", "start", "finish", "finish", "read", "read", "read", "remove", "advance"), metadata=metadata)  # type: ignore[arg-type]


@given(KEYS, KEYS, st.sets(st.sampled_from(["file", "dummy"]), min_size=1), st.lists(st.integers(0, 9), max_size=3))
@settings(deadline=None, max_examples=40)
def test_I_MS_2_more_keys_never_shorten_the_prefix(written: list[int], asked: list[int], kinds: set[str], lost: list[int]) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.open()
        for kind in kinds:
            await world.add_storage(kind, kind)  # type: ignore[arg-type]
        await world.add_group(world.group("g", sorted(kinds)))
        await world.manager.register(world.instance("i", "g"))
        if written:
            write = await world.put("i", written)
            for key, places in zip(write.keys, write.uris, strict=True):
                if key in lost:
                    path_of(places["tp0"]).unlink()
        lengths = [len(await world.read("i", asked[:count])) for count in range(len(asked) + 1)]
        assert lengths == sorted(lengths)
        assert all(length <= count for count, length in enumerate(lengths))

    in_world(story)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_I_MS_3_a_window_is_the_last_full_run_or_nothing(there: list[bool], window: int) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.simple()
        present = [key for key, hit in enumerate(there) if hit]
        if present:
            await world.put("i", present)
        width = min(window, len(there))
        found = await world.read("i", range(len(there)), QueryType.REVERSE_ROLL_SW_MATCH, window=width)
        filled = [bool(places["tp0"]) for places in found]
        ends = [end for end in range(width, len(there) + 1) if all(there[end - width : end])]
        last = max(ends, default=0)
        assert filled == [bool(ends) and last - width <= index < last for index in range(len(there))]

    in_world(story)


@given(st.integers(2, 5), st.lists(st.integers(0, 255), max_size=40))
@settings(deadline=None, max_examples=40)
def test_I_MS_4_one_of_many_equal_changes_wins(callers: int, choices: list[int]) -> None:
    async def story(root: Path) -> None:
        scheduler = Scheduler()
        world = ManagerWorld(root, CODEC, metadata="suspending", scheduler=scheduler, suspend_answers=True)
        await scheduler.run([world.simple()])
        await scheduler.run([world.put("i", [1])])
        index = world.shard("i").index
        (serving,) = index.get(1)

        async def change() -> bool:
            def plan(position: int, key: int, block: Block) -> Block | None:
                return exchange(block, serving, condemn(serving))

            (outcome,) = await index.mutate([1], plan, 1)
            return outcome.changed

        left = iter(choices)
        results = await scheduler.run([change() for _ in range(callers)], choose=lambda count: next(left, 0) % count)
        assert sorted(results, key=bool) == [False] * (callers - 1) + [True]
        with pytest.raises(IllegalTransition):  # old == new would let all of them win
            exchange((serving,), serving, serving)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@given(st.integers(1, 5), st.sets(st.integers(0, 4)), st.lists(st.booleans(), min_size=5, max_size=5))
@settings(deadline=None, max_examples=40)
def test_I_MS_4b_ok_means_that_the_store_has_it(count: int, failing: set[int], success: list[bool]) -> None:
    async def story(root: Path) -> None:
        world = ManagerWorld(root, CODEC, metadata="suspending")
        await world.simple()
        write = await world.start("i", range(count))
        world.write(write)
        backend = world.stores["i"]
        backend.failing_keys = failing
        touched = failing & set(range(count))
        try:
            await world.finish(write, success[:count])
        except KvcmError:
            assert touched
        else:
            assert not touched
        for key in range(count):
            assert backend.store.get(key, ()) == world.shard("i").index.get(key), "memory and store say the same"
            expected = Status.WRITING if key in touched else Status.SERVING if success[key] else Status.DELETING
            assert world.states("i", key) == [expected]
        backend.failing_keys = set()
        if touched:  # the call can be repeated, and then it is all there
            await world.finish(write, success[:count])
        assert Status.WRITING not in {location.status for _, _, location in world.locations()}

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@given(CHOICES)
@settings(deadline=None, max_examples=30)
def test_I_MS_5_only_what_is_as_expected_is_removed(choices: list[int]) -> None:
    # The checker refuses every location that vanishes without having been DELETING with its bytes gone.
    run_story(CODEC, choices, ("start", "start", "finish", "remove", "trim", "delete", "delete", "advance", "sweep", "fault"))


@given(CHOICES, st.sampled_from(["file", "hf3fs"]))
@settings(deadline=None, max_examples=30)
def test_I_MS_6_a_block_exists_exactly_while_it_has_a_location(choices: list[int], kind: str) -> None:
    story = run_story(CODEC, choices, ("start", "start", "finish", "remove", "delete", "delete", "advance", "advance", "fault", "lose"), kind=kind)  # type: ignore[arg-type]
    assert all(shard.index.key_count == len({key for page in shard.index.pages() for key in page}) for shard in story.world.holders())


@given(CHOICES)
@settings(deadline=None, max_examples=30)
def test_I_MS_7_reported_usage_is_the_sum_of_sizes(choices: list[int]) -> None:
    story = run_story(CODEC, choices, ("start", "start", "finish", "remove", "remove_instance", "register", "delete", "advance", "fault"))
    total = sum(location.size for _, _, location in story.world.locations())
    assert story.world.manager.group_usage("g").total == total


@given(st.lists(st.sampled_from(STORAGES), min_size=1, max_size=3, unique=True), st.sets(st.sampled_from(STORAGES)))
@settings(deadline=None, max_examples=40)
def test_I_MS_8_a_copy_in_an_available_storage_is_taken_if_there_is_one(copies: list[str], down: set[str]) -> None:
    async def story(world: ManagerWorld) -> None:
        await three_storages(world)
        for storage in copies:
            await place(world, 1, storage)
        for storage in down:
            await world.registry.set_storage_enabled(storage, False)
        usable = set(copies) - down
        for _ in range(6):
            for kind in (QueryType.PREFIX_MATCH, QueryType.BATCH_GET):
                if down == set(STORAGES):
                    with pytest.raises(AllStoragesDown):
                        await world.read("i", [1], kind)
                    continue
                found = await world.read("i", [1], kind)
                if usable:
                    assert host(found[0]) in usable
                else:
                    assert found == ([] if kind is QueryType.PREFIX_MATCH else [{"tp0": ""}])

    in_world(story)


@given(st.lists(st.sampled_from(["fast", "slow"]), max_size=6))
@settings(deadline=None, max_examples=20)
def test_I_MS_9_one_request_does_not_change_the_weights_of_another(switched: list[str]) -> None:
    async def story(world: ManagerWorld) -> None:
        await three_storages(world)
        for storage in STORAGES:
            await place(world, 1, storage)
        before = dict(STATIC_WEIGHTS)
        for storage in switched:
            await world.registry.set_storage_enabled(storage, False)
            await world.read("i", [1])
            await world.registry.set_storage_enabled(storage, True)
        assert before == STATIC_WEIGHTS
        drawn = {host((await world.read("i", [1]))[0]) for _ in range(60)}
        assert drawn == set(STORAGES), "after all storages are back every copy is drawn again"

    in_world(story)


@given(st.integers(1, 4), st.sets(st.integers(0, 3)), st.booleans())
@settings(deadline=None, max_examples=30)
def test_I_MS_4_a_late_finish_cannot_bring_a_removed_block_back(count: int, removed: set[int], bury: bool) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.simple()
        write = await world.start("i", range(count), timeout_s=60)
        world.write(write)
        gone = removed & set(range(count))
        await world.manager.remove_cache(world.shard("i"), sorted(removed))
        if bury:
            await world.advance(5)
        if gone:
            with pytest.raises(WriteLost):
                await world.finish(write)
        else:
            await world.finish(write)
        for key in range(count):
            assert (Status.SERVING in world.states("i", key)) == (key not in gone)
        await world.rest()
        assert {key for _, key, _ in world.locations()} == set(range(count)) - gone
        assert len(world.files()) == count - len(gone)

    in_world(story)
