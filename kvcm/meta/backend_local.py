"""Metadata in memory only: the published state is the store. Nothing survives a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

from kvcm.common.errors import StorageError
from kvcm.meta.location import Block

_NO_FAILURES: Mapping[int, StorageError] = {}


class LocalBackend:
    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        nothing: list[tuple[int, Block]] = []
        if nothing:
            yield nothing

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        return _NO_FAILURES

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        raise StorageError("the in-memory metadata backend has no store to read back from")

    async def sync(self, keys: Collection[int]) -> None:
        return
