"""The ledger: what clients were told, and whether everything they are told later fits to it.

A *place* is one URI that StartWrite gave to one block. Its life, as the client knows it:

    given -> finishing -> acknowledged | refused | unknown -> removing -> removed

A read of a block whose newest place is acknowledged and of which nobody asked the removal must serve it; nobody may ever be served a place that was not
given, not finished, refused, removed, or given to another block. Calls overlap, so a rule counts only if the one call ended before the other began.

With write-behind a crash may take back what was acknowledged after the last moment that is known to be in Redis: `crashed` excuses these places from
then on, and the first look at each says whether it was lost.

Blocks that were loaded before all rounds are `Loaded`: one number each instead of an object, because there are a million of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from faults.breaches import Breaches, Kind
from faults.terms import Answer, Term, check_answers, check_terms


class Fate(Enum):
    GIVEN = "given"
    FINISHING = "finishing"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Place:
    """`excused`: a crash may have taken back what was acknowledged of it last; `tail`: its write was, not only its removal."""

    key: int
    uri: str
    fate: Fate = Fate.GIVEN
    finish_sent: float = float("inf")
    acknowledged: float = float("inf")
    removal_sent: float = float("inf")
    removed: float = float("inf")
    excused: bool = False
    tail: bool = False


class Loaded:
    """Blocks `first`, `first + 1`, ... with the fingerprints of their places."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._prints: array[int] = array("q")
        self._sorted: array[int] = array("q")

    def __len__(self) -> int:
        return len(self._prints)

    def append(self, uris: Iterable[str]) -> None:
        self._prints.extend(hash(uri) for uri in uris)

    def seal(self, breaches: Breaches) -> None:
        """Everything is loaded: from now on nobody else may be given these places."""
        self._sorted = array("q", sorted(self._prints))
        twice = sum(a == b for a, b in zip(self._sorted, self._sorted[1:], strict=False))
        if twice:
            breaches.add(Kind.TWO_OWNERS, f"{twice} places were given out twice while loading")

    def holds(self, key: int) -> bool:
        return 0 <= key - self.first < len(self._prints)

    def owns(self, uri: str) -> bool:
        at = bisect_left(self._sorted, hash(uri))
        return at < len(self._sorted) and self._sorted[at] == hash(uri)

    def is_of(self, key: int, uri: str) -> bool:
        return self._prints[key - self.first] == hash(uri)


class Ledger:
    def __init__(self, loaded: Loaded | None = None, *, behind: bool = False) -> None:
        """`behind`: the store is written behind, so `synced` and `crashed` will be told."""
        self._behind = behind
        self.breaches = Breaches()
        self.loaded = loaded or Loaded(0)
        self.counts: Counter[str] = Counter()
        """acknowledged, refused, unknown, removed, reads, tail (acknowledged and not known to be in the store when a leader crashed), tail_lost."""
        self._places: dict[str, Place] = {}
        self._newest: dict[int, Place] = {}
        self._unsynced: list[Place] = []
        self._synced_at = float("-inf")
        self._tail_seen: set[int] = set()
        self._answers: list[Answer] = []
        self._suspended: list[tuple[str, float, float]] = []
        self._told: dict[str, tuple[int, float]] = {}

    # -- writers and removers ------------------------------------------------------------------------------------------------------------------

    def given(self, key: int, uri: str) -> Place:
        """StartWrite handed out a place."""
        place = Place(key, uri)
        before = self._places.get(uri)
        if before is not None or self.loaded.owns(uri):
            owner = f"block {before.key}" if before is not None else "a loaded block"
            self.breaches.add(Kind.TWO_OWNERS, f"{uri} belongs to {owner} and was given to block {key}")
        self._places[uri] = self._newest[key] = place
        return place

    def finishing(self, places: Iterable[Place], sent: float) -> None:
        for place in places:
            place.fate, place.finish_sent = Fate.FINISHING, sent

    def acknowledged(self, places: Sequence[Place], got: float) -> None:
        for place in places:
            place.fate, place.acknowledged = Fate.ACKNOWLEDGED, got
        self._wait_for_sync(places)
        self.counts["acknowledged"] += len(places)

    def refused(self, places: Sequence[Place]) -> None:
        """It was certainly not finished, and never will be."""
        for place in places:
            place.fate = Fate.REFUSED
        self.counts["refused"] += len(places)

    def unknown(self, places: Sequence[Place]) -> None:
        for place in places:
            place.fate = Fate.UNKNOWN
        self.counts["unknown"] += len(places)

    def removing(self, keys: Iterable[int], sent: float) -> list[Place]:
        """RemoveCache is about to be sent for whatever these blocks have now."""
        places = [self._newest[key] for key in keys if key in self._newest]
        for place in places:
            place.removal_sent = min(place.removal_sent, sent)
        return places

    def removed(self, places: Sequence[Place], got: float) -> None:
        for place in places:
            place.removed = got
        self._wait_for_sync(places)
        self.counts["removed"] += len(places)

    # -- readers -------------------------------------------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[int], uris: Sequence[str], sent: float, got: float) -> None:
        """A reply to a batch read: one URI for each key, empty for a miss."""
        self.counts["reads"] += 1
        if len(uris) != len(keys):
            self.breaches.add(Kind.PHANTOM, f"{len(uris)} places for {len(keys)} blocks")
            return
        for key, uri in zip(keys, uris, strict=True):
            if self.loaded.holds(key):
                self._read_loaded(key, uri)
            elif uri:
                self._served(key, uri, sent, got)
            else:
                self._missing(key, sent, got)

    def read_prefix(self, keys: Sequence[int], uris: Sequence[str], sent: float, got: float) -> None:
        """A reply to a prefix read: the leading hits. What comes after the first miss says nothing."""
        if len(uris) < len(keys):
            keys, uris = keys[: len(uris) + 1], [*uris, ""]
        self.read(keys, uris, sent, got)

    def _read_loaded(self, key: int, uri: str) -> None:
        if not uri:
            self.breaches.add(Kind.LOST, f"loaded block {key}")
        elif not self.loaded.is_of(key, uri):
            self.breaches.add(Kind.MIXED_UP, f"loaded block {key} is served from {uri}")

    def _served(self, key: int, uri: str, sent: float, got: float) -> None:
        place = self._places.get(uri)
        if place is None:
            kind = Kind.MIXED_UP if self.loaded.owns(uri) else Kind.PHANTOM
            self.breaches.add(kind, f"block {key} from {uri}")
        elif place.key != key:
            self.breaches.add(Kind.MIXED_UP, f"block {key} from the place of block {place.key}, {uri}")
        elif place.finish_sent > got:
            self.breaches.add(Kind.EARLY, f"block {key} from {uri}")
        elif place.fate is Fate.REFUSED:
            self.breaches.add(Kind.REFUSED, f"block {key} from {uri}")
        elif place.removed < sent and not place.excused:
            self.breaches.add(Kind.REMOVED, f"block {key} from {uri}, removed {sent - place.removed:.3f} s before")

    def _missing(self, key: int, sent: float, got: float) -> None:
        place = self._newest.get(key)
        if place is None or place.fate is not Fate.ACKNOWLEDGED or place.acknowledged >= sent or place.removal_sent <= got:
            return
        if not place.tail:
            self.breaches.add(Kind.LOST, f"block {key}, acknowledged {sent - place.acknowledged:.3f} s before")
        elif id(place) not in self._tail_seen:
            self._tail_seen.add(id(place))
            self.counts["tail_lost"] += 1

    # -- write-behind --------------------------------------------------------------------------------------------------------------------------

    def synced(self, moment: float) -> None:
        """Everything that was acknowledged before this moment is known to be in the store."""
        self._synced_at = max(self._synced_at, moment)
        self._unsynced = [place for place in self._unsynced if place.acknowledged > moment or moment < place.removed < float("inf")]

    def crashed(self) -> int:
        """The leader is gone, without warning: what was not synced may be lost. Returns how many acknowledged blocks that are. Call it when the
        next one serves, because an answer of the old one may still be on its way when it dies."""
        tail = 0
        for place in self._unsynced:
            place.excused = True
            if place.acknowledged > self._synced_at and not place.tail:
                place.tail = True
                tail += 1
        self._unsynced = []
        self.counts["tail"] += tail
        return tail

    def _wait_for_sync(self, places: Sequence[Place]) -> None:
        if self._behind:
            self._unsynced += places

    # -- leadership ----------------------------------------------------------------------------------------------------------------------------

    def answered(self, node: str, sent: float, got: float) -> None:
        """`node` answered a leader-only request OK."""
        self._answers.append(Answer(node, sent, got))
        for suspended, since, until in self._suspended:
            if node == suspended and since <= sent <= until < got:
                self.breaches.add(Kind.AFTER_LEASE, f"{node} answered a request of {sent:.3f}; it was suspended from {since:.3f} to {until:.3f}")

    def suspended(self, node: str, since: float, until: float) -> None:
        """`node` stood still for longer than its lease; call it before it goes on."""
        self._suspended.append((node, since, until))

    def told_epoch(self, node: str, epoch: int, sent: float, got: float) -> None:
        """`node` named the epoch of the leadership that it knows; 0 says nothing."""
        known, at = self._told.get(node, (0, 0.0))
        if epoch and sent > at:
            if epoch < known:
                self.breaches.add(Kind.EPOCH_BACK, f"{node} said {epoch} after {known}")
            self._told[node] = (max(known, epoch), got)

    def settle(self, terms: list[Term]) -> None:
        """Compare the answers since the last time with the nodes' own terms."""
        check_terms(terms, self.breaches)
        check_answers(terms, self._answers, self.breaches)
        self._answers = []

    # -- what to look at -----------------------------------------------------------------------------------------------------------------------

    def promised(self) -> list[int]:
        """Blocks of the load that were acknowledged and of which nobody asked the removal."""
        return [key for key, place in self._newest.items() if place.fate is Fate.ACKNOWLEDGED and place.removal_sent == float("inf")]

    def refused_keys(self) -> list[int]:
        return [key for key, place in self._newest.items() if place.fate is Fate.REFUSED]
