"""Random life for an index: calls that move blocks through their states, and a watcher that knows what must hold after every step.

A call is a list of (block key, move). `IndexWorld.run` lets calls overlap at every step into the store; the test's `choose` decides who goes on and may cancel
callers on the way. After every step the watcher compares what readers see with what they saw before.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvcm.common.errors import StorageError
from kvcm.meta.backend import Direct, Rest
from kvcm.meta.errors import StateChanged
from kvcm.meta.index import MetaIndex, Outcome
from kvcm.meta.location import AbsenceProof, Block, Location, Status, bury, condemn, promote, replace
from kvcm.meta.testing import Census, Fault, Scheduler, SuspendingBackend, published, written


class Move(Enum):
    # Add a location, whatever is there.
    BEGIN = "begin"
    # Finish the first open write.
    PROMOTE = "promote"
    # Mark every location for deletion.
    CONDEMN = "condemn"
    # Remove the first location that is marked.
    BURY = "bury"
    # Look and leave it.
    LOOK = "look"
    # Fail while planning.
    FAIL = "fail"


Step = tuple[int, Move]
"""(block key, move)."""

LEGAL = {
    (None, Status.WRITING),
    (Status.WRITING, Status.SERVING),
    (Status.WRITING, Status.DELETING),
    (Status.SERVING, Status.DELETING),
    (Status.DELETING, None),
}
"""Transitions that a reader may see from one moment to the next (behaviour 10.1, what is built here)."""


def moved(move: Move, block: Block, fresh: Callable[[], Location]) -> Block | None:
    """The block after a move; None if there is nothing to do."""
    if move is Move.FAIL:
        raise StateChanged("this move fails")
    if move is Move.BEGIN:
        return (*block, fresh())
    if move is Move.CONDEMN:
        return tuple(loc if loc.status is Status.DELETING else condemn(loc) for loc in block) if block else None
    wanted = {Move.PROMOTE: Status.WRITING, Move.BURY: Status.DELETING}.get(move)
    location = next((loc for loc in block if loc.status is wanted), None)
    if location is None:
        return None
    if move is Move.BURY:
        return bury(block, location, AbsenceProof(location.location_id))
    return replace(block, location, promote(location, checksum=len(block)))


_WEIGHTS = {Move.BEGIN: 5, Move.PROMOTE: 4, Move.CONDEMN: 3, Move.BURY: 3, Move.LOOK: 1, Move.FAIL: 1}


class Dice:
    """One random story, repeatable by its number: dense enough that calls really meet, which drawing every step on its own is not."""

    def __init__(self, number: int, *, keys: int = 4, cancels: bool = False) -> None:
        self._random = random.Random(number)
        self._keys = keys
        self._cancels = cancels

    def calls(self, *, distinct: bool = False) -> list[list[Step]]:
        """Up to ten calls. `distinct`: each names a key once at most, so that every transition is a single one."""
        return [self._call(distinct) for _ in range(self._random.randint(2, 10))]

    def faults(self) -> list[Fault | None]:
        """For the first dozen writes; from none at all to every second one."""
        share = self._random.choice((0.0, 0.3, 0.8))
        return [self._random.choice(list(Fault)) if self._random.random() < share else None for _ in range(12)]

    def some_keys(self) -> set[int]:
        return {key for key in range(self._keys) if self._random.random() < 0.3}

    def failing_reads(self) -> int:
        return self._random.choice((0, 0, 1, 3))

    def choose(self, count: int) -> int:
        return self._random.randrange(count)

    def cancel(self) -> int | None:
        return self._random.randrange(10) if self._cancels and self._random.random() < 0.4 else None

    def _call(self, distinct: bool) -> list[Step]:
        moves = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=self._random.randint(1, 5))
        if distinct:
            return list(zip(self._random.sample(range(self._keys), min(len(moves), self._keys)), moves, strict=False))
        return [(self._random.randrange(self._keys), move) for move in moves]


class WatchedStore(SuspendingBackend):
    """Knows for which keys nobody can say what it holds, and that no two changes of a key are under way."""

    def __init__(self, scheduler: Scheduler | None = None, *, suspend_answers: bool = False) -> None:
        super().__init__(scheduler, suspend_answers=suspend_answers)
        self.doubtful: set[int] = set()
        self._in_flight: set[int] = set()

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        assert self._in_flight.isdisjoint(changes), "two changes of one block are under way"
        self._in_flight |= changes.keys()
        try:
            failures = await super().apply(changes, fence)
        finally:
            self._in_flight -= changes.keys()
        self.doubtful -= changes.keys() - failures.keys()
        return failures

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        try:
            found = await super().read(keys)
        except StorageError:
            self.doubtful |= set(keys)
            raise
        self.doubtful -= set(keys)
        return found


class DirectStore(WatchedStore, Direct):
    """Tells of the end of two changes of three by a call."""

    def __init__(self, scheduler: Scheduler | None = None, *, suspend_answers: bool = False) -> None:
        super().__init__(scheduler, suspend_answers=suspend_answers)
        self._calls = itertools.count(1)
        self._tasks: set[asyncio.Task[Mapping[int, StorageError]]] = set()

    def submit(self, changes: Mapping[int, Block], fence: int, stored: Callable[[], None], otherwise: Callable[[Rest], None]) -> bool:
        if not next(self._calls) % 3:
            return False
        task = asyncio.get_running_loop().create_task(self.apply(changes, fence))
        self._tasks.add(task)

        async def rest() -> Mapping[int, StorageError]:
            return task.result()

        def ended(_: object) -> None:
            self._tasks.discard(task)
            if task.exception() is None and not task.result():
                stored()
            else:
                otherwise(rest())

        task.add_done_callback(ended)
        return True


@dataclass(slots=True)
class Edge:
    """What one call planned for one block, and whether it was told that this is done."""

    key: int
    seen: Block
    wanted: Block
    done: bool = False


@dataclass(slots=True)
class IndexWorld:
    limit: int = 1_000
    suspend_answers: bool = False
    direct: bool = False
    fence: int = 1
    scheduler: Scheduler = field(default_factory=Scheduler)
    edges: list[Edge] = field(default_factory=list)
    # Ids of locations that some call has named successful.
    finished: set[str] = field(default_factory=set)
    backend: WatchedStore = field(init=False)
    index: MetaIndex = field(init=False)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _sights: dict[tuple[int, str], Location] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backend = (DirectStore if self.direct else WatchedStore)(self.scheduler, suspend_answers=self.suspend_answers)
        self.index = MetaIndex(self.backend, max_key_count=self.limit, tier_capacity=4)

    def fresh(self) -> Location:
        """A location with an id and a time of its own; sizes and storages differ, so that a wrong count shows."""
        number = next(self._numbers)
        return written(f"{number:x}", size=1 << number % 40 if number % 5 else 0, storage_slot=number % 3, create_time_us=1_000 + number)

    async def call(self, steps: Sequence[Step]) -> list[Outcome]:
        """One mutation; checks that its caller can read at once what it was told is done (I-MB-1)."""
        edges: dict[int, Edge] = {}

        def plan(position: int, key: int, block: Block) -> Block | None:
            wanted = moved(steps[position][1], block, self.fresh)
            if wanted is not None:
                if steps[position][1] is Move.PROMOTE:
                    self.finished |= {new.location_id for new in wanted if new.status is Status.SERVING}
                edge = edges.setdefault(key, Edge(key, block, wanted))
                edge.wanted = wanted
            return wanted

        outcomes = await self.index.mutate([key for key, _ in steps], plan, self.fence)
        for (key, _), outcome in zip(steps, outcomes, strict=True):
            if outcome.changed:
                edges[key].done = True
                assert self.index.get(key) == edges[key].wanted, "a caller cannot read its own write"
        self.edges.extend(edge for edge in edges.values() if edge.done)
        return outcomes

    async def run(self, calls: Sequence[Sequence[Step]], choose: Callable[[int], int], cancel: Callable[[], int | None] = lambda: None) -> None:
        """Let the calls overlap. `choose(n)` names the next of n waiting points, `cancel()` the number of a caller to cancel now, or None."""
        callers: list[asyncio.Task[list[Outcome]]] = []

        async def wait_for(task: asyncio.Task[list[Outcome]]) -> None:
            await asyncio.wait([task])

        def step(count: int) -> int:
            self.watch()
            doomed = cancel()
            if doomed is not None:
                callers[doomed % len(callers)].cancel()
            return choose(count)

        callers.extend(asyncio.ensure_future(self.call(steps)) for steps in calls)
        await self.scheduler.run([wait_for(task) for task in callers], step)
        # Cancelled callers have left their changes to run to the end.
        await self.scheduler.settle()
        while self.scheduler.pending():
            self.watch()
            await self.scheduler.release()
        self.watch()
        for task in callers:
            if not task.cancelled():
                task.result()

    def watch(self) -> None:
        """What must hold at every moment that a reader can see."""
        blocks = published(self.index)
        assert len(blocks) == self.index.key_count <= self.limit
        assert Census.reported_by(self.index) == Census.of(blocks.values())
        assert all(blocks.values()), "a block exists exactly while it has a location"
        sights = {(key, loc.location_id): loc for key, block in blocks.items() for loc in block}
        assert len(sights) == sum(map(len, blocks.values())), "two locations of a block share an id"
        for mark in self._sights.keys() | sights.keys():
            self._compare(self._sights.get(mark), sights.get(mark))
        self._sights = sights

    def _compare(self, old: Location | None, new: Location | None) -> None:
        if new is not None and new.status is Status.SERVING:
            assert new.location_id in self.finished, "a location serves that no call has named successful"
        if old is not None and new is not None:
            assert old.create_time_us == new.create_time_us, "a creation time has changed"
            assert old.wire == new.wire, "a location id stands for other bytes than before"
        was, now = old and old.status, new and new.status
        assert was is now or (was, now) in LEGAL, f"a reader saw {was} become {now}"
