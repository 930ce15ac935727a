"""A registry that lives as long as the process. A loss of leadership drops the registry's own memory, not this.

Danger: records must not be shared with the caller, or a later change of a nested value would reach the store without an `apply`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from kvcm.config.errors import FencedOut
from kvcm.config.store import TABLES, Change, Record, RegistrySnapshot, Table


class MemoryStore:
    def __init__(self) -> None:
        self._tables: dict[Table, dict[str, Record]] = {table: {} for table in TABLES}
        self._fence = 0

    async def open(self) -> None:
        return

    async def load(self) -> RegistrySnapshot:
        return RegistrySnapshot(tables=copy.deepcopy(self._tables), fence=self._fence)

    async def apply(self, changes: Sequence[Change], fence: int) -> None:
        if fence < self._fence:
            raise FencedOut("The registry has been taken over by a newer leader.", self._fence)
        self._fence = fence
        for change in changes:
            if change.record is None:
                self._tables[change.table].pop(change.id, None)
            else:
                self._tables[change.table][change.id] = copy.deepcopy(change.record)

    async def close(self) -> None:
        return
