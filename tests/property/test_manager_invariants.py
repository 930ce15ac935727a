"""I-CM-1 .. I-CM-12 (behaviour 3.9). Most are held by random stories: calls that overlap at every step into a store, see kvcm/manager/testing_story.py."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import DuplicateEntity, InstanceNotExist, InvalidArgument, KvcmError
from kvcm.config.model import QueryType
from kvcm.manager.errors import SessionUnknown
from kvcm.manager.testing import SIZE, ManagerWorld
from kvcm.manager.testing_story import numbers, run_story
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault, Scheduler
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.property

CHOICES = st.builds(numbers, st.integers(0, 1 << 32), st.integers(40, 500))
CLIENTS = ("start", "start", "start", "finish", "finish", "write", "read", "read", "sweep", "delete", "advance")
REMOVERS = ("remove", "trim", "remove_instance", "register", "register")
FAULTS = st.lists(st.sampled_from([None, Fault.REFUSE, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LOST_HALF_WAY]), max_size=6)
KEYS = st.lists(st.integers(-3, 3), min_size=1, max_size=8)
CODEC = ProtoLocationEncoder()


def state(world: ManagerWorld) -> list[tuple[str, int, str, Status]]:
    return sorted((instance, key, location.location_id, location.status) for instance, key, location in world.locations())


@given(st.lists(st.sampled_from(["same", "block_size", "specs", "model", "other group"]), min_size=1, max_size=6), KEYS)
@settings(deadline=None, max_examples=20)
def test_I_CM_1_a_repeated_registration_changes_nothing_and_a_different_one_is_refused(changes: list[str], keys: list[int]) -> None:
    async def story(root: Path) -> None:
        world = ManagerWorld(root, CODEC)
        await world.simple()
        await world.add_group(world.group("h", ["s"]))
        await world.put("i", keys)
        before, shard, known = state(world), world.shard("i"), world.registry.get_instance("i")
        wanted = world.instance("i", "g")
        for change in changes:
            match change:
                case "same":
                    assert await world.manager.register(wanted) is False
                case "other group":  # not part of the identity (wire contract 4.4)
                    assert await world.manager.register(replace(wanted, instance_group_name="h")) is False
                case _:
                    other = {
                        "block_size": replace(wanted, block_size=5),
                        "specs": world.instance("i", "g", [("tp0", SIZE + 1)]),
                        "model": replace(wanted, model_deployment=replace(wanted.model_deployment, model_name="other")),
                    }[change]
                    with pytest.raises(DuplicateEntity):
                        await world.manager.register(other)
            assert state(world) == before
            assert world.shard("i") is shard
            assert world.registry.get_instance("i") == known

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@given(st.integers(0, 255), st.lists(st.integers(0, 255), max_size=60))
@settings(deadline=None, max_examples=25)
def test_I_CM_1_registrations_of_one_id_at_the_same_time_make_one_instance(first: int, choices: list[int]) -> None:
    async def story(root: Path) -> None:
        scheduler = Scheduler()
        world = ManagerWorld(root, CODEC, metadata="suspending", scheduler=scheduler)
        await scheduler.run([world.simple(instances=())])
        numbers = iter([first, *choices])
        calls = [world.manager.register(world.instance("i", "g")) for _ in range(3)]
        results = await scheduler.run(calls, choose=lambda count: next(numbers, 0) % count)
        assert sorted(results, key=bool) == [False, False, True]
        assert len(world.manager.shards()) == 1
        await scheduler.run([world.put("i", [1, 2])])
        assert world.manager.group_usage("g").total == 2 * SIZE == world.shard("i").index.usage.total

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@given(CHOICES)
@settings(deadline=None, max_examples=25)
def test_I_CM_2_no_call_on_one_instance_reads_or_changes_another(choices: list[int]) -> None:
    story = run_story(CODEC, choices, CLIENTS + REMOVERS)
    assert all(f"/{write.instance_id}/" in uri for write in story.writes for uri in write.all_uris())


@given(CHOICES)
@settings(deadline=None, max_examples=25)
def test_I_CM_3_a_start_answers_every_key_as_present_or_with_a_place_in_order(choices: list[int]) -> None:
    story = run_story(CODEC, choices, ("start", "start", "start", "finish", "read", "advance", "remove"))
    assert all(len(write.keys) == len(write.uris) for write in story.writes)


@given(st.lists(st.integers(0, 7), max_size=6), st.lists(st.integers(0, 7), min_size=1, max_size=10))
@settings(deadline=None, max_examples=40)
def test_I_CM_4_the_mask_is_a_number_exactly_when_the_present_blocks_are_a_prefix(present: list[int], asked: list[int]) -> None:
    async def story(root: Path) -> None:
        world = ManagerWorld(root, CODEC)
        await world.simple()
        if present:
            await world.put("i", present)
        seen: set[int] = set(present)
        there = []
        for key in asked:
            there.append(key in seen)
            seen.add(key)
        write = await world.start("i", asked)
        count = there.count(True)
        expected = BlockMask(offset=count) if all(there[:count]) else BlockMask(values=tuple(there))
        assert write.mask == expected

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@given(KEYS, KEYS, FAULTS, st.sets(st.integers(-3, 3)), st.sampled_from(["file", "hf3fs"]), st.sampled_from([1, 3]))
@settings(deadline=None, max_examples=40)
def test_I_CM_5_a_start_that_fails_leaves_no_location_and_no_place(
    before: list[int], keys: list[int], faults: list[Fault | None], failing: set[int], kind: str, per_file: int
) -> None:
    async def story(root: Path) -> None:
        world = ManagerWorld(root, CODEC, metadata="suspending")
        await world.open()
        await world.add_storage("s", kind, per_file, touch=True)  # type: ignore[arg-type]
        await world.add_group(world.group("g", ["s"]))
        await world.manager.register(world.instance("i", "g"))
        await world.put("i", before)
        known, files = state(world), world.files()
        backend = world.stores["i"]
        backend.faults.extend(faults)
        backend.failing_keys = failing
        try:
            write = await world.start("i", keys)
        except KvcmError:
            backend.faults.clear()
            backend.failing_keys.clear()
            await world.advance(5)
            await world.advance(5)
            assert state(world) == known
            assert world.files() == files
            assert len(world.manager.sessions) == 0
            assert backend.store.keys() == {key for _, key, _, _ in known}
        else:
            assert {status for _, key, _, status in state(world) if key in write.keys} <= {Status.WRITING}

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@given(CHOICES, st.sampled_from([("file", 1), ("file", 3), ("dummy", 1), ("hf3fs", 1)]))
@settings(deadline=None, max_examples=40)
def test_I_CM_6_two_starts_never_hand_out_the_same_block(choices: list[int], storage: tuple[str, int]) -> None:
    ops = ("start", "start", "start", "start", "finish", "read", "advance", "sweep", "delete", "unmount", "mount")
    run_story(CODEC, choices, ops, kind=storage[0], per_file=storage[1])  # type: ignore[arg-type]


@given(CHOICES)
@settings(deadline=None, max_examples=40)
def test_I_CM_7_a_session_is_finished_at_most_once(choices: list[int]) -> None:
    story = run_story(CODEC, choices, ("start", "finish", "finish", "finish", "sweep", "advance", "remove_instance", "register", "fault"))
    assert max(story.finished.values(), default=0) <= 1


@given(CHOICES, st.sampled_from(["file", "dummy", "hf3fs"]))
@settings(deadline=None, max_examples=40)
def test_I_CM_8_reads_return_serving_locations_only(choices: list[int], kind: str) -> None:
    run_story(CODEC, choices, (*CLIENTS, "read", "read", "read_by_backend", "remove", "trim", "lose", "fault"), kind=kind)  # type: ignore[arg-type]


@given(CHOICES)
@settings(deadline=None, max_examples=25)
def test_I_CM_9_results_are_aligned_or_a_contiguous_prefix(choices: list[int]) -> None:
    run_story(CODEC, choices, ("start", "finish", "finish", "read", "read", "read", "read", "remove", "delete", "advance"))


SPECS = (("tp0", SIZE), ("tp1", SIZE), ("tp2", 2 * SIZE))
GROUPS = (("a", ("tp0",)), ("b", ("tp1", "tp2")), ("all", ("tp0", "tp1", "tp2")))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", "all"])), max_size=8),
    st.sets(st.sampled_from(["tp0", "tp1", "tp2", "unknown"]), min_size=1),
    st.sampled_from([QueryType.PREFIX_MATCH, QueryType.BATCH_GET, QueryType.REVERSE_ROLL_SW_MATCH]),
)
@settings(deadline=None, max_examples=40)
def test_I_CM_10_a_filtered_read_returns_no_other_spec(written: list[tuple[int, str]], wanted: set[str], kind: QueryType) -> None:
    async def story(root: Path) -> None:
        world = ManagerWorld(root, CODEC)
        await world.simple(instances=())
        await world.manager.register(world.instance("i", "g", SPECS, GROUPS))
        for key, group in written:
            await world.put("i", [key], groups=[group])
        window = 2 if kind is QueryType.REVERSE_ROLL_SW_MATCH else 0
        full = await world.read("i", range(5), kind, window=window)
        filtered = await world.read("i", range(5), kind, window=window, spec_names=tuple(wanted))
        assert filtered == [{name: uri for name, uri in places.items() if name in wanted} for places in full]

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@given(CHOICES, st.sampled_from(["file", "dummy"]))
@example(numbers(28849, 194), "file")  # registered again while a sweep looked at another removed instance
@settings(deadline=None, max_examples=50)
def test_I_CM_11_a_removed_instance_is_gone_and_comes_back_empty(choices: list[int], kind: str) -> None:
    ops = ("start", "start", "finish", "finish", "read", "remove_instance", "register", "register", "sweep", "delete", "advance", "fault")
    run_story(CODEC, choices, ops, kind=kind)  # type: ignore[arg-type]


@given(
    st.integers(1, 5),
    st.lists(st.one_of(st.integers(-3, 8), st.lists(st.booleans(), max_size=8)), max_size=5),
    st.integers(0, 3),
)
@settings(deadline=None, max_examples=40)
def test_I_CM_12_a_bad_finish_does_not_cost_the_session(count: int, masks: list[int | list[bool]], checksums: int) -> None:
    async def story(root: Path) -> None:
        world = ManagerWorld(root, CODEC)
        await world.simple(instances=("i", "j"))
        write = await world.start("i", range(count))
        before = state(world)
        for mask in masks:
            fits = 0 <= mask <= count if isinstance(mask, int) else len(mask) == count
            if not fits:
                with pytest.raises(InvalidArgument):
                    await world.finish(write, mask)
        if checksums not in (0, count):
            with pytest.raises(InvalidArgument):
                await world.finish(write, count, [7] * checksums)
        with pytest.raises(InvalidArgument):
            await world.finish(replace(write, instance_id="j"), count)
        with pytest.raises(InstanceNotExist):
            await world.finish(replace(write, instance_id="nobody"), count)
        assert state(world) == before
        world.write(write)
        await world.finish(write)
        assert {status for _, _, _, status in state(world)} == {Status.SERVING}
        with pytest.raises(SessionUnknown):
            await world.finish(write)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))
