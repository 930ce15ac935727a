"""What a replay counts, notices and cleans up, against a manager and a store in memory (INV-T3, T4)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from kvcm.client.errors import ChecksumMismatch, InvalidAddress, ReadFailed, ServiceFull, ServiceInternal, WriteFailed
from kvcm.client.replay import PrefixOracle, Replay, ReplayFailed, ReplayReport, TraceRequest, block_content, read_trace
from kvcm.client.transfer import block_checksum
from kvcm.client.types import BlockBuffer, BlockMask, Location, LocationSpec, MatchResult, QueryType, SaveResult, WriteLocation
from kvcm.common.errors import InvalidArgument

pytestmark = pytest.mark.unit

SIZE = 64


def request(*keys: int, line: int = 1, extra_tokens: int = 0) -> TraceRequest:
    return TraceRequest(line, 0, 512 * len(keys) + extra_tokens, 1, keys)


# Hits of an empty cache: 0, 2, 0 (its key 1 is not leading), 3, none (no complete block).
SMALL = [request(1, 2, 3), request(1, 2, 4, extra_tokens=100), request(9, 1), request(1, 2, 4), request(extra_tokens=30)]


@dataclass
class FakeMeta:
    served: dict[int, int] = field(default_factory=dict)
    sessions: dict[str, list[int]] = field(default_factory=dict)
    finished: list[tuple[str, int]] = field(default_factory=list)
    asked: list[tuple[int, ...]] = field(default_factory=list)
    full_from: int | None = None
    broken: bool = False
    on_match: threading.Barrier | None = None

    def match_location(self, query_type: QueryType, keys: Sequence[int], *, want_checksums: bool) -> MatchResult:
        assert query_type is QueryType.PREFIX_MATCH
        self.asked.append(tuple(keys))
        if self.on_match is not None:
            self.on_match.wait(10)
        if self.broken:
            raise ServiceInternal("the manager refused GetCacheLocation: out of order")
        found = []
        for key in keys:
            if key not in self.served:
                break
            found.append(key)
        sums = tuple(self.served[key] for key in found) if want_checksums else ()
        return MatchResult(tuple(map(place, found)), sums)

    def start_write(self, keys: Sequence[int], *, write_timeout_seconds: int) -> WriteLocation:
        assert 0 < write_timeout_seconds <= 1800
        if self.full_from is not None and len(self.served) >= self.full_from:
            raise ServiceFull("the manager refused StartWriteCache: full")
        new = [key for key in keys if key not in self.served]
        name = f"s{len(self.sessions)}"
        self.sessions[name] = new
        return WriteLocation(name, BlockMask.of(key in self.served for key in keys), tuple(map(place, new)))

    def finish_write(self, write_session_id: str, success: BlockMask, *, checksums: Sequence[int]) -> None:
        new = self.sessions[write_session_id]
        self.finished.append((write_session_id, success.offset))
        assert success.offset in (0, len(new))
        if success.offset:
            self.served.update(zip(new, checksums, strict=True))


@dataclass
class FakeStore:
    bytes_at: dict[str, bytes] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)
    fail_saves: bool = False

    def save_kv_caches(self, uris: Sequence[str], buffers: Sequence[BlockBuffer]) -> SaveResult:
        if self.fail_saves:
            raise WriteFailed("block 0 could not be written: no space left", block_index=0)
        self.calls.append(len(uris))
        contents = [bytes(buffer.iovs[0].view) for buffer in buffers]
        self.bytes_at.update(zip(uris, contents, strict=True))
        return SaveResult(tuple(uris), tuple(block_checksum([content]) for content in contents))

    def load_kv_caches(self, uris: Sequence[str], buffers: Sequence[BlockBuffer], *, expected_checksums: Sequence[int] | None) -> None:
        self.calls.append(len(uris))
        for index, (uri, buffer) in enumerate(zip(uris, buffers, strict=True)):
            if uri not in self.bytes_at:
                raise ReadFailed("block could not be read: its file or folder does not exist", block_index=index)
            content = self.bytes_at[uri]
            if expected_checksums is not None and expected_checksums[index] not in (0, block_checksum([content])):
                raise ChecksumMismatch("the bytes are not those that were written", block_index=index)
            buffer.iovs[0].view[:] = content


@dataclass
class FakeClient:
    meta: FakeMeta = field(default_factory=FakeMeta)
    transfer: FakeStore = field(default_factory=FakeStore)


def uri(key: int) -> str:
    return f"mem://store/{key}?size={SIZE}"


def place(key: int) -> Location:
    return Location((LocationSpec("kv", uri(key)),), 4)


def replay(client: FakeClient, *, verify: bool = True, concurrency: int = 1, size: int = SIZE) -> Replay:
    return Replay(client, spec_name="kv", block_bytes=size, verify=verify, concurrency=concurrency)


def run(client: FakeClient, trace: Iterable[TraceRequest], *, verify: bool = True) -> ReplayReport:
    return replay(client, verify=verify).run(trace)


def test_INV_T3_a_small_trace_has_the_hits_worked_out_by_hand() -> None:
    client = FakeClient()
    report = run(client, SMALL)

    assert (report.requests, report.total_blocks, report.hit_blocks, report.possible_hit_blocks) == (5, 11, 5, 5)
    assert (report.written_blocks, report.bytes_written) == (5, 5 * SIZE)
    assert (report.bytes_read, report.bytes_verified, report.mismatches) == (5 * SIZE, 5 * SIZE, 0)
    assert (report.input_tokens, report.hit_tokens) == (11 * 512 + 130, 5 * 512)
    assert client.transfer.bytes_at == {uri(key): block_content(key, SIZE) for key in (1, 2, 3, 4, 9)}
    assert [offset for _, offset in client.meta.finished] == [3, 1, 1, 0]


def test_every_step_that_took_place_is_timed_once_a_request() -> None:
    ticks = iter(range(10_000))
    report = Replay(FakeClient(), spec_name="kv", block_bytes=SIZE, now=lambda: float(next(ticks))).run(SMALL)

    counts = {step: report.latencies[step].summary()["count"] for step in report.latencies}
    assert counts == {"match": 4, "load": 2, "start": 4, "save": 3, "finish": 4}
    assert report.latencies["match"].summary() == {"count": 4, "p50_ms": 1000.0, "p95_ms": 1000.0, "p99_ms": 1000.0, "max_ms": 1000.0, "mean_ms": 1000.0}
    assert report.wall_seconds > 17


def test_percentiles_are_values_that_occurred() -> None:
    report = ReplayReport(512, SIZE)
    for number in range(200, 0, -1):
        report.latencies["match"].add(number / 1000)

    summary = report.latencies["match"].summary()
    assert (summary["p50_ms"], summary["p95_ms"], summary["p99_ms"], summary["max_ms"]) == (100.0, 190.0, 198.0, 200.0)
    assert report.latencies["load"].summary()["max_ms"] == 0.0
    assert report.document()["token_hit_rate"] == 0.0


def test_INV_T4_parts_through_one_state_equal_the_whole() -> None:
    trace = list(read_trace("conversation", limit=400))
    whole = run(FakeClient(), trace)
    client = FakeClient()
    parts = replay(client)
    first, second = parts.run(trace[:150]), parts.run(trace[150:])

    for name in ("requests", "total_blocks", "hit_blocks", "possible_hit_blocks", "written_blocks", "input_tokens", "bytes_verified"):
        assert getattr(first, name) + getattr(second, name) == getattr(whole, name), name
    assert whole.hit_blocks == whole.possible_hit_blocks > 0


def test_INV_T4_a_second_pass_hits_every_key() -> None:
    trace = list(read_trace("conversation", limit=200))
    client = FakeClient()
    run(client, trace)
    again = run(client, trace)

    assert again.hit_blocks == again.total_blocks == sum(len(item.keys) for item in trace)
    assert again.written_blocks == 0
    assert again.bytes_verified == again.total_blocks * SIZE


def test_INV_T3_the_replay_of_a_slice_equals_a_set() -> None:
    trace = list(read_trace("conversation", limit=600))
    seen: set[int] = set()
    expected = 0
    for item in trace:
        expected += next((at for at, key in enumerate(item.keys) if key not in seen), len(item.keys))
        seen.update(item.keys)

    assert run(FakeClient(), trace).hit_blocks == expected


def test_other_bytes_under_a_fitting_checksum_are_noticed() -> None:
    client = FakeClient()
    run(client, [request(1, 2, 3)])
    wrong = block_content(2, SIZE)[:-1] + b"!"
    client.transfer.bytes_at[uri(2)] = wrong
    client.meta.served[2] = block_checksum([wrong])
    report = run(client, [request(1, 2, 3)])

    assert (report.hit_blocks, report.mismatches, report.bytes_read, report.bytes_verified) == (3, 1, 3 * SIZE, 2 * SIZE)


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_bad_block_is_counted_alone(damage: str) -> None:
    client = FakeClient()
    run(client, [request(1, 2, 3)])
    if damage == "flipped":
        client.transfer.bytes_at[uri(2)] = b"?" * SIZE
    else:
        del client.transfer.bytes_at[uri(2)]
    report = run(client, [request(1, 2, 3)])

    assert (report.hit_blocks, report.mismatches, report.bytes_verified) == (3, 1, 2 * SIZE)


def test_without_verification_bytes_are_read_but_not_compared() -> None:
    client = FakeClient()
    run(client, [request(1, 2)])
    client.transfer.bytes_at[uri(2)] = b"?" * SIZE
    report = run(client, [request(1, 2)], verify=False)

    assert (report.hit_blocks, report.bytes_read, report.bytes_verified, report.mismatches) == (2, 2 * SIZE, 0, 0)
    del client.transfer.bytes_at[uri(2)]
    with pytest.raises(ReplayFailed, match="could not be read"):
        run(client, [request(1, 2)], verify=False)


def test_a_full_manager_costs_hits_and_not_the_run() -> None:
    client = FakeClient(meta=FakeMeta(full_from=3))
    report = run(client, [request(1, 2, 3), request(7, 8), request(1, 2, 3), request(7, 8)])

    assert (report.hit_blocks, report.possible_hit_blocks, report.written_blocks, report.refused_blocks) == (3, 5, 3, 7)
    assert report.requests == 4


def test_a_failed_save_closes_its_session_without_a_success_and_ends_the_run() -> None:
    client = FakeClient(transfer=FakeStore(fail_saves=True))
    with pytest.raises(ReplayFailed, match=r"the request of line 5 failed: .*no space left") as raised:
        run(client, [request(1, 2, line=5), request(3, line=6)])

    assert raised.value.line == 5
    assert client.meta.finished == [("s0", 0)]
    assert client.meta.asked == [(1, 2)]


def test_an_interrupted_save_closes_its_session() -> None:
    class Interrupted(FakeStore):
        def save_kv_caches(self, uris: Sequence[str], buffers: Sequence[BlockBuffer]) -> SaveResult:
            raise KeyboardInterrupt

    client = FakeClient(transfer=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        run(client, [request(1, 2)])
    assert client.meta.finished == [("s0", 0)]


def test_an_error_of_the_manager_names_the_line() -> None:
    with pytest.raises(ReplayFailed, match=r"the request of line 8 failed: the manager refused GetCacheLocation: out of order"):
        run(FakeClient(meta=FakeMeta(broken=True)), [request(1, line=8)])


def test_an_address_that_cannot_be_read_is_an_error_and_no_mismatch() -> None:
    class Lost(FakeStore):
        def load_kv_caches(self, uris: Sequence[str], buffers: Sequence[BlockBuffer], *, expected_checksums: Sequence[int] | None) -> None:
            raise InvalidAddress("the address of block 0 lies outside the root of store 'x'", block_index=0)

    client = FakeClient(transfer=Lost())
    with pytest.raises(ReplayFailed, match="lies outside"):
        run(client, [request(1), request(1)])


def test_large_blocks_move_in_several_calls() -> None:
    class Sink(FakeStore):
        def save_kv_caches(self, uris: Sequence[str], buffers: Sequence[BlockBuffer]) -> SaveResult:
            self.calls.append(len(uris))
            return SaveResult(tuple(uris), (0,) * len(uris))

    client = FakeClient(transfer=Sink())
    replay(client, size=24 << 20).run([request(1, 2, 3, 4, 5)])
    assert client.transfer.calls == [2, 2, 1]


def test_with_several_in_flight_starts_keep_the_order_and_sums_are_complete() -> None:
    # Every match waits until four are in flight.
    client = FakeClient(meta=FakeMeta(on_match=threading.Barrier(4)))
    trace = [request(*range(100 * number, 100 * number + 3), line=number) for number in range(12)]
    report = replay(client, concurrency=4).run(trace)

    assert (report.requests, report.written_blocks, report.hit_blocks) == (12, 36, 0)
    assert [{keys[0] // 400 for keys in client.meta.asked[at : at + 4]} for at in (0, 4, 8)] == [{0}, {1}, {2}]


def test_with_several_in_flight_an_error_ends_the_run_once() -> None:
    client = FakeClient(meta=FakeMeta(broken=True))
    with pytest.raises(ReplayFailed):
        replay(client, concurrency=3).run(request(number, line=number) for number in range(1, 1000))
    assert len(client.meta.asked) < 10


def test_progress_counts_finished_requests() -> None:
    seen: list[int] = []
    replay(FakeClient()).run(SMALL, on_progress=seen.append)
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("size", "concurrency"), [(0, 1), (SIZE, 0), (SIZE, 65)])
def test_impossible_settings_are_refused(size: int, concurrency: int) -> None:
    with pytest.raises(InvalidArgument):
        replay(FakeClient(), size=size, concurrency=concurrency)


def test_the_oracle_counts_leading_runs_only() -> None:
    oracle = PrefixOracle()
    assert [oracle.hits(item.keys) for item in SMALL] == [0, 2, 0, 3, 0]
    assert set(oracle.distinct_keys) == {1, 2, 3, 4, 9}


@pytest.mark.parametrize("size", [1, 64, 4096, 4097, 3 * 4096 + 5])
def test_content_depends_on_key_and_place(size: int) -> None:
    content = block_content(-7, size)

    assert len(content) == size
    assert content == block_content(-7, size)
    if size > 1:
        assert content != block_content(7, size)
    pages = [content[at : at + 4096] for at in range(0, size - 4095, 4096)]
    assert len(set(pages)) == len(pages)
