"""Invariants INV-C3, INV-C4 and INV-C5 of the client on generated inputs."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.client.config import SdkConfig
from kvcm.client.errors import ClientError, TransferTimeout
from kvcm.client.transfer import TransferClient, block_checksum, file_io
from kvcm.client.transfer.call import TransferCall
from kvcm.client.types import BlockBuffer, Iov

pytestmark = pytest.mark.property

_STORE = '[{"type":"file","global_unique_name":"s","storage_spec":{"root_path":"%s/"}}]'


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@settings(deadline=None, max_examples=60)
@given(
    data=st.binary(min_size=1, max_size=600),
    save_cuts=st.lists(st.integers(0, 600), max_size=6),
    load_cuts=st.lists(st.tuples(st.integers(0, 600), st.booleans()), max_size=6),
    blkid=st.integers(0, 5),
    chunk=st.integers(1, 64),
)
def test_INV_C3_any_partition_gives_the_same_bytes_and_ignored_pieces_stay(
    data: bytes, save_cuts: list[int], load_cuts: list[tuple[int, bool]], blkid: int, chunk: int
) -> None:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_io, "CHUNK_BYTES", chunk)
        uri = f"file://s{root}/i/f?blkid={blkid}&size={len(data)}"
        with TransferClient(_STORE % root, SdkConfig(thread_num=1, put_timeout_s=60, get_timeout_s=60)) as client:
            saved = client.save_kv_caches([uri], [BlockBuffer.of(*_cut(data, save_cuts))])
            assert saved.checksums == (block_checksum([data]),)
            flags = [ignore for _, ignore in load_cuts] + [False]
            pieces = _cut(data, [cut for cut, _ in load_cuts])
            memories = [bytearray(b"\xaa" * len(piece)) for piece in pieces]
            buffer = BlockBuffer(tuple(Iov(memory, ignore=flag) for memory, flag in zip(memories, flags, strict=True)))
            client.load_kv_caches([uri], [buffer], expected_checksums=saved.checksums)
    for piece, memory, flag in zip(pieces, memories, flags, strict=True):
        assert bytes(memory) == (b"\xaa" * len(piece) if flag else piece)


@settings(deadline=None, max_examples=100)
@given(
    host=st.sampled_from(["s", "t", "", "s.", "S"]),
    path=st.text("ab./\0", max_size=12),
    query=st.sampled_from(["size=8", "size=7", "size=", "size=-8", "", "blkid=x&size=8", "blkid=99999999999999999999&size=8", "size=0"]),
    scheme=st.sampled_from(["file", "dummy", "hf3fs", ""]),
)
def test_INV_C4_a_call_is_refused_whole_or_stays_below_the_root(host: str, path: str, query: str, scheme: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        root = Path(top) / "root"
        out = bytearray(b"........")
        with TransferClient(_STORE % root, SdkConfig(thread_num=1, put_timeout_s=60)) as client:
            try:
                client.save_kv_caches([f"{scheme}://{host}{root}/{path}?{query}"], [BlockBuffer.of(out)])
            except ClientError as error:
                if error.client_code != 105:
                    assert list(Path(top).iterdir()) == []
        assert {entry.name for entry in Path(top).iterdir()} <= {"root"}
        assert out == b"........"
        assert all(item.stat().st_size == 8 for item in Path(top).rglob("*") if item.is_file())


_STEP = st.one_of(
    st.tuples(st.just("copy"), st.integers(0, 3)),
    st.tuples(st.just("advance"), st.integers(1, 5)),
    st.tuples(st.just("return"), st.just(0)),
)


@settings(deadline=None, max_examples=100)
@given(steps=st.lists(_STEP, max_size=20), deadline=st.integers(1, 10))
def test_INV_C5_no_byte_changes_after_the_deadline_or_the_return(steps: list[tuple[str, int]], deadline: int) -> None:
    now = 0.0
    call = TransferCall("load", blocks=4, tasks=2, deadline_s=float(deadline), now=lambda: now)
    memory = bytearray(4)
    returned = False

    def copy_into(block: int) -> None:
        memory[block] += 1

    for kind, value in steps:
        before = bytes(memory)
        if kind == "copy":
            touched = call.copy_out(lambda block=value: copy_into(block))  # type: ignore[misc]
            assert touched == (not returned and now < deadline)
            assert touched == (bytes(memory) != before)
        elif kind == "advance":
            now += value
        elif now >= deadline and not returned:
            with pytest.raises(TransferTimeout):
                call.wait()
            returned = True
            assert bytes(memory) == before


@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5), flip=st.integers(0, 8 * 300))
def test_I_DI_2_checksum_is_never_zero_independent_of_cuts_and_sees_every_flipped_bit(data: bytes, cuts: list[int], flip: int) -> None:
    value = block_checksum([data])
    assert value == block_checksum(_cut(data, cuts))
    assert value != 0
    assert -(1 << 63) <= value < 1 << 63
    if data:
        changed = bytearray(data)
        changed[flip // 8 % len(data)] ^= 1 << flip % 8
        assert block_checksum([changed]) != value


def test_checksum_of_known_bytes_is_fixed() -> None:
    assert block_checksum([b"123456789"]) == 0x091E01DE << 32 | 0xCBF43926
    assert json.loads(json.dumps(block_checksum([b""]))) == 1 << 32
