"""Write sessions when the metadata store fails in the middle, and starts with odd keys: every block ends with an owner, and answers are true."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import InvalidArgument, KvcmError, StorageError
from kvcm.manager.errors import SessionUnknown, WriteLost
from kvcm.manager.testing import SIZE, ManagerWorld
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario

CODEC = ProtoLocationEncoder()
SPECS = (("tp0", SIZE), ("tp1", 2 * SIZE))
GROUPS = (("a", ("tp0",)), ("b", ("tp1",)), ("all", ("tp0", "tp1")))


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def faulty(root: Path) -> ManagerWorld:
    world = ManagerWorld(root, CODEC, metadata="suspending")
    await world.simple()
    return world


def test_a_start_whose_withdrawal_fails_too_is_taken_back_later(tmp_path: Path) -> None:
    """Without an owner its WRITING location would keep the key from being written for ever."""

    async def story() -> None:
        world = await faulty(tmp_path)
        backend = world.stores["i"]
        backend.failing_keys = {2}
        backend.faults.extend([None, Fault.REFUSE])  # the insert works for key 1, the withdrawal of key 1 does not
        with pytest.raises(StorageError):
            await world.start("i", [1, 2])
        assert world.states("i", 1) == [Status.WRITING]
        backend.failing_keys = set()
        await world.advance(2)
        await world.advance(2)
        assert world.locations() == []
        assert (await world.start("i", [1, 2])).keys == [1, 2]

    run(story())


def test_an_expiry_whose_store_failed_cannot_be_finished_any_more(tmp_path: Path) -> None:
    """Half of its blocks are DELETING already; a finish must not be told that all is well."""

    async def story() -> None:
        world = await faulty(tmp_path)
        write = await world.start("i", [1, 2], timeout_s=5)
        world.write(write)
        world.stores["i"].failing_keys = {2}
        world.clock.advance_us(5_000_000)
        assert await world.manager.expire_sessions() == 1
        assert [world.states("i", key) for key in (1, 2)] == [[Status.DELETING], [Status.WRITING]]
        with pytest.raises(SessionUnknown):
            await world.finish(write)
        world.stores["i"].failing_keys = set()
        await world.rest()
        assert world.locations() == []
        assert len(world.manager.sessions) == 0
        assert world.files() == set()

    run(story())


def test_a_finish_whose_store_failed_keeps_the_time_it_had(tmp_path: Path) -> None:
    async def story() -> None:
        world = await faulty(tmp_path)
        write = await world.start("i", [1], timeout_s=600)
        world.write(write)
        world.stores["i"].faults.append(Fault.REFUSE)
        with pytest.raises(StorageError):
            await world.finish(write)
        await world.advance(590)
        await world.finish(write)
        assert world.states("i", 1) == [Status.SERVING]

    run(story())


def test_a_finish_that_failed_just_before_its_deadline_can_be_repeated_a_moment_later(tmp_path: Path) -> None:
    async def story() -> None:
        world = await faulty(tmp_path)
        write = await world.start("i", [1], timeout_s=10)
        world.write(write)
        world.clock.advance_us(9_900_000)
        world.stores["i"].faults.append(Fault.LOST_REQUEST)
        with pytest.raises(KvcmError):
            await world.finish(write)
        await world.advance(2)
        await world.finish(write)
        assert world.states("i", 1) == [Status.SERVING]

    run(story())


def test_a_repeated_finish_remembers_what_the_first_one_lost(tmp_path: Path) -> None:
    async def story() -> None:
        world = await faulty(tmp_path)
        write = await world.start("i", [1, 2])
        world.write(write)
        await world.manager.remove_cache(world.shard("i"), [1])
        world.stores["i"].failing_keys = {2}
        with pytest.raises(StorageError):
            await world.finish(write)
        world.stores["i"].failing_keys = set()
        with pytest.raises(WriteLost, match="1 of 2"):
            await world.finish(write)
        assert world.states("i", 2) == [Status.SERVING]

    run(story())


def test_one_instance_whose_store_fails_does_not_keep_the_sessions_of_others(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending")
        await world.simple(instances=("i", "j"))
        for instance in ("i", "j"):
            await world.start(instance, [1], timeout_s=5)
            await world.start(instance, [2], timeout_s=5)
        world.stores["i"].faults.extend([Fault.REFUSE, Fault.REFUSE])
        world.clock.advance_us(5_000_000)
        assert await world.manager.expire_sessions() == 4
        assert [world.states("j", key) for key in (1, 2)] == [[Status.DELETING]] * 2
        assert len(world.manager.sessions) == 2
        await world.advance(2)
        assert [world.states("i", key) for key in (1, 2)] == [[Status.DELETING]] * 2
        assert len(world.manager.sessions) == 0

    run(story())


def test_orphans_that_the_store_does_not_let_go_are_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        world = await faulty(tmp_path)
        await world.start("i", [1, 2])
        world.stores["i"].failing_keys = {2}
        await world.restart()
        assert [world.states("i", key) for key in (1, 2)] == [[Status.DELETING], [Status.WRITING]]
        world.stores["i"].failing_keys = set()
        await world.advance(2)
        assert (await world.start("i", [1, 2])).mask == BlockMask(offset=0)

    run(story())


def test_a_removed_instance_whose_store_fails_is_drained_while_others_are_busy(tmp_path: Path) -> None:
    """The drain goes on even if the deletion queue is never empty for other reasons."""

    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending")
        await world.simple(instances=("i", "j"))
        await world.put("i", [1, 2])
        world.stores["i"].faults.append(Fault.REFUSE)
        await world.manager.remove_instance("i")
        for key in range(12):
            await world.put("j", [key])
            await world.manager.remove_cache(world.shard("j"), [key])
            await world.advance(0.5)
            assert world.manager.deleter.pending > 0
        assert not [entry for entry in world.locations() if entry[0] == "i"]
        assert [shard.instance_id for shard in world.holders()] == ["j"]

    run(story())


@pytest.mark.parametrize("asked", [0, -1, -(2**31)])
def test_a_lifetime_of_zero_or_less_ends_at_the_next_sweep(tmp_path: Path, asked: int) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        await world.start("i", [1], timeout_s=asked)
        assert world.states("i", 1) == [Status.WRITING]
        await world.manager.sweep()
        assert world.states("i", 1) == [Status.DELETING]

    run(story())


def test_a_spec_group_that_is_empty_or_unknown_is_refused(tmp_path: Path) -> None:
    """A location without bytes could never be proven gone."""

    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple(instances=())
        await world.manager.register(world.instance("i", "g", SPECS, [("none", []), ("a", ["tp0"])]))
        with pytest.raises(InvalidArgument, match="'none'"):
            await world.start("i", [1, 2], groups=["a", "none"])
        with pytest.raises(InvalidArgument, match="'missing'"):
            await world.start("i", [1], groups=["missing"])
        assert world.locations() == []
        assert world.storages.allocated == []

    run(story())


def test_duplicate_keys_of_one_start_share_one_place(tmp_path: Path) -> None:
    """(behaviour 27, Metadata) The first allocation of a duplicate must not leak."""

    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        write = await world.start("i", [7, 7, 8, 7])
        assert write.keys == [7, 8]
        assert write.mask == BlockMask(values=(False, True, False, True))
        assert len(world.storages.allocated) == 2
        assert world.manager.group_usage("g").total == 2 * SIZE

    run(story())


def test_a_duplicate_key_with_other_specs_is_no_duplicate(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple(instances=())
        await world.manager.register(world.instance("i", "g", SPECS, GROUPS))
        write = await world.start("i", [1, 1, 1], groups=["a", "b", "a"])
        assert [list(places) for places in write.uris] == [["tp0"], ["tp1"]]
        assert write.mask == BlockMask(values=(False, False, True))

    run(story())


def test_usage_counts_the_specs_that_are_stored(tmp_path: Path) -> None:
    """(behaviour 27, Metadata) Count times the sum of all specs over-counts partial blocks."""

    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple(instances=())
        await world.manager.register(world.instance("i", "g", SPECS, GROUPS))
        await world.put("i", [1, 2], groups=["a", "all"])
        assert world.manager.group_usage("g").total == SIZE + 3 * SIZE

    run(story())
