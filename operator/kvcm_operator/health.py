"""Is this operator of any use? Facts for the probes, and the metrics of passes.

Liveness fails only when a restart would help: when watches have fallen behind what reading shows, and watching anew inside the process (rounds.py) has
not helped. Reading is done by every pass anyway, so a watch that hangs is found by comparing versions, however quiet the cluster is. Danger: an object
that is made again has the same name and the same generation as the one before; only its uid tells them apart. Everything else (not the leader, managers
away) is readiness or a metric.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kvcm.common.clock import Clock
from kvcm_operator.subject import Version
from kvcm_operator.world import Ref

MAX_WATCH_LAG_S = 120.0
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Health(Collector):
    """The observer of an `Engine`. `seen`: the newest version of an object that a watch has shown, None when it has shown none."""

    def __init__(self, clock: Clock, seen: Callable[[Ref], Version | None]) -> None:
        self._clock = clock
        self._seen = seen
        self._behind: dict[Ref, tuple[Version, int]] = {}
        self._reasons: dict[Ref, str] = {}
        self.leader = False
        self.started = False
        self.registry = CollectorRegistry()
        labels = ("kind", "result")
        self._passes = Counter("kvcm_operator_reconcile", "Passes over objects.", labels, registry=self.registry)
        self._seconds = Histogram("kvcm_operator_reconcile_seconds", "Duration of passes.", ("kind",), buckets=_BUCKETS, registry=self.registry)
        self._anew = Counter("kvcm_operator_watch_restarts", "How often watching began anew because it had missed something.", registry=self.registry)
        self._drift = Counter("kvcm_operator_drift_corrections", "Things changed behind the operator's back and put right.", ("kind",), registry=self.registry)
        self.registry.register(self)

    # -- the observer --------------------------------------------------------------------------------------------------------------------------

    def passed(self, ref: Ref, result: str, seconds: float, corrections: int) -> None:
        self._passes.labels(ref.kind, result).inc()
        self._seconds.labels(ref.kind).observe(seconds)
        self._drift.labels(ref.kind).inc(corrections)
        if result == "finished":
            self._reasons.pop(ref, None)
        elif result != "error":
            self._reasons[ref] = result

    def read(self, ref: Ref, version: Version) -> None:
        missing = self._behind.get(ref)
        if self._shown(ref, version):
            self._behind.pop(ref, None)
        elif missing is None or missing[0][0] != version[0]:
            # Since when, of the oldest generation that is missing; nobody will ever see the object that had this name before.
            self._behind[ref] = (version, self._clock.monotonic_us())

    def gone(self, ref: Ref) -> None:
        self._behind.pop(ref, None)
        self._reasons.pop(ref, None)

    def only(self, kind: str, there: Collection[Ref]) -> None:
        """Nothing else of this kind exists: what went without any watch is not waited for."""
        self._behind = {ref: what for ref, what in self._behind.items() if ref.kind != kind or ref in there}

    def missing(self) -> dict[str, int]:
        """Kinds of which reading shows something that the watches do not, and since when: microseconds of the monotonic clock."""
        since: dict[str, int] = {}
        for ref, (version, first) in self._behind.items():
            if not self._shown(ref, version):
                since[ref.kind] = min(first, since.get(ref.kind, first))
        return since

    def watching_anew(self) -> None:
        self._anew.inc()

    # -- the probes ----------------------------------------------------------------------------------------------------------------------------

    def watch_lag_s(self) -> float:
        """For how long the watches have not shown something that reading shows; 0 when they are up to date."""
        self._behind = {ref: what for ref, what in self._behind.items() if not self._shown(ref, what[0])}
        oldest = min((since for _, since in self._behind.values()), default=None)
        return 0.0 if oldest is None else (self._clock.monotonic_us() - oldest) / 1e6

    def _shown(self, ref: Ref, version: Version) -> bool:
        shown = self._seen(ref)
        return shown is not None and shown[0] == version[0] and shown[1] >= version[1]

    def alive(self) -> bool:
        return self.watch_lag_s() < MAX_WATCH_LAG_S

    def ready(self) -> bool:
        """Leading and working. One that waits for the Lease is not ready, and quite well."""
        return self.started and self.leader

    # -- the metrics ---------------------------------------------------------------------------------------------------------------------------

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        objects = GaugeMetricFamily("kvcm_operator_objects", "Objects by the reason of their Ready condition.", labels=("kind", "reason"))
        for (kind, reason), number in sorted(Tally((ref.kind, reason) for ref, reason in self._reasons.items()).items()):
            objects.add_metric((kind, reason), number)
        yield objects
        yield GaugeMetricFamily("kvcm_operator_leader", "Is this process the one that works?", value=float(self.leader))
        yield GaugeMetricFamily("kvcm_operator_watch_lag_seconds", "How far watches are behind what reading shows.", value=self.watch_lag_s())
