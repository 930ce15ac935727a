"""For tests of whoever uses block metadata: a store that suspends and fails on command, a scheduler that decides who goes on, and a recount.

Nothing here sleeps and nothing depends on timing. A fake suspends at a named point; the test looks at `pending()`, lets one point go with `release(index)`
and gets control back when every task waits again. Drawing the indexes from hypothesis makes the interleavings random and repeatable.

    scheduler = Scheduler()
    backend = SuspendingBackend(scheduler)
    index = MetaIndex(backend, max_key_count=10)
    results = await scheduler.run([index.mutate(...), index.mutate(...)], choose=lambda count: draw(integers(0, count - 1)))
    assert backend.store == published(index)
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, cast

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.config.errors import FencedOut
from kvcm.data_storage.model import StorageType
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block, Location, begin_write

T = TypeVar("T")

_MAX_TURNS = 100_000


def written(
    location_id: str,
    *,
    size: int = 100,
    type_code: int = StorageType.NFS,
    storage_slot: int = 0,
    create_time_us: int = 1_700_000_000_000_000,
    previous_key: int | None = None,
) -> Location:
    """A location in state WRITING; its wire bytes name it but are no message."""
    return begin_write(
        type_code=type_code,
        storage_slot=storage_slot,
        create_time_us=create_time_us,
        size=size,
        location_id=location_id,
        previous_key=previous_key,
        wire=f"wire of {location_id}".encode(),
    )


@dataclass(frozen=True, slots=True)
class Census:
    """What the counters of an index must say, counted anew from the blocks."""

    keys: int
    bytes_by_type: dict[StorageType, int]
    locations_by_slot: dict[int, int]

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Census:
        keys = 0
        sizes: Counter[StorageType] = Counter()
        slots: Counter[int] = Counter()
        for block in blocks:
            keys += 1
            for location in block:
                sizes[StorageType(location.type_code).quota_type] += location.size
                slots[location.storage_slot] += 1
        return cls(keys, {kind: count for kind, count in sizes.items() if count}, dict(slots))

    @classmethod
    def reported_by(cls, index: MetaIndex) -> Census:
        return cls(index.usage.keys, index.usage.by_type(), dict(index.storage_slots()))


def published(index: MetaIndex) -> dict[int, Block]:
    """Every block that a reader can see."""
    return {key: index.get(key) for page in index.pages() for key in page}


class Scheduler:
    """Decides which suspended call goes on. Any fake may share one: `await scheduler.point("what this is")`.

    One test task drives it. Works on asyncio's own loop (not uvloop) and does not see threads: jobs of a thread pool are no points.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def point(self, label: str) -> None:
        """Suspend until the test lets this point go. A cancelled waiter takes its point with it."""
        entry = (label, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            await entry[1]
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def pending(self) -> list[str]:
        """Labels of the points that wait, in order of arrival."""
        return [label for label, _ in self._waiting]

    async def settle(self) -> None:
        """Run everything else until no task can go on by itself."""
        # The queue of ready callbacks is the only exact answer to "does anybody still run?"; a count of sleep(0) would be a guess.
        ready = cast(Any, asyncio.get_running_loop())._ready
        for _ in range(_MAX_TURNS):
            await asyncio.sleep(0)
            if not ready:
                return
        raise AssertionError("the tasks under test never come to rest")

    async def release(self, index: int = 0) -> str:
        """Let the waiting point at `index` of `pending()` go and run until everything waits again; returns its label."""
        label, future = self._waiting.pop(index)
        if not future.done():  # its task was cancelled a moment ago
            future.set_result(None)
        await self.settle()
        return label

    async def release_all(self) -> None:
        """In order of arrival, with the points that come up meanwhile."""
        await self.settle()
        while self._waiting:
            await self.release()

    async def run(self, calls: Sequence[Coroutine[Any, Any, T]], choose: Callable[[int], int] = lambda count: 0) -> list[T | BaseException]:
        """Run the calls side by side; `choose(n)` says which of n waiting points goes next. Results or exceptions, in order of the calls."""
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            await self.settle()
            while not all(task.done() for task in tasks):
                if not self._waiting:
                    raise AssertionError("the calls wait for something that is no point of this scheduler")
                await self.release(choose(len(self._waiting)))
            return await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()


class Fault(Enum):
    """What goes wrong with one `apply`."""

    # Nothing is stored, and the store says so.
    REFUSE = "refuse"
    # Nothing is stored, and nobody can tell.
    LOST_REQUEST = "lost request"
    # Everything is stored, and nobody can tell.
    LOST_ANSWER = "lost answer"
    # Every second key is stored, and nobody can tell.
    LOST_HALF_WAY = "lost half-way"
    # Everything is stored, then an exception that the port does not allow.
    BUG = "bug"


_UNKNOWN = (Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LOST_HALF_WAY)


class SuspendingBackend:
    """A MetadataBackend with a store of its own.

    `faults` are used up by the next `apply` calls in the order in which they take effect; None = works. `failing_keys` fail one by one in every apply while
    they are in the set, `fenced_keys` likewise, as in buckets that a newer leader has taken over. `failing_reads` and `failing_syncs` count the next calls
    that fail. `history` lists what was stored, in order.
    Without a scheduler each call still gives other tasks a turn. With `suspend_answers` a call also suspends between its effect and its answer.
    """

    def __init__(self, scheduler: Scheduler | None = None, *, suspend_answers: bool = False) -> None:
        self._scheduler = scheduler
        self._suspend_answers = suspend_answers
        self.store: dict[int, Block] = {}
        self.highest_fence = 0
        self.faults: deque[Fault | None] = deque()
        self.failing_keys: set[int] = set()
        self.fenced_keys: set[int] = set()
        self.failing_reads = 0
        self.failing_syncs = 0
        self.history: list[dict[int, Block]] = []
        self.synced: list[tuple[int, ...]] = []
        self.load_page = 2
        self.opened = False

    async def open(self) -> None:
        await self._point("open")
        self.opened = True

    async def close(self) -> None:
        self.opened = False

    async def raise_fence(self, fence: int) -> None:
        await self._point("raise fence")
        if fence < self.highest_fence:
            raise FencedOut("a newer leader has raised the fence", self.highest_fence)
        self.highest_fence = fence

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        items = list(self.store.items())
        for start in range(0, len(items), self.load_page):
            await self._point("load")
            yield items[start : start + self.load_page]

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        frozen = dict(changes)
        await self._point(f"apply {sorted(frozen)}")
        fault = self.faults.popleft() if self.faults else None
        failures = self._take(frozen, fence, fault)
        if self._suspend_answers:
            await self._point(f"applied {sorted(frozen)}")
        if fault in _UNKNOWN:
            raise OutcomeUnknown("the store did not answer")
        if fault is Fault.BUG:
            raise RuntimeError("a bug in a backend")
        if isinstance(failures, StorageError):
            raise failures
        return failures

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        await self._point(f"read {sorted(keys)}")
        if self.failing_reads > 0:
            self.failing_reads -= 1
            raise StorageError("the store could not be read")
        found = {key: self.store[key] for key in keys if key in self.store}
        if self._suspend_answers:
            await self._point(f"was read {sorted(keys)}")
        return found

    async def sync(self, keys: Collection[int]) -> None:
        await self._point(f"sync {sorted(keys)}")
        if self.failing_syncs > 0:
            self.failing_syncs -= 1
            raise StorageError("the store did not confirm")
        self.synced.append(tuple(keys))

    def _take(self, changes: dict[int, Block], fence: int, fault: Fault | None) -> Mapping[int, StorageError] | StorageError:
        if fence < self.highest_fence:
            return FencedOut("a newer leader has written to the store", self.highest_fence)
        if fault is Fault.REFUSE:
            return StorageError("the store refused")
        if fault is Fault.LOST_REQUEST:
            return {}
        self.highest_fence = fence
        failures = {key: StorageError("the store refused this key") for key in changes if key in self.failing_keys}
        failures |= {key: FencedOut("a newer leader has this bucket", fence + 1) for key in changes if key in self.fenced_keys}
        stored = {key: block for key, block in changes.items() if key not in failures}
        if fault is Fault.LOST_HALF_WAY:
            stored = dict(list(stored.items())[::2])
        for key, block in stored.items():
            if block:
                self.store[key] = block
            else:
                self.store.pop(key, None)
        self.history.append(stored)
        return failures

    async def _point(self, label: str) -> None:
        if self._scheduler is None:
            await asyncio.sleep(0)
        else:
            await self._scheduler.point(label)
