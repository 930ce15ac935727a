"""The port to what a store tells of its changes, for processes that keep a copy without leading (design D7).

Every change appends an entry that names the changed blocks and the fence they were written under; it says nothing of their content. Whoever follows reads those
blocks from the store, so a copy can be late but never wrong: an entry that is read twice, or one of a change that never came, does no harm.

A term begins with an entry of its own, which names the fence that stood in the store before. So the fences form a chain, and a term whose leader told nothing
(an older release, or one that was configured not to) is a missing link.

Danger: an entry that is missed is a block that is wrong for good. Hence a position is an entry that must still be there: when it is not, the store has dropped
entries, or lost data, and the follower begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcm.common.errors import StorageError
from kvcm.meta.location import Block


class LostTrack(StorageError):
    """Changes may have been missed: only a scan of the store tells what is there."""


@dataclass(frozen=True, slots=True)
class Position:
    """`entry`: the last one that was read, in the store's own terms. `number`: how many were ever added up to it; -1 where the store does not count.

    `mark`: what tells the entry from another that got its name after the store had lost it.
    """

    entry: bytes
    number: int = -1
    mark: bytes = b""


@dataclass(frozen=True, slots=True)
class Entry:
    """`replaced`: the fence before this term, on the entry that begins one; None on a change of `keys`."""

    position: Position
    fence: int
    keys: Sequence[int] = ()
    replaced: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`behind`: entries after these, as far as the store counts them. `behind_ms`: how much younger the newest entry is than the last of these."""

    entries: Sequence[Entry]
    behind: int = 0
    behind_ms: int = 0


class ChangeStream(Protocol):
    """Of one instance. Nothing here writes to the store. Every call ends by a deadline and raises StorageError."""

    async def end(self) -> Entry:
        """The newest entry. Raises LostTrack when there is none, or when the store has had a leader that does not tell its changes."""
        ...

    async def changes_after(self, after: Position, limit: int) -> Page:
        """The next entries. Raises LostTrack when the entry of the position is gone."""
        ...

    async def wait(self, after: Position, seconds: float) -> None:
        """Return when there is an entry behind the position, or after `seconds`."""
        ...

    async def blocks(self, keys: Collection[int]) -> Mapping[int, Block]:
        """What a recovery would find for these keys now: one entry for each, empty where it would find nothing."""
        ...

    def interrupt(self) -> None:
        """Cut what waits, so that the next call need not wait behind it."""
        ...
