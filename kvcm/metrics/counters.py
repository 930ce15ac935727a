"""A table of counters under labels, bounded, with purging."""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.metrics.catalogue import Spec
from kvcm.metrics.families import Family, Labels

MAX_LABEL_SETS = 10_000


class CounterTable:
    """Counters never decrease (I-ME-1). Beyond MAX_LABEL_SETS new label sets share the one whose values are all `other` (I-ME-3)."""

    def __init__(self, spec: Spec) -> None:
        """`spec` must be a counter with labels."""
        self.label_names = spec.labels
        self._spec = spec
        self._values: dict[Labels, int] = {}
        self._other: Labels = ("other",) * len(spec.labels)

    def add(self, labels: Labels, amount: int = 1) -> None:
        values = self._values
        if labels in values:
            values[labels] += amount
        elif len(values) < MAX_LABEL_SETS:
            values[labels] = amount
        else:
            values[self._other] = values.get(self._other, 0) + amount

    def purge(self, label: str, value: str) -> None:
        """Forget the series with this label value: its entity is gone. Unknown labels are no error."""
        if label not in self.label_names:
            return
        index = self.label_names.index(label)
        for labels in [labels for labels in self._values if labels[index] == value]:
            del self._values[labels]

    def families(self) -> Iterable[Family]:
        return (self._spec.of(list(self._values.items())),)
