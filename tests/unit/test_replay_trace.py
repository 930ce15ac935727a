"""The trace reader: what it accepts, what it refuses with which line, and the packaged trace (INV-T1, T2, T3, T5)."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from importlib import resources
from pathlib import Path

import pytest

from kvcm.client.replay import BLOCK_TOKENS, PrefixOracle, TraceError, TraceRequest, read_trace
from kvcm.client.replay.trace import MAX_LINE_BYTES

pytestmark = pytest.mark.unit

REQUESTS = 12_031
HIT_BLOCKS = 105_592
TOTAL_BLOCKS = 276_491
DISTINCT_BLOCKS = 170_899
INPUT_TOKENS = 144_793_823


def record(tokens: int, ids: list[int], timestamp: int = 0, output: int = 1) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": ids}


def trace_file(folder: Path, *records: object, name: str = "t.jsonl") -> str:
    path = folder / name
    path.write_text("".join(f"{json.dumps(item)}\n" for item in records))
    return str(path)


@pytest.fixture(scope="module")
def conversation() -> list[TraceRequest]:
    return list(read_trace("conversation"))


def test_a_request_keeps_its_complete_blocks_in_order(tmp_path: Path) -> None:
    source = trace_file(tmp_path, record(1100, [7, 3, 9], timestamp=5, output=42), record(1024, [7, 3], timestamp=5), record(511, [8], timestamp=6))

    assert list(read_trace(source)) == [
        TraceRequest(1, 5, 1100, 42, (7, 3)),
        TraceRequest(2, 5, 1024, 1, (7, 3)),
        TraceRequest(3, 6, 511, 1, ()),
    ]


def test_the_partial_block_may_be_missing_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"\n{json.dumps(record(1100, [7, 3]))}\n  \n{json.dumps(record(600, [7]))}")

    assert [(request.line, request.keys) for request in read_trace(str(path))] == [(2, (7, 3)), (4, (7,))]


def test_compressed_files_read_as_plain_ones(tmp_path: Path) -> None:
    plain = Path(trace_file(tmp_path, *(record(600, [1, number], timestamp=number) for number in range(2, 30))))
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "t.jsonl.xz").write_bytes(lzma.compress(plain.read_bytes()))

    expected = list(read_trace(str(plain)))
    assert len(expected) == 28
    assert list(read_trace(f"{plain}.gz")) == expected
    assert list(read_trace(f"{plain}.xz")) == expected


def test_a_limit_ends_the_reading_before_later_faults(tmp_path: Path) -> None:
    source = trace_file(tmp_path, record(512, [1]), record(512, [2]), "no request")

    assert [request.keys for request in read_trace(source, limit=2)] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"timestamp": 0, "output_length": 1, "hash_ids": []}', "input_length must be a whole number"),
        (json.dumps({**record(512, [1]), "timestamp": 1.5}), "timestamp must be a whole number"),
        (json.dumps({**record(512, [1]), "timestamp": True}), "timestamp must be a whole number"),
        (json.dumps({**record(512, [1]), "output_length": -1}), "output_length must be a whole number from 0"),
        (json.dumps(record(1 << 31, [1])), "input_length must be a whole number"),
        (json.dumps({**record(512, [1]), "hash_ids": {"a": [1]}}), "hash_ids must be a list"),
        (json.dumps({**record(512, [1]), "hash_ids": ["1"]}), "every entry of hash_ids"),
        (json.dumps({**record(512, [1]), "hash_ids": [True]}), "every entry of hash_ids"),
        (json.dumps(record(512, [1 << 63])), "at most 64 bits"),
        (json.dumps(record(1100, [1])), "needs 2 or 3 hash_ids in blocks of 512 tokens, but there are 1"),
        (json.dumps(record(1024, [1, 2, 3])), "needs 2 hash_ids"),
        (json.dumps(record(1536, [1, 2, 1])), "occurs twice"),
        (json.dumps(record(512, [1], timestamp=9)), "its timestamp 9 is smaller than 10 before it"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_reason(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(record(512, [1], timestamp=10))}\n{line}\n")
    reader = read_trace(str(path))

    assert next(reader).keys == (1,)
    with pytest.raises(TraceError, match=r"^line 2 of the trace: .*" + why) as raised:
        next(reader)
    assert raised.value.line == 2


def test_bytes_that_are_no_text_and_endless_lines_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe{}\n")
    endless = tmp_path / "endless.jsonl"
    endless.write_bytes(b" " * (MAX_LINE_BYTES + 1))

    with pytest.raises(TraceError, match="line 1 of the trace: it is not UTF-8 text"):
        list(read_trace(str(binary)))
    with pytest.raises(TraceError, match=f"line 1 of the trace: it is longer than {MAX_LINE_BYTES} bytes"):
        list(read_trace(str(endless)))


@pytest.mark.parametrize("suffix", ["gz", "xz"])
@pytest.mark.parametrize("damage", ["cut", "rotten", "foreign"])
def test_a_damaged_compressed_file_is_refused(tmp_path: Path, suffix: str, damage: str) -> None:
    text = Path(trace_file(tmp_path, *(record(600, [1, number]) for number in range(2, 3000)))).read_bytes()
    packed = gzip.compress(text) if suffix == "gz" else lzma.compress(text)
    if damage == "cut":
        packed = packed[: len(packed) // 2]
    elif damage == "rotten":
        packed = packed[:200] + bytes(100) + packed[300:]
    else:
        packed = text
    path = tmp_path / f"broken.jsonl.{suffix}"
    path.write_bytes(packed)

    with pytest.raises(TraceError, match=r"is damaged or cut off after line \d+"):
        list(read_trace(str(path)))


def test_unknown_sources_say_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot be opened: No such file or directory \(packaged traces: conversation\)"):
        next(read_trace(str(tmp_path / "none.jsonl")))
    with pytest.raises(TraceError, match=r"must be a file ending in \.jsonl"):
        next(read_trace("talk"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(TraceError, match="cannot be opened: Is a directory"):
        next(read_trace(str(tmp_path / "folder.jsonl")))
    with pytest.raises(TraceError, match="not a file name"):
        next(read_trace("a\0b.jsonl"))


def test_the_packaged_trace_is_the_published_one_with_its_licence() -> None:
    folder = resources.files("kvcm").joinpath("traces")
    packed = folder.joinpath("mooncake_conversation.jsonl.xz").read_bytes()
    notice = folder.joinpath("NOTICE.md").read_text()

    assert len(packed) < 1_500_000
    assert hashlib.sha256(lzma.decompress(packed)).hexdigest() in notice
    assert "github.com/kvcache-ai/Mooncake" in notice
    assert "Apache License" in folder.joinpath("LICENSE-Apache-2.0.txt").read_text()


def test_INV_T1_keys_are_complete_distinct_and_form_a_tree(conversation: list[TraceRequest]) -> None:
    parents: dict[int, int | None] = {}
    before = 0
    for request in conversation:
        assert len(request.keys) == request.input_tokens // BLOCK_TOKENS
        assert len(set(request.keys)) == len(request.keys)
        assert request.timestamp_ms >= before
        before = request.timestamp_ms
        for parent, key in zip((None, *request.keys), request.keys, strict=False):
            assert parents.setdefault(key, parent) == parent
    assert len(conversation) == REQUESTS
    assert len(parents) == DISTINCT_BLOCKS


def test_INV_T2_token_sums_and_order_survive_reading(conversation: list[TraceRequest]) -> None:
    text = lzma.decompress(resources.files("kvcm").joinpath("traces", "mooncake_conversation.jsonl.xz").read_bytes())
    raw = [json.loads(line) for line in text.splitlines()]

    assert [(item["timestamp"], item["input_length"], item["output_length"]) for item in raw] == [
        (request.timestamp_ms, request.input_tokens, request.output_tokens) for request in conversation
    ]
    assert sum(request.input_tokens for request in conversation) == INPUT_TOKENS
    assert list(read_trace("conversation")) == conversation


def test_INV_T3_the_oracle_gives_the_published_hits_of_the_conversation_trace(conversation: list[TraceRequest]) -> None:
    seen: set[int] = set()
    expected = []
    for request in conversation:
        expected.append(next((at for at, key in enumerate(request.keys) if key not in seen), len(request.keys)))
        seen |= set(request.keys)
    oracle = PrefixOracle()

    assert [oracle.hits(request.keys) for request in conversation] == expected
    assert sum(expected) == HIT_BLOCKS
    assert sum(len(request.keys) for request in conversation) == TOTAL_BLOCKS
    assert len(oracle.distinct_keys) == DISTINCT_BLOCKS
    assert f"{HIT_BLOCKS * BLOCK_TOKENS / INPUT_TOKENS:.2%}" == "37.34%"


def test_INV_T5_prefix_hits_equal_the_comparison_of_whole_prefixes(conversation: list[TraceRequest]) -> None:
    whole: set[tuple[int, ...]] = set()
    oracle = PrefixOracle()
    for request in conversation[:1500]:
        prefixes = [request.keys[: count + 1] for count in range(len(request.keys))]
        run = next((at for at, prefix in enumerate(prefixes) if prefix not in whole), len(prefixes))
        single = oracle.hits(request.keys)
        assert single == run
        whole.update(prefixes)
