"""Two-phase writes where such systems are known to break: half-done inserts, sessions that end twice or too early, late writers, blocks without an owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import InvalidArgument, KvcmError
from kvcm.data_storage.port import AllocationItem
from kvcm.manager.errors import SessionUnknown, WriteLost
from kvcm.manager.testing import ManagerWorld, Metadata, StorageKind, Write, content, holds_bytes, path_of
from kvcm.manager.write_sessions import MAX_LIFETIME_S
from kvcm.manager.writer import StartWrite
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault, Scheduler, published
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario

KEYS = [1, 2, 3]
CHOICES = list(product((0, 1), repeat=5))  # which call begins, then which of two waiting steps goes on: every order of two short calls


def make_world(root: Path, metadata: Metadata = "local", scheduler: Scheduler | None = None) -> ManagerWorld:
    return ManagerWorld(root, ProtoLocationEncoder(), metadata=metadata, scheduler=scheduler)


def in_order(orders: Sequence[int]) -> Callable[[int], int]:
    steps = iter(orders)
    return lambda count: min(next(steps, 0), count - 1)


# -- start -------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unreadable", [0, 1, 3])
@pytest.mark.parametrize("fault", [None, Fault.REFUSE, Fault.LOST_REQUEST, Fault.LOST_HALF_WAY, Fault.LOST_ANSWER])
def test_a_start_that_is_stored_in_part_leaves_no_place_without_an_owner(tmp_path: Path, fault: Fault | None, unreadable: int) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, "suspending")
        await world.open()
        await world.add_storage("s", "hf3fs", touch=True)  # each place is a file from its allocation on
        await world.add_group(world.group("g", ["s"]))
        await world.manager.register(world.instance("i", "g"))
        store = world.stores["i"]
        store.failing_keys = {2} if fault is None else set()
        store.faults.append(fault)
        store.failing_reads = unreadable
        try:
            owned = await world.start("i", KEYS)
            assert (fault, owned.keys) == (Fault.LOST_ANSWER, KEYS)  # it was stored, and asking the store again has shown that
        except KvcmError:
            assert fault is not Fault.LOST_ANSWER or unreadable
        store.failing_keys, store.failing_reads = set(), 0
        await world.rest()
        assert len(world.storages.allocated) == 3
        assert not world.locations()
        assert (world.files(), len(world.manager.sessions)) == (set(), 0)
        assert (await world.put("i", KEYS)).keys == KEYS
        assert store.store == published(world.shard("i").index)  # also what the store had taken without saying so

    asyncio.run(scenario())


@pytest.mark.parametrize("present", [[], [1], [1, 2], [2], [3], [1, 3], [2, 3], [1, 2, 3]])
@pytest.mark.parametrize("state", ["serving", "writing", "deleting", "unmounted"])
def test_both_forms_of_the_mask_come_from_one_rule(tmp_path: Path, present: list[int], state: str) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.open()
        await world.add_storage("old")
        await world.add_storage("new")
        await world.add_group(world.group("g", ["old"]))
        await world.manager.register(world.instance("i", "g"))
        if present:
            await (world.start("i", present) if state == "writing" else world.put("i", present))
        if state == "deleting":
            await world.manager.remove_cache(world.shard("i"), present)
        if state == "unmounted":
            world.sentinel_of("old").rename(tmp_path / "kept")
            await world.storages.verify_roots()
        await world.update_group("g", storage_candidates=("new",))
        expected = [key in present and state in ("serving", "writing") for key in KEYS]
        write = await world.start("i", KEYS)
        assert write.mask.expand(3) == expected
        assert write.keys == [key for key, there in zip(KEYS, expected, strict=True) if not there]
        assert (write.mask.values is None) == (expected == sorted(expected, reverse=True))

    asyncio.run(scenario())


def test_group_names_are_counted_against_the_blocks_that_tokens_make(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple(instances=())
        await world.manager.register(world.instance("i", "g", (("a", 64), ("b", 64)), (("half", ["a"]),)))
        shard = world.shard("i")
        keys = world.manager.keys_of(shard, (), list(range(12)))
        assert len(keys) == 3  # four tokens a block
        write = await world.start("i", keys, groups=["half"] * 3)
        assert [list(places) for places in write.uris] == [["a"]] * 3
        for wrong in (1, 2, 12):
            with pytest.raises(InvalidArgument):
                await world.manager.start_write(shard, StartWrite(keys, ("half",) * wrong))
        assert len(world.manager.sessions) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("sizes", [(64, 64, 64), (64, 128, 256), (64, 128, 64)])
def test_a_spec_without_keys_is_not_allocated_for(tmp_path: Path, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple(instances=())
        specs = list(zip("abc", sizes, strict=True))
        await world.manager.register(world.instance("i", "g", specs, (("outer", ["c", "a"]), ("inner", ["b"]))))
        asked: list[int] = []
        plain = world.storages.allocate

        async def allocate(name: str, items: Sequence[AllocationItem]) -> list[str]:
            asked.append(len(items))
            return await plain(name, items)

        monkeypatch.setattr(world.storages, "allocate", allocate)
        outer = await world.start("i", KEYS, groups=["outer"] * 3)
        assert (all(asked), sum(asked)) == (True, 6)
        assert [list(places) for places in outer.uris] == [["a", "c"]] * 3
        assert world.manager.group_usage("g").total == 3 * (sizes[0] + sizes[2])

    asyncio.run(scenario())


# -- finish and expiry -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [BlockMask(offset=4), BlockMask(offset=-1), BlockMask(values=(True,)), BlockMask(values=(True,) * 4)])
def test_a_finish_with_a_wrong_mask_does_not_use_up_the_session(tmp_path: Path, mask: BlockMask) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple(instances=("i", "j"))
        write = await world.start("i", KEYS)
        world.write(write)
        with pytest.raises(InvalidArgument):
            await world.manager.finish_write(world.shard("i"), write.session_id, mask)
        with pytest.raises(InvalidArgument):
            await world.manager.finish_write(world.shard("j"), write.session_id, BlockMask(offset=3))
        with pytest.raises(InvalidArgument):
            await world.finish(write, checksums=[1])
        assert [world.states("i", key) for key in KEYS] == [[Status.WRITING]] * 3
        await world.finish(write)
        assert await world.read("i", KEYS) == write.uris

    asyncio.run(scenario())


@pytest.mark.parametrize("orders", CHOICES)
def test_a_finish_never_turns_a_deleting_block_back_into_a_readable_one(tmp_path: Path, orders: tuple[int, ...]) -> None:
    async def scenario() -> None:
        scheduler = Scheduler()
        world = make_world(tmp_path, "suspending", scheduler)
        await scheduler.run([world.simple()])
        (write,) = await scheduler.run([world.start("i", KEYS)])
        assert isinstance(write, Write)
        world.write(write)
        calls: list[Coroutine[Any, Any, object]] = [world.finish(write), world.manager.remove_cache(world.shard("i"), [2])]
        turn = -1 if orders[0] else 1
        finished, removed = (await scheduler.run(calls[::turn], in_order(orders[1:])))[::turn]
        assert removed == 1
        assert world.states("i", 2) == [Status.DELETING]  # whoever was first: a removal that was answered stays
        assert [world.states("i", key) for key in (1, 3)] == [[Status.SERVING]] * 2
        assert finished is None or isinstance(finished, WriteLost)
        (found,) = await scheduler.run([world.read("i", KEYS)])
        assert found == write.uris[:1]

    asyncio.run(scenario())


@pytest.mark.parametrize("orders", CHOICES)
def test_expiry_and_finish_never_both_win(tmp_path: Path, orders: tuple[int, ...]) -> None:
    async def scenario() -> None:
        scheduler = Scheduler()
        world = make_world(tmp_path, "suspending", scheduler)
        await scheduler.run([world.simple()])
        (write,) = await scheduler.run([world.start("i", KEYS, timeout_s=5)])
        assert isinstance(write, Write)
        world.write(write)
        world.clock.advance_us(5_000_000)
        calls: list[Coroutine[Any, Any, object]] = [world.finish(write), world.manager.expire_sessions()]
        turn = -1 if orders[0] else 1
        finished, expired = (await scheduler.run(calls[::turn], in_order(orders[1:])))[::turn]
        states = {state for key in KEYS for state in world.states("i", key)}
        if finished is None:
            assert (expired, states) == (0, {Status.SERVING})
        else:
            assert isinstance(finished, SessionUnknown)
            assert (expired, states) == (1, {Status.DELETING})
        assert len(world.manager.sessions) == 0

    asyncio.run(scenario())


def test_no_time_out_is_longer_than_half_an_hour_and_nothing_of_an_open_session_is_collected(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple()
        write = await world.start("i", KEYS, timeout_s=1 << 31)
        world.write(write)
        await world.manager.trim(world.shard("i"), None)
        await world.advance(MAX_LIFETIME_S - 1)
        assert all(holds_bytes(uri) for uri in write.all_uris())  # removed, but its writer may still write there
        other = await world.start("i", [9], timeout_s=1 << 31)
        world.write(other)
        await world.advance(MAX_LIFETIME_S - 1)
        assert world.states("i", 9) == [Status.WRITING]
        assert not world.files() & {path_of(uri) for uri in write.all_uris()}
        await world.advance(2)
        with pytest.raises(SessionUnknown):
            await world.finish(other)
        await world.rest()
        assert (world.locations(), world.files(), world.manager.group_usage("g").total) == ([], set(), 0)

    asyncio.run(scenario())


# -- writers that are late and writers that are gone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "per_file"), [("file", 1), ("file", 3), ("hf3fs", 1), ("hf3fs", 3)])
def test_a_writer_that_is_late_writes_into_nobody_elses_place(tmp_path: Path, kind: StorageKind, per_file: int) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple(kind, per_file)
        late = await world.start("i", KEYS, timeout_s=1)
        world.write(late)
        await world.rest()
        assert not world.locations()
        new = await world.put("i", KEYS)
        assert {path_of(uri) for uri in new.all_uris()}.isdisjoint(path_of(uri) for uri in late.all_uris())
        for uri in late.all_uris():  # its own lease began when the answer arrived
            path_of(uri).parent.mkdir(parents=True, exist_ok=True)
            path_of(uri).write_bytes(b"late" * 1024)
        with pytest.raises(SessionUnknown):
            await world.finish(late)
        assert await world.read("i", KEYS) == new.uris
        assert all(holds_bytes(uri) for uri in new.all_uris())

    asyncio.run(scenario())


def test_a_path_that_is_used_again_is_not_handed_out_while_its_old_bytes_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple("dummy", delay_ms=5000)
        old = await world.put("i", [1])
        await world.manager.remove_cache(world.shard("i"), [1])
        assert (await world.start("i", [1])).keys == []
        await world.advance(6)
        assert world.states("i", 1) == []
        new = await world.put("i", [1])
        assert new.uris == old.uris  # this kind has one path per block
        await world.rest()
        assert path_of(new.uris[0]["tp0"]).read_bytes() == content(new.uris[0]["tp0"])

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["crash", "expiry", "store refuses", "demotion"])
def test_a_block_whose_writer_is_gone_can_be_written_again(tmp_path: Path, ending: str) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, "suspending" if ending == "store refuses" else "file")
        await world.simple()
        write = await world.start("i", KEYS, timeout_s=5)
        world.write(write)
        assert (await world.start("i", KEYS)).keys == []
        if ending == "demotion":
            await world.manager.cleanup()
        if ending in ("crash", "demotion"):
            await world.restart()
        if ending == "store refuses":
            world.stores["i"].failing_keys = {1, 2}
            await world.advance(6)
            assert world.states("i", 1) == [Status.WRITING]
            world.stores["i"].failing_keys = set()
        await world.advance(6)
        with pytest.raises(KvcmError):
            await world.finish(write)
        new = await world.put("i", KEYS)
        assert new.keys == KEYS
        await world.rest()
        assert await world.read("i", KEYS) == new.uris
        assert world.files() == {path_of(uri) for uri in new.all_uris()}

    asyncio.run(scenario())
