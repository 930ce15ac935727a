"""What may not happen, and the list of what did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

_KEPT = 200


class Kind(Enum):
    LOST = "an acknowledged block is not served"
    PHANTOM = "a place is served that nobody was given"
    EARLY = "a place is served before its write was finished"
    REFUSED = "a place is served whose write was refused"
    REMOVED = "a place is served whose removal was acknowledged"
    MIXED_UP = "a block is served from another block's place"
    TWO_OWNERS = "one place was given out twice"
    TWO_LEADERS = "a node answered as leader outside its terms"
    AFTER_LEASE = "a node answered what it found after it was suspended beyond its lease"
    EPOCH_BACK = "an epoch went back"
    LANDED = "a late write of an old leader was carried out"
    SLOW = "a requirement on time was missed"
    HUNG = "something did not come back"


@dataclass(frozen=True, slots=True)
class Breach:
    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.what}"


class Breaches:
    """All are counted; the first ones are kept as sentences."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self.first: list[Breach] = []

    def add(self, kind: Kind, what: str) -> None:
        self.counts[kind] += 1
        if len(self.first) < _KEPT:
            self.first.append(Breach(kind, what))

    def __bool__(self) -> bool:
        return bool(self.counts)
