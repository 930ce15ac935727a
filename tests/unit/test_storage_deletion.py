"""A suite that tries to lose data: unmounted and replaced roots, I/O errors, packed siblings, late writers, hung threads.

Every file is real; faults are put in front of the real file system.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from kvcm.data_storage.port import AllocationItem, Truth
from kvcm.data_storage.testing_blocks import SIZE, World, file_of, holds, put

pytestmark = pytest.mark.unit

SENTINEL = ".kvcm-storage.json"
PRESENT, ABSENT, UNKNOWN = Truth.PRESENT, Truth.ABSENT, Truth.UNKNOWN


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


# One block per file.


def test_a_deleted_block_is_proven_gone_and_deleting_again_is_success(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        await world.backend.open()
        first, second = await world.written("1", "2")
        assert await world.backend.delete([first]) == [ABSENT]
        assert await world.backend.delete([first, first]) == [ABSENT, ABSENT]
        assert not file_of(first).exists()
        assert holds(second, 2)

    run(story())


def test_a_block_that_was_never_written_is_absent(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        await world.backend.open()
        uris = await world.backend.allocate([AllocationItem("i/t/1", SIZE)], world.ids)
        assert await world.backend.delete(uris) == [ABSENT]

    run(story())


# The root.


@pytest.mark.parametrize("per_file", [1, 4])
def test_an_unmounted_root_loses_nothing(tmp_path: Path, per_file: int) -> None:
    async def story() -> None:
        root = tmp_path / "mnt"
        world = World(root, per_file)
        await world.backend.open()
        uris = await world.written("1", "2")
        root.rename(tmp_path / "share")
        for replacement in ("nothing", "an empty folder"):
            if replacement == "an empty folder":
                root.mkdir()
            assert await world.backend.probe(uris) == [UNKNOWN] * 2
            assert await world.backend.delete(uris) == [UNKNOWN] * 2
            assert world.backend.root_verified() is False
        root.rmdir()
        (tmp_path / "share").rename(root)
        assert await world.backend.probe(uris) == [PRESENT] * 2
        assert world.backend.root_verified() is True
        assert holds(uris[0], 1)
        assert holds(uris[1], 2)
        assert await world.backend.delete(uris) == [ABSENT] * 2

    run(story())


@pytest.mark.parametrize("per_file", [1, 4])
def test_without_its_sentinel_even_a_full_root_is_left_alone(tmp_path: Path, per_file: int) -> None:
    async def story() -> None:
        world = World(tmp_path, per_file)
        await world.backend.open()
        uris = await world.written("1", "2")
        (tmp_path / SENTINEL).unlink()
        assert await world.backend.probe(uris) == [UNKNOWN] * 2
        assert await world.backend.delete(uris) == [UNKNOWN] * 2
        assert holds(uris[0], 1)
        assert holds(uris[1], 2)

    run(story())


def test_a_root_with_another_identity_is_left_alone(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path / "a")
        await world.backend.open()
        (uri,) = await world.written("1")
        twin = World(tmp_path / "b")
        twin.ids.session_id()
        await twin.backend.open()
        shutil.copy(tmp_path / "b" / SENTINEL, tmp_path / "a" / SENTINEL)
        assert await world.backend.delete([uri]) == [UNKNOWN]
        assert holds(uri, 1)

    run(story())


@pytest.mark.parametrize("action", ["probe", "delete"])
def test_a_root_that_vanishes_during_the_look_gives_no_absence(tmp_path: Path, action: str) -> None:
    async def story() -> None:
        root = tmp_path / "mnt"
        world = World(root)
        await world.backend.open()
        (uri,) = await world.backend.allocate([AllocationItem("i/t/1", SIZE)], world.ids)

        def unmount(_: str) -> None:
            world.fs.on("open_dir", None)
            root.rename(tmp_path / "share")
            root.mkdir()

        world.fs.on("open_dir", unmount)
        assert await getattr(world.backend, action)([uri]) == [UNKNOWN]
        assert world.backend.root_verified() is False

    run(story())


@pytest.mark.parametrize("per_file", [1, 4])
def test_a_sentinel_that_vanishes_between_the_check_and_the_unlink_keeps_the_record(tmp_path: Path, per_file: int) -> None:
    async def story() -> None:
        world = World(tmp_path, per_file)
        await world.backend.open()
        (uri,) = await world.written("1")

        def vanish(_: str) -> None:
            world.fs.on("unlink", None)
            (tmp_path / SENTINEL).rename(tmp_path / "aside")

        world.fs.on("unlink", vanish)
        assert await world.backend.delete([uri]) == [UNKNOWN]
        assert not world.backend.available()
        (tmp_path / "aside").rename(tmp_path / SENTINEL)
        assert await world.backend.delete([uri]) == [ABSENT]

    run(story())


def test_a_root_swapped_before_the_unlink_does_not_redirect_it(tmp_path: Path) -> None:
    async def story() -> None:
        root, other = tmp_path / "mnt", tmp_path / "other"
        world = World(root)
        await world.backend.open()
        (uri,) = await world.written("1")
        shutil.copytree(root, other)

        def swap(_: str) -> None:
            world.fs.on("unlink", None)
            root.rename(tmp_path / "old")
            other.rename(root)
            (root / SENTINEL).unlink()

        world.fs.on("unlink", swap)
        assert await world.backend.delete([uri]) == [UNKNOWN]
        assert holds(uri, 1)

    run(story())


# I/O errors.


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EACCES, errno.ENOTDIR, errno.ENOTCONN])
@pytest.mark.parametrize("call", ["open_root", "open_file", "open_dir", "stat", "unlink", "read"])
def test_an_error_is_never_an_absence(tmp_path: Path, call: str, code: int) -> None:
    async def story() -> None:
        world = World(tmp_path)
        await world.backend.open()
        there, gone = await world.written("1", "2")
        file_of(gone).unlink()
        world.fs.fail(call, code)
        probed, deleted = await world.backend.probe([there, gone]), await world.backend.delete([there, gone])
        if call == "unlink":
            assert probed == [PRESENT, ABSENT]
            assert deleted == [UNKNOWN, ABSENT]
        else:
            assert probed == [UNKNOWN, UNKNOWN]
            assert deleted == [UNKNOWN, UNKNOWN]
        assert holds(there, 1)
        world.fs.on(call, None)
        assert await world.backend.delete([there, gone]) == [ABSENT, ABSENT]

    run(story())


@pytest.mark.parametrize("call", ["punch", "seek_data", "open_file", "stat"])
def test_an_error_while_freeing_a_packed_slot_is_unknown(tmp_path: Path, call: str) -> None:
    async def story() -> None:
        world = World(tmp_path, 4)
        await world.backend.open()
        uris = await world.written("1", "2")

        def hook(name: str) -> None:
            if name != SENTINEL:
                raise OSError(errno.EIO, "Input/output error")

        world.fs.on(call, hook)
        assert await world.backend.delete(uris[:1]) == [UNKNOWN]
        assert holds(uris[1], 2)
        world.fs.on(call, None)
        assert await world.backend.delete(uris) == [ABSENT, ABSENT]
        assert not file_of(uris[0]).exists()

    run(story())


def test_a_folder_in_the_place_of_a_block_is_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        for per_file in (1, 4):
            world = World(tmp_path / str(per_file), per_file)
            await world.backend.open()
            (uri,) = await world.backend.allocate([AllocationItem("i/t/1", SIZE)], world.ids)
            file_of(uri).mkdir(parents=True)
            assert await world.backend.probe([uri]) == [UNKNOWN]
            assert await world.backend.delete([uri]) == [UNKNOWN]
            assert file_of(uri).is_dir()

    run(story())


# Packed siblings.


def test_deleting_one_slot_frees_it_and_keeps_its_siblings(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path, 4)
        await world.backend.open()
        uris = await world.written("1", "2", "3", "4")
        path = file_of(uris[0])
        before = path.stat().st_blocks
        assert await world.backend.delete([uris[1]]) == [ABSENT]
        assert path.stat().st_blocks < before
        assert path.stat().st_size == 4 * SIZE
        assert [holds(uris[slot], slot + 1) for slot in (0, 2, 3)] == [True] * 3
        assert holds(uris[1], 0)
        assert await world.backend.delete([uris[0], uris[2]]) == [ABSENT] * 2
        assert holds(uris[3], 4)
        assert await world.backend.delete([uris[3]]) == [ABSENT]
        assert not path.exists()

    run(story())


def test_all_slots_in_one_call_remove_the_file(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path, 3)
        await world.backend.open()
        uris = await world.written("1", "2", "3", "4")
        assert await world.backend.delete(uris) == [ABSENT] * 4
        assert not [path for path in tmp_path.rglob("*_*") if path.is_file()]

    run(story())


def test_a_sibling_that_is_still_being_written_keeps_its_file(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path, 2)
        await world.backend.open()
        first, second = await world.backend.allocate([AllocationItem("i/t/1", SIZE), AllocationItem("i/t/2", SIZE)], world.ids)
        put(first, 1)
        with file_of(second).open("r+b") as writer:
            assert await world.backend.delete([first]) == [ABSENT]
            writer.seek(SIZE)
            writer.write(b"\2" * SIZE)
        assert holds(second, 2)

    run(story())


def test_without_hole_punching_a_slot_stays_until_its_last_sibling_goes(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path, 3)
        world.fs.without_punching()
        await world.backend.open()
        uris = await world.written("1", "2", "3")
        assert await world.backend.delete([uris[0]]) == [PRESENT]
        assert await world.backend.delete([uris[1], uris[0]]) == [PRESENT, PRESENT]
        assert holds(uris[2], 3)
        assert await world.backend.delete([uris[2]]) == [ABSENT]
        assert not file_of(uris[2]).exists()
        assert await world.backend.delete(uris[:2]) == [ABSENT, ABSENT]

    run(story())


@pytest.mark.parametrize("punching", [True, False])
def test_an_unknown_file_is_never_unlinked(tmp_path: Path, punching: bool) -> None:
    async def story() -> None:
        old = World(tmp_path, 2)
        await old.backend.open()
        uris = await old.written("1", "2")
        restarted = World(tmp_path, 2)
        if not punching:
            restarted.fs.without_punching()
        await restarted.backend.open_known()
        assert await restarted.backend.delete([uris[0]]) == [ABSENT if punching else PRESENT]
        assert holds(uris[1], 2)
        assert await restarted.backend.delete([uris[1]]) == [ABSENT if punching else PRESENT]
        assert file_of(uris[0]).exists()

    run(story())


@pytest.mark.parametrize("punching", [True, False])
def test_an_adopted_file_goes_with_its_last_known_slot(tmp_path: Path, punching: bool) -> None:
    async def story() -> None:
        old = World(tmp_path, 2)
        await old.backend.open()
        uris = await old.written("1", "2")
        restarted = World(tmp_path, 2)
        if not punching:
            restarted.fs.without_punching()
        await restarted.backend.open_known()
        restarted.backend.adopt(uris)
        restarted.backend.adopt(["nonsense", uris[0]])
        await restarted.backend.delete([uris[0]])
        assert holds(uris[1], 2)
        assert await restarted.backend.delete([uris[1]]) == [ABSENT]
        assert not file_of(uris[0]).exists()

    run(story())


def test_an_adopted_file_with_bytes_of_an_unknown_sibling_is_not_unlinked(tmp_path: Path) -> None:
    async def story() -> None:
        old = World(tmp_path, 2)
        await old.backend.open()
        uris = await old.written("1", "2")
        restarted = World(tmp_path, 2)
        await restarted.backend.open_known()
        restarted.backend.adopt(uris[:1])
        assert await restarted.backend.delete(uris[:1]) == [ABSENT]
        assert holds(uris[1], 2)

    run(story())


def test_an_update_of_the_storage_keeps_what_is_known_about_files(tmp_path: Path) -> None:
    async def story() -> None:
        old, new = World(tmp_path, 2), World(tmp_path, 4)
        await old.backend.open()
        uris = await old.written("1", "2")
        new.backend.inherit(old.backend)
        await new.backend.open_known()
        assert await new.backend.delete([uris[0]]) == [ABSENT]
        assert holds(uris[1], 2)
        assert await new.backend.delete([uris[1]]) == [ABSENT]
        assert not file_of(uris[1]).exists()

    run(story())


# Late writers and hung threads.


@pytest.mark.parametrize("per_file", [1, 2])
def test_a_late_writer_after_the_unlink_harms_nobody(tmp_path: Path, per_file: int) -> None:
    async def story() -> None:
        world = World(tmp_path, per_file)
        await world.backend.open()
        old = await world.written("1", "2")
        assert await world.backend.delete(old) == [ABSENT, ABSENT]
        new = await world.written("1", "2")
        put(old[0], 9)
        assert not {file_of(uri) for uri in old} & {file_of(uri) for uri in new}
        assert holds(new[0], 1)
        assert holds(new[1], 2)
        assert await world.backend.delete(old) == [ABSENT, ABSENT]
        assert holds(new[0], 1)

    run(story())


def test_a_writer_that_re_creates_the_file_during_the_unlink_is_seen(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        await world.backend.open()
        (uri,) = await world.written("1")
        looks: list[str] = []

        def again(name: str) -> None:
            looks.append(name)
            if len(looks) == 2:
                put(uri, 9)

        world.fs.on("stat", again)
        assert await world.backend.delete([uri]) == [PRESENT]
        assert await world.backend.delete([uri]) == [ABSENT]

    run(story())


def test_a_late_writer_into_a_freed_slot_is_seen(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path, 2)
        await world.backend.open()
        uris = await world.written("1", "2")

        def late(_: str) -> None:
            world.fs.on("seek_data", None)
            put(uris[0], 9)

        world.fs.on("seek_data", late)
        assert await world.backend.delete([uris[0]]) == [PRESENT]
        assert await world.backend.delete([uris[0]]) == [ABSENT]
        assert holds(uris[1], 2)

    run(story())


def test_while_a_hung_thread_may_still_unlink_the_record_is_kept(tmp_path: Path) -> None:
    """Dummy gives paths out again, so an unlink that comes late must never meet a new owner."""

    async def story() -> None:
        world, release, hung = World(tmp_path, dummy=True), threading.Event(), threading.Event()
        await world.backend.open()
        world.backend.deadline_s = 0.3
        (uri,) = await world.written("1")

        def hang(_: str) -> None:
            world.fs.on("unlink", None)
            hung.set()
            release.wait(10)

        world.fs.on("unlink", hang)
        assert await world.backend.delete([uri]) == [UNKNOWN]
        assert hung.is_set()
        assert await world.backend.delete([uri]) == [UNKNOWN]
        release.set()
        world.pool.close(5)
        assert not file_of(uri).exists()

    run(story())


def test_dummy_deletes_and_gives_the_same_path_again(tmp_path: Path) -> None:
    async def story() -> None:
        for per_file in (1, 2):
            world = World(tmp_path / str(per_file), per_file, dummy=True)
            await world.backend.open()
            uris = await world.written("1", "2")
            assert await world.backend.probe(uris) == [PRESENT, PRESENT]
            assert await world.backend.delete(uris) == [ABSENT, ABSENT]
            assert await world.backend.probe(uris) == [ABSENT, ABSENT]
            assert await world.written("1", "2") == uris
            assert await world.backend.delete(uris[:1]) == [ABSENT]
            assert holds(uris[1], 2)

    run(story())
