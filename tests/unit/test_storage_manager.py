"""The storages of a manager: names, changes that fail cleanly, quarantine, epochs and slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import CapacityReached, Conflict, DuplicateEntity, InvalidArgument, NotFound, Unsupported
from kvcm.common.ids import IdSource, SeededIds
from kvcm.common.uri import parse_uri
from kvcm.data_storage import manager as manager_module
from kvcm.data_storage.factory import open_backend
from kvcm.data_storage.manager import DataStorageManager, host_of
from kvcm.data_storage.model import (
    DummySpec,
    EventReportSpec,
    Hf3fsSpec,
    MooncakeSpec,
    NfsSpec,
    Storage,
    StorageType,
    TairMemPoolSpec,
    VcnsHf3fsSpec,
)
from kvcm.data_storage.pool import BlockingPool
from kvcm.data_storage.port import (
    AllocationFailed,
    AllocationItem,
    BackendTraits,
    DataStorageBackend,
    StorageUnavailable,
    Truth,
)

pytestmark = pytest.mark.unit

SENTINEL = ".kvcm-storage.json"


def build(factory: Callable[[Storage], DataStorageBackend] | None = None) -> DataStorageManager:
    clock, ids, pool = FakeClock(), SeededIds(5), BlockingPool(threads=2)
    return DataStorageManager(factory or (lambda storage: open_backend(storage, pool, clock, ids)), clock, ids)


def nfs(root: Path, name: str = "a", per_file: int = 1, enabled: bool = True) -> Storage:
    return Storage(name, StorageType.NFS, NfsSpec(f"{root}/", per_file), enabled=enabled)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


class Memory:
    """A storage without a root, whose answers a test dictates."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.traits, self.up = storage, BackendTraits(False, True), False
        self.answer: Callable[[Sequence[str]], list[Truth]] = lambda uris: [Truth.PRESENT] * len(uris)
        self.gate: asyncio.Event | None = None

    async def open(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.up = True

    async def close(self) -> None:
        self.up = False

    def available(self) -> bool:
        return self.up

    async def allocate(self, items: Sequence[AllocationItem], ids: IdSource) -> list[str]:
        return [f"mem://{self.storage.name}/{item.key_text}?size={item.size}" for item in items]

    async def probe(self, uris: Sequence[str]) -> list[Truth]:
        return self.answer(uris)

    async def delete(self, uris: Sequence[str]) -> list[Truth]:
        return self.answer(uris)

    def adopt(self, uris: Sequence[str]) -> None:
        return None


def test_add_get_list_remove(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "b", "b"))
        await manager.add(nfs(tmp_path / "a", "a"))
        assert [storage.name for storage in manager.list()] == ["a", "b"]
        assert manager.get("a") == nfs(tmp_path / "a", "a")
        assert manager.available("a")
        assert manager.root_verified("a") is True
        assert manager.problem("a") == ""
        await manager.remove("a")
        assert manager.get("a") is None
        assert manager.backend("a") is None
        assert not manager.available("a")
        assert manager.root_verified("a") is None
        assert (tmp_path / "a" / SENTINEL).exists()
        with pytest.raises(NotFound, match="No storage is named 'a'"):
            await manager.remove("a")
        await manager.close()
        assert manager.list() == []

    run(story())


def test_a_taken_name_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "a"))
        for second in (manager.add(nfs(tmp_path / "b")), manager.add_quarantined(nfs(tmp_path / "b"), "x")):
            with pytest.raises(DuplicateEntity, match="exists already"):
                await second
        assert manager.get("a") == nfs(tmp_path / "a")
        assert not (tmp_path / "b").exists()

    run(story())


def test_a_failed_add_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        (tmp_path / "file").write_text("x")
        with pytest.raises(StorageUnavailable):
            await manager.add(nfs(tmp_path / "file" / "below"))
        with pytest.raises(InvalidArgument):
            await manager.add(nfs(tmp_path, "a/b"))
        with pytest.raises(StorageUnavailable, match="does not exist"):
            await manager.add(nfs(tmp_path / "r"), known=True)
        assert manager.list() == []
        assert manager.availability_epoch == 0
        await manager.add(nfs(tmp_path / "r"))
        assert manager.available("a")

    run(story())


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (StorageType.MOONCAKE, MooncakeSpec("h", "m", "tcp", "e")),
        (StorageType.TAIR_MEMPOOL, TairMemPoolSpec("d")),
        (StorageType.TAIR_MEMPOOL_SSD, TairMemPoolSpec("d")),
        (StorageType.UNSPECIFIED, EventReportSpec()),
    ],
)
def test_kinds_that_are_not_built_are_refused_by_name(kind: StorageType, spec: Any) -> None:
    async def story() -> None:
        manager = build()
        with pytest.raises(Unsupported, match=kind.type_name or "unspecified"):
            await manager.add(Storage("a", kind, spec))
        assert manager.list() == []

    run(story())


def test_all_built_kinds_open(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "n", "n"))
        await manager.add(Storage("d", StorageType.DUMMY, DummySpec(str(tmp_path / "d"))))
        await manager.add(Storage("h", StorageType.HF3FS, Hf3fsSpec(str(tmp_path), "h")))
        await manager.add(Storage("v", StorageType.VCNS_HF3FS, VcnsHf3fsSpec(str(tmp_path), "v", "host", 1, "redis://m")))
        for name in "ndhv":
            uris = await manager.allocate(name, [AllocationItem("i/t/1", 8)])
            assert host_of(uris[0]) == name
            assert await manager.probe(uris) == [Truth.ABSENT]

    run(story())


def test_update_swaps_only_after_the_new_one_is_open(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "a"))
        old = manager.backend("a")
        (tmp_path / "file").write_text("x")
        with pytest.raises(StorageUnavailable):
            await manager.update(nfs(tmp_path / "file" / "below"))
        with pytest.raises(InvalidArgument, match="type of storage 'a' cannot be changed"):
            await manager.update(Storage("a", StorageType.DUMMY, DummySpec(str(tmp_path / "a"))))
        assert manager.backend("a") is old
        assert manager.available("a")
        with pytest.raises(NotFound):
            await manager.update(nfs(tmp_path / "z", "z"))
        await manager.update(nfs(tmp_path / "b", per_file=4, enabled=False))
        assert manager.backend("a") is not old
        assert old is not None
        assert not old.available()
        assert not manager.available("a")
        manager.set_enabled("a", True)
        assert manager.available("a")

    run(story())


def test_update_keeps_packed_files_and_never_adopts_an_empty_root(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "a", per_file=2))
        uris = await manager.allocate("a", [AllocationItem("i/t/1", 8), AllocationItem("i/t/2", 8)])
        path = Path(parse_uri(uris[0]).path)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"1" * 16)
        await manager.update(nfs(tmp_path / "a", per_file=1))
        (tmp_path / "a").rename(tmp_path / "share")
        (tmp_path / "a").mkdir()
        with pytest.raises(StorageUnavailable, match="not mounted"):
            await manager.update(nfs(tmp_path / "a", per_file=8))
        assert not list((tmp_path / "a").iterdir())
        assert await manager.delete(uris) == [Truth.UNKNOWN] * 2
        (tmp_path / "a").rmdir()
        (tmp_path / "share").rename(tmp_path / "a")
        assert await manager.delete(uris) == [Truth.ABSENT] * 2
        assert not path.exists()

    run(story())


def test_a_removed_storage_keeps_its_bytes_and_answers_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "a"))
        uris = await manager.allocate("a", [AllocationItem("i/t/1", 8)])
        path = Path(parse_uri(uris[0]).path)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"12345678")
        (tmp_path / "a" / SENTINEL).rename(tmp_path / "aside")
        await manager.remove("a")
        assert await manager.delete(uris) == [Truth.UNKNOWN]
        assert path.read_bytes() == b"12345678"

    run(story())


def test_disabled_storages_take_no_blocks_but_still_delete(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path))
        uris = await manager.allocate("a", [AllocationItem("i/t/1", 8)])
        manager.set_enabled("a", False)
        assert not manager.available("a")
        assert manager.get("a") == nfs(tmp_path, enabled=False)
        with pytest.raises(AllocationFailed, match="not available"):
            await manager.allocate("a", [AllocationItem("i/t/1", 8)])
        with pytest.raises(AllocationFailed, match="not available"):
            await manager.allocate("nobody", [AllocationItem("i/t/1", 8)])
        assert await manager.delete(uris) == [Truth.ABSENT]
        assert await manager.probe(uris) == [Truth.ABSENT]
        with pytest.raises(NotFound):
            manager.set_enabled("nobody", True)

    run(story())


def test_answers_keep_order_and_length_over_storages(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "a", "a"))
        await manager.add(nfs(tmp_path / "b", "b"))
        (in_a,) = await manager.allocate("a", [AllocationItem("i/t/1", 8)])
        (in_b,) = await manager.allocate("b", [AllocationItem("i/t/1", 8)])
        path = Path(parse_uri(in_b).path)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"12345678")
        asked = [in_b, "file://nobody/x?size=1", in_a, "nonsense", "", in_b]
        unknown = Truth.UNKNOWN
        assert await manager.probe(asked) == [Truth.PRESENT, unknown, Truth.ABSENT, unknown, unknown, Truth.PRESENT]
        assert await manager.delete(asked) == [Truth.ABSENT, unknown, Truth.ABSENT, unknown, unknown, Truth.ABSENT]
        assert await manager.probe([]) == []

    run(story())


def test_a_broken_backend_cannot_break_the_answer() -> None:
    async def story() -> None:
        made: list[Memory] = []

        def factory(storage: Storage) -> DataStorageBackend:
            made.append(Memory(storage))
            return made[-1]

        manager = build(factory)
        await manager.add(Storage("m", StorageType.NFS, NfsSpec("/m/")))
        assert await manager.probe(["mem://m/x?size=1"] * 2) == [Truth.PRESENT] * 2
        assert manager.root_verified("m") is None
        made[0].answer = lambda uris: []
        assert await manager.delete(["mem://m/x?size=1"] * 2) == [Truth.UNKNOWN] * 2

        def explode(uris: Sequence[str]) -> list[Truth]:
            raise RuntimeError("broken")

        made[0].answer = explode
        assert await manager.delete(["mem://m/x?size=1"] * 2) == [Truth.UNKNOWN] * 2

    run(story())


def test_two_changes_of_one_name_do_not_interleave() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        def factory(storage: Storage) -> DataStorageBackend:
            backend = Memory(storage)
            backend.gate = gate
            return backend

        manager = build(factory)
        storage = Storage("m", StorageType.NFS, NfsSpec("/m/"))
        first = asyncio.ensure_future(manager.add(storage))
        await asyncio.sleep(0)
        assert not manager.available("m")
        for second in (manager.add(storage), manager.remove("m"), manager.update(storage), manager.add_quarantined(storage, "x")):
            with pytest.raises(Conflict, match="being changed"):
                await second
        gate.set()
        await first
        assert manager.available("m")

    run(story())


def test_quarantine_lists_and_retries(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "a"))
        uris = await manager.allocate("a", [AllocationItem("i/t/1", 8)])
        (tmp_path / "a").rename(tmp_path / "share")
        restarted = build()
        with pytest.raises(StorageUnavailable) as caught:
            await restarted.add(nfs(tmp_path / "a"), known=True)
        await restarted.add_quarantined(nfs(tmp_path / "a"), caught.value.message)
        await restarted.add_quarantined(Storage("m", StorageType.MOONCAKE, MooncakeSpec("h", "m", "tcp", "e")), "not built")
        assert [storage.name for storage in restarted.list()] == ["a", "m"]
        assert not restarted.available("a")
        assert "does not exist" in restarted.problem("a")
        assert await restarted.delete(uris) == [Truth.UNKNOWN]
        (tmp_path / "a").mkdir()
        assert await restarted.retry_quarantined() == []
        assert "not mounted" in restarted.problem("a")
        assert "mooncake" in restarted.problem("m")
        with pytest.raises(StorageUnavailable):
            await restarted.update(nfs(tmp_path / "a"))
        (tmp_path / "a").rmdir()
        (tmp_path / "share").rename(tmp_path / "a")
        epoch = restarted.availability_epoch
        assert await restarted.retry_quarantined() == ["a"]
        assert restarted.availability_epoch > epoch
        assert restarted.available("a")
        assert restarted.problem("a") == ""
        assert await restarted.delete(uris) == [Truth.ABSENT]
        await restarted.remove("m")
        assert [storage.name for storage in restarted.list()] == ["a"]

    run(story())


def test_a_quarantined_storage_can_move_to_a_new_root(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        await manager.add_quarantined(nfs(tmp_path / "lost"), "its disk broke")
        await manager.update(nfs(tmp_path / "new"))
        assert manager.available("a")
        assert manager.problem("a") == ""

    run(story())


def test_the_epoch_grows_with_each_change_of_availability(tmp_path: Path) -> None:
    async def story() -> None:
        manager = build()
        seen = [manager.availability_epoch]

        def grown() -> bool:
            seen.append(manager.availability_epoch)
            return seen[-1] > seen[-2]

        await manager.add(nfs(tmp_path / "a"))
        assert grown()
        manager.set_enabled("a", False)
        assert grown()
        await manager.update(nfs(tmp_path / "b"))
        assert grown()
        (tmp_path / "b" / SENTINEL).rename(tmp_path / "aside")
        await manager.verify_roots()
        assert grown()
        assert not manager.available("a")
        assert manager.root_verified("a") is False
        assert "sentinel" in manager.problem("a")
        (tmp_path / "aside").rename(tmp_path / "b" / SENTINEL)
        await manager.verify_roots()
        assert grown()
        assert manager.available("a")
        assert manager.roots_verified_at_us > 0
        await manager.verify_roots()
        assert not grown()
        await manager.remove("a")
        assert grown()

    run(story())


def test_slots_are_small_and_stable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        manager = build()
        await manager.add(nfs(tmp_path / "a", "a"))
        await manager.add(nfs(tmp_path / "b", "b"))
        assert (manager.slot_of("a"), manager.slot_of("b")) == (1, 2)
        await manager.remove("a")
        await manager.add(replace(nfs(tmp_path / "a", "a"), enabled=False))
        assert manager.slot_of("a") == 1
        assert manager.name_of(2) == "b"
        for slot in (0, 3, -1):
            with pytest.raises(NotFound):
                manager.name_of(slot)
        monkeypatch.setattr(manager_module, "MAX_SLOT", 2)
        with pytest.raises(CapacityReached):
            await manager.add(nfs(tmp_path / "c", "c"))
        assert manager.get("c") is None

    run(story())


@pytest.mark.parametrize(
    ("uri", "host"),
    [("file://a/b?size=1", "a"), ("mooncake://a?size=1", "a"), ("file://a", "a"), ("a/b", ""), ("", "")],
)
def test_the_host_names_the_storage(uri: str, host: str) -> None:
    assert host_of(uri) == host
