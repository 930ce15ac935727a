"""How many blocks of each request could be hits if nothing were ever evicted (INV-T3).

A set of all keys seen is enough: the hits of a request are its longest leading run of keys that earlier requests brought. Memory grows with the
distinct blocks of the trace (about 80 bytes each), which the manager under test has to hold anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class PrefixOracle:
    def __init__(self) -> None:
        self._seen: set[int] = set()

    def hits(self, keys: Sequence[int]) -> int:
        """Leading keys that were seen before, in blocks; then counts all of `keys` as seen."""
        run = 0
        for key in keys:
            if key not in self._seen:
                break
            run += 1
        self._seen.update(keys)
        return run

    @property
    def distinct_keys(self) -> Collection[int]:
        """Every key seen so far, in no order."""
        return self._seen
