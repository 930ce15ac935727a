"""Delayed, proven deletion (design D5, behaviour sections 10 and 11).

    condemn: -> DELETING, durable          (no reader gets the location from now on)
    wait the delay                         (readers that already hold the URI finish)
    wait for the writer's session to end   (else it would go on writing into a file that nobody remembers)
    barrier: the store has synced          (else a crash could bring back a record whose bytes are gone)
    delete the bytes, ask for the truth
    ABSENT for every spec: bury the record. Anything else: keep DELETING and come back later, less and less often.

Nothing here gives up: a location whose storage is unmounted for a week is deleted a week later. The queue is bounded; what does not fit is found again
by a scan for DELETING (`redrive`), which also picks up what a crash has left behind.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kvcm.common.clock import Clock
from kvcm.common.errors import KvcmError, StorageError, TakenOver
from kvcm.manager.errors import MetadataFailed
from kvcm.manager.ports import Leadership, Storages, WireCodec
from kvcm.manager.reluctance import Reluctance
from kvcm.manager.shard import InstanceShard
from kvcm.meta.index import PAGE_KEYS, Outcome
from kvcm.meta.location import AbsenceProof, Block, Location, Status, bury, condemn, is_reported, prove_absence, replace, retract

log = logging.getLogger("kvcm.deleter")

Target = tuple[int, str]
"""(block key, location id)."""

_RETRY_BASE_US = 1_000_000
_RETRY_CAP_US = 60_000_000
_HELD_PAUSE_US = 1_000_000
_PARALLEL_BATCHES = 8
DEFAULT_MAX_PENDING = 1_000_000


@dataclass(order=True, slots=True)
class _Batch:
    due_us: int
    sequence: int
    shard: InstanceShard = field(compare=False)
    targets: list[Target] = field(compare=False)
    writers: bool = field(compare=False)
    """Whether some of the locations may still have a writer: only then the open sessions are asked."""
    attempt: int = field(compare=False, default=0)


@dataclass(slots=True)
class DeletionStats:
    """Monotone counters, in locations."""

    condemned: int = 0
    buried: int = 0
    kept_without_proof: int = 0
    queue_overflow: int = 0


Held = Callable[[str, int, Location], bool]
"""(instance id, key, location) -> is a write session still open for it?"""


class Deleter:
    def __init__(
        self,
        storages: Storages,
        codec: WireCodec,
        clock: Clock,
        leadership: Leadership,
        max_pending: int = DEFAULT_MAX_PENDING,
        held: Held = lambda instance_id, key, location: False,
    ) -> None:
        self._held = held
        self._storages = storages
        self._codec = codec
        self._clock = clock
        self._leadership = leadership
        self._max_pending = max_pending
        self._queue: list[_Batch] = []
        self._sequence = 0
        self._wake = asyncio.Event()
        self._queued: set[tuple[int, int, str]] = set()  # (id of the index object, which a batch keeps alive, key, location id)
        self._queued_of: Counter[int] = Counter()  # id of the index object -> locations of it that are queued
        self._reluctance = Reluctance()
        self.stats = DeletionStats()

    @property
    def pending(self) -> int:
        """Locations waiting for physical deletion."""
        return len(self._queued)

    @property
    def is_ending(self) -> bool:
        """Leadership is being given up: what takes long is left to the next leader."""
        return self._leadership.ending

    def now_us(self) -> int:
        """Of the monotonic clock."""
        return self._clock.monotonic_us()

    def pending_of(self, shard: InstanceShard) -> int:
        return self._queued_of[id(shard.index)]

    async def condemn(
        self,
        shard: InstanceShard,
        keys: Sequence[int],
        delay_us: int,
        select: Callable[[int, Location], bool] | None = None,
    ) -> int:
        """Make locations of `keys` DELETING and queue their bytes; returns how many. Those DELETING already are left to their own task. What hosts have
        reported has no bytes of ours: such records go at once (I-LOC-8).

        `select(position, location)` narrows the choice (default: every location). Raises MetadataFailed if the store refused some keys: those are
        unchanged, the others are DELETING all the same; TakenOver if a newer leader has prevented all of it.
        """
        taken: list[Target] = []
        written: list[Target] = []
        retracted: list[int] = []

        def plan(position: int, key: int, block: Block) -> Block | None:
            doomed = [loc for loc in block if loc.header[0] != Status.DELETING and (select is None or select(position, loc))]
            if not doomed:
                return None
            for loc in [loc for loc in doomed if is_reported(loc)]:
                doomed.remove(loc)
                retracted.append(key)
                block = retract(block, loc)
            for loc in doomed:
                (written if loc.header[0] == Status.WRITING else taken).append((key, loc.location_id))
            return tuple(condemn(loc) if loc in doomed else loc for loc in block)

        outcomes = await shard.index.mutate(keys, plan, self._leadership.epoch)
        failed = {key for key, outcome in zip(keys, outcomes, strict=True) if outcome.error is not None}
        if failed:
            taken, written = ([target for target in targets if target[0] not in failed] for targets in (taken, written))
            retracted = [key for key in retracted if key not in failed]
        self.stats.condemned += len(taken) + len(written)
        self.push(shard, taken, delay_us)
        self.push(shard, written, delay_us, writers=True)
        if failed:
            refused = next((outcome.error for outcome in outcomes if isinstance(outcome.error, TakenOver)), None)  # then nothing is stored
            raise refused or MetadataFailed(f"{len(failed)} of {len(keys)} blocks could not be marked for deletion: {_first_error(outcomes)}")
        return len(taken) + len(written) + len(retracted)

    async def withdraw(self, shard: InstanceShard, inserted: Sequence[tuple[int, Location]]) -> list[tuple[int, Location]]:
        """Take back WRITING locations that no client was told of: DELETING, and their bytes at once.

        Returns those that the metadata store refused to mark. What cannot be proven gone now is queued. Raises KvcmError when nothing was marked.
        """

        def plan(position: int, key: int, block: Block) -> Block | None:
            _, location = inserted[position]
            return replace(block, location, condemn(location)) if location in block else None

        outcomes = await shard.index.mutate([key for key, _ in inserted], plan, self._leadership.epoch)
        refused = [entry for entry, outcome in zip(inserted, outcomes, strict=True) if outcome.error is not None]
        marked = [(key, location.location_id) for (key, location), outcome in zip(inserted, outcomes, strict=True) if outcome.changed]
        self.stats.condemned += len(marked)
        try:
            left, _ = await self._delete(shard, marked, False)
        except KvcmError:
            left = marked
        self.push(shard, left, _RETRY_BASE_US)
        return refused

    def push(self, shard: InstanceShard, targets: Sequence[Target], delay_us: int, *, writers: bool = False) -> None:
        """Queue DELETING locations for physical deletion in `delay_us`; what is queued already or does not fit is left out.

        `writers`: sessions may still be open for them.
        """
        fresh = []
        for key, location_id in targets:
            mark = (id(shard.index), key, location_id)
            if mark in self._queued:
                continue
            if len(self._queued) >= self._max_pending:
                shard.upkeep.redrive_needed = True
                self.stats.queue_overflow += 1
                continue
            self._queued.add(mark)
            self._queued_of[mark[0]] += 1
            fresh.append((key, location_id))
        due = self._clock.monotonic_us() + max(0, delay_us)
        for start in range(0, len(fresh), PAGE_KEYS):
            self._enqueue(_Batch(due, self._next(), shard, fresh[start : start + PAGE_KEYS], writers))

    async def redrive(self, shard: InstanceShard, delay_us: int) -> int:
        """Queue every DELETING location of the shard that no task holds; returns how many were found."""
        shard.upkeep.redrive_needed = False
        found = 0
        pages = shard.unsettled_pages()
        shard.upkeep.unsettled = None
        for page in pages:
            if self.is_ending:
                break
            targets = [(key, loc.location_id) for key in page for loc in shard.index.get(key) if loc.header[0] == Status.DELETING]
            if targets:
                found += len(targets)
                self.push(shard, targets, delay_us, writers=True)
            await asyncio.sleep(0)  # a page is short; a million keys in one go would stall the loop
        return found

    def next_due_us(self) -> int | None:
        return self._queue[0].due_us if self._queue else None

    async def step(self) -> int:
        """Run what is due now, a few batches at a time; returns the number of batches run."""
        ran = 0
        while self._queue and self._queue[0].due_us <= self._clock.monotonic_us() and not self.is_ending:
            due: list[_Batch] = []
            now = self._clock.monotonic_us()
            while self._queue and self._queue[0].due_us <= now and len(due) < _PARALLEL_BATCHES:
                due.append(heapq.heappop(self._queue))
            await asyncio.gather(*(self._run(batch) for batch in due))
            ran += len(due)
        return ran

    async def wait_for_work(self, timeout_s: float) -> None:
        """Return when a batch was queued or after `timeout_s`."""
        self._wake.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def forget(self) -> None:
        """Leadership is gone: queued deletions must not run any more. The new leader finds them as DELETING."""
        self._queue.clear()
        self._queued.clear()
        self._queued_of.clear()
        self._reluctance.forget()

    # -- inside --------------------------------------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _enqueue(self, batch: _Batch) -> None:
        heapq.heappush(self._queue, batch)
        self._wake.set()

    async def _run(self, batch: _Batch) -> None:
        held: list[Target] = []
        try:
            left, held = await self._delete(batch.shard, batch.targets, batch.writers)
        except KvcmError as error:
            log.warning("deletion_batch_failed instance=%s locations=%d: %s", batch.shard.instance_id, len(batch.targets), error.message)
            left = batch.targets
        except Exception:
            log.exception("deletion_batch_failed instance=%s locations=%d", batch.shard.instance_id, len(batch.targets))
            left = batch.targets
        self._unmark(batch.shard, set(batch.targets).difference(left, held))
        if held:
            self._enqueue(_Batch(self._clock.monotonic_us() + _HELD_PAUSE_US, self._next(), batch.shard, held, True))
        if not left:
            return
        self.stats.kept_without_proof += len(left)
        pause = min(_RETRY_CAP_US, _RETRY_BASE_US << min(batch.attempt, 10))
        if batch.attempt in (0, 5):  # say it at once and once more when it lasts; not on every retry
            self._reluctance.note(batch.shard.instance_id, len(left), pause, self._clock.monotonic_us())
        self._enqueue(_Batch(self._clock.monotonic_us() + pause, self._next(), batch.shard, left, batch.writers, batch.attempt + 1))

    def _unmark(self, shard: InstanceShard, targets: Collection[Target]) -> None:
        index = id(shard.index)
        self._queued.difference_update((index, key, location_id) for key, location_id in targets)
        self._queued_of[index] -= len(targets)
        if not self._queued_of[index]:
            del self._queued_of[index]

    async def _delete(self, shard: InstanceShard, targets: Sequence[Target], writers: bool) -> tuple[list[Target], list[Target]]:
        """One attempt; returns the targets to try again and those whose writer may still be at work."""
        live = self._still_deleting(shard, targets)
        wanted = [(key, loc.location_id) for key, loc in live]
        held: list[Target] = []
        if writers:
            held = [(key, loc.location_id) for key, loc in live if self._held(shard.instance_id, key, loc)]
            wanted = [target for target in wanted if target not in held]
        if not wanted:
            return [], held
        if shard.upkeep.deletion_paused:
            return wanted, held
        try:
            await shard.index.sync([key for key, _ in wanted])
        except StorageError:
            return wanted, held
        live = self._still_deleting(shard, wanted)
        uris: list[str] = []
        spans: list[tuple[int, int]] = []
        for _, location in live:
            start = len(uris)
            uris.extend(uri for _, uri in self._codec.decode(location.wire)[1])
            spans.append((start, len(uris)))
        truths = await self._storages.delete(uris)
        proven: list[tuple[int, Location, AbsenceProof]] = []
        left: list[Target] = []
        for (key, location), (start, end) in zip(live, spans, strict=True):
            proof = prove_absence(location, truths[start:end])
            if proof is None:
                left.append((key, location.location_id))
            else:
                proven.append((key, location, proof))
        return left + await self._bury_or_keep(shard, proven), held

    async def _bury_or_keep(self, shard: InstanceShard, proven: Sequence[tuple[int, Location, AbsenceProof]]) -> list[Target]:
        try:
            return await self.bury_proven(shard, proven)
        except KvcmError:  # other changes hold the keys: nothing was removed
            return [(key, location.location_id) for key, location, _ in proven]

    async def bury_proven(self, shard: InstanceShard, proven: Sequence[tuple[int, Location, AbsenceProof]]) -> list[Target]:
        """Remove the records of locations whose bytes are proven gone; returns those the store refused. Raises KeysBusy."""
        if not proven:
            return []

        def plan(position: int, key: int, block: Block) -> Block | None:
            _, location, proof = proven[position]
            return bury(block, location, proof) if location in block else None

        outcomes = await shard.index.mutate([key for key, _, _ in proven], plan, self._leadership.epoch)
        refused = [(key, loc.location_id) for (key, loc, _), outcome in zip(proven, outcomes, strict=True) if outcome.error is not None]
        self.stats.buried += len(proven) - len(refused)
        return refused

    def _still_deleting(self, shard: InstanceShard, targets: Collection[Target]) -> list[tuple[int, Location]]:
        return [
            (key, location)
            for key, location_id in targets
            for location in shard.index.get(key)
            if location.header[0] == Status.DELETING and location.location_id == location_id
        ]


def _first_error(outcomes: Sequence[Outcome]) -> str:
    return next((outcome.error.message for outcome in outcomes if outcome.error is not None), "")
