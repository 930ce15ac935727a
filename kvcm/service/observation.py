"""Everything that looks at a manager without taking part: metrics, their reporter, access log, events. Wired here, so that `server.py` stays readable.

Order: made before the listeners open, started with them, and closed after the last call was answered, so that its line is written too.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcm.common.clock import Clock
from kvcm.common.ids import IdSource
from kvcm.config.registry import Registry
from kvcm.config.registry_core import RegistryEvent, RegistryEventKind
from kvcm.config.settings import Settings
from kvcm.data_storage.manager import DataStorageManager
from kvcm.event.bus import LOGGER as EVENT_LOGGER
from kvcm.event.bus import EventManager, LogPublisher
from kvcm.event.publishers import parse_publishers
from kvcm.metrics.families import Source
from kvcm.metrics.http_metrics import HttpMetrics
from kvcm.metrics.loop_monitor import LoopMonitor
from kvcm.metrics.registry import Metrics
from kvcm.metrics.reporters import LOGGER as REPORT_LOGGER
from kvcm.metrics.reporters import LoggingReporter
from kvcm.metrics.request_metrics import RequestMetrics
from kvcm.metrics.storage_metrics import StorageMetrics
from kvcm.service.access_log import LOGGER as ACCESS_LOGGER
from kvcm.service.access_log import AccessLog
from kvcm.service.call_events import CallEvents
from kvcm.service.logging_setup import lines_to
from kvcm.service.rpc import CallTap


class Observation:
    """`taps` are for the dispatcher, `http` for the listeners, `events` for whoever else has something to publish."""

    def __init__(self, settings: Settings, registry: Registry, storages: DataStorageManager, clock: Clock, ids: IdSource) -> None:
        """Threads start here when the access log or a publisher is on: `close` ends them."""
        self._registry = registry
        self._storages = storages
        self.metrics = Metrics(RequestMetrics(lambda name: registry.get_instance(name) is not None), settings.metrics_prometheus_prefix)
        self.http = HttpMetrics()
        self._places = StorageMetrics(lambda name: storages.get(name) is not None, clock.monotonic_us)
        storages.observer = self._places
        self._monitor = LoopMonitor()
        self.events = EventManager()
        log = parse_publishers(settings.event_publishers_configs).log
        if log.enable:
            self.events.add(LogPublisher(lines_to(EVENT_LOGGER), log.queue_size))
        self._access_log: AccessLog | None = None
        if settings.access_log_enabled:
            self._access_log = AccessLog(
                lines_to(ACCESS_LOGGER), settings.access_log_queue_size, settings.access_log_with_payload, settings.access_log_max_payload_chars
            )
        self.taps: tuple[CallTap, ...] = ()
        if self._access_log is not None:
            self.taps += (self._access_log,)
        if self.events.enabled:
            self.taps += (CallEvents(self.events, ids),)
        self._reporter: LoggingReporter | None = None
        if settings.metrics_reporter_type == "logging":
            self._reporter = LoggingReporter(self.metrics, clock, settings.metrics_report_interval_ms, lines_to(REPORT_LOGGER))
        self.add(self._monitor, self.http, self._places, self.events)
        if self._access_log is not None:
            self.add(self._access_log)

    def add(self, *sources: Source) -> None:
        for source in sources:
            self.metrics.add(source)

    def start(self) -> None:
        self._monitor.start()
        if self._reporter is not None:
            self._reporter.start()

    async def stop(self) -> None:
        """Idempotent, also when it was never started."""
        await self._monitor.stop()
        if self._reporter is not None:
            await self._reporter.stop()

    def close(self) -> None:
        """Write what waits, for at most a few seconds."""
        if self._access_log is not None:
            self._access_log.close()
        self.events.close()
        self.metrics.close()

    def purger(self) -> Callable[[RegistryEvent], None]:
        """Takes the series of what is gone (I-ME-3)."""
        return self._on_registry_change

    def _on_registry_change(self, event: RegistryEvent) -> None:
        match event.kind:
            case RegistryEventKind.INSTANCE_REMOVED:
                self.metrics.purge_instance(event.name)
            case RegistryEventKind.GROUP_REMOVED:
                self.metrics.purge_group(event.name)
            case RegistryEventKind.STORAGE_REMOVED:
                self.metrics.purge_storage(event.name)
            case RegistryEventKind.RECOVERED:
                # What another leader removed meanwhile.
                self.metrics.keep_instances({instance.instance_id for instance in self._registry.list_instances()})
                self._places.keep({storage.name for storage in self._storages.list()})
            case _:
                pass
