"""Folder storages: opening and the sentinel, allocation with touch, probes and their short memory."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import StorageError
from kvcm.common.ids import SeededIds
from kvcm.common.uri import parse_uri
from kvcm.data_storage.dummy import DummyBackend
from kvcm.data_storage.filesystem import FileSystemBackend
from kvcm.data_storage.layout import file_layout, hf3fs_layout
from kvcm.data_storage.model import DummySpec, Hf3fsSpec, NfsSpec, Storage, StorageType
from kvcm.data_storage.pool import BlockingPool
from kvcm.data_storage.port import AllocationFailed, AllocationItem, StorageUnavailable, Truth
from kvcm.data_storage.testing import FaultyFs

pytestmark = pytest.mark.unit

SENTINEL = ".kvcm-storage.json"


class World:
    """One storage over a real folder, with a file system that can be made to fail."""

    def __init__(self, storage: Storage, *, deadline_s: float = 5.0) -> None:
        self.fs, self.clock, self.ids = FaultyFs(), FakeClock(), SeededIds(7)
        self.pool = BlockingPool(threads=2)
        self.backend: FileSystemBackend
        if storage.type is StorageType.DUMMY:
            self.backend = DummyBackend(storage, self.pool, self.clock, self.ids, fs=self.fs, deadline_s=deadline_s)
        else:
            layout = file_layout(storage) if storage.type is StorageType.NFS else hf3fs_layout(storage)
            self.backend = FileSystemBackend(storage, layout, self.pool, self.clock, self.ids, fs=self.fs, deadline_s=deadline_s)

    async def place(self, *hexes: str, size: int = 8) -> list[str]:
        return await self.backend.allocate([AllocationItem(f"i/t/{text}", size) for text in hexes], self.ids)


def nfs(root: Path, per_file: int = 1, name: str = "nfs_01", check: bool = False) -> Storage:
    return Storage(name, StorageType.NFS, NfsSpec(f"{root}/", per_file), check_storage_available_when_open=check)


def hf3fs(mount: Path, per_file: int = 1, touch: bool = False) -> Storage:
    return Storage("h3", StorageType.HF3FS, Hf3fsSpec(str(mount), "kv", "c", per_file, touch))


def write(uri: str, data: bytes = b"12345678") -> Path:
    path = Path(parse_uri(uri).path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


# Opening.


def test_a_first_add_makes_the_root_and_its_sentinel(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(nfs(tmp_path / "a" / "b"))
        assert not world.backend.available()
        assert world.backend.root_verified() is None
        await world.backend.open()
        record = json.loads((tmp_path / "a" / "b" / SENTINEL).read_text())
        assert record["format"] == 1
        assert record["storage"] == "nfs_01"
        assert record["id"]
        assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [SENTINEL]
        assert world.backend.available()
        assert world.backend.root_verified() is True

    run(story())


def test_opening_again_keeps_the_identity(tmp_path: Path) -> None:
    async def story() -> None:
        await World(nfs(tmp_path)).backend.open()
        before = (tmp_path / SENTINEL).read_bytes()
        other = World(nfs(tmp_path))
        other.ids.session_id()
        await other.backend.open()
        assert (tmp_path / SENTINEL).read_bytes() == before
        await other.backend.open_known()

    run(story())


def test_a_root_of_another_storage_is_refused_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        await World(nfs(tmp_path)).backend.open()
        with pytest.raises(StorageUnavailable, match=r"belongs to the storage 'nfs_01'\. Choose another folder"):
            await World(nfs(tmp_path, name="nfs_02")).backend.open()
        assert json.loads((tmp_path / SENTINEL).read_text())["storage"] == "nfs_01"

    run(story())


@pytest.mark.parametrize(("content", "why"), [("", "damaged"), ("[1]", "damaged"), ('{"format":2,"storage":"nfs_01","id":"x"}', "another version")])
def test_a_sentinel_that_cannot_be_read_is_never_replaced(tmp_path: Path, content: str, why: str) -> None:
    async def story() -> None:
        (tmp_path / SENTINEL).write_text(content)
        with pytest.raises(StorageUnavailable, match=why):
            await World(nfs(tmp_path)).backend.open()
        assert (tmp_path / SENTINEL).read_text() == content

    run(story())


def test_a_known_storage_never_gets_a_new_sentinel(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "mount").mkdir()
        with pytest.raises(StorageUnavailable, match="not mounted"):
            await World(nfs(tmp_path / "mount")).backend.open_known()
        with pytest.raises(StorageUnavailable, match="does not exist"):
            await World(nfs(tmp_path / "gone")).backend.open_known()
        assert not list((tmp_path / "mount").iterdir())
        assert not (tmp_path / "gone").exists()

    run(story())


@pytest.mark.parametrize("call", ["link", "write", "sync", "open_file"])
def test_a_failed_open_leaves_nothing_behind(tmp_path: Path, call: str) -> None:
    async def story() -> None:
        world = World(nfs(tmp_path / "a" / "b"))
        world.fs.fail(call, errno.EIO)
        with pytest.raises(StorageUnavailable, match="Input/output error"):
            await world.backend.open()
        assert not (tmp_path / "a").exists()
        assert not world.backend.available()

    run(story())


def test_without_hard_links_the_sentinel_is_made_exclusively(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(nfs(tmp_path))
        world.fs.fail("link", errno.EOPNOTSUPP)
        await world.backend.open()
        assert json.loads((tmp_path / SENTINEL).read_text())["storage"] == "nfs_01"
        assert [path.name for path in tmp_path.iterdir()] == [SENTINEL]

    run(story())


def test_two_managers_that_add_at_once_agree_on_one_identity(tmp_path: Path) -> None:
    async def story() -> None:
        world, rival = World(nfs(tmp_path)), World(nfs(tmp_path))

        def rival_first(_: str) -> None:
            world.fs.on("link", None)
            threading.Thread(target=lambda: asyncio.run(rival.backend.open())).run()

        world.ids.session_id()
        world.fs.on("link", rival_first)
        await world.backend.open()
        await rival.backend.verify()
        assert await world.backend.verify() is True
        assert rival.backend.root_verified() is True
        assert [path.name for path in tmp_path.iterdir()] == [SENTINEL]

    run(story())


def test_hf3fs_needs_its_mount_point_and_makes_its_root_dir(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(StorageUnavailable, match="mount point"):
            await World(hf3fs(tmp_path / "absent")).backend.open()
        assert not (tmp_path / "absent").exists()
        await World(hf3fs(tmp_path)).backend.open()
        assert (tmp_path / "kv" / SENTINEL).is_file()

    run(story())


def test_the_check_at_open_writes_and_removes_a_file(tmp_path: Path) -> None:
    async def story() -> None:
        await World(nfs(tmp_path / "ok", check=True)).backend.open()
        assert [path.name for path in (tmp_path / "ok").iterdir()] == [SENTINEL]
        world = World(nfs(tmp_path / "bad", check=True))

        def full(name: str) -> None:
            if name.endswith(".check"):
                raise OSError(errno.ENOSPC, "No space left on device")

        world.fs.on("open_file", full)
        with pytest.raises(StorageUnavailable, match="No space left"):
            await world.backend.open()
        assert not (tmp_path / "bad").exists()

    run(story())


def test_a_hung_open_ends_at_the_deadline_and_is_undone(tmp_path: Path) -> None:
    async def story() -> None:
        world, release, undone = World(nfs(tmp_path / "r"), deadline_s=0.3), threading.Event(), threading.Event()
        world.fs.on("link", lambda _: (release.wait(10), None)[1])
        with pytest.raises(StorageUnavailable, match="did not answer within"):
            await world.backend.open()
        world.fs.on("unlink", lambda name: undone.set() if name == SENTINEL else None)
        release.set()
        assert undone.wait(10)
        world.pool.close(5)
        assert not (tmp_path / "r").exists()

    run(story())


def test_traits_of_the_kinds(tmp_path: Path) -> None:
    file, three = World(nfs(tmp_path)).backend.traits, World(hf3fs(tmp_path)).backend.traits
    dummy = World(Storage("d", StorageType.DUMMY, DummySpec(str(tmp_path)))).backend.traits
    assert (file.probe_on_read, file.unique_paths) == (False, True)
    assert (three.probe_on_read, three.unique_paths) == (True, True)
    assert (dummy.probe_on_read, dummy.unique_paths) == (True, False)


# Allocation.


def test_plain_allocation_touches_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(nfs(tmp_path))
        await world.backend.open()
        world.fs.calls.clear()
        assert len(await world.place("1", "2")) == 2
        assert not world.fs.calls
        assert [path.name for path in tmp_path.iterdir()] == [SENTINEL]

    run(story())


def test_a_closed_storage_does_not_allocate(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(nfs(tmp_path))
        with pytest.raises(AllocationFailed, match="not open"):
            await world.place("1")
        await world.backend.open()
        await world.backend.close()
        with pytest.raises(AllocationFailed, match="not open"):
            await world.place("1")
        assert not world.backend.available()

    run(story())


def test_touch_creates_the_files(tmp_path: Path) -> None:
    async def story() -> None:
        for per_file, files in ((1, 3), (2, 2)):
            world = World(hf3fs(tmp_path / str(per_file), per_file, touch=True))
            (tmp_path / str(per_file)).mkdir()
            await world.backend.open()
            uris = await world.place("1", "2", "3")
            paths = {Path(parse_uri(uri).path) for uri in uris}
            assert len(paths) == files
            assert all(path.is_file() and path.stat().st_size == 0 for path in paths)
            assert await world.backend.probe(uris) == [Truth.PRESENT] * 3

    run(story())


def test_a_failed_touch_takes_all_files_back(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path, touch=True))
        await world.backend.open()

        def third(name: str) -> None:
            if name.startswith("3_"):
                raise OSError(errno.ENOSPC, "No space left on device")

        world.fs.on("open_file", third)
        with pytest.raises(AllocationFailed, match="No space left"):
            await world.place("1", "2", "3")
        assert not [path for path in (tmp_path / "kv" / "i").rglob("*") if path.is_file()]

    run(story())


def test_touch_never_writes_into_an_unproven_root(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path, touch=True))
        await world.backend.open()
        (tmp_path / "kv" / SENTINEL).unlink()
        with pytest.raises(AllocationFailed, match="cannot be created"):
            await world.place("1")
        assert not list((tmp_path / "kv").iterdir())

    run(story())


def test_a_touch_that_ends_after_its_deadline_is_undone(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path, touch=True))
        await world.backend.open()
        world.backend.deadline_s = 0.3
        release, undone = threading.Event(), threading.Event()

        def slow(name: str) -> None:
            if name.startswith("1_"):
                release.wait(10)

        world.fs.on("open_file", slow)
        world.fs.on("unlink", lambda _: undone.set())
        with pytest.raises(AllocationFailed, match="in time"):
            await world.place("1")
        release.set()
        assert undone.wait(10)
        world.pool.close(5)
        assert not [path for path in (tmp_path / "kv" / "i").rglob("*") if path.is_file()]

    run(story())


# Probes.


def test_probe_tells_present_and_absent(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path))
        await world.backend.open()
        there, gone = await world.place("1", "2")
        write(there)
        assert await world.backend.probe([there, gone, there]) == [Truth.PRESENT, Truth.ABSENT, Truth.PRESENT]
        assert await world.backend.probe([]) == []

    run(story())


def test_a_foreign_uri_is_unknown_and_nothing_is_touched(tmp_path: Path) -> None:
    async def story() -> None:
        outside = tmp_path / "outside"
        outside.write_bytes(b"keep")
        world = World(nfs(tmp_path / "root"))
        await world.backend.open()
        world.fs.calls.clear()
        uris = [
            f"file://other{tmp_path}/root/i/t/1?size=8",
            f"file://nfs_01{tmp_path}/outside?size=8",
            f"file://nfs_01{tmp_path}/root/../outside?size=8",
            "nonsense",
        ]
        assert await world.backend.probe(uris) == [Truth.UNKNOWN] * 4
        assert await world.backend.delete(uris) == [Truth.UNKNOWN] * 4
        assert not world.fs.calls
        assert outside.read_bytes() == b"keep"

    run(story())


def test_links_below_the_root_are_never_followed(tmp_path: Path) -> None:
    async def story() -> None:
        victim = tmp_path / "victim" / "t"
        victim.mkdir(parents=True)
        world = World(nfs(tmp_path / "root"))
        await world.backend.open()
        (tmp_path / "root" / "i").symlink_to(tmp_path / "victim")
        (uri,) = await world.place("1")
        path = victim / Path(parse_uri(uri).path).name
        path.write_bytes(b"keep")
        assert await world.backend.probe([uri]) == [Truth.UNKNOWN]
        assert await world.backend.delete([uri]) == [Truth.UNKNOWN]
        assert path.read_bytes() == b"keep"

    run(story())


def test_present_is_remembered_shortly_and_absent_never(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path))
        await world.backend.open()
        there, gone = await world.place("1", "2")
        path = write(there)
        await world.backend.probe([there, gone])
        world.fs.calls.clear()
        assert await world.backend.probe([there]) == [Truth.PRESENT]
        assert not world.fs.calls
        write(gone)
        assert await world.backend.probe([gone]) == [Truth.PRESENT]
        path.unlink()
        world.clock.advance_us(200_001)
        assert await world.backend.probe([there]) == [Truth.ABSENT]

    run(story())


def test_deleting_forgets_what_was_remembered(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path))
        await world.backend.open()
        (uri,) = await world.place("1")
        write(uri)
        assert await world.backend.probe([uri]) == [Truth.PRESENT]
        assert await world.backend.delete([uri]) == [Truth.ABSENT]
        assert await world.backend.probe([uri]) == [Truth.ABSENT]

    run(story())


def test_many_places_are_asked_in_chunks_with_one_sentinel_look_each(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path))
        await world.backend.open()
        uris = await world.place(*(f"{number:x}" for number in range(130)))
        for uri in uris:
            write(uri)
        world.fs.calls.clear()
        assert await world.backend.probe(uris) == [Truth.PRESENT] * 130
        assert [name for call, name in world.fs.calls if call == "open_file"] == [SENTINEL] * 3
        assert [call for call, _ in world.fs.calls].count("open_dir") == 6

    run(story())


def test_a_hung_probe_is_unknown_at_the_deadline(tmp_path: Path) -> None:
    async def story() -> None:
        world, release = World(hf3fs(tmp_path)), threading.Event()
        await world.backend.open()
        world.backend.deadline_s = 0.02
        uris = await world.place("1", "2")
        world.fs.on("open_dir", lambda _: (release.wait(10), None)[1])
        assert await world.backend.probe(uris) == [Truth.UNKNOWN] * 2
        release.set()
        world.pool.close(5)
        assert await world.backend.probe(uris) == [Truth.UNKNOWN] * 2

    run(story())


def test_a_closed_storage_knows_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path))
        await world.backend.open()
        (uri,) = await world.place("1")
        path = write(uri)
        await world.backend.close()
        assert await world.backend.probe([uri]) == [Truth.UNKNOWN]
        assert await world.backend.delete([uri]) == [Truth.UNKNOWN]
        assert await world.backend.verify() is None
        assert path.exists()

    run(story())


def test_availability_follows_the_sentinel(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(nfs(tmp_path))
        await world.backend.open()
        changes: list[bool] = []
        world.backend.on_availability_change = lambda: changes.append(world.backend.available())
        (tmp_path / SENTINEL).rename(tmp_path / "aside")
        assert await world.backend.verify() is False
        assert not world.backend.available()
        with pytest.raises(AllocationFailed, match="sentinel"):
            await world.place("1")
        world.fs.fail("open_root", errno.EIO)
        assert await world.backend.verify() is None
        assert not world.backend.available()
        world.fs.on("open_root", None)
        (tmp_path / "aside").rename(tmp_path / SENTINEL)
        assert await world.backend.verify() is True
        assert world.backend.available()
        world.fs.fail("open_root", errno.EIO)
        assert await world.backend.verify() is None
        assert world.backend.available()
        assert changes == [False, True]

    run(story())


def test_a_full_pool_makes_answers_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(hf3fs(tmp_path))
        await world.backend.open()
        (uri,) = await world.place("1")
        world.pool.close(5)
        assert await world.backend.delete([uri]) == [Truth.UNKNOWN]
        assert await world.backend.verify() is None
        with pytest.raises(StorageError):
            await World(hf3fs(tmp_path / "none")).backend.open()

    run(story())
