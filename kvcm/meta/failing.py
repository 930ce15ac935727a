"""A metadata backend with the fail points `blocks.*` around it (see `kvcm.common.failpoints`); tests only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

from kvcm.common.errors import StorageError
from kvcm.common.failpoints import FailPoints
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.location import Block, Status


def change_of(changes: Mapping[int, Block]) -> str:
    """The operation that a change is. One of several kinds is called by what comes first in a block's end: bury, condemn, add, serve."""
    if not all(changes.values()):
        return "blocks.bury"
    found = {location.header[0] for block in changes.values() for location in block}
    return "blocks.condemn" if Status.DELETING in found else "blocks.add" if Status.WRITING in found else "blocks.serve"


class FailingBackend:
    """`operation`: what every change is called; empty: by what it changes (`change_of`)."""

    def __init__(self, inner: MetadataBackend, points: FailPoints, operation: str = "") -> None:
        self._inner = inner
        self._points = points
        self._operation = operation

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def raise_fence(self, fence: int) -> None:
        if self._operation:
            await self._inner.raise_fence(fence)
            return
        await self._points.at("blocks.fence.before")
        await self._inner.raise_fence(fence)
        await self._points.at("blocks.fence.after")

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        if not self._operation:
            await self._points.at("blocks.load.before")
        async for page in self._inner.load():
            yield page
        if not self._operation:
            await self._points.at("blocks.load.after")

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        operation = self._operation or change_of(changes)
        await self._points.at(f"{operation}.before")
        failures = await self._inner.apply(changes, fence)
        await self._points.at(f"{operation}.after")
        return failures

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        return await self._inner.read(keys)

    async def sync(self, keys: Collection[int]) -> None:
        if not self._operation:
            await self._points.at("blocks.sync.before")
        await self._inner.sync(keys)
        if not self._operation:
            await self._points.at("blocks.sync.after")
