"""Where all numbers of one manager meet: sources that belong to the manager, and prometheus-client's collectors for the process.

Danger: a page of many series takes longer to write than the loop may stand still. Sources are asked on the loop, a few at a time; the text is
written in a thread, one page at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from kvcm.metrics import catalogue
from kvcm.metrics.catalogue import Spec
from kvcm.metrics.counters import CounterTable
from kvcm.metrics.families import AnyFamily, Purgeable, Source
from kvcm.metrics.request_metrics import RequestMetrics
from kvcm.metrics.text import write_text

T = TypeVar("T")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DEADLINE_S = 10.0
_log = logging.getLogger("kvcm.metrics")


class Metrics:
    """One per manager; nothing is global. `prefix`: `kvcm.metrics.prometheus_prefix`."""

    def __init__(self, requests: RequestMetrics, prefix: str = "kvcm") -> None:
        self.requests = requests
        self._prefix = prefix
        self._sources: list[Source] = [requests]
        self._failed = 0
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)
        self._writer = ThreadPoolExecutor(1, "kvcm-metrics")
        self._one_at_a_time = asyncio.Lock()

    def add(self, source: Source) -> None:
        """`source` is asked from now on; if it is Purgeable, purging reaches it."""
        self._sources.append(source)

    def counter(self, spec: Spec) -> CounterTable:
        """A new counter family with labels."""
        table = CounterTable(spec)
        self._sources.append(table)
        return table

    def collect(self) -> list[AnyFamily]:
        """All families now. A source that fails is logged and left out (I-ME-4)."""
        found: list[AnyFamily] = []
        for source in self._sources:
            found += self._ask(source)
        found.append(catalogue.SOURCES_FAILED.only(self._failed))
        return found

    async def render(self) -> bytes:
        """The page of `GET /metrics`. Raises TimeoutError when it is not ready in ten seconds."""
        async with asyncio.timeout(_DEADLINE_S), self._one_at_a_time:
            return await asyncio.get_running_loop().run_in_executor(self._writer, self._write, await self._gather())

    async def in_thread(self, work: Callable[[list[AnyFamily]], T]) -> T:
        """`work(all families)` in the thread that also writes pages; for reporters. Raises TimeoutError after ten seconds, and what `work` raises."""
        async with asyncio.timeout(_DEADLINE_S), self._one_at_a_time:
            return await asyncio.get_running_loop().run_in_executor(self._writer, work, await self._gather())

    def purge_instance(self, instance_id: str) -> None:
        """The instance is gone: so are its series (I-ME-3)."""
        self.requests.purge_instance(instance_id)
        self._purge("instance_id", instance_id)

    def purge_group(self, group: str) -> None:
        self.requests.purge_group(group)
        self._purge("instance_group", group)

    def purge_storage(self, name: str) -> None:
        self._purge("unique_name", name)

    def keep_instances(self, existing: Collection[str]) -> None:
        """Forget the series of every other instance."""
        for name in self.requests.instances():
            if name not in existing:
                self.purge_instance(name)

    def close(self) -> None:
        self._writer.shutdown(wait=False, cancel_futures=True)

    async def _gather(self) -> list[AnyFamily]:
        """`collect`, letting others run after every source."""
        found: list[AnyFamily] = []
        for source in self._sources:
            found += self._ask(source)
            await asyncio.sleep(0)
        found.append(catalogue.SOURCES_FAILED.only(self._failed))
        return found

    def _purge(self, label: str, value: str) -> None:
        for source in self._sources:
            if isinstance(source, Purgeable):
                source.purge(label, value)

    def _ask(self, source: Source) -> list[AnyFamily]:
        try:
            return list(source.families())
        except Exception:
            self._failed += 1
            _log.exception("metrics_source_failed source=%s", type(source).__name__)
            return []

    def _write(self, families: list[AnyFamily]) -> bytes:
        return write_text(self._prefix, families).encode() + generate_latest(self._process)
