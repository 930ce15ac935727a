"""Leadership is given up while the manager is in the middle of something long: the next leader must not wait for it, and nothing may be lost by that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import NotLeader
from kvcm.manager import cache_manager, deleter, housekeeper
from kvcm.manager.housekeeper import Housekeeper
from kvcm.manager.testing import DELAY_MS, ManagerWorld
from kvcm.meta.location import Status
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario

CODEC = ProtoLocationEncoder()
KEYS = list(range(1, 1537))


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def filled(folder: Path, metadata: Any = "local") -> ManagerWorld:
    world = ManagerWorld(folder, CODEC, metadata=metadata)
    await world.simple()
    await world.finish(await world.start("i", KEYS))
    return world


def ends_after_first(world: ManagerWorld, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same work; when it has been done once, leadership is being given up."""

    async def once(*args: Any, **options: Any) -> Any:
        result = await work(*args, **options)
        world.term.ending = True
        return result

    return once


def count(world: ManagerWorld, status: Status) -> int:
    return sum(location.status is status for _, _, location in world.locations())


@pytest.mark.parametrize("by_keys", [False, True])
def test_a_large_removal_stops_and_sends_its_caller_to_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_keys: bool) -> None:
    async def story() -> None:
        world = await filled(tmp_path)
        shard = world.shard("i")
        monkeypatch.setattr(world.manager.deleter, "condemn", ends_after_first(world, world.manager.deleter.condemn))
        with pytest.raises(NotLeader, match="a part of the blocks is removed"):
            await (world.manager.remove_cache(shard, KEYS) if by_keys else world.manager.trim(shard, None))
        assert 0 < count(world, Status.DELETING) < len(KEYS)
        assert count(world, Status.DELETING) + count(world, Status.SERVING) == len(KEYS)

    run(story())


@pytest.mark.parametrize("slow", [False, True])
def test_blocks_of_an_instance_that_is_removed_are_marked_for_a_moment_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: bool
) -> None:
    """No later leader would know that they are to go."""

    async def story() -> None:
        world = await filled(tmp_path)
        condemn = world.manager.deleter.condemn

        async def takes_a_while(*args: Any, **options: Any) -> int:
            world.clock.advance_us(200_000 if slow else 1)
            return await condemn(*args, **options)

        monkeypatch.setattr(world.manager.deleter, "condemn", takes_a_while)
        monkeypatch.setattr(world.manager.deleter, "condemn", ends_after_first(world, world.manager.deleter.condemn))
        await world.manager.remove_instance("i")
        if slow:
            assert 0 < count(world, Status.DELETING) < len(KEYS)
            assert "not all blocks are marked, they stay until the id is registered again" in caplog.text
        else:
            assert count(world, Status.DELETING) == len(KEYS)

    run(story())


def test_storages_are_not_told_any_more_and_nothing_is_deleted_before_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = await filled(tmp_path)
        shard = world.shard("i")
        world.manager._instances._adopter.adopt_later(shard)
        await world.manager.remove_cache(shard, [1])
        told: list[int] = []
        pages = shard.index.pages

        def paused() -> bool:
            return shard.upkeep.deletion_paused

        def counted() -> Any:
            for page in pages():
                told.append(len(page))
                world.term.ending = len(told) == 2
                yield page

        monkeypatch.setattr(shard.index, "pages", counted)
        await world.advance(DELAY_MS / 1000 + 1)
        assert len(told) == 2 < len(list(pages()))  # the second page was looked up and left
        assert paused()
        assert world.states("i", 1) == [Status.DELETING]
        monkeypatch.setattr(shard.index, "pages", pages)
        world.term.ending = False
        await world.rest(2)
        assert not paused()
        assert world.states("i", 1) == []

    run(story())


def test_deletions_that_are_due_wait_for_the_next_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(deleter, "PAGE_KEYS", 8)
        world = await filled(tmp_path)
        await world.manager.trim(world.shard("i"), None)
        monkeypatch.setattr(world.storages, "delete", ends_after_first(world, world.storages.delete))
        world.clock.advance_us(DELAY_MS * 1000)
        ran = await world.manager.run_due_deletions()
        assert 0 < ran <= deleter._PARALLEL_BATCHES
        assert count(world, Status.DELETING) == len(KEYS) - 8 * ran

    run(story())


def test_orphans_and_deletions_of_a_load_are_left_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        await world.start("i", KEYS)
        await world.restart()
        world.term.ending = True
        await world.advance(1)
        assert count(world, Status.WRITING) + count(world, Status.DELETING) == len(KEYS)
        world.term.ending = False
        await world.rest(3)
        assert world.locations() == []

    run(story())


def test_open_sessions_end_many_at_a_time(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        for key in range(100):
            await world.start("i", [key])
        world.term.ending = True
        await world.manager.cleanup()
        assert world.manager.sessions.stats.aborted == 100
        await world.restart()
        assert count(world, Status.DELETING) == 100

    run(story())


def test_sessions_for_which_there_is_no_time_are_ended_by_the_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        caplog.set_level("INFO")
        monkeypatch.setattr(cache_manager, "_ABORT_US", 0)
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        for key in range(40):
            await world.start("i", [key])
        world.term.ending = True
        await world.manager.cleanup()
        assert "sessions_left instance=i sessions=40" in caplog.text
        assert len(world.manager.sessions) == 0
        await world.restart()
        await world.rest(2)
        assert world.locations() == []
        assert world.manager.group_usage("g").total == 0

    run(story())


def test_expired_sessions_are_given_back_for_the_clean_up(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        for key in range(40):
            await world.start("i", [key], timeout_s=1)
        world.clock.advance_us(2_000_000)
        world.term.ending = True
        await world.manager.expire_sessions()
        assert count(world, Status.WRITING) == 40
        await world.manager.cleanup()
        await world.restart()
        assert count(world, Status.DELETING) == 40

    run(story())


def test_the_loop_is_free_while_deletions_are_due_and_leadership_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A background step that has nothing to do and nothing to wait for came again and again, and nobody else had a turn: the lease ran out."""

    async def story() -> None:
        world = await filled(tmp_path)
        await world.manager.trim(world.shard("i"), None)
        world.clock.advance_us(DELAY_MS * 1000)
        world.term.ending = True
        looks = 0

        async def look() -> int:
            nonlocal looks
            looks += 1
            if looks > 100:
                raise RuntimeError("nobody else has had a turn")
            return 0

        monkeypatch.setattr(world.manager, "run_due_deletions", look)
        keeper = Housekeeper(world.manager, world.clock)
        keeper.start()
        for _ in range(20):
            await asyncio.sleep(0)
        await keeper.stop()
        assert 0 < looks <= 20

    run(story())


def test_housekeeping_survives_a_cancellation_that_nobody_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        monkeypatch.setattr(housekeeper, "_SWEEP_S", 0.001)
        world = await filled(tmp_path)
        sweeps, goes_on = 0, asyncio.Event()

        async def sweep() -> None:
            nonlocal sweeps
            sweeps += 1
            if sweeps == 1:
                raise asyncio.CancelledError
            goes_on.set()

        monkeypatch.setattr(world.manager, "sweep", sweep)
        keeper = Housekeeper(world.manager, world.clock)
        keeper.start()
        async with asyncio.timeout(30):
            await goes_on.wait()
        await keeper.stop()
        assert "housekeeping_failed step=_sweep" in caplog.text

    run(story())
