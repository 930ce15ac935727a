"""ReportEvent: hosts tell which blocks they hold in their own memory (behaviour 21, wire contract 4.18).

Copies that hosts report live in the index beside the others, in memory only: after a restart every one of them is hidden until its host reports anew, so a
stored one would be worth nothing. They have no bytes of ours, count in no quota, and only the last three functions of the state machine touch them.

One report: events are looked at in order, and what concerns the host's life is done at once. Changes of blocks are folded, last operation of a (block, medium,
spec) wins, and applied together afterwards; folded events share their outcome. There is no transaction over a report: each event has its own result.

A snapshot writes the host's next generation block by block while readers see the one before, and one assignment switches. If it fails, the blocks that it has
taken over are put back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvcm.common.clock import Clock
from kvcm.common.errors import InstanceNotExist, KvcmError
from kvcm.common.ids import IdSource
from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import EventReportSpec, Storage, StorageType
from kvcm.manager.errors import NodeNotRegistered, SnapshotTooSoon
from kvcm.manager.event_report_blocks import changed_block, put_back, taken_over
from kvcm.manager.event_report_events import Add, Delete, Event, Heartbeat, HostDown, Register, Snapshot
from kvcm.manager.event_report_roster import Reporter, Roster
from kvcm.manager.ports import Leadership, Storages, WireCodec
from kvcm.manager.shard import InstanceShard
from kvcm.meta.index import Plan
from kvcm.meta.location import Block, Location

log = logging.getLogger("kvcm.events")

_SLICE = 256
"""Blocks of one mutation: a few milliseconds, then others run."""
_EVENTS_SLICE = 2048

Failures = dict[int, KvcmError]
"""Position of an event -> why it failed."""


@dataclass(frozen=True, slots=True)
class Reported:
    """`version`: of the generation that readers see, empty when there is none."""

    failures: Mapping[int, KvcmError]
    version: str
    snapshot_required: bool
    retry_after_ms: int


@dataclass(slots=True)
class Changes:
    """Folded changes: key -> medium -> spec name -> URI, None = removed; and which events they come from."""

    specs: dict[int, dict[str, dict[str, str | None]]] = field(default_factory=dict)
    positions: dict[int, list[int]] = field(default_factory=dict)

    def add(self, at: int, event: Add | Delete) -> None:
        wanted = self.specs.setdefault(event.key, {}).setdefault(event.medium, {})
        if isinstance(event, Add):
            wanted.update(event.specs)
        else:
            wanted.update(dict.fromkeys(event.spec_names))
        self.positions.setdefault(event.key, []).append(at)


class EventReports:
    def __init__(self, storages: Storages, codec: WireCodec, clock: Clock, ids: IdSource, leadership: Leadership) -> None:
        self._storages = storages
        self._codec = codec
        self._clock = clock
        self._ids = ids
        self._leadership = leadership

    def storage_of(self, group: InstanceGroup | None, kind: StorageType) -> Storage:
        """The group's storage that hosts of this kind report to. Raises InstanceNotExist."""
        storage = self.find_storage(group, kind)
        if storage is None:
            raise InstanceNotExist(f"the instance's group has no storage of type '{kind.type_name}' among its event_report_storage_candidates")
        return storage

    def find_storage(self, group: InstanceGroup | None, kind: StorageType) -> Storage | None:
        """The first of the group's candidates that exists and is of this kind."""
        for name in group.event_report_storage_candidates if group is not None else ():
            storage = self._storages.get(name)
            if storage is not None and storage.type is kind:
                return storage
        return None

    async def report(self, shard: InstanceShard, storage: Storage, host: str, events: Sequence[Event | KvcmError]) -> Reported:
        """Take in one report; `events[i]` is an error where the event itself is not acceptable. Never raises KvcmError: each event has its result."""
        failures: Failures = {at: event for at, event in enumerate(events) if isinstance(event, KvcmError)}
        kind, timings = storage.type, timings_of(storage)
        if len(failures) == len(events):
            return self._reported(shard.reports, kind, host, failures, needed=True)
        if shard.reports is None:
            shard.reports = Roster(self._ids)
        roster = shard.reports
        known = roster.get(kind, host)
        needed = known is None or known.needs_snapshot
        changes = Changes()
        snapshot: tuple[int, Snapshot] | None = None
        reporter: Reporter | None = None
        for at, event in enumerate(events):
            if at and not at % _EVENTS_SLICE:
                await asyncio.sleep(0)
            try:
                match event:
                    case Register():
                        roster.register(kind, host, timings, self._clock.monotonic_us())
                    case Heartbeat():
                        roster.heartbeat(kind, host, event.status, timings, self._clock.monotonic_us())
                    case HostDown():
                        roster.host_down(kind, host)
                        log.info("event_reporter_down instance=%s kind=%s host=%s", shard.instance_id, kind.type_name, host)
                    case Add() | Delete():
                        reporter = roster.admit(kind, host, timings, self._clock.monotonic_us())
                        changes.add(at, event)
                    case Snapshot():
                        reporter = roster.admit(kind, host, timings, self._clock.monotonic_us())
                        snapshot = at, event
            except KvcmError as error:
                failures[at] = error
        if reporter is not None and changes.specs:
            await self._apply(shard, roster, reporter, storage, changes, failures)
        if reporter is not None and snapshot is not None:
            at, event = snapshot
            try:
                await self._take_in(shard, roster, reporter, storage, event)
                needed = False
            except KvcmError as error:
                failures[at] = error
        return self._reported(roster, kind, host, failures, needed)

    def _reported(self, roster: Roster | None, kind: StorageType, host: str, failures: Failures, needed: bool) -> Reported:
        reporter = roster.get(kind, host) if roster is not None else None
        wait = next((error.retry_after_ms for error in failures.values() if isinstance(error, SnapshotTooSoon)), 0)
        # `needed` is what was true when the call came: the change that begins a generation is still told to send a snapshot.
        required = reporter is None or needed or reporter.needs_snapshot
        return Reported(dict(sorted(failures.items())), reporter.version if reporter is not None else "", required, wait)

    # -- changes -------------------------------------------------------------------------------------------------------------------------------

    async def _apply(self, shard: InstanceShard, roster: Roster, reporter: Reporter, storage: Storage, changes: Changes, failures: Failures) -> None:
        try:
            async with reporter.gate.change(timings_of(storage).snapshot_delta_drain_timeout_ms / 1000):
                _check_open(shard, reporter)
                version = roster.version_for_changes(reporter)
                slot, now_us = self._storages.slot_of(storage.name), self._clock.wall_us()

                def plan(_: int, key: int, block: Block) -> Block | None:
                    _check_open(shard, reporter)
                    return changed_block(block, changes.specs[key], roster, reporter, self._codec, version, slot, now_us)

                await self._mutate(shard, list(changes.specs), plan, lambda key, error: failures.update(dict.fromkeys(changes.positions[key], error)))
        except KvcmError as error:
            for positions in changes.positions.values():
                failures.update({at: error for at in positions if at not in failures})
        if reporter.gone:
            roster.garbage_epoch += 1  # what has landed behind the clean-up has to be found

    # -- snapshots -----------------------------------------------------------------------------------------------------------------------------

    async def _take_in(self, shard: InstanceShard, roster: Roster, reporter: Reporter, storage: Storage, snapshot: Snapshot) -> None:
        """Raises KvcmError; then readers see what they saw before."""
        timings = timings_of(storage)
        roster.check_snapshot(reporter, timings, self._clock.monotonic_us())
        async with reporter.gate.snapshot(timings.snapshot_delta_drain_timeout_ms / 1000):
            _check_open(shard, reporter)
            version = roster.begin_snapshot(reporter)
            undo: dict[int, list[Location]] = {}
            try:
                await self._write(shard, roster, reporter, storage, snapshot, version, undo)
                _check_open(shard, reporter)
                roster.commit_snapshot(reporter, self._clock.monotonic_us())
            except BaseException:
                complete = await self._undo(shard, roster, undo)
                roster.abort_snapshot(reporter, incomplete=not complete)
                raise
        log.info("event_snapshot instance=%s kind=%s host=%s blocks=%d", shard.instance_id, storage.type.type_name, reporter.host, len(snapshot.blocks))

    async def _write(
        self,
        shard: InstanceShard,
        roster: Roster,
        reporter: Reporter,
        storage: Storage,
        snapshot: Snapshot,
        version: str,
        undo: dict[int, list[Location]],
    ) -> None:
        wanted = snapshot.blocks
        slot, now_us = self._storages.slot_of(storage.name), self._clock.wall_us()

        def plan(_: int, key: int, block: Block) -> Block | None:
            _check_open(shard, reporter)
            new, old = taken_over(block, wanted[key], roster, reporter, self._codec, version, slot, now_us)
            undo[key] = old
            return new

        failed: list[KvcmError] = []
        await self._mutate(shard, list(wanted), plan, lambda key, error: failed.append(error), stop_on=failed)
        if failed:
            raise failed[0]

    async def _undo(self, shard: InstanceShard, roster: Roster, undo: Mapping[int, list[Location]]) -> bool:
        """Put back what the snapshot has taken over; was that possible for every block?"""
        failed: list[KvcmError] = []

        def plan(_: int, key: int, block: Block) -> Block | None:
            return put_back(block, undo[key], roster)

        keys = [key for key, old in undo.items() if old]
        await self._mutate(shard, keys, plan, lambda key, error: failed.append(error))
        return not failed

    async def _mutate(
        self,
        shard: InstanceShard,
        keys: Sequence[int],
        plan: Plan,
        on_failure: Callable[[int, KvcmError], None],
        stop_on: Sequence[KvcmError] = (),
    ) -> None:
        """Mutate slice by slice, so that others run in between. `stop_on`: end as soon as it holds something."""
        for start in range(0, len(keys), _SLICE):
            if start:
                await asyncio.sleep(0)
            part = keys[start : start + _SLICE]
            try:
                outcomes = await shard.index.mutate(part, plan, self._leadership.epoch, reports=True)
            except KvcmError as error:
                for key in part:
                    on_failure(key, error)
            else:
                for key, outcome in zip(part, outcomes, strict=True):
                    if outcome.error is not None:
                        on_failure(key, outcome.error)
            if stop_on:
                return


def timings_of(storage: Storage | None) -> EventReportSpec:
    """A storage's timings; the usual ones when it is gone."""
    return storage.spec if storage is not None and isinstance(storage.spec, EventReportSpec) else EventReportSpec()


def _check_open(shard: InstanceShard, reporter: Reporter) -> None:
    """Raises InstanceNotExist, NodeNotRegistered: nothing may be written any more for an instance or a host that is gone."""
    if shard.closed:
        raise InstanceNotExist(f"instance '{shard.instance_id}' was removed")
    if reporter.gone:
        raise NodeNotRegistered("this host was declared down or was silent for too long meanwhile; send EVENT_NODE_REGISTER, then what it holds")
