"""Numbers about hosts that report blocks, and the numbers that these hosts tell of themselves (wire contract 3.7), read when a scrape asks."""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.manager.cache_manager import CacheManager
from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily, Labels
from kvcm.metrics.text import sanitise

MAX_KEYS = 64
"""Names that hosts choose, each a family of its own; those that come later are left out."""


class ReportsSource:
    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager

    def families(self) -> Iterable[AnyFamily]:
        counts: list[tuple[Labels, float]] = []
        numbers: dict[str, tuple[str, dict[Labels, float]]] = {}  # by the name that Prometheus shows, which two keys may share
        for shard in self._manager.shards():
            if shard.reports is None:
                continue
            reporters = sorted(shard.reports.reporters(), key=lambda reporter: reporter.seen_us)  # of a host's two kinds the newer number counts
            silent = sum(reporter.silent for reporter in reporters)
            labels = (shard.instance.instance_group_name, shard.instance_id)
            counts += [((*labels, "alive"), len(reporters) - silent), ((*labels, "silent"), silent), ((*labels, "gone"), shard.reports.tombstones)]
            for reporter in reporters:
                for key, value in reporter.status.items():
                    shown = sanitise("", key)
                    if shown in numbers or len(numbers) < MAX_KEYS:
                        numbers.setdefault(shown, (key, {}))[1][shard.instance_id, reporter.host] = value
        yield catalogue.REPORTERS.of(counts)
        yield catalogue.REPORTS_CLEANED.only(self._manager.cleaned_reports)
        for key, samples in sorted(numbers.values(), key=lambda entry: entry[0]):
            yield catalogue.reported_number(key, list(samples.items()))
