"""Metric families as light tuples: what the owners of numbers hand out, whatever the format they end up in.

Families are made on the loop, so that they show a consistent state, and written as text in a thread, so that a scrape never stalls the loop
(`registry.py`). Names are dotted as in behaviour 18.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

MAX_SERIES_PER_FAMILY = 20_000
"""Series beyond this are left out of a page and counted in `metrics.dropped_series` (I-ME-3): a scrape stays a few megabytes."""

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """`samples`: label values in the order of `label_names`, and the number."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    label_names: Labels = ()
    samples: Sequence[tuple[Labels, float]] = field(default=())


@dataclass(frozen=True, slots=True)
class Histogram:
    """`samples`: label values; one count per bound and one more for what is above the last; the sum, in the unit of the bounds."""

    name: str
    help: str
    bounds: Sequence[float]
    label_names: Labels = ()
    samples: Sequence[tuple[Labels, Sequence[int], float]] = field(default=())


AnyFamily = Family | Histogram


@runtime_checkable
class Purgeable(Protocol):
    """A source whose series do not come from what exists now, so that they have to be taken away."""

    def purge(self, label: str, value: str) -> None:
        """Forget the series with this label value: its entity is gone. Unknown labels are no error."""
        ...


class Source(Protocol):
    def families(self) -> Iterable[AnyFamily]:
        """What is known now. Called on the loop, so it must be quick; it must not raise."""
        ...
