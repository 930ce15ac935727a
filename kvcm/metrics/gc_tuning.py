"""The garbage collector, kept away from what lives for ever (design D3).

A full collection walks every tracked object: with a million of them the loop stands still for 170-275 ms. Block state is made of types that the
collector does not track, but modules, descriptors, tables and shards are tracked, and they live as long as the process or the leadership.

- `tune()` once at the start: fewer young collections, and full ones only now and then.
- `freeze()` when a leadership's state is loaded: collect once, while nothing is served, then move all survivors out of the collector's sight.
- `thaw()` when that state is dropped: garbage of the old leadership would never be found otherwise.
"""

from __future__ import annotations

import gc

# The length of a pause is what counts: a young collection of 20,000 objects was seen to take over 20 ms (cache misses of what they refer to), one of 5,000
# stays below 10. Most of what survives is tuples of plain values, which a first collection takes out of the collector's sight for good. A full one comes
# after 50 middle ones, and only if a quarter of the old objects are new (CPython's own rule).
THRESHOLDS = (5_000, 10, 50)


def tune() -> None:
    gc.set_threshold(*THRESHOLDS)


def freeze() -> int:
    """Collect, then freeze; returns the number of frozen objects. Stops the loop for the length of one full collection."""
    gc.collect()
    gc.freeze()
    return gc.get_freeze_count()


def thaw() -> None:
    gc.unfreeze()
