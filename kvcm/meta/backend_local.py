"""Metadata in memory only: the published state is the store. Nothing survives a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

from kvcm.common.errors import StorageError
from kvcm.config.errors import FencedOut
from kvcm.meta.location import Block

_NO_FAILURES: Mapping[int, StorageError] = {}


class LocalBackend:
    def __init__(self) -> None:
        self._fence = 0

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def raise_fence(self, fence: int) -> None:
        if fence < self._fence:
            raise FencedOut("a newer leader has taken over the metadata in memory", self._fence)
        self._fence = fence

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        nothing: list[tuple[int, Block]] = []
        if nothing:
            yield nothing

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        if fence < self._fence:
            raise FencedOut("a newer leader has taken over the metadata in memory", self._fence)
        return _NO_FAILURES

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        raise StorageError("the in-memory metadata backend has no store to read back from")

    async def sync(self, keys: Collection[int]) -> None:
        return
