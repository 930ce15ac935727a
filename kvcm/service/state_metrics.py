"""Numbers about the manager's state, read when a scrape asks (behaviour 18.3). Labels come from what exists now, so nothing has to be purged."""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.config.registry import Registry
from kvcm.data_storage.manager import DataStorageManager
from kvcm.manager.cache_manager import CacheManager
from kvcm.metrics.families import AnyFamily, Family
from kvcm.service.cluster import ClusterView
from kvcm.service.in_flight import InFlight

_INSTANCE = ("instance_group", "instance_id")
_STORAGE = ("type", "unique_name")


class ManagerSource:
    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager

    def families(self) -> Iterable[AnyFamily]:
        shards = [((shard.instance.instance_group_name, shard.instance_id), shard.index) for shard in self._manager.shards()]
        keys = [(labels, index.key_count) for labels, index in shards]
        sizes = [(labels, index.usage.total) for labels, index in shards]
        yield Family("meta_indexer.total_key_count", "gauge", "Blocks of all instances.", (), [((), sum(count for _, count in keys))])
        yield Family("meta_indexer.total_data_size", "gauge", "Bytes of all blocks.", (), [((), sum(size for _, size in sizes))])
        yield Family("cache_manager_instance.key_count", "gauge", "Blocks of an instance.", _INSTANCE, keys)
        yield Family("cache_manager_instance.byte_size", "gauge", "Bytes of an instance's blocks.", _INSTANCE, sizes)
        open_writes = len(self._manager.sessions)
        yield Family("cache_manager.write_location_expire_size", "gauge", "Open write sessions.", (), [((), open_writes)])
        deleter = self._manager.deleter
        stats = deleter.stats
        yield Family("schedule_plan_executor.waiting_task_count", "gauge", "Locations waiting for deletion.", (), [((), deleter.pending)])
        yield Family("deleter.condemned_counter", "counter", "Locations marked for deletion.", (), [((), stats.condemned)])
        yield Family("deleter.buried_counter", "counter", "Locations whose bytes are proven gone.", (), [((), stats.buried)])
        yield Family("deleter.unproven_counter", "counter", "Attempts that ended without proof.", (), [((), stats.kept_without_proof)])
        yield Family("deleter.overflow_counter", "counter", "Locations that found the queue full.", (), [((), stats.queue_overflow)])


class RegistrySource:
    def __init__(self, registry: Registry, manager: CacheManager, storages: DataStorageManager) -> None:
        self._registry = registry
        self._manager = manager
        self._storages = storages

    def families(self) -> Iterable[AnyFamily]:
        used, ratios = [], []
        for group in self._registry.list_groups():
            total = self._manager.group_usage(group.name).total
            used.append(((group.name,), total))
            if group.quota.capacity > 0:
                ratios.append(((group.name,), total / group.quota.capacity))
        yield Family("cache_manager_group.used_bytes", "gauge", "Bytes of a group's blocks.", ("instance_group",), used)
        yield Family("cache_manager_group.usage_ratio", "gauge", "Used bytes by quota, 1 is full.", ("instance_group",), ratios)
        listed = [((storage.type.type_name, storage.name), storage) for storage in self._storages.list()]
        healthy = [(labels, int(not self._storages.problem(storage.name))) for labels, storage in listed]
        usable = [(labels, int(self._storages.available(storage.name))) for labels, storage in listed]
        yield Family("data_storage.healthy_status", "gauge", "1: opened, and its root is the right one.", _STORAGE, healthy)
        yield Family("data_storage.available", "gauge", "1: healthy and enabled.", _STORAGE, usable)
        damaged = len(self._registry.quarantined())
        yield Family("registry.quarantined_records", "gauge", "Stored records that cannot be used.", (), [((), damaged)])


class NodeSource:
    def __init__(self, cluster: ClusterView, in_flight: InFlight) -> None:
        self._cluster = cluster
        self._in_flight = in_flight

    def families(self) -> Iterable[AnyFamily]:
        known = self._cluster.snapshot()
        yield Family("coordination.is_leader", "gauge", "1: this node answers leader-only calls.", (), [((), int(known.is_leader))])
        yield Family("coordination.healthy", "gauge", "1: a leader is known, and if it is this node it serves.", (), [((), int(known.is_health))])
        yield Family("service.requests_in_flight", "gauge", "Calls being answered now.", (), [((), self._in_flight.count)])
