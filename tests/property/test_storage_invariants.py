"""Invariants I-DS-1 to I-DS-6 of the data storage layer, over real files in temporary folders."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.clock import FakeClock
from kvcm.common.ids import SeededIds
from kvcm.common.uri import parse_uri
from kvcm.data_storage.dummy import DummyBackend
from kvcm.data_storage.factory import open_backend
from kvcm.data_storage.filesystem import FileSystemBackend
from kvcm.data_storage.layout import file_layout, hf3fs_layout
from kvcm.data_storage.ledger import PackLedger
from kvcm.data_storage.manager import DataStorageManager, host_of
from kvcm.data_storage.model import DummySpec, Hf3fsSpec, NfsSpec, Storage, StorageType
from kvcm.data_storage.pool import BlockingPool
from kvcm.data_storage.port import AllocationFailed, AllocationItem, Truth
from kvcm.data_storage.testing import FaultyFs

pytestmark = pytest.mark.property

SENTINEL = ".kvcm-storage.json"
POOL = BlockingPool(threads=2, name="property-io")
KINDS = (StorageType.NFS, StorageType.HF3FS, StorageType.DUMMY)

names = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8)
keys = st.integers(min_value=0, max_value=2**64 - 1)
items = st.lists(st.builds(lambda spec, key, size: AllocationItem(f"i/{spec}/{key:x}", size), st.sampled_from("tu"), keys, st.sampled_from([8, 64])))


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


@contextmanager
def backend_of(kind: StorageType, per_file: int) -> Iterator[tuple[FileSystemBackend, FaultyFs, Path]]:
    fs, clock, ids = FaultyFs(), FakeClock(), SeededIds(1)
    with tempfile.TemporaryDirectory() as folder:
        if kind is StorageType.DUMMY:
            storage = Storage("s", kind, DummySpec(folder, per_file))
            backend: FileSystemBackend = DummyBackend(storage, POOL, clock, ids, fs=fs)
        elif kind is StorageType.HF3FS:
            storage = Storage("s", kind, Hf3fsSpec(folder, "kv", "", per_file))
            backend = FileSystemBackend(storage, hf3fs_layout(storage), POOL, clock, ids, fs=fs)
        else:
            storage = Storage("s", kind, NfsSpec(f"{folder}/", per_file))
            backend = FileSystemBackend(storage, file_layout(storage), POOL, clock, ids, fs=fs)
        yield backend, fs, Path(folder, "kv") if kind is StorageType.HF3FS else Path(folder)


def write(uri: str, data: bytes) -> None:
    parsed = parse_uri(uri)
    os.makedirs(os.path.dirname(parsed.path), exist_ok=True)
    fd = os.open(parsed.path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, data, parsed.block_index() * parsed.size())
    finally:
        os.close(fd)


def read(uri: str) -> bytes:
    parsed = parse_uri(uri)
    try:
        fd = os.open(parsed.path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, parsed.size(), parsed.block_index() * parsed.size())
    finally:
        os.close(fd)


@given(hosts=st.lists(st.sampled_from(["a", "b", "nobody", ""]), max_size=12), junk=st.lists(st.text(max_size=20), max_size=4), remove=st.booleans())
@settings(deadline=None, max_examples=30)
def test_I_DS_1_answers_have_the_length_of_the_question(hosts: list[str], junk: list[str], remove: bool) -> None:
    async def story(folder: str) -> None:
        clock, ids = FakeClock(), SeededIds(1)
        manager = DataStorageManager(lambda storage: open_backend(storage, POOL, clock, ids), clock, ids)
        for name in ("a", "b"):
            await manager.add(Storage(name, StorageType.NFS, NfsSpec(f"{folder}/{name}/")))
        asked = [f"file://{host}{folder}/{host}/i/t/{index:x}?size=8" for index, host in enumerate(hosts)] + junk
        if remove:
            await manager.remove("b")
        expected = [Truth.ABSENT if host_of(uri) == "a" or (host_of(uri) == "b" and not remove) else Truth.UNKNOWN for uri in asked[: len(hosts)]]
        for answers in (await manager.probe(asked), await manager.delete(asked)):
            assert len(answers) == len(asked)
            assert answers[: len(hosts)] == expected
            assert answers[len(hosts) :] == [Truth.UNKNOWN] * len(junk)

    with tempfile.TemporaryDirectory() as folder:
        run(story(folder))


@given(kind=st.sampled_from(KINDS), per_file=st.sampled_from([1, 3]), written=st.lists(st.booleans(), min_size=1, max_size=7), again=st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_I_DS_2_deleting_is_idempotent_and_absence_is_success(kind: StorageType, per_file: int, written: list[bool], again: int) -> None:
    async def story() -> None:
        with backend_of(kind, per_file) as (backend, _, _root):
            await backend.open()
            uris = await backend.allocate([AllocationItem(f"i/t/{index:x}", 64) for index in range(len(written))], SeededIds(2))
            for uri, there in zip(uris, written, strict=True):
                if there:
                    write(uri, b"x" * 64)
            for _ in range(1 + again):
                assert await backend.delete(uris) == [Truth.ABSENT] * len(uris)
            assert not any(os.path.exists(parse_uri(uri).path) for uri in uris)

    run(story())


class Packed:
    """Packed files, their live bytes, and what was deleted with proof."""

    def __init__(self, backend: FileSystemBackend) -> None:
        self.backend = backend
        self.live: dict[str, bytes] = {}
        self.doomed: set[str] = set()
        self.serial = 0
        self.ids = SeededIds(4)

    async def allocate(self, count: int, size: int) -> None:
        uris = await self.backend.allocate([AllocationItem(f"i/t/{self.serial + index:x}", size) for index in range(count)], self.ids)
        for uri in uris:
            self.serial += 1
            data = (self.serial.to_bytes(4, "big") + b"\xa5" * size)[:size]
            write(uri, data)
            self.live[uri] = data

    async def delete(self, picks: list[int]) -> None:
        every = sorted({*self.live, *self.doomed})
        chosen = sorted({every[pick % len(every)] for pick in picks}) if every else []
        for uri in chosen:
            self.live.pop(uri, None)
            self.doomed.add(uri)
        for uri, truth in zip(chosen, await self.backend.delete(chosen), strict=True):
            if truth is Truth.ABSENT:
                assert not any(read(uri)), "an absence was claimed while bytes remain"
                self.doomed.discard(uri)

    def check(self) -> None:
        for uri, data in self.live.items():
            assert read(uri) == data


steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 6), st.sampled_from([100, 4096, 6000])),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 40), min_size=1, max_size=5), st.none()),
        st.tuples(st.just("fault"), st.sampled_from(["punch", "unlink", "stat", "seek_data"]), st.sampled_from([errno.EIO, errno.EOPNOTSUPP])),
        st.tuples(st.just("heal"), st.none(), st.none()),
        st.tuples(st.just("restart"), st.booleans(), st.none()),
    ),
    max_size=14,
)


@given(kind=st.sampled_from(KINDS), per_file=st.integers(2, 5), steps=steps)
@settings(deadline=None, max_examples=80)
def test_I_DS_3_a_deletion_never_touches_a_sibling(kind: StorageType, per_file: int, steps: list[tuple[str, Any, Any]]) -> None:
    async def story() -> None:
        with backend_of(kind, per_file) as (backend, fs, _):
            await backend.open()
            world = Packed(backend)
            for action, first, second in steps:
                if action == "allocate":
                    await world.allocate(first, second)
                elif action == "delete":
                    await world.delete(first)
                elif action == "fault":
                    fs.fail(first, second)
                elif action == "heal":
                    for call in ("punch", "unlink", "stat", "seek_data"):
                        fs.on(call, None)
                else:
                    # A new process knows only what recovery tells it: all records, or (nothing adopted yet) none.
                    backend._ledger = PackLedger()
                    backend.inherit(backend)
                    if first:
                        backend.adopt(sorted({*world.live, *world.doomed}))
                world.check()
            for call in ("punch", "unlink", "stat", "seek_data"):
                fs.on(call, None)
            await world.delete(list(range(len(world.live) + len(world.doomed))))
            assert not world.doomed
            assert len(backend._ledger) == 0

    run(story())


@given(
    kind=st.sampled_from(KINDS),
    blocks=st.lists(st.booleans(), min_size=1, max_size=6),
    mishap=st.sampled_from(["none", "unmounted", "emptied", "no sentinel", "EIO", "ESTALE"]),
    when=st.sampled_from(["before", "during"]),
)
@settings(deadline=None, max_examples=80)
def test_I_DS_4_absent_is_said_only_of_what_is_absent_under_the_right_root(kind: StorageType, blocks: list[bool], mishap: str, when: str) -> None:
    async def story() -> None:
        with backend_of(kind, 1) as (backend, fs, root):
            await backend.open()
            uris = await backend.allocate([AllocationItem(f"i/t/{index:x}", 64) for index in range(len(blocks))], SeededIds(2))
            for uri, there in zip(uris, blocks, strict=True):
                if there:
                    write(uri, b"x" * 64)

            def strike(_: str = "") -> None:
                fs.on("open_dir", None)
                if mishap in ("unmounted", "emptied"):
                    root.rename(f"{root}.aside")
                if mishap == "emptied":
                    root.mkdir()
                if mishap == "no sentinel":
                    (root / SENTINEL).rename(root / "aside")
                if mishap in ("EIO", "ESTALE"):
                    fs.fail("open_root", getattr(errno, mishap))

            if when == "before":
                strike()
            else:
                fs.on("open_dir", strike)
            answers = await backend.probe(uris)
            if mishap == "none":
                assert answers == [Truth.PRESENT if there else Truth.ABSENT for there in blocks]
            else:
                assert Truth.ABSENT not in answers
            for answer, there in zip(answers, blocks, strict=True):
                assert not (answer is Truth.ABSENT and there)
            if mishap in ("unmounted", "emptied"):
                if mishap == "emptied":
                    root.rmdir()
                os.rename(f"{root}.aside", root)

    run(story())


@given(kind=st.sampled_from(KINDS), per_file=st.integers(-1, 5), items=items)
@settings(deadline=None, max_examples=60)
def test_I_DS_5_each_place_routes_back_and_has_the_requested_size(kind: StorageType, per_file: int, items: list[AllocationItem]) -> None:
    async def story() -> None:
        with backend_of(kind, per_file) as (backend, _, root):
            await backend.open()
            uris = await backend.allocate(items, SeededIds(2))
            assert len(uris) == len(items)
            files: dict[str, set[int]] = {}
            sizes: dict[str, set[int]] = {}
            for item, uri in zip(items, uris, strict=True):
                parsed = parse_uri(uri)
                assert str(parsed) == uri
                assert (parsed.scheme, parsed.host, parsed.size()) == (kind.type_name, "s", item.size)
                assert parsed.path.startswith(f"{root}/i/")
                assert ("blkid" in parsed.params) is (per_file > 1)
                assert 0 <= parsed.block_index() < max(1, per_file)
                files.setdefault(parsed.path, set()).add(parsed.block_index())
                sizes.setdefault(parsed.path, set()).add(item.size)
            # Unequal sizes never share a file: a client's offset is blkid * size.
            if kind is not StorageType.DUMMY:
                assert sum(map(len, files.values())) == len(items)
                assert all(len(found) == 1 for found in sizes.values())
            assert await backend.probe(uris) == [Truth.ABSENT] * len(uris)

    run(story())


@given(key=st.lists(names, min_size=1, max_size=4).map("/".join) | st.text(max_size=30), per_file=st.sampled_from([1, 4]))
@settings(deadline=None, max_examples=100)
def test_I_DS_5_any_key_text_is_refused_or_stays_below_the_root(key: str, per_file: int) -> None:
    layout = file_layout(Storage("s", StorageType.NFS, NfsSpec("/root/kv/", per_file)))
    try:
        (uri,) = layout.namer().allocate([AllocationItem(key, 8)], SeededIds(1)).uris
    except AllocationFailed:
        return
    parsed = parse_uri(uri)
    assert str(parsed) == uri
    assert os.path.normpath(parsed.path) == parsed.path
    assert parsed.path.startswith("/root/kv/")


@given(per_file=st.integers(1, 4), rounds=st.integers(2, 5), count=st.integers(1, 9))
@settings(deadline=None, max_examples=30)
def test_I_DS_6_a_key_that_is_allocated_again_gets_another_identity(per_file: int, rounds: int, count: int) -> None:
    async def story() -> None:
        with backend_of(StorageType.NFS, per_file) as (backend, _, _root):
            await backend.open()
            ids = SeededIds(2)
            block = [AllocationItem(f"i/t/{index:x}", 8) for index in range(count)]
            seen: set[str] = set()
            for _ in range(rounds):
                paths = {parse_uri(uri).path for uri in await backend.allocate(block, ids)}
                assert not paths & seen
                seen |= paths
        with backend_of(StorageType.DUMMY, per_file) as (backend, _, _root):
            # The kind that cannot keep this says so, and the manager then counts DELETING as present.
            assert backend.traits.unique_paths is False

    run(story())


@given(
    steps=st.lists(st.tuples(st.sampled_from(["allocate", "adopt", "dying", "release"]), st.sampled_from("fg"), st.integers(0, 4)), max_size=30),
)
@settings(deadline=None, max_examples=100)
def test_I_DS_3_the_ledger_never_licenses_an_unlink_over_a_live_slot(steps: list[tuple[str, str, int]]) -> None:
    ledger = PackLedger()
    live: dict[str, set[int]] = {"f": set(), "g": set()}
    dying: dict[str, set[int]] = {"f": set(), "g": set()}
    for action, path, slot in steps:
        if action == "allocate":
            ledger.allocate([(path, slot + 1)])
            live[path] |= set(range(slot + 1))
            dying[path] -= set(range(slot + 1))
        elif action == "adopt":
            ledger.adopt([(path, slot)])
            live[path].add(slot)
        elif action == "dying":
            state = ledger.mark_dying(path, slot)
            dying[path] |= {slot} & live[path]
            assert state.known is bool(live[path])
            assert state.all_dying is (state.known and live[path] <= dying[path])
        else:
            ledger.release(path, slot)
            live[path].discard(slot)
            dying[path].discard(slot)
        for name in "fg":
            assert ledger.live_slots(name) == sum(1 << number for number in live[name] - dying[name])
    assert len(ledger) == sum(1 for slots in live.values() if slots)
