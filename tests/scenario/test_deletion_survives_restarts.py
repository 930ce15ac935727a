"""The manager is restarted, or its metadata store fails, in the middle of each step of a removal: nothing is lost, and in the end all is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvcm.manager.errors import MetadataFailed
from kvcm.manager.testing import ManagerWorld, holds_bytes, path_of
from kvcm.manager.testing_removal import DROP, KEEP, RemovalStory, mount, tell, unmount
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario


@pytest.mark.parametrize("punching", [True, False])
def test_packed_siblings_keep_their_bytes_over_a_restart(tmp_path: Path, punching: bool) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, ProtoLocationEncoder(), metadata="file")
        if not punching:
            world.fs.without_punching()
        await world.simple("file", 4)
        write = await world.put("i", [1, 2, 3, 4])
        await world.manager.remove_cache(world.shard("i"), [1, 2])
        await world.restart()
        await world.rest()
        assert all(holds_bytes(write.uris[at]["tp0"]) for at in (2, 3))
        assert await world.read("i", [3, 4]) == write.uris[2:]
        await world.manager.remove_cache(world.shard("i"), [3, 4])
        await world.restart()
        await world.rest()
        assert world.locations() == []
        if not punching:
            assert world.files() == set()
        assert sum(path.stat().st_blocks for path in world.files()) == 0

    tell(story)


def test_a_quarantined_storage_learns_its_packed_blocks_when_it_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, ProtoLocationEncoder(), metadata="file")
        world.fs.without_punching()
        await world.simple("file", 4)
        write = await world.put("i", [1, 2, 3, 4])
        await world.manager.remove_cache(world.shard("i"), [1, 2, 3])
        away = unmount(world)
        await world.restart()
        await world.advance(30)
        assert world.states("i", 1) == [Status.DELETING]
        mount(world, away)
        assert await world.storages.retry_quarantined() == ["s"]
        await world.rest()
        assert holds_bytes(write.uris[3]["tp0"])
        await world.manager.remove_cache(world.shard("i"), [4])
        await world.rest()
        assert world.locations() == []
        assert world.files() == set(), "with its last block the file goes, also where holes cannot be punched"

    tell(story)


RestartStep = Callable[[RemovalStory], Awaitable[None]]


async def _after_start(told: RemovalStory) -> None:
    world = told.world
    left = await world.start("i", [5, 6])
    world.write(left)


async def _after_finish_with_failures(told: RemovalStory) -> None:
    world = told.world
    partly = await world.start("i", [5, 6])
    world.write(partly)
    await world.finish(partly, [False, False])


async def _after_remove(told: RemovalStory) -> None:
    await told.remove()


async def _after_the_bytes_went(told: RemovalStory) -> None:
    """The record is still there: the store refused to bury it."""
    await told.remove()
    world = told.world
    world.fs.on("unlink", None)
    for uri in told.dropped.all_uris():
        path_of(uri).unlink(missing_ok=True)  # packed blocks share it


async def _after_an_attempt_without_proof(told: RemovalStory) -> None:
    world = told.world
    await told.remove()
    away = unmount(world)
    await world.advance(5)
    mount(world, away)


async def _after_expiry(told: RemovalStory) -> None:
    world = told.world
    late = await world.start("i", [5, 6], timeout_s=1)
    world.write(late)
    world.clock.advance_us(2_000_000)
    await world.manager.expire_sessions()


async def _after_trim_and_rewrite(told: RemovalStory) -> None:
    world = told.world
    await told.remove()
    again = await world.start("i", DROP)
    world.write(again)


@pytest.mark.parametrize(
    "step",
    [
        _after_start,
        _after_finish_with_failures,
        _after_remove,
        _after_the_bytes_went,
        _after_an_attempt_without_proof,
        _after_expiry,
        _after_trim_and_rewrite,
    ],
    ids=lambda step: step.__name__.strip("_"),
)
@pytest.mark.parametrize(("kind", "per_file"), [("file", 1), ("file", 2), ("dummy", 1)])
def test_the_manager_is_restarted_in_the_middle(tmp_path: Path, step: RestartStep, kind: str, per_file: int) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin(kind, per_file)  # type: ignore[arg-type]
        await step(told)
        await world.restart()
        told.nothing_lost()
        await told.remove()
        await world.restart()
        await world.rest()
        told.nothing_lost()
        assert {key for _, key, _ in world.locations()} == set(KEEP)
        assert await world.read("i", KEEP) == told.kept.uris
        blocks = {path_of(uri) for uri in told.kept.all_uris()}
        assert all(path.stat().st_blocks == 0 for path in world.files() - blocks), "at most empty files are left"

    tell(story)


def test_the_manager_is_restarted_after_the_instance_was_removed(tmp_path: Path) -> None:
    """Nobody is registered any more, and its blocks go all the same; the other instance keeps its own."""

    async def story() -> None:
        world = ManagerWorld(tmp_path, ProtoLocationEncoder(), metadata="file")
        await world.simple(instances=("i", "j"))
        await world.put("i", [1, 2])
        kept = await world.put("j", [1, 2])
        away = unmount(world)
        await world.manager.remove_instance("i")
        await world.advance(5)
        mount(world, away)
        await world.restart()
        await world.rest()
        assert world.files() == {path_of(uri) for uri in kept.all_uris()}
        assert [shard.instance_id for shard in world.holders()] == ["j"]
        assert await world.read("j", [1, 2]) == kept.uris
        await world.manager.register(world.instance("i", "g"))
        assert await world.read("i", [1, 2]) == []

    tell(story)


def test_an_id_that_the_registry_has_forgotten_keeps_its_readable_blocks(tmp_path: Path) -> None:
    """A registry in memory starts empty; upstream's tests add group and instance again and read the blocks from before (wire contract 8.3)."""

    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin()
        await told.remove()
        forgetful = ManagerWorld(tmp_path, world.codec, metadata="file")
        forgetful.term.epoch = 9
        await forgetful.open()
        await forgetful.add_storage("s")
        await forgetful.add_group(forgetful.group("g", ["s"]))
        await forgetful.manager.recover()
        await forgetful.rest()
        told.world = forgetful
        assert await forgetful.manager.register(forgetful.instance("i", "g")) is True
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LOST_HALF_WAY])
@pytest.mark.parametrize("step", ["condemn", "bury"])
def test_the_metadata_store_fails_during_a_removal(tmp_path: Path, fault: Fault, step: str) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder(), "suspending")
        world = told.world
        await told.begin()
        if step == "bury":
            await told.remove()
        world.stores["i"].faults.append(fault)
        if step == "condemn":
            with contextlib.suppress(MetadataFailed):
                await told.remove()
        await world.advance(3)
        told.nothing_lost()
        for _, key, location in world.locations():
            if location.status is Status.SERVING:
                assert all(holds_bytes(uri) for uri in world.uris_of(location)), key
        await world.restart()  # memory agrees with the store, or the store decides
        await told.remove()
        await told.all_gone()

    tell(story)


def test_bytes_wait_until_the_store_is_durable(tmp_path: Path) -> None:
    """Without the barrier a crash could bring back a record whose bytes are gone."""

    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder(), "suspending")
        world = told.world
        await told.begin()
        await told.remove()
        world.stores["i"].failing_syncs = 3
        for _ in range(2):
            await world.advance(5)
            told.records_kept()
            assert all(holds_bytes(uri) for uri in told.dropped.all_uris())
        await told.all_gone()

    tell(story)
