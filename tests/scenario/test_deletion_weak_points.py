"""The weak points of upstream's deletion (behaviour 27, Deletion), one test per line."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvcm.common.errors import InstanceNotExist, KvcmError, StorageError
from kvcm.data_storage.port import Truth
from kvcm.manager.deleter import Deleter
from kvcm.manager.errors import MetadataFailed
from kvcm.manager.housekeeper import Housekeeper
from kvcm.manager.testing import ManagerWorld, holds_bytes, path_of
from kvcm.manager.trimmer import trim_keys
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault, Scheduler
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario

CODEC = ProtoLocationEncoder()


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_a_failed_physical_deletion_keeps_the_record(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        write = await world.put("i", [1])
        world.fs.fail("unlink", errno.EIO)
        await world.manager.remove_cache(world.shard("i"), [1])
        await world.rest(3)
        assert world.states("i", 1) == [Status.DELETING]
        assert world.manager.deleter.stats.kept_without_proof >= 3
        assert holds_bytes(write.uris[0]["tp0"])
        world.fs.on("unlink", None)
        await world.rest(2)
        assert world.locations() == []
        assert world.files() == set()

    run(story())


def test_retries_come_less_and_less_often(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        await world.put("i", [1])
        world.fs.fail("unlink", errno.EIO)
        await world.manager.remove_cache(world.shard("i"), [1])
        for _ in range(600):
            await world.advance(1)
        tries = [name for call, name in world.fs.calls if call == "unlink"]
        assert 10 <= len(tries) <= 18  # 1, 2, 4, ... seconds, then one a minute
        world.fs.on("unlink", None)
        await world.advance(60)
        assert world.locations() == []

    run(story())


@pytest.mark.parametrize("kind", ["file", "hf3fs", "dummy"])
def test_deleting_one_packed_block_keeps_its_siblings_and_nfs_does_delete(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple(kind, 3)  # type: ignore[arg-type]
        write = await world.put("i", [1, 2, 3])
        await world.manager.remove_cache(world.shard("i"), [1, 3])
        await world.rest()
        assert holds_bytes(write.uris[1]["tp0"])
        assert world.states("i", 2) == [Status.SERVING]
        await world.manager.remove_cache(world.shard("i"), [2])
        await world.rest()
        assert world.files() == set()

    run(story())


def test_an_unknown_storage_answers_unknown_for_every_place(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        write = await world.put("i", [1, 2])
        await world.registry.remove_storage("s", force=True)
        assert await world.storages.delete(write.all_uris()) == [Truth.UNKNOWN] * 2
        await world.manager.remove_cache(world.shard("i"), [1, 2])
        await world.rest()
        assert [world.states("i", key) for key in (1, 2)] == [[Status.DELETING]] * 2
        await world.add_storage("s")
        await world.rest()
        assert world.locations() == []

    run(story())


def test_removing_a_block_twice_deletes_its_bytes_once(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        write = await world.put("i", [1])
        shard = world.shard("i")
        assert await world.manager.remove_cache(shard, [1, 1]) == 1
        assert await world.manager.remove_cache(shard, [1]) == 0
        assert await world.manager.trim(shard, None) == 0
        await world.manager.deleter.redrive(shard, 0)
        assert world.manager.deleter.pending == 1
        await world.rest()
        assert world.storages.deleted == write.all_uris()

    run(story())


def test_a_removed_and_registered_instance_does_not_delete_twice(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        write = await world.put("i", [1, 2])
        await world.manager.remove_instance("i")
        await world.manager.register(world.instance("i", "g"))
        assert world.manager.deleter.pending == 2
        await world.rest()
        assert sorted(world.storages.deleted) == sorted(write.all_uris())
        assert world.manager.deleter.pending == 0

    run(story())


@pytest.mark.parametrize("restart", ["crash", "demotion"])
def test_deleting_blocks_are_taken_up_again_after_a_crash(tmp_path: Path, restart: str) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        await world.put("i", [1, 2])
        await world.manager.remove_cache(world.shard("i"), [1, 2])
        if restart == "crash":
            await world.restart()
        else:
            await world.manager.cleanup()
            assert world.manager.deleter.pending == 0, "an old leader deletes nothing any more"
            await world.manager.recover()
        assert world.manager.deleter.pending == 2
        await world.rest()
        assert world.locations() == []
        assert world.files() == set()

    run(story())


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOST_REQUEST, Fault.LOST_HALF_WAY])
def test_remove_cache_does_not_say_ok_when_the_store_refused(tmp_path: Path, fault: Fault) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending")
        await world.simple()
        await world.put("i", [1, 2])
        world.stores["i"].faults.append(fault)
        with pytest.raises(MetadataFailed, match="could not be marked for deletion"):
            await world.manager.remove_cache(world.shard("i"), [1, 2])
        await world.manager.remove_cache(world.shard("i"), [1, 2])
        await world.rest()
        assert world.locations() == []
        assert world.files() == set()

    run(story())


def test_a_lost_answer_is_looked_up_and_not_assumed(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending")
        await world.simple()
        await world.put("i", [1])
        world.stores["i"].faults.append(Fault.LOST_ANSWER)
        assert await world.manager.remove_cache(world.shard("i"), [1]) == 1
        assert world.states("i", 1) == [Status.DELETING]
        await world.rest()
        assert world.locations() == []

    run(story())


def test_trim_goes_on_after_a_page_that_fails(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending")
        await world.simple()
        count = 200  # four pages
        await world.put("i", range(count))
        world.stores["i"].faults.append(Fault.REFUSE)
        with pytest.raises(StorageError):
            await world.manager.trim(world.shard("i"), None)
        assert sum(world.states("i", key) == [Status.SERVING] for key in range(count)) == 64
        assert await world.manager.trim(world.shard("i"), None) == 64
        await world.rest()
        assert world.locations() == []

    run(story())


def test_the_deletion_queue_is_bounded_and_loses_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        await world.put("i", range(10))
        shard, deleter = world.shard("i"), world.manager.deleter
        deleter._max_pending = 4
        await world.manager.remove_cache(shard, range(10))
        assert deleter.pending == 4
        assert deleter.stats.queue_overflow == 6
        condemned_at = world.clock.monotonic_us()
        deleted: list[int] = []
        world.storages.on_delete = lambda uris: deleted.append(world.clock.monotonic_us() - condemned_at)
        await world.manager.sweep()  # what found no room is found again, and its delay is not skipped
        for _ in range(8):
            await world.advance(1)
        assert world.locations() == []
        assert min(deleted) >= 1_000_000

    run(story())


def test_stopping_drops_no_deletion(tmp_path: Path) -> None:
    """A step under way ends; what is queued stays DELETING in the store, and nobody waits for ever."""

    async def story() -> None:
        scheduler = Scheduler()
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending", scheduler=scheduler)
        await scheduler.run([world.simple()])
        await scheduler.run([world.put("i", [1, 2])])
        await scheduler.run([world.manager.remove_cache(world.shard("i"), [1])])
        world.clock.advance_us(2_000_000)
        results = await scheduler.run([world.manager.run_due_deletions(), world.manager.remove_cache(world.shard("i"), [2]), world.manager.cleanup()])
        assert results[0] == 1
        assert not any(isinstance(result, BaseException) for result in results)
        assert world.manager.deleter.pending == 0
        assert {key: [location.status for location in block] for key, block in world.stores["i"].store.items()} == {2: [Status.DELETING]}
        await scheduler.run([world.restart()])
        await scheduler.run([world.rest()])
        assert world.locations() == []

    run(story())


def test_a_clean_up_that_is_cut_off_still_forgets_everything(tmp_path: Path) -> None:
    async def story() -> None:
        scheduler = Scheduler()
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending", scheduler=scheduler)
        await scheduler.run([world.simple()])
        await scheduler.run([world.put("i", [1])])
        stuck = asyncio.ensure_future(world.manager.remove_cache(world.shard("i"), [1]))
        cleanup = asyncio.ensure_future(world.manager.cleanup())
        await scheduler.settle()
        cleanup.cancel()  # its time is up, and the store still hangs
        await scheduler.settle()
        assert world.manager.shards() == []
        assert len(world.manager.sessions) == 0
        assert not world.manager._work
        with pytest.raises(InstanceNotExist):
            world.manager.shard("i")
        await scheduler.release_all()
        await asyncio.gather(cleanup, stuck, return_exceptions=True)
        await scheduler.run([world.manager.recover()])
        stored = [location.status for location in world.stores["i"].store[1]]
        assert world.states("i", 1) == stored == [Status.DELETING], "the store had the call already, and the next term goes on with it"
        await scheduler.run([world.rest()])
        assert world.locations() == []

    run(story())


def test_a_call_that_holds_a_shard_outlives_the_removal_of_its_instance(tmp_path: Path) -> None:
    """Upstream used a raw pointer after the instance was gone. Here every call ends, with an answer that is true."""

    async def story() -> None:
        for seed in range(40):
            scheduler = Scheduler()
            world = ManagerWorld(tmp_path / str(seed), CODEC, metadata="suspending", scheduler=scheduler, seed=seed)
            (tmp_path / str(seed)).mkdir()
            await scheduler.run([world.simple("hf3fs")])
            await scheduler.run([world.put("i", [1, 2])])
            (write,) = await scheduler.run([world.start("i", [3])])
            assert not isinstance(write, BaseException)
            world.write(write)
            world.clock.advance_us(1_000_000)
            shard = world.shard("i")
            random = Random(seed)
            results = await scheduler.run(
                [
                    world.manager.remove_instance("i"),
                    world.read("i", [1, 2]),
                    world.start("i", [4, 5]),
                    world.finish(write),
                    world.manager.remove_cache(shard, [1]),
                    trim_keys(world.manager.deleter, shard, 0),
                ],
                choose=random.randrange,
            )
            assert results[0] is None
            assert all(not isinstance(result, BaseException) or isinstance(result, KvcmError) for result in results)
            with pytest.raises(InstanceNotExist):
                world.manager.shard("i")
            await scheduler.run([world.rest()])
            assert world.locations() == []
            assert world.files() == set()
            assert world.manager.group_usage("g").total == 0

    run(story())


def test_a_start_that_outlives_the_removal_is_not_part_of_the_next_registration(tmp_path: Path) -> None:
    async def story() -> None:
        scheduler = Scheduler()
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending", scheduler=scheduler)
        await scheduler.run([world.simple()])
        start = asyncio.ensure_future(world.start("i", [1], timeout_s=600))
        await scheduler.settle()
        assert scheduler.pending() == ["allocate"]
        slow = scheduler._waiting.pop()
        await scheduler.run([world.manager.remove_instance("i")])
        await scheduler.run([world.manager.register(world.instance("i", "g"))])
        scheduler._waiting.append(slow)
        await scheduler.release_all()
        with pytest.raises(InstanceNotExist, match="removed while"):
            await start
        assert len(world.manager.sessions) == 0
        assert not any(location.status is Status.WRITING for _, _, location in world.locations())
        assert await world.read("i", [1]) == []
        await scheduler.run([world.rest()])
        assert world.locations() == []

    run(story())


def test_the_housekeeper_goes_on_when_a_step_fails(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        write = await world.put("i", [1])
        steps: list[str] = []
        done = asyncio.Event()

        async def failing() -> int:
            steps.append("expire")
            raise RuntimeError("a bug")

        async def deleting() -> int:
            steps.append("delete")
            done.set()
            return 0

        world.manager.expire_sessions = failing  # type: ignore[method-assign]
        world.manager.run_due_deletions = deleting  # type: ignore[method-assign]
        keeper = Housekeeper(world.manager, world.clock)
        keeper.start()
        await asyncio.wait_for(done.wait(), 5)
        await keeper.stop()
        assert steps[:2] == ["expire", "delete"]
        assert holds_bytes(write.uris[0]["tp0"])
        assert path_of(write.uris[0]["tp0"]) in world.files()
        assert isinstance(world.manager.deleter, Deleter)

    run(story())
