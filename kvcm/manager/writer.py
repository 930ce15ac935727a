"""Two-phase writes: start hands out places, finish makes the written ones readable (behaviour 3.5, 3.6; wire contract 4.12, 4.13).

start:   filter what is there already -> one storage for the batch -> allocate -> insert as WRITING -> open a session
finish:  check the call -> claim the session -> WRITING becomes SERVING or DELETING, each by compare-and-set -> end the session

Between filter and insert the loop may have run other writers. The insert therefore decides again, key by key, on the state it finds: a key that someone
else took meanwhile is answered as present and its place is given back (I-CM-6). If the insert fails, everything this call has allocated or inserted
goes (I-CM-5). Callers run these methods to their end (see CacheManager).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvcm.common.block_mask import BlockMask, present_mask
from kvcm.common.clock import Clock
from kvcm.common.errors import InstanceNotExist, InvalidArgument, KvcmError, StorageError
from kvcm.common.ids import IdSource
from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import Storage
from kvcm.data_storage.port import AllocationItem
from kvcm.manager.deleter import Deleter
from kvcm.manager.errors import SessionUnknown, WriteLost
from kvcm.manager.ports import Leadership, Storages, WireCodec
from kvcm.manager.presence import Presence
from kvcm.manager.probing import Prober, Pruner
from kvcm.manager.selector import delete_delay_us, select_storage
from kvcm.manager.shard import InstanceShard
from kvcm.manager.strays import Strays
from kvcm.manager.write_sessions import WriteSession, WriteSessions, lifetime_us
from kvcm.meta.errors import KeyLimitReached
from kvcm.meta.index import CHANGED
from kvcm.meta.location import Block, Location, begin_writes, condemn, promote, promote_all, replace
from kvcm.meta.usage import UsageCounter

log = logging.getLogger("kvcm.writer")

_RETRY_FINISH_US = 5_000_000
_RETRY_ABORT_US = 1_000_000
_ABORTS_AT_ONCE = 16
LATE_WRITER_GRACE_US = 1_000_000
"""After an expiry the writer may still be at work; deleting a moment later catches most of what it still writes."""


@dataclass(frozen=True, slots=True)
class StartWrite:
    """`group_names`: one spec group per key, or empty for all specs. `min_replicas` <= 1 acts as 1. `timeout_s` as in `lifetime_us`."""

    keys: Sequence[int]
    group_names: Sequence[str] = ()
    timeout_s: int = 0
    min_replicas: int = 1


@dataclass(frozen=True, slots=True)
class WriteStarted:
    """`locations` are framed CacheLocation bytes, one per key that the mask leaves open, in key order (I-CM-3)."""

    session_id: str
    mask: BlockMask
    locations: list[bytes]


@dataclass(slots=True)
class WriteTimes:
    """Microseconds that the parts of the last write took; 0 before the first. `allocate` to `add` only when there was something new."""

    filter_us: int = 0
    allocate_us: int = 0
    generate_us: int = 0
    add_us: int = 0
    update_us: int = 0


class Writer:
    def __init__(
        self,
        storages: Storages,
        codec: WireCodec,
        clock: Clock,
        ids: IdSource,
        leadership: Leadership,
        deleter: Deleter,
        prober: Prober,
        pruner: Pruner,
        sessions: WriteSessions,
        keep_after_bad_mask: bool = True,
    ) -> None:
        """`keep_after_bad_mask`: False ends a session whose finish does not fit it, as upstream does; its blocks are freed as those of an expired one."""
        self._storages = storages
        self._codec = codec
        self._clock = clock
        self._ids = ids
        self._leadership = leadership
        self._deleter = deleter
        self._prober = prober
        self._pruner = pruner
        self._presence = Presence(storages, codec)
        self.sessions = sessions
        self._keep_after_bad_mask = keep_after_bad_mask
        self.strays = Strays(storages)
        self.times = WriteTimes()

    # -- start ---------------------------------------------------------------------------------------------------------------------------------

    async def start(self, shard: InstanceShard, group: InstanceGroup, usage: UsageCounter, request: StartWrite) -> WriteStarted:
        """Raises InvalidArgument, QuotaReached, NoStorage, KeyLimitReached, AllocationFailed, Overloaded, StorageError, InstanceNotExist (removed
        meanwhile); nothing is left then."""
        shard.starts += 1
        try:
            return await self._start(shard, group, usage, request)
        finally:
            shard.starts -= 1

    async def _start(self, shard: InstanceShard, group: InstanceGroup, usage: UsageCounter, request: StartWrite) -> WriteStarted:
        self.sessions.check_room()
        wanted = self._wanted_specs(shard, request)
        began = self._clock.monotonic_us()
        lost = [probed for probed in await self._prober.probe(shard, request.keys) if probed.lost]
        if lost:
            await self._pruner.prune(shard, lost, delete_delay_us(group))
        fresh = self._presence.missing(shard, request.keys, wanted, request.min_replicas)
        self.times.filter_us = self._clock.monotonic_us() - began
        inserted: dict[int, Location] = {}
        if fresh:
            if request.group_names:
                required = sum(shard.spec_sizes[name] for position in fresh for name in wanted[position])
            else:
                required = len(fresh) * sum(shard.spec_sizes.values())
            storage = select_storage(group, self._storages, usage, required)
            inserted = await self._insert(shard, storage, request, wanted, fresh)
        if len(inserted) == len(request.keys):  # all of them, so in order
            keys, locations, mask = list(request.keys), list(inserted.values()), BlockMask(offset=0)
        else:
            positions = sorted(inserted)
            keys, locations = [request.keys[position] for position in positions], [inserted[position] for position in positions]
            mask = present_mask([position not in inserted for position in range(len(request.keys))])
        if shard.closed:  # its sessions have been ended already, so this one must not begin
            await self._withdraw(shard, list(zip(keys, locations, strict=True)))
            raise InstanceNotExist(f"instance '{shard.instance_id}' was removed while the write was being started")
        session = WriteSession(
            session_id=self._ids.session_id(),
            instance_id=shard.instance_id,
            keys=keys,
            locations=[*locations],
            deadline_us=self._clock.monotonic_us() + lifetime_us(request.timeout_s, len(keys)),
        )
        self.sessions.put(session)
        self.sessions.stats.opened += 1
        return WriteStarted(session.session_id, mask, [wire for _, wire in locations])

    @staticmethod
    def _wanted_specs(shard: InstanceShard, request: StartWrite) -> list[list[str]]:
        """Spec names per key, in registration order."""
        if not request.group_names:
            return [list(shard.spec_sizes)] * len(request.keys)
        if len(request.group_names) != len(request.keys):
            raise InvalidArgument(
                f"location_spec_group_names has {len(request.group_names)} entries for {len(request.keys)} blocks; give one per block or none"
            )
        ordered: dict[str, list[str]] = {}
        for name in request.group_names:
            if name not in ordered:
                if name not in shard.spec_groups:
                    raise InvalidArgument(f"location spec group '{name}' is not registered for instance '{shard.instance_id}'")
                ordered[name] = shard.ordered(shard.spec_groups[name])
                if not ordered[name]:
                    raise InvalidArgument(f"location spec group '{name}' of instance '{shard.instance_id}' names no registered spec, so it has no bytes")
        return [ordered[name] for name in request.group_names]

    async def _insert(
        self, shard: InstanceShard, storage: Storage, request: StartWrite, wanted: Sequence[Sequence[str]], fresh: Sequence[int]
    ) -> dict[int, Location]:
        """Allocate and insert; position -> WRITING location for the keys that are really ours."""
        keys = [request.keys[position] for position in fresh]
        room = shard.index.max_key_count - shard.index.key_count
        if len(keys) > room and sum(1 for key in keys if not shard.index.get(key)) > room:
            raise KeyLimitReached(
                f"instance '{shard.instance_id}' holds {shard.index.key_count} of {shard.index.max_key_count} blocks; remove blocks or raise the limit"
            )
        clock, times = self._clock, self.times
        began = clock.monotonic_us()
        places = await self._allocate(shard, storage, keys, [wanted[position] for position in fresh])
        allocated = clock.monotonic_us()
        planned = self._build(shard, storage, request, fresh, places)
        generated = clock.monotonic_us()
        times.allocate_us, times.generate_us = allocated - began, generated - allocated
        taken: dict[int, Location] = {}

        def plan(at: int, key: int, block: Block) -> Block | None:
            position = fresh[at]
            if block and not self._presence.is_missing(shard.shown(block), wanted[position], request.min_replicas, shard.has_groups, storage):
                return None
            taken[at] = planned[at]
            return (*block, planned[at])

        def none_is_there(seen: list[Block]) -> list[Block] | None:
            if any(seen):
                return None
            taken.update(enumerate(planned))
            return list(zip(planned, strict=True))

        try:
            outcomes = await shard.index.mutate(keys, plan, self._leadership.epoch, none_is_there)
        except KvcmError:
            await self.strays.give_back(storage.name, [uri for uris in places for uri in uris])
            raise
        times.add_us = clock.monotonic_us() - generated
        if outcomes.count(CHANGED) == len(outcomes):
            return dict(zip(fresh, planned, strict=True))
        failure = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        mine = {at for at in taken if outcomes[at].changed}
        unused = [uri for at, uris in enumerate(places) if at not in mine for uri in uris]
        if unused:
            await self.strays.give_back(storage.name, unused)
        if failure is not None:
            await self._withdraw(shard, [(keys[at], planned[at]) for at in mine])
            raise failure
        return {fresh[at]: planned[at] for at in mine}

    async def _allocate(self, shard: InstanceShard, storage: Storage, keys: Sequence[int], specs: Sequence[Sequence[str]]) -> list[list[str]]:
        """URIs per key in spec order. One allocation list if all registered specs have one size, else one per spec (wire contract 6.3)."""
        if len(shard.spec_sizes) == 1:
            ((name, size),) = shard.spec_sizes.items()
            prefix = f"{shard.instance_id}/{name}/"
            items = [AllocationItem(f"{prefix}{key & 0xFFFFFFFFFFFFFFFF:x}", size) for key in keys]
            return [[uri] for uri in await self._storages.allocate(storage.name, items)]
        uris: list[list[str]] = [[""] * len(names) for names in specs]
        lists: list[tuple[list[AllocationItem], list[tuple[int, int]]]] = []
        one_size = len(set(shard.spec_sizes.values())) == 1
        for name, size in shard.spec_sizes.items():
            if not lists or not one_size:
                lists.append(([], []))
            items, where = lists[-1]
            prefix = f"{shard.instance_id}/{name}/"
            for at, names in enumerate(specs):
                if name in names:
                    items.append(AllocationItem(f"{prefix}{keys[at] & 0xFFFFFFFFFFFFFFFF:x}", size))
                    where.append((at, names.index(name)))
        done: list[str] = []
        try:
            for items, where in lists:
                if not items:
                    continue
                found = await self._storages.allocate(storage.name, items)
                done.extend(found)
                for (at, column), uri in zip(where, found, strict=True):
                    uris[at][column] = uri
        except StorageError:
            if done:
                await self.strays.give_back(storage.name, done)
            raise
        return uris

    def _build(self, shard: InstanceShard, storage: Storage, request: StartWrite, fresh: Sequence[int], places: Sequence[Sequence[str]]) -> list[Location]:
        names = list(shard.spec_sizes)
        encode, type_code = self._codec.encode, int(storage.type)
        keys = request.keys
        if request.group_names:
            columns = [shard.ordered(shard.spec_groups[request.group_names[position]]) for position in fresh]
            sizes = [sum(shard.spec_sizes[name] for name in chosen) for chosen in columns]
            wires = [encode(type_code, list(zip(chosen, uris, strict=True))) for chosen, uris in zip(columns, places, strict=True)]
        elif len(names) == 1:
            sizes = [shard.spec_sizes[names[0]]] * len(fresh)
            wires = self._codec.encode_singles(type_code, names[0], [uri for (uri,) in places])
        else:
            sizes = [sum(shard.spec_sizes.values())] * len(fresh)
            wires = [encode(type_code, list(zip(names, uris, strict=True))) for uris in places]
        return begin_writes(
            type_code,
            self._storages.slot_of(storage.name),
            self._clock.wall_us(),
            sizes,
            self._ids.location_ids(len(fresh)),
            [keys[position - 1] if position else None for position in fresh],
            wires,
        )

    async def _withdraw(self, shard: InstanceShard, inserted: Sequence[tuple[int, Location]]) -> None:
        """Take back locations of a start that failed. What the metadata store does not let go now belongs to an expired session, so that every sweep
        tries again: without an owner it would keep its key from being written for ever."""
        if not inserted:
            return
        try:
            refused = await self._deleter.withdraw(shard, inserted)
        except KvcmError:
            refused = list(inserted)
        if not refused:
            return
        log.warning("withdraw_incomplete instance=%s blocks=%d: the metadata store refused; it is tried again", shard.instance_id, len(refused))
        self.sessions.put(
            WriteSession(
                session_id=self._ids.session_id(),
                instance_id=shard.instance_id,
                keys=[key for key, _ in refused],
                locations=[location for _, location in refused],
                deadline_us=self._clock.monotonic_us() + _RETRY_ABORT_US,
                expired=True,
            )
        )

    # -- finish --------------------------------------------------------------------------------------------------------------------------------

    async def finish(self, shard: InstanceShard, session_id: str, success: BlockMask, checksums: Sequence[int] = ()) -> None:
        """End a session. A call that is wrong in itself (mask, checksums, instance) leaves the session open (I-CM-12), unless told otherwise for masks.

        Raises SessionUnknown, InvalidArgument; WriteLost when successful blocks had been removed meanwhile (the others are served);
        StorageError when the metadata store refused: the session stays open and the call can be repeated.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise SessionUnknown("the write session is unknown: it was finished, has expired, or belongs to an earlier leader; start the write again")
        if session.instance_id != shard.instance_id:
            raise InvalidArgument("the write session belongs to another instance")
        succeeded = success.expand(len(session.keys))
        if succeeded is None:
            if not self._keep_after_bad_mask:
                self.sessions.spend(session, self._clock.monotonic_us())
            fate = "stays open" if self._keep_after_bad_mask else "has ended and its blocks are freed"
            raise InvalidArgument(f"success_blocks does not fit the {len(session.keys)} blocks that this session handed out; the session {fate}")
        if checksums and len(checksums) != len(session.keys):
            raise InvalidArgument(f"checksums has {len(checksums)} entries for the {len(session.keys)} blocks of this session; the session stays open")
        self.sessions.claim(session_id)
        began = self._clock.monotonic_us()
        try:
            await self._settle(shard, session, succeeded, checksums, 0)
        except KvcmError:
            # The client may repeat the call: not less time than it had, and some in any case.
            self.sessions.reopen(session, max(session.deadline_us, self._clock.monotonic_us() + _RETRY_FINISH_US))
            raise
        self.times.update_us = self._clock.monotonic_us() - began
        self.sessions.stats.finished += 1
        if session.lost:
            raise WriteLost(f"{session.lost} of {len(session.keys)} blocks were removed before the write was finished; the others are served")

    async def expire_due(self, shard_of: Mapping[str, InstanceShard]) -> int:
        """End every session whose deadline has passed as if nothing had succeeded; returns how many."""
        return await self._abort(self.sessions.claim_due(self._clock.monotonic_us()), shard_of, lambda: self._leadership.ending)

    async def abort_all(self, shard_of: Mapping[str, InstanceShard], instance_id: str | None = None, limit_us: int | None = None) -> int:
        """Abort open sessions (of one instance): leadership ends, or the instance is removed. What is not begun within `limit_us` is left: the next leader
        finds its blocks WRITING without a session."""
        end_us = None if limit_us is None else self._clock.monotonic_us() + limit_us
        return await self._abort(self.sessions.claim_all(instance_id), shard_of, lambda: end_us is not None and self._clock.monotonic_us() >= end_us)

    async def _abort(self, claimed: Sequence[WriteSession], shard_of: Mapping[str, InstanceShard], is_over: Callable[[], bool]) -> int:
        by_instance: dict[str, list[WriteSession]] = {}
        for session in claimed:
            by_instance.setdefault(session.instance_id, []).append(session)
        # Side by side: an instance whose metadata store hangs must not keep the sessions of the others alive.
        await asyncio.gather(*(self._abort_of(shard_of.get(instance_id), sessions, is_over) for instance_id, sessions in by_instance.items()))
        return len(claimed)

    async def _abort_of(self, shard: InstanceShard | None, sessions: Sequence[WriteSession], is_over: Callable[[], bool]) -> None:
        """A few at a time share a round trip to the store. After one that failed the others are given back, to be tried again."""
        if shard is None:
            for session in sessions:
                self.sessions.end(session)
            return
        for at in range(0, len(sessions), _ABORTS_AT_ONCE):
            if is_over():
                log.info("sessions_left instance=%s sessions=%d: there is no time to end them; whoever leads next does", shard.instance_id, len(sessions) - at)
                for session in sessions[at:]:
                    self.sessions.reopen(session, self._clock.monotonic_us())
                return
            part = sessions[at : at + _ABORTS_AT_ONCE]
            errors = await asyncio.gather(*(self._abort_one(shard, session) for session in part))
            if (error := next(filter(None, errors), None)) is not None:
                left = [session for session, failed in zip(part, errors, strict=True) if failed] + [*sessions[at + len(part) :]]
                log.warning("session_abort_failed instance=%s sessions=%d: %s", shard.instance_id, len(left), error.message)
                for session in left:
                    self.sessions.reopen(session, self._clock.monotonic_us() + _RETRY_ABORT_US)
                return

    async def _abort_one(self, shard: InstanceShard, session: WriteSession) -> KvcmError | None:
        try:
            await self._settle(shard, session, [False] * len(session.keys), (), LATE_WRITER_GRACE_US)
        except KvcmError as error:
            return error
        return None

    async def _settle(self, shard: InstanceShard, session: WriteSession, succeeded: Sequence[bool], checksums: Sequence[int], delay_us: int) -> None:
        """Move every location of a claimed session to its end state and end the session.

        On a store failure (KvcmError) the session still has what is not settled, and the caller gives the claim back. `delay_us` before failed blocks are
        deleted: a writer whose session has expired may still be at work.
        """
        # Taken now: when the instance is removed meanwhile, the session is forgotten, and what this call condemns must be queued all the same.
        open_ = [(position, location) for position, location in enumerate(session.locations) if location is not None]
        gone: set[int] = set()
        doomed: set[int] = set()

        def plan(at: int, key: int, block: Block) -> Block | None:
            position, location = open_[at]
            if location not in block:
                gone.add(position)
                return None
            if succeeded[position]:
                return replace(block, location, promote(location, checksums[position] if checksums else 0))
            doomed.add(position)
            return replace(block, location, condemn(location))

        expected: list[Block] = [(location,) for _, location in open_]

        def all_written(seen: list[Block]) -> list[Block] | None:
            if not all(succeeded) or checksums or seen != expected:
                return None
            return list(zip(promote_all([location for _, location in open_]), strict=True))

        outcomes = await shard.index.mutate([session.keys[position] for position, _ in open_], plan, self._leadership.epoch, all_written)
        failure: KvcmError | None = None
        targets = []
        if not (gone or doomed) and outcomes.count(CHANGED) == len(outcomes):
            self.sessions.end(session)
            return
        for (position, location), outcome in zip(open_, outcomes, strict=True):
            if outcome.error is not None:
                failure = outcome.error
                continue
            if position in doomed:
                targets.append((session.keys[position], location.location_id))
            session.lost += position in gone and succeeded[position]
            self.sessions.settle(session, position)
        self._deleter.stats.condemned += len(targets)
        self._deleter.push(shard, targets, delay_us)
        if failure is not None:
            raise failure
        self.sessions.end(session)
