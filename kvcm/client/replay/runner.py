"""The replay: for each request of a trace, in order, what an inference engine does with the metadata service and the store.

    match     MatchLocation (prefix) over the request's complete blocks
    load      fetch every hit, with the checksums the manager keeps, and compare every byte with what the key says it must be
    start     StartWrite for all complete blocks; the manager hands out places for those it does not have
    save      write their bytes
    finish    FinishWrite with the success mask and the checksums

Dangers
- One request at a time by default: with more in flight, a request may look before the blocks of its predecessor are served, so hits become
  fewer and depend on timing. Starts keep the order of the trace.
- A session that was opened is always closed, also when saving fails or the user stops the run; otherwise its blocks would stay WRITING until
  the session expires.
- Calls move at most `_CALL_BYTES` at once, so that memory is bounded whatever the block size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from kvcm.client.errors import ChecksumMismatch, ClientError, ReadFailed, ServiceFull
from kvcm.client.replay.content import block_content
from kvcm.client.replay.errors import ReplayFailed
from kvcm.client.replay.oracle import PrefixOracle
from kvcm.client.replay.report import Outcome, ReplayReport
from kvcm.client.replay.trace import BLOCK_TOKENS, TraceRequest
from kvcm.client.types import BlockBuffer, BlockMask, MatchResult, QueryType, SaveResult, WriteLocation
from kvcm.common.errors import InvalidArgument

MAX_CONCURRENCY = 64
WRITE_TIMEOUT_S = 600
_CALL_BYTES = 64 << 20


class MetaCalls(Protocol):
    """The part of MetaClient that a replay uses."""

    def match_location(self, query_type: QueryType, keys: Sequence[int], *, want_checksums: bool) -> MatchResult: ...

    def start_write(self, keys: Sequence[int], *, write_timeout_seconds: int) -> WriteLocation: ...

    def finish_write(self, write_session_id: str, success: BlockMask, *, checksums: Sequence[int]) -> None: ...


class TransferCalls(Protocol):
    """The part of TransferClient that a replay uses."""

    def save_kv_caches(self, uris: Sequence[str], buffers: Sequence[BlockBuffer]) -> SaveResult: ...

    def load_kv_caches(self, uris: Sequence[str], buffers: Sequence[BlockBuffer], *, expected_checksums: Sequence[int] | None) -> None: ...


class ReplayClient(Protocol):
    """A hybrid ManagerClient, or what a test puts in its place."""

    @property
    def meta(self) -> MetaCalls: ...

    @property
    def transfer(self) -> TransferCalls: ...


class Replay:
    """`spec_name` is the instance's only spec and `block_bytes` its size; `verify` False loads hits without looking at their bytes.

    `now` is a clock in seconds for the latencies. One object may run several traces one after another; the oracle goes on (INV-T4).
    """

    def __init__(
        self,
        client: ReplayClient,
        *,
        spec_name: str,
        block_bytes: int,
        verify: bool = True,
        concurrency: int = 1,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        if block_bytes < 1:
            raise InvalidArgument("a block must have at least 1 byte")
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise InvalidArgument(f"the number of requests in flight must be from 1 to {MAX_CONCURRENCY}")
        self._client = client
        self._spec = spec_name
        self._block_bytes = block_bytes
        self._verify = verify
        self._concurrency = concurrency
        self._now = now
        self.oracle = PrefixOracle()

    def run(self, trace: Iterable[TraceRequest], *, on_progress: Callable[[int], None] = lambda done: None) -> ReplayReport:
        """Carry out every request; `on_progress` gets the number of finished ones. Raises ReplayFailed at the first request that fails,
        after those in flight have ended, and TraceError when the trace breaks off.
        """
        report = ReplayReport(BLOCK_TOKENS, self._block_bytes)
        began = self._now()
        for request, possible, outcome in self._outcomes(trace):
            report.add(outcome, request.input_tokens, possible)
            on_progress(report.requests)
        report.wall_seconds = self._now() - began
        return report

    def _outcomes(self, trace: Iterable[TraceRequest]) -> Iterator[tuple[TraceRequest, int, Outcome]]:
        if self._concurrency == 1:
            for request in trace:
                yield request, self.oracle.hits(request.keys), self._one(request)
            return
        # A request is handed over only when a thread is free, so requests start in the order of the trace.
        pending: dict[Future[Outcome], tuple[TraceRequest, int]] = {}
        with ThreadPoolExecutor(self._concurrency, "kvcm-replay") as pool:
            for request in trace:
                while len(pending) >= self._concurrency:
                    yield from _finished(pending)
                pending[pool.submit(self._one, request)] = (request, self.oracle.hits(request.keys))
            while pending:
                yield from _finished(pending)

    def _one(self, request: TraceRequest) -> Outcome:
        outcome = Outcome(total_blocks=len(request.keys))
        if not request.keys:
            return outcome
        try:
            self._read(request.keys, outcome)
            self._write(request.keys, outcome)
        except ClientError as error:
            raise ReplayFailed(f"the request of line {request.line} failed: {error.message}", line=request.line) from error
        return outcome

    def _read(self, keys: Sequence[int], outcome: Outcome) -> None:
        began = self._now()
        found = self._client.meta.match_location(QueryType.PREFIX_MATCH, keys, want_checksums=self._verify)
        outcome.seconds["match"] = self._now() - began
        outcome.hit_blocks = len(found.locations)
        if not found.locations:
            return
        outcome.seconds["load"] = 0.0
        uris = [location.uri(self._spec) for location in found.locations]
        for run in self._runs(len(uris)):
            self._load(keys[run], uris[run], found.checksums[run] if self._verify else None, outcome)

    def _load(self, keys: Sequence[int], uris: Sequence[str], checksums: Sequence[int] | None, outcome: Outcome) -> None:
        size = self._block_bytes
        memory = memoryview(bytearray(size * len(keys)))
        blocks = [memory[at * size : (at + 1) * size] for at in range(len(keys))]
        began = self._now()
        try:
            self._client.transfer.load_kv_caches(uris, [BlockBuffer.of(block) for block in blocks], expected_checksums=checksums)
        except (ChecksumMismatch, ReadFailed):
            if not self._verify:
                raise
            self._load_singly(keys, uris, checksums, blocks, outcome)
            return
        finally:
            outcome.seconds["load"] += self._now() - began
        outcome.bytes_read += size * len(keys)
        if self._verify:
            for key, block in zip(keys, blocks, strict=True):
                self._compare(key, block, outcome)

    def _load_singly(self, keys: Sequence[int], uris: Sequence[str], checksums: Sequence[int] | None, blocks: Sequence[memoryview], outcome: Outcome) -> None:
        """A call failed for the sake of one block: find out which blocks are good."""
        for index, (key, uri, block) in enumerate(zip(keys, uris, blocks, strict=True)):
            wanted = checksums[index : index + 1] if checksums is not None else None
            try:
                self._client.transfer.load_kv_caches([uri], [BlockBuffer.of(block)], expected_checksums=wanted)
            except (ChecksumMismatch, ReadFailed):
                outcome.mismatches += 1
                continue
            outcome.bytes_read += self._block_bytes
            self._compare(key, block, outcome)

    def _compare(self, key: int, block: memoryview, outcome: Outcome) -> None:
        if block == block_content(key, self._block_bytes):
            outcome.bytes_verified += self._block_bytes
        else:
            outcome.mismatches += 1

    def _write(self, keys: Sequence[int], outcome: Outcome) -> None:
        meta = self._client.meta
        began = self._now()
        try:
            session = meta.start_write(keys, write_timeout_seconds=WRITE_TIMEOUT_S)
        except ServiceFull:
            # What a full cache does to an engine: it goes on without storing.
            outcome.refused_blocks = len(keys)
            return
        outcome.seconds["start"] = self._now() - began
        checksums: list[int] = []
        try:
            new = [keys[index] for index in session.block_mask.open_indexes(len(keys))]
            uris = [location.uri(self._spec) for location in session.locations]
            for run in self._runs(len(new)):
                checksums += self._save(new[run], uris[run], outcome)
        except BaseException:
            self._give_up(session)
            raise
        began = self._now()
        meta.finish_write(session.write_session_id, BlockMask(offset=len(new)), checksums=checksums)
        outcome.seconds["finish"] = self._now() - began
        outcome.written_blocks = len(new)
        outcome.bytes_written = len(new) * self._block_bytes

    def _save(self, keys: Sequence[int], uris: Sequence[str], outcome: Outcome) -> tuple[int, ...]:
        buffers = [BlockBuffer.of(block_content(key, self._block_bytes)) for key in keys]
        began = self._now()
        saved = self._client.transfer.save_kv_caches(uris, buffers)
        outcome.seconds["save"] = outcome.seconds.get("save", 0.0) + self._now() - began
        return saved.checksums

    def _give_up(self, session: WriteLocation) -> None:
        """Close the session without a success. Best effort: if the manager is gone, the session expires by itself."""
        try:
            self._client.meta.finish_write(session.write_session_id, BlockMask(offset=0), checksums=())
        except ClientError:
            pass

    def _runs(self, count: int) -> Iterator[slice]:
        step = max(1, _CALL_BYTES // self._block_bytes)
        for at in range(0, count, step):
            yield slice(at, min(count, at + step))


def _finished(pending: dict[Future[Outcome], tuple[TraceRequest, int]]) -> list[tuple[TraceRequest, int, Outcome]]:
    """Wait for at least one; every call of a request has a deadline, so this ends."""
    done, _ = wait(pending, return_when=FIRST_COMPLETED)
    return [(*pending.pop(future), future.result()) for future in done]
