"""Open two-phase writes (behaviour section 5). In memory only: a new leader knows none of them.

A session is open, then claimed by exactly one of {finish, expiry, clean-up} (I-WL-1), then ended. Between claim and end its locations still count as held,
so nobody takes them for orphans while their update is on its way. Validation comes before the claim: a bad call never costs the session.

A claim whose store update failed is given back. A finish gives the session back to its client; expiry and clean-up do not: once a session has expired,
part of its blocks may be DELETING already, so a late finish must never be told that all is well. Deadlines are monotonic.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from kvcm.manager.errors import Overloaded
from kvcm.meta.location import Location, written_as

MAX_LIFETIME_S = 1800
EMPTY_LIFETIME_S = 10
DEFAULT_MAX_SESSIONS = 100_000
_COMPACT_MIN = 1024


@dataclass(slots=True)
class WriteSession:
    """`locations[i]` is the WRITING location handed out for `keys[i]`, None once its fate is settled."""

    session_id: str
    instance_id: str
    keys: list[int]
    locations: list[Location | None]
    deadline_us: int
    claimed: bool = field(default=False)
    expired: bool = field(default=False)
    """Claimed by expiry or clean-up at least once: no client can finish it any more."""
    lost: int = field(default=0)
    """Blocks named successful that had been removed, over all attempts to finish."""


def lifetime_us(requested_s: int, block_count: int) -> int:
    """Wire contract 4.12: capped at 1800 s; 10 s when nothing is to be written; zero or negative expires at the next sweep."""
    if block_count == 0:
        return EMPTY_LIFETIME_S * 1_000_000
    return max(0, min(requested_s, MAX_LIFETIME_S)) * 1_000_000


@dataclass(slots=True)
class SessionStats:
    """Monotone counters. `idle`: ran out with nothing to write; `expired`: with blocks; `aborted`: instance removed or leadership lost."""

    opened: int = 0
    finished: int = 0
    expired: int = 0
    idle: int = 0
    aborted: int = 0


class WriteSessions:
    def __init__(self, max_sessions: int = DEFAULT_MAX_SESSIONS) -> None:
        self.stats = SessionStats()
        self._sessions: dict[str, WriteSession] = {}
        self._by_deadline: list[tuple[int, str]] = []
        self._held: dict[str, set[tuple[int, bytes]]] = {}  # instance -> (key, header of the WRITING location): ids are only unique inside a block
        self._max = max_sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def check_room(self) -> None:
        if len(self._sessions) >= self._max:
            raise Overloaded(f"{self._max} writes are open; finish some or wait until they expire")

    def put(self, session: WriteSession) -> None:
        self._sessions[session.session_id] = session
        self._schedule(session)
        held = _marks(session)
        if held:
            self._held.setdefault(session.instance_id, set()).update(held)

    def get(self, session_id: str) -> WriteSession | None:
        """A session that its client may finish; None when unknown, claimed or expired."""
        session = self._sessions.get(session_id)
        return None if session is None or session.claimed or session.expired else session

    def claim(self, session_id: str) -> WriteSession | None:
        """Take the sole right to end the session; None if someone else has it."""
        session = self.get(session_id)
        if session is not None:
            session.claimed = True
        return session

    def settle(self, session: WriteSession, position: int) -> None:
        """The location at `position` has reached SERVING or DELETING, or is gone: no longer held."""
        location = session.locations[position]
        if location is not None:
            session.locations[position] = None
            self._let_go(session.instance_id, [(session.keys[position], location.header)])

    def end(self, session: WriteSession) -> None:
        """Forget a session and whatever it still held. Idempotent."""
        self._let_go(session.instance_id, _marks(session))
        session.locations = [None] * len(session.keys)
        self._sessions.pop(session.session_id, None)

    def reopen(self, session: WriteSession, deadline_us: int) -> None:
        """Give a claim back (the store failed): it can be claimed again, at the latest by expiry at `deadline_us`. A forgotten session stays so."""
        session.claimed = False
        if session.session_id not in self._sessions:
            return
        session.deadline_us = deadline_us
        self._schedule(session)

    def spend(self, session: WriteSession, now_us: int) -> None:
        """No client can finish it any more; the next sweep ends it."""
        self.stats.expired += bool(session.keys)
        self.stats.idle += not session.keys
        session.expired = True
        session.deadline_us = now_us
        self._schedule(session)

    def claim_due(self, now_us: int) -> list[WriteSession]:
        """Claim every open session whose deadline has passed, never one before it (I-WL-2)."""
        due = []
        while self._by_deadline and self._by_deadline[0][0] <= now_us:
            _, session_id = heapq.heappop(self._by_deadline)
            session = self._sessions.get(session_id)
            if session is not None and not session.claimed and session.deadline_us <= now_us:
                if not session.expired:  # one that is given back, because the store failed, comes again
                    if session.keys:
                        self.stats.expired += 1
                    else:
                        self.stats.idle += 1
                session.claimed = session.expired = True
                due.append(session)
        return due

    def claim_all(self, instance_id: str | None = None) -> list[WriteSession]:
        """Claim all open sessions, or those of one instance (clean-up, removal)."""
        claimed = [s for s in self._sessions.values() if not s.claimed and instance_id in (None, s.instance_id)]
        self.stats.aborted += sum(not session.expired for session in claimed)
        for session in claimed:
            session.claimed = session.expired = True
        return claimed

    def forget(self, instance_id: str | None = None) -> None:
        """Drop every session (of one instance), whatever its state: there is nobody left to end it. Who has a claim finds nothing left to settle."""
        for session in [s for s in self._sessions.values() if instance_id in (None, s.instance_id)]:
            self.stats.aborted += not (session.expired or session.claimed)
            session.expired = True
            self.end(session)

    def next_deadline_us(self) -> int | None:
        return self._by_deadline[0][0] if self._by_deadline else None

    def holds(self, instance_id: str, key: int, location: Location) -> bool:
        """Does an open or claimed session still own this location, whatever its state is now?"""
        held = self._held.get(instance_id)
        return held is not None and (key, written_as(location)) in held

    def is_holding(self) -> bool:
        """Does any session own any location?"""
        return any(self._held.values())

    def _let_go(self, instance_id: str, marks: list[tuple[int, bytes]]) -> None:
        held = self._held.get(instance_id)
        if held is None:
            return
        held.difference_update(marks)
        if not held:
            del self._held[instance_id]

    def _schedule(self, session: WriteSession) -> None:
        heapq.heappush(self._by_deadline, (session.deadline_us, session.session_id))
        # Finished sessions leave their deadlines behind, which may be half an hour away: take them out before they outnumber the open ones.
        if len(self._by_deadline) > _COMPACT_MIN + 2 * len(self._sessions):
            self._by_deadline = [(open_.deadline_us, open_.session_id) for open_ in self._sessions.values()]
            heapq.heapify(self._by_deadline)


def _marks(session: WriteSession) -> list[tuple[int, bytes]]:
    return [(key, location.header) for key, location in zip(session.keys, session.locations, strict=True) if location is not None]
