"""Which of n blocks are meant: "the first `offset`" or one bool each (wire contract 4.3, behaviour 2.2).

Masked means, in a query: skip; in a start-write answer: already stored; in a finish: written successfully.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockMask:
    """Exactly one of the two forms: `values` None means the offset form."""

    offset: int = 0
    values: tuple[bool, ...] | None = None

    def is_masked(self, index: int) -> bool:
        """As a query mask: indexes past a bool list are unmasked, a negative offset masks everything (wire contract 4.3)."""
        if self.values is None:
            return self.offset < 0 or index < self.offset
        return index < len(self.values) and self.values[index]

    def unmasked(self, keys: Sequence[int]) -> Sequence[int]:
        """The keys that a query has to look at, in order."""
        if self.values is None:
            if self.offset == 0:
                return keys
            return keys[self.offset :] if self.offset > 0 else ()
        return [key for index, key in enumerate(keys) if not self.is_masked(index)]

    def expand(self, count: int) -> list[bool] | None:
        """One bool per index for exactly `count` blocks; None when the mask does not fit (offset outside 0..count, other length)."""
        if self.values is not None:
            return list(self.values) if len(self.values) == count else None
        if not 0 <= self.offset <= count:
            return None
        return [True] * self.offset + [False] * (count - self.offset)


def present_mask(present: Sequence[bool]) -> BlockMask:
    """The answer of a start-write: offset form exactly when the present blocks form a prefix (I-CM-4)."""
    count = sum(present)
    if all(present[:count]):
        return BlockMask(offset=count)
    return BlockMask(values=tuple(present))
