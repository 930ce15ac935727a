"""TransferClient: saves and loads the bytes of blocks at the URIs that the manager handed out.

Use: one URI and one BlockBuffer a block, equal counts. Everything about the arguments is checked before anything is opened (INV-C4). The
work is cut into few tasks of neighbouring files for a bounded pool.

Dangers
- `deadline_s` is absolute, in seconds of `time.monotonic()`; the configured timeout applies as well, whichever comes first. After a timeout
  the caller's memory is not touched any more (INV-C5), but a write that already hangs in the kernel may still reach its file: the manager
  gives each allocation its own path, so report the block as failed and never write to the same URI again.
- A failed save or load may have finished some of its blocks. The error names one block; treat the call as failed as a whole.
- Nothing reads back what was written: pass the checksums on to the manager to have it checked by every load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from kvcm.client.config import SdkConfig
from kvcm.client.errors import ChecksumMismatch, InvalidCall, InvalidLocalBuffers, PoolFull, ReadFailed, TransferError, WriteFailed
from kvcm.client.transfer import file_io
from kvcm.client.transfer.address import Place, StoreTable
from kvcm.client.transfer.call import TransferCall
from kvcm.client.transfer.checksum import NO_CHECKSUM, block_checksum
from kvcm.client.transfer.pool import BoundedPool
from kvcm.client.types import BlockBuffer, SaveResult, TraceInfo

# Tasks get at least this many bytes: waking a thread for a small block costs more than moving it.
_TASK_BYTES = 4 << 20
_MAX_CHECKSUM = (1 << 63) - 1


class TransferClient:
    """Thread-safe. `storage_configs` is the JSON array text from the manager; `extra_storage_configs` adds stores under other names."""

    def __init__(
        self,
        storage_configs: str,
        sdk: SdkConfig | None = None,
        *,
        instance_id: str = "",
        extra_storage_configs: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sdk = sdk or SdkConfig()
        self._stores = StoreTable.parse(storage_configs, instance_id, extra_storage_configs)
        self._now = now
        self._pool = BoundedPool(self._sdk.thread_num, self._sdk.queue_size)
        self._staging = _Staging()

    def __enter__(self) -> TransferClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, wait_s: float = 5.0) -> None:
        """Refuse new calls, give up waiting ones, and wait up to `wait_s` seconds for running ones. Safe to call twice."""
        self._pool.close(wait_s)

    def save_kv_caches(
        self,
        uris: Sequence[str],
        buffers: Sequence[BlockBuffer],
        *,
        deadline_s: float | None = None,
        trace_info: TraceInfo | None = None,
        want_checksums: bool = True,
    ) -> SaveResult:
        """Write block i to `uris[i]`. Returns the URIs to report and one checksum a block (0 = none).

        Raises InvalidCall (3), InvalidAddress (107), UnknownStorage (101), InvalidLocalBuffers (108) and PoolFull (10) before anything
        happened; WriteFailed (105) and TransferTimeout (100) later.
        """
        call, result = self._start_save(uris, buffers, deadline_s, trace_info, want_checksums)
        call.wait()
        return SaveResult(tuple(uris), tuple(result))

    async def save_kv_caches_async(
        self,
        uris: Sequence[str],
        buffers: Sequence[BlockBuffer],
        *,
        deadline_s: float | None = None,
        trace_info: TraceInfo | None = None,
        want_checksums: bool = True,
    ) -> SaveResult:
        """As `save_kv_caches`; the loop goes on meanwhile."""
        call, result = self._start_save(uris, buffers, deadline_s, trace_info, want_checksums)
        await call.wait_async()
        return SaveResult(tuple(uris), tuple(result))

    def load_kv_caches(
        self,
        uris: Sequence[str],
        buffers: Sequence[BlockBuffer],
        *,
        expected_checksums: Sequence[int] | None = None,
        deadline_s: float | None = None,
        trace_info: TraceInfo | None = None,
    ) -> None:
        """Fill buffer i from `uris[i]`; ignored pieces keep what they hold. A checksum of 0 is not verified.

        Raises as `save_kv_caches`, with ReadFailed (104) and ChecksumMismatch (118). The failing block's buffer is untouched, others may be
        filled.
        """
        self._start_load(uris, buffers, expected_checksums, deadline_s, trace_info).wait()

    async def load_kv_caches_async(
        self,
        uris: Sequence[str],
        buffers: Sequence[BlockBuffer],
        *,
        expected_checksums: Sequence[int] | None = None,
        deadline_s: float | None = None,
        trace_info: TraceInfo | None = None,
    ) -> None:
        """As `load_kv_caches`; the loop goes on meanwhile. A cancelled await leaves the buffers alone from then on."""
        await self._start_load(uris, buffers, expected_checksums, deadline_s, trace_info).wait_async()

    def _start_save(
        self, uris: Sequence[str], buffers: Sequence[BlockBuffer], deadline_s: float | None, trace: TraceInfo | None, want_checksums: bool
    ) -> tuple[TransferCall, list[int]]:
        places = self._check(uris, buffers, trace, load=False)
        if len({(place.path, place.offset) for place in places}) != len(places):
            raise InvalidCall("two blocks of one save have the same address")
        checksums = [NO_CHECKSUM] * len(places)

        def move(fd: int, index: int, call: TransferCall) -> None:
            buffer = buffers[index]
            file_io.write_block(fd, places[index].offset, buffer, call.may_go_on)
            if want_checksums and not buffer.has_ignored:
                checksums[index] = block_checksum(iov.view for iov in buffer.iovs)

        return self._start("save", places, self._sdk.put_timeout_s, deadline_s, move, trace), checksums

    def _start_load(
        self,
        uris: Sequence[str],
        buffers: Sequence[BlockBuffer],
        expected: Sequence[int] | None,
        deadline_s: float | None,
        trace: TraceInfo | None,
    ) -> TransferCall:
        places = self._check(uris, buffers, trace, load=True)
        if expected is not None and len(expected) != len(places):
            raise InvalidCall("expected_checksums must have one value for each block")
        if expected is not None and any(not -_MAX_CHECKSUM - 1 <= value <= _MAX_CHECKSUM for value in expected):
            raise InvalidCall("every expected checksum must be a signed 64-bit number")

        def move(fd: int, index: int, call: TransferCall) -> None:
            staging = self._staging.take(places[index].size)
            file_io.read_block(fd, places[index].offset, staging, call.may_go_on)
            wanted = expected[index] if expected is not None else NO_CHECKSUM
            if wanted != NO_CHECKSUM and block_checksum((staging,)) != wanted:
                raise ChecksumMismatch(f"the bytes of block {index} are not those that were written", block_index=index)
            if not call.copy_out(lambda: file_io.copy_out(staging, buffers[index])):
                raise file_io.Stopped

        return self._start("load", places, self._sdk.get_timeout_s, deadline_s, move, trace)

    def _check(self, uris: Sequence[str], buffers: Sequence[BlockBuffer], trace: TraceInfo | None, *, load: bool) -> list[Place]:
        """Everything that can be known to be wrong beforehand, without a side effect."""
        if not uris or len(uris) != len(buffers):
            raise InvalidCall(f"a transfer needs one buffer for each address and at least one; got {len(uris)} and {len(buffers)}")
        if trace is not None and trace.block_ids and len(trace.block_ids) != len(buffers):
            raise InvalidCall("trace_info.block_ids must have one entry for each buffer")
        places = [self._stores.locate(uri, index) for index, uri in enumerate(uris)]
        for index, (place, buffer) in enumerate(zip(places, buffers, strict=True)):
            if place.size != buffer.size:
                raise InvalidLocalBuffers(f"block {index} has {place.size} bytes in the store but its buffer has {buffer.size}", block_index=index)
            if load and any(iov.view.readonly for iov in buffer.iovs if not iov.ignore):
                raise InvalidLocalBuffers(f"the buffer of block {index} cannot be written to", block_index=index)
        return places

    def _start(
        self,
        verb: str,
        places: list[Place],
        timeout_s: float,
        deadline_s: float | None,
        move: Callable[[int, int, TransferCall], None],
        trace: TraceInfo | None,
    ) -> TransferCall:
        limit = self._now() + timeout_s
        order = sorted(range(len(places)), key=lambda index: (places[index].path, places[index].offset))
        shares = _shares(order, sum(place.size for place in places), self._pool.thread_num)
        call = TransferCall(verb, len(places), len(shares), limit if deadline_s is None else min(limit, deadline_s), self._now)
        writer = verb == "save"
        tasks = [_Share(call, share, places, move, writer, writer and self._sdk.fsync, trace or TraceInfo()) for share in shares]
        if call.may_go_on() and not self._pool.submit_all(tasks):
            raise PoolFull(f"the {verb} was refused: too many transfers are waiting, or the client is closed")
        return call


def _shares(order: list[int], total_bytes: int, threads: int) -> list[list[int]]:
    """Cut the blocks into at most one run a thread, neighbours together."""
    count = max(1, min(threads, len(order), total_bytes // _TASK_BYTES))
    step = -(-len(order) // count)
    return [order[at : at + step] for at in range(0, len(order), step)]


class _Staging(threading.local):
    """One reused buffer a thread, so that bytes reach the caller's memory only through the call's gate."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def take(self, size: int) -> memoryview:
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]


class _Share:
    """The blocks of one call that one thread moves, file by file."""

    def __init__(
        self,
        call: TransferCall,
        indexes: list[int],
        places: list[Place],
        move: Callable[[int, int, TransferCall], None],
        write: bool,
        fsync: bool,
        trace: TraceInfo,
    ) -> None:
        self._call = call
        self._indexes = indexes
        self._places = places
        self._move = move
        self._write = write
        self._fsync = fsync
        self._trace = trace

    def abandon(self) -> None:
        self._call.task_abandoned()

    def run(self) -> None:
        try:
            at = 0
            while at < len(self._indexes) and self._call.may_go_on():
                at = self._one_file(at)
        finally:
            self._call.task_ended()

    def _one_file(self, at: int) -> int:
        """Move the run of blocks that lie in one file; returns the position after it. Errors end in the call."""
        place = self._places[self._indexes[at]]
        moved: list[int] = []
        index = self._indexes[at]
        try:
            with file_io.opened(place.path, write=self._write) as fd:
                while at < len(self._indexes) and self._places[self._indexes[at]].path == place.path:
                    index = self._indexes[at]
                    if not self._call.may_go_on():
                        raise file_io.Stopped
                    self._move(fd, index, self._call)
                    moved.append(index)
                    at += 1
                if self._fsync:
                    file_io.flush(fd, place.path, place.root)
        except file_io.Stopped:
            pass
        except TransferError as error:
            self._call.fail(error)
        except file_io.Truncated:
            self._call.fail(ReadFailed(self._sentence(index, "its file ends before the block does"), block_index=index))
        except FileNotFoundError:
            self._call.fail(self._error(index, "its file or folder does not exist"))
        except OSError as error:
            self._call.fail(self._error(index, error.strerror or "the system gave no reason"))
        except Exception as error:  # a fault of ours must end the call, not the thread
            self._call.fail(self._error(index, f"an unexpected {type(error).__name__} happened"))
        else:
            for done in moved:
                self._call.block_done(done)
        return at

    def _error(self, index: int, why: str) -> TransferError:
        kind = WriteFailed if self._write else ReadFailed
        return kind(self._sentence(index, why), block_index=index)

    def _sentence(self, index: int, why: str) -> str:
        name = f" (id {self._trace.block_ids[index]})" if self._trace.block_ids else ""
        request = f" of request {self._trace.trace_id!r}" if self._trace.trace_id else ""
        return f"block {index}{name}{request} could not be {'written' if self._write else 'read'}: {why}"
