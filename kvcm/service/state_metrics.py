"""Numbers about the manager's state, read when a scrape asks (behaviour 18.3). Labels come from what exists now, so nothing has to be purged."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterable

import google.protobuf
import grpc

from kvcm import __version__
from kvcm.common.clock import Clock
from kvcm.config.registry import Registry
from kvcm.coordination.runner import LeaderRunner
from kvcm.data_storage.manager import DataStorageManager
from kvcm.manager.cache_manager import CacheManager
from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily
from kvcm.service.cluster import ClusterView
from kvcm.service.in_flight import InFlight
from kvcm.service.logging_setup import LOGS, LineWriter

_START, _FINISH = ("StartWriteCache",), ("FinishWriteCache",)


class ManagerSource:
    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager

    def families(self) -> Iterable[AnyFamily]:
        shards = [((shard.instance.instance_group_name, shard.instance_id), shard.index) for shard in self._manager.shards()]
        keys = [(labels, index.key_count) for labels, index in shards]
        sizes = [(labels, index.usage.total) for labels, index in shards]
        yield catalogue.TOTAL_KEYS.only(sum(count for _, count in keys))
        yield catalogue.TOTAL_BYTES.only(sum(size for _, size in sizes))
        yield catalogue.INSTANCE_KEYS.of(keys)
        yield catalogue.INSTANCE_BYTES.of(sizes)
        yield from self._writes()
        deleter = self._manager.deleter
        stats = deleter.stats
        yield catalogue.DELETIONS_WAITING.only(deleter.pending)
        yield catalogue.DELETIONS_CONDEMNED.only(stats.condemned)
        yield catalogue.DELETIONS_BURIED.only(stats.buried)
        yield catalogue.DELETIONS_UNPROVEN.only(stats.kept_without_proof)
        yield catalogue.DELETIONS_OVERFLOW.only(stats.queue_overflow)

    def _writes(self) -> Iterable[AnyFamily]:
        sessions, times = self._manager.sessions, self._manager.write_times
        stats = sessions.stats
        yield catalogue.OPEN_WRITES.only(len(sessions))
        yield catalogue.SESSIONS_OPENED.only(stats.opened)
        yield catalogue.SESSIONS_FINISHED.only(stats.finished)
        yield catalogue.SESSIONS_EXPIRED.only(stats.expired)
        yield catalogue.SESSIONS_IDLE.only(stats.idle)
        yield catalogue.SESSIONS_ABORTED.only(stats.aborted)
        if stats.opened:
            yield catalogue.FILTER_TIME.of([(_START, times.filter_us)])
            yield catalogue.ALLOCATE_TIME.of([(_START, times.allocate_us)])
            yield catalogue.GENERATE_TIME.of([(_START, times.generate_us)])
            yield catalogue.ADD_TIME.of([(_START, times.add_us)])
        if stats.finished:
            yield catalogue.UPDATE_TIME.of([(_FINISH, times.update_us)])


class RegistrySource:
    def __init__(self, registry: Registry, manager: CacheManager, storages: DataStorageManager) -> None:
        self._registry = registry
        self._manager = manager
        self._storages = storages

    def families(self) -> Iterable[AnyFamily]:
        used, ratios = [], []
        groups = self._registry.list_groups()
        for group in groups:
            total = self._manager.group_usage(group.name).total
            used.append(((group.name,), total))
            if group.quota.capacity > 0:
                ratios.append(((group.name,), total / group.quota.capacity))
        yield catalogue.GROUP_BYTES.of(used)
        yield catalogue.GROUP_RATIO.of(ratios)
        listed = [((storage.type.type_name, storage.name), storage.name) for storage in self._storages.list()]
        yield catalogue.STORAGE_HEALTHY.of([(labels, int(not self._storages.problem(name))) for labels, name in listed])
        yield catalogue.STORAGE_AVAILABLE.of([(labels, int(self._storages.available(name))) for labels, name in listed])
        yield catalogue.GROUPS.only(len(groups))
        yield catalogue.INSTANCES.only(len(self._registry.list_instances()))
        yield catalogue.QUARANTINED.only(len(self._registry.quarantined()))


class NodeSource:
    """This node's part in the election, and what it is doing. `dropped_lines`: see `lost_log_lines`."""

    def __init__(self, cluster: ClusterView, in_flight: InFlight, runner: LeaderRunner, clock: Clock, dropped_lines: Callable[[], int]) -> None:
        self._cluster = cluster
        self._in_flight = in_flight
        self._runner = runner
        self._clock = clock
        self._dropped_lines = dropped_lines
        self._build = [((__version__, platform.python_version(), grpc.__version__, google.protobuf.__version__), 1.0)]

    def families(self) -> Iterable[AnyFamily]:
        known, runner = self._cluster.snapshot(), self._runner
        now_us, wall_ms = self._clock.monotonic_us(), self._clock.wall_us() // 1000
        yield catalogue.IS_LEADER.only(int(known.is_leader))
        yield catalogue.HEALTHY.only(int(known.is_health))
        yield catalogue.EPOCH.only(runner.epoch)
        yield catalogue.LEASE_LEFT.only(max(0, runner.deadline_us - now_us) // 1000)
        if runner.last_loop_wall_ms:
            yield catalogue.LOOP_AGE.only(max(0, wall_ms - runner.last_loop_wall_ms))
        yield catalogue.TERMS.only(runner.stats.promotions)
        yield catalogue.STEPS_DOWN.only(runner.stats.demotions)
        yield catalogue.ELECTION_FAILURES.of([((operation,), count) for operation, count in runner.stats.failures.items()])
        yield catalogue.IN_FLIGHT.only(self._in_flight.count)
        yield catalogue.LOG_DROPPED.only(self._dropped_lines())
        yield catalogue.BUILD.of(self._build)


def lost_log_lines() -> int:
    """Lines that the process's log writers had to drop, or could not write."""
    loggers = [logging.getLogger(), *map(logging.getLogger, LOGS.values())]
    return sum(handler.lost for handler in {handler for logger in loggers for handler in logger.handlers} if isinstance(handler, LineWriter))
