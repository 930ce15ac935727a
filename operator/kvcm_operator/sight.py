"""Which kinds does the framework not watch although it should?

It reads what the API server serves when a definition changes, and never again until the next change. It can go wrong there: the server may list a kind
only after it has reported its definition, and of several readings at once an older one may be believed last. Objects of such a kind wait for ever.
Danger: a worker that is slow is not blind. A kind counts as missed only while nothing at all moves for it: no event of any object, no handler under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from kvcm.common.clock import Clock
from kvcm_operator.health import Health

PATIENCE_S = 15.0


class Sight:
    """Begins with a run of the framework. `patience_s`: how long something may be missing before the kind counts as missed."""

    def __init__(self, clock: Clock, health: Health, patience_s: float = PATIENCE_S) -> None:
        self._clock = clock
        self._health = health
        self.patience_s = patience_s
        self._start = clock.monotonic_us()
        self._moved: dict[str, int] = {}
        self._handling: Counter[str] = Counter()

    def showed(self, kind: str) -> None:
        """A watch has shown something of this kind."""
        self._moved[kind] = self._clock.monotonic_us()

    @contextmanager
    def handling(self, kind: str) -> Iterator[None]:
        """A handler of the framework works on an object; what comes for that object waits until it has ended."""
        self._handling[kind] += 1
        try:
            yield
        finally:
            self._handling[kind] -= 1
            self.showed(kind)

    def blind(self) -> list[str]:
        """Kinds with objects that reading shows and no watch does."""
        now = self._clock.monotonic_us()
        late = {kind: max(since, self._moved.get(kind, self._start)) for kind, since in self._health.missing().items() if not self._handling[kind]}
        return sorted(kind for kind, since in late.items() if now - since >= self.patience_s * 1e6)
