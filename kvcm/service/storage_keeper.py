"""Looks after the opened storages while this node leads: are their roots still the right ones, and has a quarantined one come back (design D5)?"""

from __future__ import annotations

import asyncio
import logging

from kvcm.config.registry import Registry
from kvcm.data_storage.manager import DataStorageManager

_VERIFY_EVERY_S = 5.0
_log = logging.getLogger("kvcm.service.storages")


class StorageKeeper:
    def __init__(self, storages: DataStorageManager, registry: Registry) -> None:
        self._storages = storages
        self._registry = registry
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def look(self) -> None:
        """One round; the backends bound its time."""
        await self._storages.verify_roots()
        for name in await self._storages.retry_quarantined():
            _log.info("storage_reopened name=%s", name)
            self._registry.storage_reopened(name)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_VERIFY_EVERY_S)
            try:
                await self.look()
            except Exception:
                _log.exception("storage_check_failed")
