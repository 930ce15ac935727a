"""Block metadata in a file: through the pool, over restarts, with a disk that fails or hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kvcm.common.errors import InvalidArgument, OutcomeUnknown, StorageError
from kvcm.config.model import MetaBackendConfig
from kvcm.data_storage.model import StorageType
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta.backend_file import FileBackend
from kvcm.meta.backend_local import LocalBackend
from kvcm.meta.backend_redis import RedisBackend
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block, Location, begin_write, condemn, promote
from kvcm.meta.open_backend import open_backend, stored_instances
from kvcm.meta.record import RecordCodec
from kvcm.meta.testing import Census, published
from kvcm.meta.write_behind import WriteBehind
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

ENCODER = ProtoLocationEncoder()
RECORDS = RecordCodec(ENCODER, lambda name: 0)
T = TypeVar("T")


@pytest.fixture
def pool() -> Iterator[BlockingPool]:
    pool = BlockingPool(threads=4)
    yield pool
    pool.close(1)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/meta"


def location(name: str, size: int = 10) -> Location:
    wire = ENCODER.encode(StorageType.NFS, [("all", f"file://store/{name}?size={size}")])
    return begin_write(type_code=StorageType.NFS, storage_slot=0, create_time_us=5, size=size, location_id=name, previous_key=None, wire=wire)


def with_backend(uri: str, pool: BlockingPool, story: Callable[[FileBackend], Coroutine[Any, Any, T]], instance_id: str = "i1") -> T:
    async def run() -> T:
        backend = FileBackend(uri, instance_id, RECORDS, pool)
        await backend.open()
        try:
            return await story(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


async def everything(backend: FileBackend) -> dict[int, Block]:
    return {key: block async for page in backend.load() for key, block in page}


def test_what_was_applied_is_there_after_a_restart(uri: str, pool: BlockingPool, tmp_path: Path) -> None:
    blocks: dict[int, Block] = {1: (location("a"),), -2: (promote(location("b"), 7), condemn(location("c"))), 3: (location("d"),)}

    async def write(backend: FileBackend) -> None:
        assert await backend.apply(blocks, 1) == {}
        assert await backend.apply({3: ()}, 1) == {}
        await backend.sync([1, 3])

    with_backend(uri, pool, write)
    del blocks[3]
    assert with_backend(uri, pool, everything) == blocks
    assert (tmp_path / "meta.i1").exists()


def test_loading_is_paged_and_complete(uri: str, pool: BlockingPool) -> None:
    blocks: dict[int, Block] = {key: (location(f"{key}"),) for key in range(600)}

    async def story(backend: FileBackend) -> list[int]:
        await backend.apply(blocks, 1)
        return [len(page) async for page in backend.load()]

    assert with_backend(uri, pool, story) == [256, 256, 88]
    assert with_backend(uri, pool, everything) == blocks


def test_reading_back_names_present_keys_only(uri: str, pool: BlockingPool) -> None:
    async def story(backend: FileBackend) -> None:
        await backend.apply({1: (location("a"),), 2: (location("b"),)}, 1)
        assert await backend.read([2, 9]) == {2: (location("b"),)}

    with_backend(uri, pool, story)


def test_instances_do_not_share_a_file_whatever_their_names(uri: str, pool: BlockingPool, tmp_path: Path) -> None:
    names = ["a", "a.b", "a/b", "../a", "a%2Fb", "ä", "a.tmp"]

    async def write(backend: FileBackend) -> None:
        await backend.apply({1: (location("x"),)}, 1)

    for name in names:
        assert with_backend(uri, pool, everything, name) == {}
        with_backend(uri, pool, write, name)
    assert all(entry.parent == tmp_path for entry in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == len(names)

    async def listed() -> list[str]:
        return await FileBackend.stored_instances(uri, [(uri, "a")], pool)

    assert asyncio.run(listed()) == sorted(set(names) - {"a"})


def test_an_older_leader_is_told_and_changes_nothing(uri: str, pool: BlockingPool) -> None:
    async def story(backend: FileBackend) -> None:
        await backend.apply({1: (location("new"),)}, 2)
        with pytest.raises(StorageError, match="newer leader") as caught:
            await backend.apply({1: (location("old"),)}, 1)
        assert not isinstance(caught.value, OutcomeUnknown)
        assert await backend.read([1]) == {1: (location("new"),)}

    with_backend(uri, pool, story)


def test_a_damaged_record_is_left_out_reported_and_kept_in_the_file(uri: str, pool: BlockingPool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = b'{"f":1,"c":{"5":[{"id":"x"}],"six":[]}}\nrubbish\n'

    async def write(backend: FileBackend) -> None:
        await backend.apply({1: (location("a"),)}, 1)

    with_backend(uri, pool, write)
    with (tmp_path / "meta.i1").open("ab") as file:
        file.write(lines)

    async def story(backend: FileBackend) -> dict[int, Block]:
        with pytest.raises(StorageError, match="damaged record"):
            await backend.read([5])
        await backend.apply({2: (location("b"),)}, 1)
        return await everything(backend)

    assert with_backend(uri, pool, story) == {1: (location("a"),), 2: (location("b"),)}
    assert "metadata_records_damaged file=meta.i1 count=3" in caplog.text
    assert lines in (tmp_path / "meta.i1").read_bytes()


def test_a_full_disk_is_an_unknown_outcome_that_reading_resolves(uri: str, pool: BlockingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    async def story(backend: FileBackend) -> None:
        index = MetaIndex(backend, max_key_count=10)
        assert (await index.mutate([1], lambda *_: (location("a"),), 1))[0].changed
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OutcomeUnknown):
                await backend.apply({1: ()}, 1)
            outcome = (await index.mutate([1, 2], lambda position, key, block: (location(f"n{key}"),), 1))[0]
        assert outcome.error is not None
        assert "did not take the change" in outcome.error.message
        assert published(index) == {1: (location("a"),)} == await everything(backend)
        assert Census.reported_by(index) == Census.of(published(index).values())

    with_backend(uri, pool, story)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, pool: BlockingPool) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"'meta\.i1' could not be opened"):
        with_backend(f"file://{tmp_path}/file/meta", pool, everything)


def test_a_closed_file_takes_and_gives_nothing(uri: str, pool: BlockingPool) -> None:
    async def story() -> None:
        backend = FileBackend(uri, "i1", RECORDS, pool)
        with pytest.raises(OutcomeUnknown):
            await backend.apply({1: (location("a"),)}, 1)
        with pytest.raises(StorageError, match="could not be read"):
            await backend.read([1])

    asyncio.run(story())


def test_a_refused_job_is_known_not_to_have_run(uri: str) -> None:
    async def story() -> None:
        pool = BlockingPool(threads=1)
        backend = FileBackend(uri, "i1", RECORDS, pool)
        await backend.open()
        pool.close(1)
        with pytest.raises(StorageError, match="could not be written") as caught:
            await backend.apply({1: (location("a"),)}, 1)
        assert not isinstance(caught.value, OutcomeUnknown)
        await backend.close()  # logs, does not raise

    asyncio.run(story())


def test_a_change_that_hangs_before_it_begins_is_never_made(uri: str, pool: BlockingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held by a slow job; the change waits for it in a thread, its caller leaves, the lock comes free: nothing may be written now."""

    async def story(backend: FileBackend) -> None:
        waiting = threading.Event()
        real = backend._journal.append

        def append(*args: Any) -> bool:
            waiting.set()
            return real(*args)

        monkeypatch.setattr(backend._journal, "append", append)
        with backend._journal._lock:
            change = asyncio.ensure_future(backend.apply({1: (location("late"),)}, 1))
            while not waiting.is_set():  # noqa: ASYNC110 (what is waited for happens in a thread)
                await asyncio.sleep(0)
            change.cancel()
            with pytest.raises(asyncio.CancelledError):
                await change
        assert await backend.read([1]) == {}
        assert await everything(backend) == {}

    with_backend(uri, pool, story)


def test_a_change_that_does_not_end_in_time_is_unknown(uri: str, pool: BlockingPool) -> None:
    async def story(backend: FileBackend) -> None:
        impatient = FileBackend(uri, "i1", RECORDS, pool, deadline_s=0.01)
        await impatient.open()
        with impatient._journal._lock:
            with pytest.raises(OutcomeUnknown):
                await impatient.apply({1: (location("a"),)}, 1)
            with pytest.raises(StorageError, match="did not answer in time"):
                await impatient.read([1])
        assert await backend.read([1]) == {}

    with_backend(uri, pool, story)


@pytest.mark.parametrize(("query", "expected"), [("", 0), ("?fsync=true", 0), ("?fsync=false", 1)])
def test_the_barrier_forces_what_the_changes_did_not(uri: str, pool: BlockingPool, monkeypatch: pytest.MonkeyPatch, query: str, expected: int) -> None:
    async def story(backend: FileBackend) -> int:
        await backend.apply({1: (location("a"),)}, 1)
        forced: list[int] = []
        monkeypatch.setattr(os, "fsync", forced.append)
        await backend.sync([1])
        return len(forced)

    assert with_backend(uri + query, pool, story) == expected


def test_a_barrier_that_fails_says_so(uri: str, pool: BlockingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    async def story(backend: FileBackend) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(StorageError, match="could not be synced"):
                await backend.sync([1])

    with_backend(uri + "?fsync=false", pool, story)


@pytest.mark.parametrize("bad", ["file://host/path", "file://", "redis:///x", "file://relative", "nothing", ""])
def test_a_wrong_uri_is_refused_when_it_is_configured(bad: str, pool: BlockingPool) -> None:
    with pytest.raises(InvalidArgument):
        FileBackend(bad, "i1", RECORDS, pool)


# -- from the configuration --------------------------------------------------------------------------------------------------------------------


def test_the_configuration_names_the_backend(uri: str, pool: BlockingPool) -> None:
    def opened(kind: str, where: str = "") -> object:
        return open_backend(MetaBackendConfig(storage_type=kind, storage_uri=where), "i1", RECORDS, pool)

    assert isinstance(opened("local"), LocalBackend)
    assert isinstance(opened("dummy"), LocalBackend)
    assert isinstance(opened("dummy", uri), FileBackend)
    for kind in ("redis", "cached"):
        assert isinstance(opened(kind, "redis://h/?redis_layout=legacy"), RedisBackend)
    for kind, query in (("async_redis", "async_wait_us=5"), ("cached", "persistent_type=async_redis&cache_type=local")):
        assert isinstance(opened(kind, f"redis://h/?{query}"), WriteBehind)
    for kind, where in (("redis", ""), ("redis", "redis://h/?redis_layout=new"), ("async_redis", "redis://h/?async_drain_ms=0"), ("redis", "redis://h/?x=1")):
        with pytest.raises(InvalidArgument):
            opened(kind, where)
    with pytest.raises(InvalidArgument, match="is unknown"):
        opened("punchcard")


def test_only_stores_with_files_have_left_over_instances(uri: str, pool: BlockingPool) -> None:
    async def story() -> None:
        file = MetaBackendConfig(storage_type="dummy", storage_uri=uri)
        assert await stored_instances(MetaBackendConfig(storage_type="local"), [], pool) == []
        assert await stored_instances(file, [], pool) == []
        for name in ("one", "two"):
            backend = FileBackend(uri, name, RECORDS, pool)
            await backend.open()
            await backend.close()
        assert await stored_instances(file, [(file, "one"), (MetaBackendConfig(storage_type="local"), "two")], pool) == ["two"]

    asyncio.run(story())


def test_the_memory_backend_keeps_nothing_and_says_so() -> None:
    async def story() -> None:
        backend = LocalBackend()
        await backend.open()
        assert await backend.apply({1: (location("a"),)}, 1) == {}
        await backend.sync([1])
        assert [page async for page in backend.load()] == []
        with pytest.raises(StorageError, match="no store to read back"):
            await backend.read([1])
        await backend.close()

    asyncio.run(story())
