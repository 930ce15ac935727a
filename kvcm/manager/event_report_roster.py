"""Who reports blocks to one instance, whether they live, and which of their copies may be seen (behaviour 21.2, 21.4, 21.5). Pure; time is an argument.

    unknown --any event--> ALIVE --heartbeat_timeout--> SILENT --cleanup_grace--> gone, with a tombstone
                             ^                            |                            |
                             +---- heartbeat, register ---+     any + HOST_DOWN -------+--register--> ALIVE, empty

A stored copy names its source: one medium of one reporter in one generation, as eight bytes in the place of the location id. A snapshot is a new generation
with new sources. So whether a copy counts is one look into a dictionary, a commit is one assignment, and what nobody knows any more is garbage, whatever the
order in which reports, time-outs, snapshots and clean-up meet (I-RE-1, I-RE-7). A source number is never used twice.

The version text that goes into URIs (`s_version`) stands for the generation on the wire only; nothing here reads it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvcm.common.errors import CapacityReached
from kvcm.common.ids import IdSource
from kvcm.data_storage.model import EventReportSpec, StorageType
from kvcm.manager.errors import NodeNotRegistered, SnapshotTooSoon
from kvcm.manager.event_report_gate import Gate
from kvcm.meta.location import Block, Location, is_reported, stays_shown

MAX_REPORTERS = 4096
"""Of one instance. Each costs about a kilobyte and a few lines of a scrape."""
MAX_TOMBSTONES = 16_384
"""Of one instance; the oldest is forgotten first, and such a host may then come back without registering."""
MAX_MEDIUMS = 64

ReporterId = tuple[StorageType, str]
"""(kind, `host_ip_port`); the instance is the roster's."""


@dataclass(slots=True, eq=False)
class Source:
    """One medium of a reporter in one generation. `current`: it belongs to the generation that readers see."""

    reporter: Reporter
    medium: str
    handle: bytes
    current: bool


class Reporter:
    """One host and kind from its first event to its end. A host that comes back after its end is a new one."""

    __slots__ = (
        "committed_us",
        "gate",
        "gone",
        "host",
        "incomplete",
        "kind",
        "pending",
        "pending_version",
        "seen_us",
        "silent",
        "sources",
        "status",
        "version",
    )

    def __init__(self, kind: StorageType, host: str, now_us: int) -> None:
        self.kind = kind
        self.host = host
        self.seen_us = now_us
        """When it last registered or beat; changes of blocks do not count as a sign of life."""
        self.silent = False
        self.gone = False
        self.version = ""
        """Of the generation that readers see; empty until there is one."""
        self.sources: dict[str, Source] = {}
        self.pending: dict[str, Source] | None = None
        self.pending_version = ""
        self.committed_us: int | None = None
        self.incomplete = False
        """A snapshot failed and could not be taken back whole, so some blocks are hidden until the next one."""
        self.status: Mapping[str, float] = {}
        """Numbers of its last heartbeat."""
        self.gate = Gate()

    @property
    def available(self) -> bool:
        return not (self.silent or self.gone)

    @property
    def needs_snapshot(self) -> bool:
        """No generation exists yet, or it lacks blocks."""
        return not self.version or self.incomplete


class Roster:
    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._reporters: dict[ReporterId, Reporter] = {}
        self._tombstones: dict[ReporterId, None] = {}
        self._known: dict[bytes, Source] = {}
        self._count = 0
        self._next_look_us = 0
        self.garbage_epoch = 0
        """Grows whenever stored copies may have become garbage: a round of clean-up that began before has to be repeated."""

    # -- looking -------------------------------------------------------------------------------------------------------------------------------

    def get(self, kind: StorageType, host: str) -> Reporter | None:
        return self._reporters.get((kind, host))

    def reporters(self) -> list[Reporter]:
        return list(self._reporters.values())

    @property
    def tombstones(self) -> int:
        return len(self._tombstones)

    def source_of(self, location: Location) -> Source | None:
        """Whose a reported copy is; None for garbage."""
        return self._known.get(location.raw_id)

    def is_shown(self, location: Location) -> bool:
        """May readers see this reported copy?"""
        source = self._known.get(location.raw_id)
        return source is not None and source.reporter.available and (source.current or stays_shown(location))

    def is_garbage(self, location: Location) -> bool:
        """A reported copy that can never be seen again."""
        return is_reported(location) and location.raw_id not in self._known

    def shown(self, block: Block) -> Block:
        """The block as readers see it."""
        for location in block:
            if is_reported(location) and not self.is_shown(location):
                return tuple(other for other in block if not is_reported(other) or self.is_shown(other))
        return block

    def public_id(self, location: Location) -> str:
        """The location id as clients see it (behaviour 21.2); stable over generations."""
        source = self._known.get(location.raw_id)
        if source is None:
            return location.location_id
        return f"kvs#{source.reporter.kind.type_name}#{source.medium}#{source.reporter.host}"

    # -- life ----------------------------------------------------------------------------------------------------------------------------------

    def register(self, kind: StorageType, host: str, timings: EventReportSpec, now_us: int) -> Reporter:
        """NODE_REGISTER. Raises CapacityReached."""
        reporter = self._aged(kind, host, timings, now_us)
        if reporter is None:
            self._tombstones.pop((kind, host), None)
            reporter = self._new(kind, host, now_us)
        reporter.seen_us, reporter.silent = now_us, False
        return reporter

    def heartbeat(self, kind: StorageType, host: str, status: Mapping[str, float], timings: EventReportSpec, now_us: int) -> Reporter:
        """Raises NodeNotRegistered, CapacityReached."""
        reporter = self.admit(kind, host, timings, now_us)
        reporter.seen_us, reporter.silent, reporter.status = now_us, False, status
        return reporter

    def admit(self, kind: StorageType, host: str, timings: EventReportSpec, now_us: int) -> Reporter:
        """The reporter of a change of blocks, made at its first event. Raises NodeNotRegistered, CapacityReached."""
        reporter = self._aged(kind, host, timings, now_us)
        if reporter is not None:
            return reporter
        if (kind, host) in self._tombstones:
            raise NodeNotRegistered("this host was declared down or was silent for too long; send EVENT_NODE_REGISTER, then what it holds")
        return self._new(kind, host, now_us)

    def host_down(self, kind: StorageType, host: str) -> None:
        """Its copies are gone at once. Also for a host that nobody knows: its late events must not bring it back."""
        reporter = self._reporters.get((kind, host))
        if reporter is not None:
            self._end(reporter)
        else:
            self._bury(kind, host)

    def age(self, timings_of: Callable[[StorageType], EventReportSpec], now_us: int) -> None:
        """Hide who is silent, end who was silent for too long; not more often than the shortest `liveness_check_interval_ms` says."""
        if now_us < self._next_look_us:
            return
        self._next_look_us = now_us + 1000 * min(timings_of(kind).liveness_check_interval_ms for kind in StorageType if kind.reported)
        for reporter in self.reporters():
            self._aged(reporter.kind, reporter.host, timings_of(reporter.kind), now_us)

    def _aged(self, kind: StorageType, host: str, timings: EventReportSpec, now_us: int) -> Reporter | None:
        reporter = self._reporters.get((kind, host))
        if reporter is None:
            return None
        quiet_us = now_us - reporter.seen_us
        if quiet_us > 1000 * (timings.heartbeat_timeout_ms + timings.cleanup_grace_ms):
            self._end(reporter)
            return None
        reporter.silent = quiet_us > 1000 * timings.heartbeat_timeout_ms
        return reporter

    def _new(self, kind: StorageType, host: str, now_us: int) -> Reporter:
        if len(self._reporters) >= MAX_REPORTERS:
            raise CapacityReached(f"an instance may have at most {MAX_REPORTERS} reporting hosts; those that are gone leave when their grace is over")
        reporter = self._reporters[kind, host] = Reporter(kind, host, now_us)
        return reporter

    def _end(self, reporter: Reporter) -> None:
        reporter.gone = True
        del self._reporters[reporter.kind, reporter.host]
        self._forget(reporter.sources)
        self._forget(reporter.pending or {})
        self._bury(reporter.kind, reporter.host)

    def _bury(self, kind: StorageType, host: str) -> None:
        self._tombstones.pop((kind, host), None)  # to the end of the line
        self._tombstones[kind, host] = None
        if len(self._tombstones) > MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    # -- generations ---------------------------------------------------------------------------------------------------------------------------

    def version_for_changes(self, reporter: Reporter) -> str:
        """The version that changes carry; the first change begins a generation (behaviour 21.4, "soft")."""
        if not reporter.version:
            reporter.version = self._new_version()
        return reporter.version

    def source(self, reporter: Reporter, medium: str) -> Source:
        """Where a change of this medium goes. Raises CapacityReached."""
        return reporter.sources.get(medium) or self._new_source(reporter, reporter.sources, medium, current=True)

    def check_snapshot(self, reporter: Reporter, timings: EventReportSpec, now_us: int) -> None:
        """Raises SnapshotTooSoon. The first one is free, and so is another try after one that failed."""
        if reporter.committed_us is None:
            return
        left_us = reporter.committed_us + 1000 * timings.snapshot_min_interval_ms - now_us
        if left_us > 0:
            raise SnapshotTooSoon(-(-left_us // 1000))

    def begin_snapshot(self, reporter: Reporter) -> str:
        """Open the next generation; the version of its URIs."""
        reporter.pending, reporter.pending_version = {}, self._new_version()
        return reporter.pending_version

    def pending_source(self, reporter: Reporter, medium: str) -> Source:
        """Where the open snapshot puts this medium. Raises CapacityReached, NodeNotRegistered (the reporter has ended meanwhile)."""
        if reporter.gone or reporter.pending is None:
            raise NodeNotRegistered("this host was declared down or was silent for too long while its snapshot was being taken in; register and send it again")
        return reporter.pending.get(medium) or self._new_source(reporter, reporter.pending, medium, current=False)

    def commit_snapshot(self, reporter: Reporter, now_us: int) -> None:
        """The open generation is what readers see from now on. Raises NodeNotRegistered."""
        if reporter.gone or reporter.pending is None:
            raise NodeNotRegistered("this host was declared down or was silent for too long while its snapshot was being taken in; register and send it again")
        self._forget(reporter.sources)
        for source in reporter.pending.values():
            source.current = True
        reporter.sources, reporter.version = reporter.pending, reporter.pending_version
        reporter.pending, reporter.pending_version = None, ""
        reporter.committed_us, reporter.incomplete = now_us, False

    def abort_snapshot(self, reporter: Reporter, *, incomplete: bool) -> None:
        """The open generation will never be. `incomplete`: copies of the generation before it were lost on the way."""
        self._forget(reporter.pending or {})
        reporter.pending, reporter.pending_version = None, ""
        reporter.incomplete = reporter.incomplete or incomplete

    def _new_source(self, reporter: Reporter, among: dict[str, Source], medium: str, *, current: bool) -> Source:
        if len(among) >= MAX_MEDIUMS:
            raise CapacityReached(f"a host may report at most {MAX_MEDIUMS} mediums")
        self._count += 1
        # A character that no location id of ours has, so that the two kinds of ids never meet.
        source = among[medium] = Source(reporter, medium, f"#{_base36(self._count):0>7}".encode("ascii"), current)
        self._known[source.handle] = source
        return source

    def _new_version(self) -> str:
        version = self._ids.session_id()
        return f"a{version[1:]}" if version.isdigit() else version  # never to be taken for a number

    def _forget(self, sources: Mapping[str, Source]) -> None:
        self.garbage_epoch += 1
        for source in sources.values():
            self._known.pop(source.handle, None)


def _base36(number: int) -> str:
    """Seven digits hold 78 billion sources: one snapshot a millisecond for two years."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits
