"""Storages with the fail points `bytes.*` around them (see `kvcm.common.failpoints`); tests only."""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.common.clock import Clock
from kvcm.common.failpoints import FailPoints
from kvcm.common.ids import IdSource
from kvcm.data_storage.manager import BackendFactory, DataStorageManager
from kvcm.data_storage.port import Truth


class FailingStorages(DataStorageManager):
    def __init__(self, factory: BackendFactory, clock: Clock, ids: IdSource, points: FailPoints) -> None:
        super().__init__(factory, clock, ids)
        self._points = points

    async def delete(self, uris: Sequence[str]) -> list[Truth]:
        await self._points.at("bytes.delete.before")
        truths = await super().delete(uris)
        await self._points.at("bytes.delete.after")
        return truths
