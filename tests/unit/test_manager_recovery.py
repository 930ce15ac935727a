"""A new leader finds the blocks of the old one: what it serves, what it takes out, what it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import InstanceNotExist, NotReady
from kvcm.manager.errors import SessionUnknown
from kvcm.manager.testing import SIZE, ManagerWorld, holds_bytes, path_of
from kvcm.meta.location import Status
from kvcm.meta.testing import Scheduler
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

CODEC = ProtoLocationEncoder()


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def with_all_states(root: Path) -> ManagerWorld:
    """Blocks 1-2 SERVING, 3-4 WRITING with an open session, 5-6 DELETING."""
    world = ManagerWorld(root, CODEC, metadata="file")
    await world.simple()
    await world.put("i", [1, 2], timeout_s=60)
    world.write(await world.start("i", [3, 4], timeout_s=60))
    await world.put("i", [5, 6])
    await world.manager.remove_cache(world.shard("i"), [5, 6])
    return world


def test_readable_blocks_are_served_and_counted_again(tmp_path: Path) -> None:
    async def story() -> None:
        world = await with_all_states(tmp_path)
        before = await world.read("i", [1, 2])
        created = [location.create_time_us for _, key, location in world.locations() if key == 1]
        await world.advance(0)
        await world.restart()
        assert await world.read("i", [1, 2]) == before
        assert world.manager.group_usage("g").total == 6 * SIZE
        assert world.shard("i").index.key_count == 6
        assert [location.create_time_us for _, key, location in world.locations() if key == 1] == created

    run(story())


def test_writes_without_a_session_are_taken_out(tmp_path: Path) -> None:
    async def story() -> None:
        world = await with_all_states(tmp_path)
        await world.restart()
        assert [world.states("i", key) for key in (3, 4)] == [[Status.DELETING]] * 2
        assert len(world.manager.sessions) == 0
        await world.rest()
        assert {key for _, key, _ in world.locations()} == {1, 2}
        assert len(world.files()) == 2
        assert world.manager.group_usage("g").total == 2 * SIZE

    run(story())


def test_interrupted_deletions_go_on_and_keep_their_delay(tmp_path: Path) -> None:
    async def story() -> None:
        world = await with_all_states(tmp_path)
        await world.restart()
        assert world.manager.deleter.pending == 4
        await world.advance(0.9)
        assert world.storages.deleted == []
        await world.advance(0.2)
        assert len(world.storages.deleted) == 4

    run(story())


def test_a_session_of_the_old_leader_is_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        write = await world.start("i", [1])
        world.write(write)
        await world.restart()
        with pytest.raises(SessionUnknown, match="earlier leader"):
            await world.finish(write)

    run(story())


def test_metadata_in_memory_starts_empty(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        write = await world.put("i", [1])
        await world.restart()
        assert await world.read("i", [1]) == []
        again = await world.put("i", [1])
        assert not set(again.all_uris()) & set(write.all_uris())

    run(story())


def test_blocks_of_a_storage_that_is_gone_are_kept_and_not_shown(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        await world.add_storage("t")
        await world.update_group("g", storage_candidates=("s", "t"))
        write = await world.put("i", [1])
        world.root_of("s").rename(tmp_path / "away")
        await world.restart()
        assert world.states("i", 1) == [Status.SERVING]
        assert await world.read("i", [1]) == []
        (tmp_path / "away").rename(world.root_of("s"))
        assert await world.storages.retry_quarantined() == ["s"]
        assert await world.read("i", [1]) == write.uris
        assert holds_bytes(write.uris[0]["tp0"])

    run(story())


def test_recovering_twice_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        world = await with_all_states(tmp_path)
        await world.restart()
        before, shard = world.locations(), world.shard("i")
        await world.manager.recover()
        assert world.shard("i") is shard
        assert world.locations() == before
        assert world.manager.deleter.pending == 4

    run(story())


def test_after_clean_up_nothing_is_known_and_nothing_is_changed_until_the_next_term(tmp_path: Path) -> None:
    async def story() -> None:
        world = await with_all_states(tmp_path)
        shard = world.shard("i")
        await world.manager.cleanup()
        with pytest.raises(InstanceNotExist):
            world.shard("i")
        assert world.manager.group_usage("g").total == 0
        assert (len(world.manager.sessions), world.manager.deleter.pending) == (0, 0)
        await world.rest()
        assert world.storages.deleted == []
        assert shard.closed
        await world.manager.recover()
        assert await world.read("i", [1, 2]) != []
        await world.rest()
        assert {path_of(uri) for places in await world.read("i", [1, 2]) for uri in places.values()} == world.files()

    run(story())


def test_calls_that_come_during_clean_up_are_sent_away(tmp_path: Path) -> None:
    async def story() -> None:
        scheduler = Scheduler()
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending", scheduler=scheduler)
        await scheduler.run([world.simple()])
        slow = asyncio.ensure_future(world.start("i", [1]))
        await scheduler.settle()
        cleanup = asyncio.ensure_future(world.manager.cleanup())
        await scheduler.settle()
        for call in (world.start("i", [2]), world.manager.run_due_deletions(), world.manager.register(world.instance("j", "g"))):
            with pytest.raises(NotReady, match="ceased to lead"):
                await call
        await scheduler.release_all()
        await cleanup
        write = await slow
        assert write.keys == [1], "what had begun came to its end"
        with pytest.raises(InstanceNotExist):
            await world.finish(write)
        assert [location.status for location in world.stores["i"].store[1]] == [Status.DELETING], "and its session was ended"

    run(story())
