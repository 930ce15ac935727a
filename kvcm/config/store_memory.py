"""A registry that lives as long as the process. A loss of leadership drops the registry's own memory, not this.

Danger: records must not be shared with the caller, or a later change of a nested value would reach the store without an `apply`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence

from kvcm.config.errors import FencedOut
from kvcm.config.store import TABLES, Change, Record, RegistrySnapshot, Table

_SLICE = 64


class MemoryStore:
    def __init__(self) -> None:
        self._tables: dict[Table, dict[str, Record]] = {table: {} for table in TABLES}
        self._fence = 0

    async def open(self) -> None:
        return

    async def load(self) -> RegistrySnapshot:
        return RegistrySnapshot(tables=copy.deepcopy(self._tables), fence=self._fence)

    async def probe(self) -> None:
        return

    async def apply(self, changes: Sequence[Change], fence: int) -> None:
        copies: list[Record | None] = []
        for number, change in enumerate(changes):
            copies.append(copy.deepcopy(change.record))
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        # From here on nothing is awaited: all or nothing, and a leader that came meanwhile is seen.
        if fence < self._fence:
            raise FencedOut("The registry has been taken over by a newer leader.", self._fence)
        self._fence = fence
        for change, record in zip(changes, copies, strict=True):
            if record is None:
                self._tables[change.table].pop(change.id, None)
            else:
                self._tables[change.table][change.id] = record

    async def close(self) -> None:
        return
