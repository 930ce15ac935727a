"""Places that were allocated and that no location refers to: a start that failed, or a key that somebody else wrote first.

Nothing else remembers them, so a place that cannot be freed now (its root is not mounted) is kept here and tried again. Bounded; what does not fit, and
what a crash forgets, is at worst an empty file or a slot of a packed file.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.data_storage.port import Truth
from kvcm.manager.ports import Storages

_MAX_KEPT = 65_536
_PER_SWEEP = 512


class Strays:
    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._kept: list[str] = []
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def give_back(self, storage_name: str, uris: Sequence[str]) -> None:
        """Free places that were just allocated.

        A storage without unique paths has made nothing for them, and somebody else may own the same path: a location that serves, or a writer who was
        first. There nothing may be deleted.
        """
        backend = self._storages.backend(storage_name)
        if uris and backend is not None and backend.traits.unique_paths:
            await self._free(uris)

    async def retry(self) -> None:
        """Try the oldest again."""
        due, self._kept = self._kept[:_PER_SWEEP], self._kept[_PER_SWEEP:]
        if due:
            await self._free(due)

    def forget(self) -> None:
        self._kept.clear()

    async def _free(self, uris: Sequence[str]) -> None:
        truths = await self._storages.delete(uris)
        left = [uri for uri, truth in zip(uris, truths, strict=True) if truth is not Truth.ABSENT]
        room = max(0, _MAX_KEPT - len(self._kept))
        self._kept.extend(left[:room])
        self.forgotten += len(left[room:])
