"""From a group's configuration to a metadata backend."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from kvcm.common.clock import SystemClock
from kvcm.common.errors import InvalidArgument
from kvcm.common.failpoints import FailPoints
from kvcm.common.redis.target import RedisTarget, number, parse_target
from kvcm.config.model import MetaBackendConfig
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta import cluster_layout, cluster_leftovers
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.backend_file import FileBackend
from kvcm.meta.backend_local import LocalBackend
from kvcm.meta.backend_redis import RedisBackend
from kvcm.meta.backend_redis_cluster import RedisClusterBackend
from kvcm.meta.changes import ChangeStream
from kvcm.meta.failing import FailingBackend
from kvcm.meta.record import RecordCodec
from kvcm.meta.redis_changes import DEFAULT_MAX_ENTRIES, MAX_ENTRIES, PARAMETER
from kvcm.meta.redis_context import RedisContext
from kvcm.meta.write_behind import PARAMETERS, BehindSettings, WriteBehind

_KINDS = ("redis", "async_redis", "cached")
# `cached` is upstream's name for Redis with everything in memory too, which is what every backend is here.
_KNOWN = PARAMETERS | {"redis_layout", "persistent_type", "cache_type", PARAMETER, cluster_layout.PARAMETER}


@dataclass(frozen=True, slots=True)
class MetadataStores:
    """What backends need that is not in the configuration."""

    pool: BlockingPool
    redis: RedisContext = field(default_factory=lambda: RedisContext(SystemClock()))
    redis_uri: str = field(default="", repr=False)
    """`kvcm.meta.redis_uri`: for configurations that ask for Redis and name none, so that no password has to stand in a group."""
    points: FailPoints | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgument."""
        if self.redis_uri:
            parse_metadata_uri(self.redis_uri)

    def open(self, config: MetaBackendConfig, instance_id: str, records: RecordCodec) -> MetadataBackend:
        """The backend named by the configuration, not opened yet. Raises InvalidArgument."""
        if config.storage_type == "local":
            return LocalBackend()
        if config.storage_type == "dummy":
            return self._pointed(FileBackend(config.storage_uri, instance_id, records, self.pool)) if config.storage_uri else LocalBackend()
        if config.storage_type in _KINDS:
            return self._open_redis(config, instance_id, records)[0]
        raise InvalidArgument(
            f"metadata backend '{config.storage_type}' is unknown; use 'local' (memory), 'dummy' (file), 'redis' or 'async_redis' (written behind)"
        )

    def open_followed(self, config: MetaBackendConfig, instance_id: str, records: RecordCodec) -> tuple[MetadataBackend, ChangeStream] | None:
        """The same, with the stream of its changes; None for stores that tell nobody of them. Raises InvalidArgument."""
        if config.storage_type not in _KINDS:
            return None
        backend, store = self._open_redis(config, instance_id, records)
        return (backend, store.changes) if store.changes.max_entries else None

    def _open_redis(self, config: MetaBackendConfig, instance_id: str, records: RecordCodec) -> tuple[MetadataBackend, RedisBackend | RedisClusterBackend]:
        target = self._target(config)
        layout = target.params.get("redis_layout", "hash")
        if layout not in ("hash", "legacy"):
            raise InvalidArgument("the parameter redis_layout of a storage_uri is 'hash' or 'legacy'")
        behind = BehindSettings.of(target.params)
        entries = number(target.params, PARAMETER, DEFAULT_MAX_ENTRIES, 0, MAX_ENTRIES)
        store: RedisBackend | RedisClusterBackend
        if target.cluster:
            if layout == "legacy":
                raise InvalidArgument("redis_layout=legacy is for one Redis: in a Redis Cluster blocks lie in a layout of our own")
            buckets = cluster_layout.buckets_of(target.params)
            store = RedisClusterBackend(target, instance_id, records, self.redis, buckets=buckets, stream_entries=entries)
        elif cluster_layout.PARAMETER in target.params:
            raise InvalidArgument(f"the parameter {cluster_layout.PARAMETER} is for a Redis Cluster (redis-cluster://)")
        else:
            store = RedisBackend(target, instance_id, records, self.redis, legacy=layout == "legacy", stream_entries=entries)
        if not _is_behind(config, target):
            return self._pointed(store), store
        return self._pointed(WriteBehind(self._pointed(store, "blocks.flush"), instance_id, behind, self.redis)), store

    def _pointed(self, backend: MetadataBackend, operation: str = "") -> MetadataBackend:
        return backend if self.points is None else FailingBackend(backend, self.points, operation)

    async def stored_instances(self, config: MetaBackendConfig, in_use: Collection[tuple[MetaBackendConfig, str]]) -> list[str]:
        """Ids of the instances that the configured store holds records of, without the stores in use, (configuration, instance id). None for stores in
        memory. Raises InvalidArgument, StorageError."""
        if config.storage_type in _KINDS:
            target = self._target(config)
            # Whatever their URIs name: one Redis may have many addresses, and what is in use must not lose its stream.
            ids = [instance_id for other, instance_id in in_use if other.storage_type in _KINDS]
            if target.cluster:
                return await cluster_leftovers.stored_instances(target, self.redis.list_key(target), ids)
            return await self.redis.stored_instances(target, ids)
        if not _is_file(config):
            return []
        used = [(other.storage_uri, instance_id) for other, instance_id in in_use if _is_file(other)]
        return await FileBackend.stored_instances(config.storage_uri, used, self.pool)

    def _target(self, config: MetaBackendConfig) -> RedisTarget:
        uri = config.storage_uri or self.redis_uri
        if not uri:
            raise InvalidArgument(
                f"a metadata backend '{config.storage_type}' without a storage_uri is for managers that have a Redis of their own for it (kvcm.meta.redis_uri)"
            )
        return parse_metadata_uri(uri)


def parse_metadata_uri(uri: str) -> RedisTarget:
    """A Redis URI with the parameters that metadata knows. Raises InvalidArgument."""
    return parse_target(uri, _KNOWN, cluster=True)


def _is_behind(config: MetaBackendConfig, target: RedisTarget) -> bool:
    if config.storage_type != "cached":
        return config.storage_type == "async_redis"
    kind = target.params.get("persistent_type", "redis")
    if kind not in ("redis", "async_redis"):
        raise InvalidArgument("the parameter persistent_type of a storage_uri is 'redis' or 'async_redis'")
    return kind == "async_redis"


def _is_file(config: MetaBackendConfig) -> bool:
    return config.storage_type == "dummy" and bool(config.storage_uri)


async def stored_instances(config: MetaBackendConfig, in_use: Collection[tuple[MetaBackendConfig, str]], pool: BlockingPool) -> list[str]:
    """`MetadataStores.stored_instances` for callers without Redis' counters."""
    return await MetadataStores(pool).stored_instances(config, in_use)


def open_backend(config: MetaBackendConfig, instance_id: str, records: RecordCodec, pool: BlockingPool) -> MetadataBackend:
    """`MetadataStores.open` for callers without Redis' counters."""
    return MetadataStores(pool).open(config, instance_id, records)
