"""The deletion suite that tries to lose data (issue A): real files, written through the URIs that the manager hands out.

In every story: no byte of a SERVING block is ever lost, no record goes without proof, and when the storage is healthy again everything that was
removed is gone.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from kvcm.common.errors import NotFound
from kvcm.config.model import QueryType
from kvcm.manager.errors import AllStoragesDown, WriteLost
from kvcm.manager.testing import ManagerWorld, holds_bytes, path_of, write_bytes
from kvcm.manager.testing_removal import DROP, KEEP, RemovalStory, mount, tell, unmount
from kvcm.meta.location import Status
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario


@pytest.mark.parametrize("kind", ["file", "hf3fs", "dummy"])
def test_the_root_is_unmounted_before_the_delete(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin(kind)  # type: ignore[arg-type]
        await told.remove()
        away = unmount(world)
        for _ in range(5):
            await world.advance(30)
            for key in DROP:
                assert world.states("i", key) == [Status.DELETING], "an empty mount point proves nothing"
        mount(world, away)
        told.records_kept()
        await world.storages.verify_roots()
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("kind", ["file", "hf3fs", "dummy"])
def test_the_root_is_unmounted_before_the_remove(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin(kind)  # type: ignore[arg-type]
        away = unmount(world)
        await world.storages.verify_roots()
        await told.remove()
        await world.advance(30)
        assert {world.states("i", key)[0] for key in DROP} == {Status.DELETING}
        mount(world, away)
        told.records_kept()
        await world.storages.verify_roots()
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("kind", ["hf3fs", "dummy"])
def test_the_root_is_unmounted_before_a_read_that_probes(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin(kind)  # type: ignore[arg-type]
        away = unmount(world)
        world.clock.advance_us(1_000_000)  # what was probed before is forgotten
        for query_type in (QueryType.PREFIX_MATCH, QueryType.BATCH_GET):
            try:
                found = await world.read("i", KEEP + DROP, query_type)
            except AllStoragesDown:
                continue
            assert not any(places and all(places.values()) for places in found), "nothing is known, so nothing is shown"
        await world.advance(30)
        mount(world, away)
        for key in KEEP + DROP:
            assert world.states("i", key) == [Status.SERVING], "a read must not prune what it cannot see"
        await world.storages.verify_roots()
        assert len(await world.read("i", KEEP + DROP)) == 4
        await told.remove()
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("kind", ["hf3fs", "dummy"])
def test_the_root_is_unmounted_before_a_write(tmp_path: Path, kind: str) -> None:
    """A start probes too; it must neither prune nor hand out places that would lie in the mount point."""

    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin(kind)  # type: ignore[arg-type]
        away = unmount(world)
        world.clock.advance_us(1_000_000)
        with pytest.raises(NotFound):
            await world.start("i", [*KEEP, 9])
        await world.advance(30)
        mount(world, away)
        assert [world.states("i", key) for key in KEEP + DROP] == [[Status.SERVING]] * 4
        await world.storages.verify_roots()
        await told.remove()
        await told.all_gone()

    tell(story)


def test_the_sentinel_alone_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin()
        sentinel = world.sentinel_of("s").read_bytes()
        world.sentinel_of("s").unlink()
        await told.remove()
        await world.advance(30)
        told.records_kept()
        assert all(holds_bytes(uri) for uri in told.dropped.all_uris()), "the bytes stay as well"
        world.sentinel_of("s").write_bytes(sentinel)
        await told.all_gone()

    tell(story)


def test_the_root_is_replaced_by_another_storages_root(tmp_path: Path) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin()
        await world.add_storage("t")
        await told.remove()
        away = unmount(world)
        shutil.copy(world.sentinel_of("t"), world.sentinel_of("s"))
        await world.advance(30)
        assert {world.states("i", key)[0] for key in DROP} == {Status.DELETING}
        mount(world, away)
        told.records_kept()
        await told.all_gone()

    tell(story)


def test_the_root_vanishes_between_the_look_and_the_unlink(tmp_path: Path) -> None:
    """The unlink goes to the root that was proven; the answer is not believed, because the root's path shows something else afterwards."""

    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin()
        await told.remove()
        away: list[Path] = []
        world.fs.on("unlink", lambda name: away.append(unmount(world)) if not away else None)
        await world.advance(2)
        assert away
        assert {world.states("i", key)[0] for key in DROP} == {Status.DELETING}
        mount(world, away[0])
        told.records_kept()
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("call", ["open_root", "open_dir", "stat", "unlink", "read"])
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES, errno.ETIMEDOUT])
def test_stale_handles_and_io_errors_prove_nothing(tmp_path: Path, call: str, code: int) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder(), "local")
        world = told.world
        await told.begin()
        world.fs.fail(call, code)
        await told.remove()
        for _ in range(3):
            await world.advance(70)
            told.records_kept()
        world.fs.on(call, None)
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("kind", ["file", "hf3fs", "dummy"])
@pytest.mark.parametrize("punching", [True, False])
def test_packed_siblings_keep_their_bytes(tmp_path: Path, kind: str, punching: bool) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, ProtoLocationEncoder(), metadata="file")
        if not punching:
            world.fs.without_punching()
        await world.simple(kind, 4)  # type: ignore[arg-type]
        write = await world.put("i", [1, 2, 3, 4])
        assert len({path_of(uri) for uri in write.all_uris()}) == 1
        left = {1: write.uris[0]["tp0"], 2: write.uris[1]["tp0"], 3: write.uris[2]["tp0"], 4: write.uris[3]["tp0"]}
        for key in (2, 1, 4, 3):
            await world.manager.remove_cache(world.shard("i"), [key])
            del left[key]
            await world.rest(2)
            assert all(holds_bytes(uri) for uri in left.values()), f"block {key} took a sibling with it"
            assert [other for other in left if world.states("i", other) != [Status.SERVING]] == []
        await world.rest()
        assert world.locations() == []
        assert world.files() == set()

    tell(story)


def test_a_late_writer_after_its_deadline_touches_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin()
        late = await world.start("i", [5], timeout_s=10)
        await world.advance(11)
        await world.advance(5)
        assert world.states("i", 5) == [], "expired, deleted, forgotten"
        other = await world.put("i", [5])
        world.write(late)
        assert not set(late.all_uris()) & set(other.all_uris())
        assert all(holds_bytes(uri) for uri in other.all_uris())
        with pytest.raises(Exception, match="unknown"):
            await world.finish(late)
        assert world.states("i", 5) == [Status.SERVING]
        told.nothing_lost()

    tell(story)


def test_a_writer_within_its_deadline_keeps_its_place_although_the_block_was_removed(tmp_path: Path) -> None:
    """Else it would go on writing into a file that nobody remembers."""

    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin()
        slow = await world.start("i", [5], timeout_s=600)
        await world.manager.remove_cache(world.shard("i"), [5])
        await world.advance(60)
        await world.advance(60)
        assert world.states("i", 5) == [Status.DELETING]
        world.write(slow)
        with pytest.raises(WriteLost):
            await world.finish(slow)
        await told.remove()
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("kind", ["file", "hf3fs"])
def test_the_same_key_is_rewritten_while_its_old_bytes_are_pending(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin(kind)  # type: ignore[arg-type]
        await told.remove()
        away = unmount(world)
        await world.advance(5)
        mount(world, away)
        await world.storages.verify_roots()
        again = await world.put("i", DROP)
        assert not set(again.all_uris()) & set(told.dropped.all_uris())
        assert [sorted(world.states("i", key)) for key in DROP] == [[Status.SERVING, Status.DELETING]] * 2
        await world.rest()
        assert all(holds_bytes(uri) for uri in again.all_uris())
        assert not any(path_of(uri).exists() for uri in told.dropped.all_uris())
        assert await world.read("i", KEEP + DROP) == told.kept.uris + again.uris
        told.nothing_lost()

    tell(story)


def test_in_dummy_a_key_waits_until_its_old_bytes_are_gone(tmp_path: Path) -> None:
    """Its path would be the same: the delayed delete would take the new bytes (I-DS-6)."""

    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin("dummy")
        await told.remove()
        waiting = await world.start("i", DROP)
        assert waiting.keys == []
        await world.advance(2)
        again = await world.put("i", DROP)
        assert again.uris == told.dropped.uris
        await world.rest()
        assert all(holds_bytes(uri) for uri in again.all_uris())
        told.nothing_lost()

    tell(story)


def test_in_dummy_a_place_given_back_does_not_take_the_block_that_owns_the_path(tmp_path: Path) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin("dummy")
        second = await world.start("i", KEEP, replicas=2)  # a second copy is asked for, but it would be the first one's bytes
        assert second.keys == []
        told.nothing_lost()
        await told.remove()
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("kind", ["file", "dummy"])
def test_a_disabled_storage_goes_on_deleting(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin(kind)  # type: ignore[arg-type]
        await told.remove()
        await world.registry.set_storage_enabled("s", False)
        await world.rest()
        assert [world.states("i", key) for key in DROP] == [[], []]
        await world.registry.set_storage_enabled("s", True)
        await told.all_gone()

    tell(story)


@pytest.mark.parametrize("restart", [False, True])
def test_a_removed_storage_keeps_the_records_until_it_is_back(tmp_path: Path, restart: bool) -> None:
    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin()
        await told.remove()
        await world.registry.remove_storage("s", force=True)
        if restart:
            await world.restart()
        await world.rest()
        told.records_kept()
        await world.add_storage("s")
        await told.all_gone()

    tell(story)


def test_nothing_but_the_own_file_is_touched(tmp_path: Path) -> None:
    """Files that are not ours, in the same folders, outlive every removal."""

    async def story() -> None:
        told = RemovalStory(tmp_path, ProtoLocationEncoder())
        world = told.world
        await told.begin()
        stranger = path_of(told.dropped.all_uris()[0]).with_name("3")
        stranger.write_bytes(b"somebody else's")
        await world.manager.remove_instance("i")
        await world.rest()
        assert stranger.read_bytes() == b"somebody else's"
        assert world.files() == {stranger}
        write_bytes(told.kept.all_uris()[0])  # a late writer's file is nobody's, and nobody's delete can reach it
        await world.manager.register(world.instance("i", "g"))
        again = await world.put("i", KEEP)
        await world.manager.trim(world.shard("i"), None)
        await world.rest()
        assert not any(path_of(uri).exists() for uri in again.all_uris())
        assert holds_bytes(told.kept.all_uris()[0])

    tell(story)
