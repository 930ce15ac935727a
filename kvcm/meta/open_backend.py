"""From a group's configuration to a metadata backend."""

from __future__ import annotations

from collections.abc import Collection

from kvcm.common.errors import InvalidArgument, Unsupported
from kvcm.config.model import MetaBackendConfig
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.backend_file import FileBackend
from kvcm.meta.backend_local import LocalBackend
from kvcm.meta.record import RecordCodec


async def stored_instances(config: MetaBackendConfig, in_use: Collection[tuple[MetaBackendConfig, str]], pool: BlockingPool) -> list[str]:
    """Ids of the instances that the configured store holds records of, without the stores in use, (configuration, instance id). None for stores in
    memory. Raises InvalidArgument, StorageError."""
    if not _is_file(config):
        return []
    used = [(other.storage_uri, instance_id) for other, instance_id in in_use if _is_file(other)]
    return await FileBackend.stored_instances(config.storage_uri, used, pool)


def _is_file(config: MetaBackendConfig) -> bool:
    return config.storage_type == "dummy" and bool(config.storage_uri)


def open_backend(config: MetaBackendConfig, instance_id: str, records: RecordCodec, pool: BlockingPool) -> MetadataBackend:
    """The backend named by the configuration, not opened yet. Raises InvalidArgument (unknown) or Unsupported (known, not built yet)."""
    if config.storage_type == "local":
        return LocalBackend()
    if config.storage_type == "dummy":
        return FileBackend(config.storage_uri, instance_id, records, pool) if config.storage_uri else LocalBackend()
    if config.storage_type in ("redis", "async_redis", "cached"):
        raise Unsupported(f"metadata backend '{config.storage_type}' is not part of this version; use 'local' (memory) or 'dummy' (file)")
    raise InvalidArgument(f"metadata backend '{config.storage_type}' is unknown; use 'local' (memory) or 'dummy' (file)")
