"""Doubles for tests of whoever uses a registry: a store that fails on command, and storages without any I/O."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from kvcm.common.errors import NotFound, OutcomeUnknown, StorageError
from kvcm.config.passwords import Cost, PasswordHasher
from kvcm.config.store import Change, RegistrySnapshot, RegistryStore
from kvcm.data_storage.model import Storage


def quick_hasher() -> PasswordHasher:
    """Hashes that cost nothing, and protect nothing."""
    return PasswordHasher(Cost(2, 1, 1))


class Fault(Enum):
    # Nothing written, and the store says so.
    FAIL = "fail"
    # Written, but the answer is lost.
    LOST_ANSWER = "lost_answer"
    # Not written, and nobody knows.
    LOST_REQUEST = "lost_request"


class FaultyStore:
    """Wraps a store. `faults` are used up by the next `apply` calls in order, `failing_loads` counts loads that will fail."""

    def __init__(self, inner: RegistryStore) -> None:
        self.inner = inner
        self.faults: list[Fault | None] = []
        self.failing_loads = 0

    async def open(self) -> None:
        await self.inner.open()

    async def load(self) -> RegistrySnapshot:
        if self.failing_loads > 0:
            self.failing_loads -= 1
            raise StorageError("The store did not answer.")
        return await self.inner.load()

    async def probe(self) -> None:
        await self.inner.probe()

    async def apply(self, changes: Sequence[Change], fence: int) -> None:
        fault = self.faults.pop(0) if self.faults else None
        if fault is Fault.FAIL:
            raise StorageError("The store refused.")
        if fault is Fault.LOST_REQUEST:
            raise OutcomeUnknown("The store did not answer.")
        await self.inner.apply(changes, fence)
        if fault is Fault.LOST_ANSWER:
            raise OutcomeUnknown("The store did not answer.")

    async def close(self) -> None:
        await self.inner.close()


class FakeStorages:
    """Opened storages by name. Names in `broken` cannot be opened."""

    def __init__(self) -> None:
        self.opened: dict[str, Storage] = {}
        self.quarantined: dict[str, str] = {}
        self.broken: set[str] = set()

    async def add(self, storage: Storage, *, known: bool = False) -> None:
        if storage.name in self.broken:
            raise StorageError("the store is not there")
        assert storage.name not in self.opened, "opened twice"
        self.opened[storage.name] = storage

    async def remove(self, name: str) -> None:
        if name not in self.opened:
            raise NotFound(f"storage {name!r} is not opened")
        del self.opened[name]
        self.quarantined.pop(name, None)

    async def update(self, storage: Storage) -> None:
        if storage.name in self.broken:
            raise StorageError("the store is not there")
        if storage.name not in self.opened:
            raise NotFound(f"storage {storage.name!r} is not opened")
        self.opened[storage.name] = storage
        self.quarantined.pop(storage.name, None)

    def set_enabled(self, name: str, enabled: bool) -> None:
        storage = self.opened[name]
        self.opened[name] = Storage(storage.name, storage.type, storage.spec, storage.check_storage_available_when_open, enabled)

    async def add_quarantined(self, storage: Storage, reason: str) -> None:
        self.opened[storage.name] = storage
        self.quarantined[storage.name] = reason
