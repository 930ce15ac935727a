"""Says in the log when a group is created whose index of blocks is in memory, on a manager that is set up to outlive a leader."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kvcm.config.registry import Registry
from kvcm.config.registry_core import RegistryEvent, RegistryEventKind
from kvcm.config.settings import Settings

_ALONE = ("", "memory")
_log = logging.getLogger("kvcm.service.local_metadata")


def is_meant_to_last(settings: Settings) -> bool:
    """Are there other managers that take over, or a Redis for block metadata? Then an index in memory is likely to be an oversight."""
    return bool(settings.meta_redis_uri) or settings.coordination_uri.partition("://")[0] not in _ALONE


def local_metadata_notice(registry: Registry) -> Callable[[RegistryEvent], None]:
    """A listener of `registry`: one line for each group that is created with its index in memory."""

    def on_change(event: RegistryEvent) -> None:
        if event.kind is not RegistryEventKind.GROUP_CREATED:
            return
        group = registry.get_group(event.name)
        if group is None:
            return
        backend = group.cache_config.meta_indexer.backend
        # `dummy` without a place is memory too.
        if backend.storage_type == "local" or (backend.storage_type == "dummy" and not backend.storage_uri):
            _log.warning(
                "group_metadata_in_memory group=%s: its index of blocks does not survive a change of leader, nor a restart; "
                "docs/metadata-in-redis.md tells how to keep it in Redis",
                group.name,
            )

    return on_change
