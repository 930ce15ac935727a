"""A registry store with the fail points `registry.*` around it (see `kvcm.common.failpoints`); tests only."""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.common.failpoints import FailPoints
from kvcm.config.store import Change, RegistrySnapshot, RegistryStore


class FailingStore:
    def __init__(self, inner: RegistryStore, points: FailPoints) -> None:
        self._inner = inner
        self._points = points

    async def open(self) -> None:
        await self._inner.open()

    async def load(self) -> RegistrySnapshot:
        await self._points.at("registry.load.before")
        snapshot = await self._inner.load()
        await self._points.at("registry.load.after")
        return snapshot

    async def probe(self) -> None:
        await self._inner.probe()

    async def apply(self, changes: Sequence[Change], fence: int) -> None:
        operation = "registry.apply" if changes else "registry.fence"
        await self._points.at(f"{operation}.before")
        await self._inner.apply(changes, fence)
        await self._points.at(f"{operation}.after")

    async def close(self) -> None:
        await self._inner.close()
