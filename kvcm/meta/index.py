"""The index of one instance: published blocks in memory, a durable store behind them (design D7).

Reads are plain function calls on published state. A mutation is

    hold the keys -> plan (synchronous, pure) -> await the store -> publish

and nothing of it is visible before the last step. If the store cannot say whether it took the change, the index reads the store and publishes what is
really there: an unknown outcome is resolved, never assumed. A store failure of one key leaves that key as it was and does not touch the others.

From the store write on, a mutation runs in a task of its own, or is ended by the store's call: cancelling the caller ends its waiting and nothing else, so
memory and store stay equal and the keys stay held until both are. `close` waits for all of them. The in-memory backend never suspends, can therefore not be
cancelled, and needs neither.

One case leaves memory and store apart: an unknown outcome that could not be read back either. The call fails, memory keeps the state that was last
known, and the next change of the block, written as a whole, makes the store equal again. Until then a restart may find either state; both are states
that somebody has asked for, and recovery ends WRITING and DELETING ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvcm.common.cut_short import cut_short_keys
from kvcm.common.errors import KvcmError, OutcomeUnknown, StorageError
from kvcm.common.uncut import Answer, Uncut
from kvcm.meta.access_log import AccessLog
from kvcm.meta.backend import Direct, Eager, MetadataBackend
from kvcm.meta.backend_local import LocalBackend
from kvcm.meta.block_table import BlockTable, Change
from kvcm.meta.chains import join_chains
from kvcm.meta.errors import KeyLimitReached, StateChanged
from kvcm.meta.key_gate import KeyGate, Ticket
from kvcm.meta.key_packing import KeyPacking
from kvcm.meta.location import (
    REPORTED_CODES,
    Block,
    Location,
    Status,
    are_promoted,
    columns_of,
    owned_part,
    place_of,
    reported_part,
    same_locations,
    size_of,
)
from kvcm.meta.tiered_map import TIER_CAPACITY
from kvcm.meta.usage import UsageCounter

log = logging.getLogger("kvcm.meta.index")

Plan = Callable[[int, int, Block], Block | None]
"""plan(position, key, block as seen now) -> new block, or None to leave it. May raise KvcmError: then this position fails and nothing else."""

BatchPlan = Callable[[list[Block]], list[Block] | None]
"""batch(blocks as seen now, one per key) -> new blocks, all different from the old ones; or None to be asked key by key instead."""

PAGE_KEYS = 64
_MIN_JOINED = 1_000  # fewer blocks are read quickly in any order


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one position of a mutation: `error` None means done (or nothing to do), `changed` that the block is different now."""

    changed: bool
    error: KvcmError | None = None


@dataclass(slots=True)
class _Mutation:
    """What was planned, and what must be let go when it has come to its end."""

    keys: Sequence[int]
    unique: Collection[int]
    ticket: Ticket
    changes: dict[int, Block]
    owned: Mapping[int, Block]
    before: dict[int, Block]
    outcomes: list[Outcome]
    new_keys: int


_NO_FAILURES: Mapping[int, KvcmError] = {}
_UNCHANGED = Outcome(changed=False)
CHANGED = Outcome(changed=True)


class MetaIndex:
    def __init__(
        self,
        backend: MetadataBackend,
        *,
        max_key_count: int,
        usage: UsageCounter | None = None,
        tier_capacity: int = TIER_CAPACITY,
        gate_wait_s: float = 10.0,
        packing: KeyPacking | None = None,
    ) -> None:
        self._backend = backend
        self._table = BlockTable(tier_capacity, packing)
        self.serving_run = self._table.serving_run
        """Append wire bytes of leading keys that are plainly SERVING (see BlockTable); bound here, so that the hot path saves a call."""
        self._gate = KeyGate(gate_wait_s)
        self._reserved = 0
        self._suspends = not isinstance(backend, LocalBackend)
        self._eager = isinstance(backend, Eager)
        self._direct = backend if isinstance(backend, Direct) else None
        self._submitted = 0  # mutations that the store will call for
        self._drained: asyncio.Future[None] | None = None
        self._commits = Uncut()
        self._joining: asyncio.Task[int] | None = None
        self._slot_counts: dict[int, int] = {}
        self._reported = 0  # locations that hosts report: while there is none, no mutation looks for them
        self.slots_version = 0
        """Grows whenever `storage_slots` gains or loses a slot."""
        self.max_key_count = max_key_count
        self.usage = usage or UsageCounter()
        self.access = AccessLog(self._table)

    # -- reads: published state, no suspension -------------------------------------------------------------------------------------------------

    @property
    def key_count(self) -> int:
        return len(self._table)

    def get(self, key: int) -> Block:
        return self._table.get(key)

    def get_all(self, keys: Sequence[int]) -> list[Block]:
        return self._table.get_all(keys)

    def pages(self, size: int = PAGE_KEYS) -> Iterator[list[int]]:
        """Keys page by page while the index changes (I-MI-7)."""
        return self._table.pages(size)

    def storage_slots(self) -> Mapping[int, int]:
        """Storage slot -> number of locations there."""
        return self._slot_counts

    # -- mutations -----------------------------------------------------------------------------------------------------------------------------

    async def mutate(self, keys: Sequence[int], plan: Plan, fence: int, batch: BatchPlan | None = None, *, reports: bool = False) -> list[Outcome]:
        """Run one mutation over `keys` in order; one outcome per position (I-MI-2).

        `batch` may answer for all keys at once in the common case; where it declines, `plan` is asked key by key. `reports`: the plan may add locations
        that hosts report. Those live in memory only, so a change of nothing else does not go to the store.

        A key that occurs twice sees the effect of its earlier occurrence. New keys over `max_key_count` fail with KeyLimitReached while existing ones
        stay updatable (I-MI-5). Raises KeysBusy when other mutations hold keys for too long; then nothing was done.
        """
        unique = keys if len(keys) == 1 else dict.fromkeys(keys)
        ticket = await self._gate.acquire(unique)
        before: dict[int, Block] = {}
        try:
            planned = self._plan_batch(keys, batch, before) if batch is not None and len(unique) == len(keys) else None
            changes, outcomes = planned or self._plan_all(keys, plan, before)
        except BaseException:
            self._gate.release(unique, ticket)
            raise
        if not changes:
            self._gate.release(unique, ticket)
            return outcomes
        # Here and not in the task, which starts later: whoever plans in between must know of this room.
        new_keys = _new_keys(changes, before)
        self._reserved += new_keys
        owned: Mapping[int, Block] = changes
        if reports or self._reported:
            owned = {key: part for key, block in changes.items() if (part := owned_part(block)) != owned_part(before[key])}
        mutation = _Mutation(keys, unique, ticket, changes, owned, before, outcomes, new_keys)
        if self._direct is not None and owned and (submitted := self._submit(self._direct, mutation, fence)) is not None:
            return await submitted
        commit = self._commit(mutation, self._backend.apply(owned, fence) if owned else None)
        if not self._suspends or not owned:
            return await commit
        if self._eager:
            return await self._commits.run(commit)
        return await asyncio.shield(self._commits.spawn(commit))

    async def sync(self, keys: Sequence[int]) -> None:
        """Barrier before physical deletion: raises StorageError unless every accepted change of the keys is durable."""
        await self._backend.sync(keys)

    async def open(self) -> None:
        await self._backend.open()

    async def raise_fence(self, fence: int) -> None:
        """Before `recover`: no change of an earlier leader is stored any more. Raises FencedOut, StorageError."""
        await self._backend.raise_fence(fence)

    async def close(self) -> None:
        """Close the store when the mutations under way have come to their end (each has the backend's deadlines)."""
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        while self._commits or self._submitted:
            if self._submitted:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
            await self._commits.ended()
        await self._backend.close()

    async def recover(self) -> int:
        """Load every stored block into an empty index and count anew; returns the number of blocks."""
        async for page in self._backend.load():
            self._publish_loaded(page)
            await asyncio.sleep(0)  # a store need not suspend between pages; the loop must not stand still for a million blocks
        return len(self._table)

    def restore(self, blocks: Mapping[int, Block]) -> None:
        """The store holds these blocks (empty: none) whatever the index says. Only while nobody changes it: during a load, and in a copy that follows."""
        get = self._table.get
        self._publish([(key, old, block) for key, block in blocks.items() if (old := get(key)) != block])

    def join_chains(self) -> None:
        """Begin to put what was recovered in order, so that prefix reads are quick again; goes on in the background until `close`."""
        if len(self._table) >= _MIN_JOINED and self._joining is None:
            self._joining = asyncio.get_running_loop().create_task(join_chains(self._table))

    # -- inside --------------------------------------------------------------------------------------------------------------------------------

    def _plan_batch(self, keys: Sequence[int], batch: BatchPlan, before: dict[int, Block]) -> tuple[dict[int, Block], list[Outcome]] | None:
        """`_plan_all` in one go; None when the batch plan declines or the index has no room for all."""
        seen = self._table.get_all(keys)
        if seen.count(()) > self.max_key_count - len(self._table) - self._reserved:
            return None
        wanted = batch(seen)
        if wanted is None:
            return None
        before.update(zip(keys, seen, strict=True))
        return dict(zip(keys, wanted, strict=True)), [CHANGED] * len(wanted)

    def _plan_all(self, keys: Sequence[int], plan: Plan, before: dict[int, Block]) -> tuple[dict[int, Block], list[Outcome]]:
        """Planned blocks of the keys that change, and an outcome per position; `before` receives those keys' published blocks."""
        changes: dict[int, Block] = {}
        outcomes: list[Outcome] = []
        room = self.max_key_count - len(self._table) - self._reserved
        get = self._table.get
        for position, key in enumerate(keys):
            planned = changes.get(key)
            seen = get(key) if planned is None else planned
            try:
                wanted = plan(position, key, seen)
            except KvcmError as error:
                outcomes.append(Outcome(changed=False, error=error))
                continue
            if wanted is None or wanted == seen:
                outcomes.append(_UNCHANGED)
                continue
            if wanted and not seen and planned is None:
                if room <= 0:
                    outcomes.append(Outcome(False, KeyLimitReached(f"the index is full: it holds its limit of {self.max_key_count} blocks")))
                    continue
                room -= 1
            if planned is None:
                before[key] = seen
            changes[key] = wanted
            outcomes.append(CHANGED)
        return changes, outcomes

    def _submit(self, store: Direct, mutation: _Mutation, fence: int) -> asyncio.Future[list[Outcome]] | None:
        """Have the store call at the end of the mutation; None when it cannot take it so. Whoever waits for the future may be cancelled."""
        loop = asyncio.get_running_loop()
        future: Answer[list[Outcome]] = Answer(loop=loop)

        def stored() -> None:
            try:
                outcomes = self._end(mutation, _NO_FAILURES)
            except Exception as error:
                log.exception("metadata_index_bug: %d stored blocks could not be published", len(mutation.changes))
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(outcomes)
            self._called()

        def otherwise(rest: Awaitable[Mapping[int, StorageError]]) -> None:
            task = self._commits.spawn(self._commit(mutation, rest))
            task.add_done_callback(lambda ended: _hand_over(ended, future))
            self._called()

        self._submitted += 1
        try:
            taken = store.submit(mutation.owned, fence, stored, otherwise)
        except Exception:
            # Not in the port's contract. It has sent nothing that it will tell of; what it may have sent all the same, `apply` overwrites.
            log.exception("metadata_backend_bug: a change of %d blocks could not be sent", len(mutation.owned))
            taken = False
        if not taken:
            self._called()
            return None
        return future

    def _called(self) -> None:
        self._submitted -= 1
        if not self._submitted and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _commit(self, mutation: _Mutation, attempt: Awaitable[Mapping[int, StorageError]] | None) -> list[Outcome]:
        """Store what is owned (None: nothing is), publish, let the keys and the reserved room go. Never to be interrupted."""
        failures: Mapping[int, KvcmError] | None = None
        try:
            failures = _NO_FAILURES if attempt is None else await self._store(attempt, mutation)
        finally:
            if failures is None:
                self._let_go(mutation)
        return self._end(mutation, failures)

    def _end(self, mutation: _Mutation, failures: Mapping[int, KvcmError]) -> list[Outcome]:
        before = mutation.before
        try:
            changes = mutation.changes if not failures else {key: block for key, block in mutation.changes.items() if key not in failures}
            self._publish(list(zip(changes, map(before.__getitem__, changes), changes.values(), strict=True)))
        finally:
            self._let_go(mutation)
        return _with_failures(mutation.keys, mutation.outcomes, failures) if failures else mutation.outcomes

    def _let_go(self, mutation: _Mutation) -> None:
        self._reserved -= mutation.new_keys
        self._gate.release(mutation.unique, mutation.ticket)

    async def _store(self, attempt: Awaitable[Mapping[int, StorageError]], mutation: _Mutation) -> Mapping[int, KvcmError]:
        """Wait for the store; returns the keys that it does not hold as wanted, with why."""
        changes = mutation.owned
        try:
            return cut_short_keys(await attempt, len(changes))
        except OutcomeUnknown:
            pass
        except StorageError as error:
            return dict.fromkeys(changes, error)
        except Exception:
            # Not in the port's contract, so nothing is known about the outcome either.
            log.exception("metadata_backend_bug: a change of %d blocks ended with an unexpected error; the store is read back", len(changes))
        return await self._resolve(changes, mutation.before)

    async def _resolve(self, changes: Mapping[int, Block], before: Mapping[int, Block]) -> Mapping[int, KvcmError]:
        """Ask the store what it holds. A block that is neither the old nor the new one is published as it is."""
        try:
            actual = await self._backend.read(list(changes))
        except Exception as error:
            if not isinstance(error, StorageError):
                log.exception("metadata_backend_bug: reading back %d blocks ended with an unexpected error", len(changes))
            # Not NotReady: that says to clients that nothing was done.
            failure = OutcomeUnknown("the metadata store did not say whether it took the change and cannot be read now; look before you repeat the call")
            failure.__cause__ = error
            return dict.fromkeys(changes, failure)
        failures: dict[int, KvcmError] = {}
        for key, wanted in changes.items():
            stored = actual.get(key, ())
            if same_locations(stored, wanted):
                continue
            if same_locations(stored, owned_part(before[key])):
                failures[key] = StorageError("the metadata store did not take the change; repeat the call")
                continue
            failures[key] = StateChanged("the stored block is neither the old nor the new one")
            self._publish([(key, before[key], (*stored, *reported_part(before[key])))])
        return failures

    def _publish(self, changes: Sequence[Change]) -> None:
        """Make the changes visible and count keys and bytes, once for all of them."""
        if self._publish_alike(changes):
            return
        self._table.put_all(changes)
        new_keys = 0
        moved: dict[bytes, list[int]] = {}  # storage type and slot, as in a header -> [bytes, locations]
        for key, old, new in changes:
            if not old:
                new_keys += 1
            if not new:
                new_keys -= 1
                self.access.forget(key)
            if len(old) == len(new) == 1 and old[0].header[1:] == new[0].header[1:]:
                continue  # only the state changed: no byte came or went
            for header, _ in old:
                _count(header, -1, moved)
            for header, _ in new:
                _count(header, 1, moved)
        self._settle(moved, new_keys)

    def _publish_alike(self, changes: Sequence[Change]) -> bool:
        """`_publish` for what writers mostly do, all blocks in one step: begin blocks that did not exist, in one storage, or end them all well."""
        if not changes:
            return True
        keys, before, blocks = zip(*changes, strict=True)
        try:
            (locations,) = zip(*blocks, strict=True)
            were: tuple[Location, ...] = ()
            if any(before):
                (were,) = zip(*before, strict=True)
        except ValueError:
            return False
        headers = [header for header, _ in locations]
        if were:
            if not are_promoted([header for header, _ in were], headers):
                return False
            self._table.serve_all(keys, locations)
            return True
        places, _, _, sizes, *_ = columns_of(headers)
        if places[0][0] == Status.SERVING or places.count(places[0]) < len(places):
            return False
        self._table.begin_all(keys, blocks)
        self._settle({places[0][1:]: (sum(sizes), len(sizes))}, len(keys))
        return True

    def _settle(self, moved: Mapping[bytes, Sequence[int]], new_keys: int) -> None:
        for place, (size, count) in moved.items():
            if size:
                self.usage.add_bytes(place[0], size)
            if count:
                self._count_slot(int.from_bytes(place[1:], "little"), count)
                if place[0] in REPORTED_CODES:
                    self._reported += count
        if new_keys:
            self.usage.add_keys(new_keys)

    def _publish_loaded(self, page: Sequence[tuple[int, Block]]) -> None:
        """`_publish` for blocks that are new, which almost all of a recovery are."""
        table = self._table
        if any(not block or key in table for key, block in page) or len({key for key, _ in page}) != len(page):
            # A scan may repeat a key, and a key counts once; a record without locations is no block.
            self._publish([(key, table.get(key), block) for key, block in dict(page).items()])
            return
        table.put_all([(key, (), block) for key, block in page])
        moved: dict[bytes, list[int]] = {}
        for _, block in page:
            for header, _ in block:
                place = header[1:4]
                sums = moved.get(place)
                if sums is None:
                    sums = moved[place] = [0, 0]
                sums[0] += int.from_bytes(header[13:21], "little")
                sums[1] += 1
        self._settle(moved, len(page))

    def _count_slot(self, slot: int, delta: int) -> None:
        before = self._slot_counts.get(slot, 0)
        count = before + delta
        if count:
            self._slot_counts[slot] = count
        else:
            del self._slot_counts[slot]
        if not (before and count):
            self.slots_version += 1


def _new_keys(changes: Mapping[int, Block], before: Mapping[int, Block]) -> int:
    known = list(map(before.__getitem__, changes))
    if all(known):
        return 0
    return sum(1 for old, new in zip(known, changes.values(), strict=True) if new and not old)


def _count(header: bytes, sign: int, moved: dict[bytes, list[int]]) -> None:
    place = place_of(header)
    sums = moved.get(place)
    if sums is None:
        sums = moved[place] = [0, 0]
    sums[0] += sign * size_of(header)
    sums[1] += sign


def _hand_over(ended: asyncio.Task[list[Outcome]], future: asyncio.Future[list[Outcome]]) -> None:
    if future.done():
        return
    if ended.cancelled():
        future.cancel()
    elif (error := ended.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(ended.result())


def _with_failures(keys: Sequence[int], outcomes: Sequence[Outcome], failures: Mapping[int, KvcmError]) -> list[Outcome]:
    """The outcomes once some keys have failed. A later occurrence of such a key was planned on a state that never came: it fails too."""
    settled: list[Outcome] = []
    begun: set[int] = set()
    for key, outcome in zip(keys, outcomes, strict=True):
        if outcome.changed and key in failures:
            begun.add(key)
        settled.append(Outcome(changed=False, error=failures[key]) if key in begun and outcome.error is None else outcome)
    return settled
