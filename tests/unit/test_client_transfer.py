"""Saving and loading bytes: places in files, growth, checksums, errors that name the block, and nothing touched on bad arguments."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcm.client.config import SdkConfig
from kvcm.client.errors import (
    ChecksumMismatch,
    ClientErrorCode,
    InvalidAddress,
    InvalidCall,
    InvalidLocalBuffers,
    InvalidStorageConfig,
    PoolFull,
    ReadFailed,
    TransferTimeout,
    UnknownStorage,
    WriteFailed,
)
from kvcm.client.transfer import TransferClient
from kvcm.client.types import BlockBuffer, Iov, TraceInfo

pytestmark = pytest.mark.unit


def _configs(root: Path) -> str:
    hf = {"mountpoint": str(root / "mnt"), "root_dir": "kv", "cluster_name": ""}
    return json.dumps(
        [
            {"type": "file", "is_available": True, "global_unique_name": "nfs_01", "storage_spec": {"root_path": f"{root}/nfs/"}},
            {"type": "file", "global_unique_name": "bare", "storage_spec": {"root_path": f"{root}/bare"}},
            {"type": "hf3fs", "global_unique_name": "fs", "storage_spec": hf},
            {"type": "vcns_hf3fs", "global_unique_name": "vcns", "storage_spec": {**hf, "root_dir": "vcns"}},
            {"type": "dummy", "global_unique_name": "toy", "storage_spec": {"root_path": f"{root}/toy"}},
            {"type": "mooncake", "global_unique_name": "mc", "storage_spec": {}},
        ]
    )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TransferClient]:
    with TransferClient(_configs(tmp_path), SdkConfig(thread_num=4), instance_id="inst") as made:
        yield made


def _uri(root: Path, name: str, *, size: int = 4096, blkid: int | None = None) -> str:
    block = f"blkid={blkid}&" if blkid is not None else ""
    return f"file://nfs_01{root}/nfs/inst/tp0/{name}?{block}size={size}"


def _tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize(
    "tail",
    [
        "file://nfs_01{r}/nfs/inst/tp0/7b",
        "file://bare{r}/bareinst/tp0/7b",
        "file://bare{r}/bare/x/7b",
        "hf3fs://fs{r}/mnt/kv/i/7b",
        "vcns_hf3fs://vcns{r}/mnt/vcns/i/7b",
        "dummy://toy{r}/toy/i/tp0/7b",
    ],
)
def test_every_file_system_kind_round_trips_at_the_path_of_the_uri(client: TransferClient, tmp_path: Path, tail: str) -> None:
    uri = tail.format(r=tmp_path) + "?size=1000"
    data, out = os.urandom(1000), bytearray(1000)
    saved = client.save_kv_caches([uri], [BlockBuffer.of(data)])
    client.load_kv_caches([uri], [BlockBuffer.of(out)], expected_checksums=saved.checksums)
    assert bytes(out) == data
    assert saved.uris == (uri,)
    assert Path(uri.partition("?")[0].split("://")[1].partition("/")[2].join(["/", ""])).read_bytes() == data


def test_packed_file_grows_as_blocks_arrive_and_keeps_siblings(client: TransferClient, tmp_path: Path) -> None:
    blocks = {index: os.urandom(4096) for index in (5, 0, 3)}
    for index, data in blocks.items():
        client.save_kv_caches([_uri(tmp_path, "pack", blkid=index)], [BlockBuffer.of(data)])
    path = tmp_path / "nfs/inst/tp0/pack"
    assert path.stat().st_size == 6 * 4096
    uris = [_uri(tmp_path, "pack", blkid=index) for index in blocks]
    outs = [bytearray(4096) for _ in blocks]
    client.load_kv_caches(uris, [BlockBuffer.of(out) for out in outs])
    assert [bytes(out) for out in outs] == list(blocks.values())


def test_many_blocks_in_many_files_use_the_pool_and_fsync(tmp_path: Path) -> None:
    size = 1 << 20
    datas = [os.urandom(16) * (size // 16) for _ in range(12)]
    uris = [_uri(tmp_path, f"f{index // 3}", size=size, blkid=index % 3) for index in range(12)]
    with TransferClient(_configs(tmp_path), SdkConfig(thread_num=3, fsync=True, put_timeout_s=60)) as client:
        saved = client.save_kv_caches(uris, [BlockBuffer.of(data) for data in datas])
        outs = [bytearray(size) for _ in datas]
        client.load_kv_caches(uris, [BlockBuffer.of(out) for out in outs], expected_checksums=saved.checksums)
    assert all(bytes(out) == data for out, data in zip(outs, datas, strict=True))
    assert len(set(saved.checksums)) == 12
    assert 0 not in saved.checksums


def test_mmap_memory_works_and_ignored_pieces_leave_holes(client: TransferClient, tmp_path: Path) -> None:
    memory = mmap.mmap(-1, 8192)
    memory[:] = b"\x07" * 8192
    uri = _uri(tmp_path, "m", size=8192)
    view = memoryview(memory)
    saved = client.save_kv_caches([uri], [BlockBuffer.of(view[:4096], Iov(view[4096:6000], ignore=True), view[6000:])])
    assert saved.checksums == (0,)
    assert (tmp_path / "nfs/inst/tp0/m").read_bytes() == b"\x07" * 4096 + bytes(1904) + b"\x07" * 2192


@pytest.mark.parametrize(
    ("uri", "size", "error", "code"),
    [
        ("file://nfs_01{r}/nfs/a?size=8", 9, InvalidLocalBuffers, 108),
        ("file://nfs_01{r}/nfs/a", 8, InvalidAddress, 107),
        ("file://nfs_01{r}/nfs/a?size=x", 8, InvalidAddress, 107),
        ("file://nfs_01{r}/nfs/a?blkid=9223372036854775807&size=8", 8, InvalidAddress, 107),
        ("no-uri", 8, InvalidAddress, 107),
        ("", 8, InvalidAddress, 107),
        ("file://nfs_01{r}/nfs/../a?size=8", 8, InvalidAddress, 107),
        ("file://nfs_01{r}/nfsother/a?size=8", 8, InvalidAddress, 107),
        ("file://nfs_01{r}/nfs/?size=8", 8, InvalidAddress, 107),
        ("file://nfs_01/etc/a?size=8", 8, InvalidAddress, 107),
        ("file://bare{r}/baresecret/a?size=8", 8, InvalidAddress, 107),
        ("dummy://nfs_01{r}/nfs/a?size=8", 8, InvalidAddress, 107),
        ("file://other{r}/nfs/a?size=8", 8, UnknownStorage, 101),
        ("mooncake://mc/?key=a&size=8", 8, UnknownStorage, 101),
    ],
)
def test_INV_C4_a_bad_address_or_size_fails_without_side_effects(
    client: TransferClient, tmp_path: Path, uri: str, size: int, error: type[Exception], code: int
) -> None:
    good = _uri(tmp_path, "good", size=8)
    out = bytearray(b"q" * size)
    with pytest.raises(error) as caught:
        client.save_kv_caches([good, uri.format(r=tmp_path)], [BlockBuffer.of(b"12345678"), BlockBuffer.of(out)])
    assert (caught.value.client_code, caught.value.block_index) == (code, 1)  # type: ignore[attr-defined]
    with pytest.raises(error):
        client.load_kv_caches([good, uri.format(r=tmp_path)], [BlockBuffer.of(bytearray(8)), BlockBuffer.of(out)])
    assert _tree(tmp_path) == []
    assert bytes(out) == b"q" * size


def test_INV_C4_contradicting_arguments_fail_without_side_effects(client: TransferClient, tmp_path: Path) -> None:
    uri, block = _uri(tmp_path, "a", size=8), BlockBuffer.of(bytearray(8))
    refusals: list[tuple[type[Exception], Any]] = [
        (InvalidCall, lambda: client.save_kv_caches([], [])),
        (InvalidCall, lambda: client.save_kv_caches([uri], [block, block])),
        (InvalidCall, lambda: client.save_kv_caches([uri, uri], [block, block])),
        (InvalidCall, lambda: client.save_kv_caches([uri], [block], trace_info=TraceInfo(block_ids=[1, 2]))),
        (InvalidCall, lambda: client.load_kv_caches([uri], [block], expected_checksums=[])),
        (InvalidCall, lambda: client.load_kv_caches([uri], [block], expected_checksums=[1 << 63])),
        (InvalidLocalBuffers, lambda: client.load_kv_caches([uri], [BlockBuffer.of(b"readonly")])),
        (InvalidLocalBuffers, lambda: client.save_kv_caches([uri], [BlockBuffer.of()])),
        (InvalidLocalBuffers, lambda: BlockBuffer.of(memoryview(bytearray(16))[::2])),
    ]
    for error, attempt in refusals:
        with pytest.raises(error):
            attempt()
    assert _tree(tmp_path) == []


def test_reads_of_missing_files_and_beyond_the_end_fail_and_name_the_block(client: TransferClient, tmp_path: Path) -> None:
    client.save_kv_caches([_uri(tmp_path, "p", size=8, blkid=0)], [BlockBuffer.of(b"12345678")])
    out = bytearray(b"........")
    with pytest.raises(ReadFailed, match="ends before") as short:
        client.load_kv_caches(
            [_uri(tmp_path, "p", size=8, blkid=0), _uri(tmp_path, "p", size=8, blkid=1)],
            [BlockBuffer.of(bytearray(8)), BlockBuffer.of(out)],
            trace_info=TraceInfo("req-1", block_ids=["k0", "k1"]),
        )
    assert (short.value.client_code, short.value.block_index) == (ClientErrorCode.SDKREAD_ERROR, 1)
    assert "k1" in short.value.message
    assert "req-1" in short.value.message
    with pytest.raises(ReadFailed, match="does not exist"):
        client.load_kv_caches([_uri(tmp_path, "none", size=8)], [BlockBuffer.of(out)])
    assert out == b"........"


def test_changed_bytes_are_a_checksum_mismatch_and_do_not_reach_the_buffer(client: TransferClient, tmp_path: Path) -> None:
    uri = _uri(tmp_path, "c", size=8)
    saved = client.save_kv_caches([uri], [BlockBuffer.of(b"12345678")])
    (tmp_path / "nfs/inst/tp0/c").write_bytes(b"12345679")
    out = bytearray(b"........")
    with pytest.raises(ChecksumMismatch) as caught:
        client.load_kv_caches([uri], [BlockBuffer.of(out)], expected_checksums=saved.checksums)
    assert caught.value.client_code == 118
    assert out == b"........"
    client.load_kv_caches([uri], [BlockBuffer.of(out)], expected_checksums=[0])
    assert out == b"12345679"


def test_only_regular_files_are_opened(client: TransferClient, tmp_path: Path) -> None:
    folder = tmp_path / "nfs/inst/tp0"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    (tmp_path / "outside").write_bytes(b"precious")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "dir").mkdir()
    for name in ("pipe", "link", "dir"):
        with pytest.raises(WriteFailed):
            client.save_kv_caches([_uri(tmp_path, name, size=8)], [BlockBuffer.of(b"12345678")])
        with pytest.raises(ReadFailed):
            client.load_kv_caches([_uri(tmp_path, name, size=8)], [BlockBuffer.of(bytearray(8))])
    assert (tmp_path / "outside").read_bytes() == b"precious"


def test_short_writes_are_continued_and_a_full_device_is_an_error(client: TransferClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: real(fd, [views[0][:3]], at))
    client.save_kv_caches([_uri(tmp_path, "s", size=10)], [BlockBuffer.of(b"01", b"23456", b"789")])
    assert (tmp_path / "nfs/inst/tp0/s").read_bytes() == b"0123456789"
    answers = iter([3, 0])
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: next(answers))
    with pytest.raises(WriteFailed, match="no more bytes"):
        client.save_kv_caches([_uri(tmp_path, "t", size=10)], [BlockBuffer.of(b"0123456789")])


class _Time:
    """Stands still until something hangs; from then on each look at it costs 20 ms."""

    def __init__(self) -> None:
        self.value = 100.0
        self.step = 0.0

    def __call__(self) -> float:
        self.value += self.step
        return self.value


class _Hang:
    """Replaces a file operation by one that waits until it is let go."""

    def __init__(self, real: Any, clock: _Time | None = None) -> None:
        self.real = real
        self.clock = clock or _Time()
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        self.clock.step = 0.02
        self.entered.release()
        assert self.go.wait(30)
        return self.real(*args)


def test_INV_C5_a_load_that_timed_out_leaves_the_buffer_alone_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = _uri(tmp_path, "h", size=8)
    clock = _Time()
    client = TransferClient(_configs(tmp_path), now=clock)
    client.save_kv_caches([uri], [BlockBuffer.of(b"12345678")])
    hang = _Hang(os.preadv, clock)
    monkeypatch.setattr(os, "preadv", hang)
    out = bytearray(b"........")
    with pytest.raises(TransferTimeout) as caught:
        client.load_kv_caches([uri], [BlockBuffer.of(out)], deadline_s=100.05)
    assert (caught.value.client_code, caught.value.block_index) == (100, 0)
    assert hang.entered.acquire(timeout=30)
    hang.go.set()
    client.close(30)
    assert out == b"........"


def test_INV_C5_holds_for_an_await_that_is_cancelled(client: TransferClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = _uri(tmp_path, "h", size=8)
    client.save_kv_caches([uri], [BlockBuffer.of(b"12345678")])
    hang = _Hang(os.preadv)
    monkeypatch.setattr(os, "preadv", hang)
    out = bytearray(b"........")

    async def run() -> None:
        task = asyncio.create_task(client.load_kv_caches_async([uri], [BlockBuffer.of(out)]))
        await asyncio.to_thread(hang.entered.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    hang.go.set()
    client.close(30)
    assert out == b"........"


def test_a_late_save_starts_no_further_block_and_waiting_tasks_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Time()
    hang = _Hang(os.pwritev, clock)
    monkeypatch.setattr(os, "pwritev", hang)
    client = TransferClient(_configs(tmp_path), SdkConfig(thread_num=1, queue_size=1, put_timeout_s=0.05), now=clock)
    uris = [_uri(tmp_path, name, size=8) for name in ("a", "b")]
    with pytest.raises(TransferTimeout, match="0 of 2"):
        client.save_kv_caches(uris, [BlockBuffer.of(b"12345678")] * 2)
    assert hang.entered.acquire(timeout=30)
    with pytest.raises(TransferTimeout):
        client.save_kv_caches([_uri(tmp_path, "c", size=8)], [BlockBuffer.of(b"12345678")])
    with pytest.raises(PoolFull) as full:
        client.save_kv_caches([_uri(tmp_path, "d", size=8)], [BlockBuffer.of(b"12345678")])
    assert full.value.client_code == 10
    hang.go.set()
    client.close(30)
    assert hang.calls == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a"]


def test_a_deadline_in_the_past_touches_nothing(client: TransferClient, tmp_path: Path) -> None:
    with pytest.raises(TransferTimeout):
        client.save_kv_caches([_uri(tmp_path, "a", size=8)], [BlockBuffer.of(b"12345678")], deadline_s=0.0)
    client.close(30)
    assert _tree(tmp_path) == []


def test_a_closed_client_refuses_and_waiting_calls_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = _Hang(os.pwritev)
    monkeypatch.setattr(os, "pwritev", hang)
    client = TransferClient(_configs(tmp_path), SdkConfig(thread_num=1, put_timeout_s=30))
    ends: list[BaseException | None] = []

    def save(name: str) -> None:
        try:
            client.save_kv_caches([_uri(tmp_path, name, size=8)], [BlockBuffer.of(b"12345678")])
            ends.append(None)
        except PoolFull as error:
            ends.append(error)

    first = threading.Thread(target=save, args=("a",))
    first.start()
    assert hang.entered.acquire(timeout=30)
    second = threading.Thread(target=save, args=("b",))
    second.start()
    while not client._pool._queue:
        pass
    client.close(0)
    second.join(30)
    assert [type(end) for end in ends] == [PoolFull]
    hang.go.set()
    first.join(30)
    assert ends[1] is None
    with pytest.raises(PoolFull):
        client.save_kv_caches([_uri(tmp_path, "c", size=8)], [BlockBuffer.of(b"12345678")])


def test_async_calls_give_the_same_results_and_errors(client: TransferClient, tmp_path: Path) -> None:
    uri, out = _uri(tmp_path, "a", size=8), bytearray(8)

    async def run() -> None:
        saved = await client.save_kv_caches_async([uri], [BlockBuffer.of(b"12345678")])
        await client.load_kv_caches_async([uri], [BlockBuffer.of(out)], expected_checksums=saved.checksums)
        with pytest.raises(ReadFailed):
            await client.load_kv_caches_async([_uri(tmp_path, "no", size=8)], [BlockBuffer.of(out)])
        with pytest.raises(TransferTimeout):
            await client.load_kv_caches_async([uri], [BlockBuffer.of(out)], deadline_s=0.0)

    asyncio.run(run())
    assert out == b"12345678"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "nonsense",
        '[{"type":"file"}]',
        '[{"type":"file","global_unique_name":"a"}]',
        '[{"type":"file","global_unique_name":"a","storage_spec":{"root_path":"relative"}}]',
        '[{"type":"file","global_unique_name":"a","storage_spec":{"root_path":"/a/../b"}}]',
        '[{"type":"file","global_unique_name":"a","storage_spec":{"root_path":3}}]',
        '[{"type":"mooncake","global_unique_name":"a"},{"type":"pace","global_unique_name":"a"}]',
    ],
)
def test_unusable_storage_lists_are_refused_with_a_sentence(text: str) -> None:
    if not text:
        with TransferClient(text) as client, pytest.raises(UnknownStorage):
            client.load_kv_caches(["file://a/b?size=1"], [BlockBuffer.of(bytearray(1))])
        return
    with pytest.raises(InvalidStorageConfig) as caught:
        TransferClient(text)
    assert caught.value.client_code == 6
    assert "storage_configs" in caught.value.message
