"""Mutations of storages: the registry's record and the opened backend change together or not at all (behaviour 15.2, 27).

Danger: opening and closing are I/O that may fail half-way. A store is opened before its record is written and closed again when writing
fails; a record is removed before its store is closed, so a crash in between leaves something that recovery handles.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from kvcm.common.errors import CapacityReached, DuplicateEntity, InvalidArgument, KvcmError, NotFound
from kvcm.config.errors import InUse
from kvcm.config.persisted import storage_from_dict, storage_to_dict
from kvcm.config.registry_core import RegistryCore, RegistryEventKind
from kvcm.config.registry_rules import check_size, check_storage, moves
from kvcm.config.store import Change, QuarantinedRecord
from kvcm.data_storage.model import Storage

MAX_STORAGES = 1024
_log = logging.getLogger("kvcm.config.registry")


class Storages(Protocol):
    """What the registry needs of the opened stores. Every call has its own deadline and raises StorageError."""

    async def add(self, storage: Storage, *, known: bool = False) -> None:
        """Open; nothing is left behind on failure. `known`: it was added before, so its root must prove that it is the right one."""
        ...

    async def remove(self, name: str) -> None:
        """Close and forget, keeping the bytes. Raises NotFound."""
        ...

    async def update(self, storage: Storage) -> None:
        """Replace the store of this name; on failure the old one stays."""
        ...

    def set_enabled(self, name: str, enabled: bool) -> None: ...

    async def add_quarantined(self, storage: Storage, reason: str) -> None:
        """Known by name, but never available until it is updated or removed."""
        ...


class StorageRegistry:
    def __init__(self, core: RegistryCore, storages: Storages, enforce_references: bool) -> None:
        self._core = core
        self._storages = storages
        self._enforce = enforce_references

    async def add(self, storage: Storage) -> None:
        check_storage(storage)
        if storage.name in self._core.tables.storages:
            raise DuplicateEntity(f"Storage {storage.name!r} exists already.")
        if len(self._core.tables.storages) >= MAX_STORAGES:
            raise CapacityReached(f"There can be at most {MAX_STORAGES} storages.")
        record = storage_to_dict(storage)
        check_size(f"Storage {storage.name!r}", record)
        storage = storage_from_dict(record)
        await self._storages.add(storage)
        if not storage.enabled:
            self._storages.set_enabled(storage.name, False)
        await self._core.commit(
            [Change("storage", storage.name, record)],
            self._publish(storage, RegistryEventKind.STORAGE_ADDED),
            lambda: self._storages.remove(storage.name),
        )

    async def update(self, storage: Storage, force: bool) -> None:
        check_storage(storage)
        old = self._known(storage.name)
        if old.type is not storage.type:
            raise InvalidArgument(f"The type of storage {old.name!r} cannot be changed; remove it and add it again.")
        if moves(old.spec, storage.spec):
            self.refuse_referenced(old.name, force, "moved to another place")
        # Enabling and disabling has calls of its own; an update must not switch a disabled storage on again.
        record = storage_to_dict(replace(storage, enabled=old.enabled))
        check_size(f"Storage {old.name!r}", record)
        new = storage_from_dict(record)
        if new == old and ("storage", old.name) not in self._core.tables.quarantined:
            return
        await self.reopen(new)
        await self._core.commit(
            [Change("storage", new.name, record)],
            self._publish(new, RegistryEventKind.STORAGE_UPDATED),
            lambda: self.back(old),
        )

    async def remove(self, name: str, force: bool) -> None:
        damaged = ("storage", name) in self._core.tables.quarantined
        if not damaged:
            self._known(name)
        self.refuse_referenced(name, force, "removed")

        async def publish() -> None:
            known = self._core.tables.storages.pop(name, None)
            try:
                if known is not None:
                    await self._storages.remove(name)
            except KvcmError as error:
                # The record is gone, so the store is gone for everybody; only closing it went wrong.
                _log.warning("storage %s was removed, but closing it failed: %s", name, error.message)
            self._core.emit(RegistryEventKind.STORAGE_REMOVED, name)

        await self._core.commit([Change("storage", name, None)], publish)

    async def set_enabled(self, name: str, enabled: bool) -> None:
        old = self._known(name)
        if old.enabled == enabled:
            return
        new = replace(old, enabled=enabled)

        async def publish() -> None:
            self._core.tables.storages[name] = new
            self._storages.set_enabled(name, enabled)
            self._core.emit(RegistryEventKind.STORAGE_ENABLED if enabled else RegistryEventKind.STORAGE_DISABLED, name)

        await self._core.commit([Change("storage", name, storage_to_dict(new))], publish)

    def _known(self, name: str) -> Storage:
        storage = self._core.tables.storages.get(name)
        if storage is None:
            raise NotFound(f"Storage {name!r} does not exist.")
        return storage

    def _publish(self, storage: Storage, kind: RegistryEventKind) -> Callable[[], Awaitable[None]]:
        async def publish() -> None:
            self._core.tables.storages[storage.name] = storage
            self._core.emit(kind, storage.name)

        return publish

    async def reopen(self, storage: Storage) -> None:
        """Replace the opened store; nothing is recorded. On failure the old one stays."""
        await self._storages.update(storage)
        if not storage.enabled:
            self._storages.set_enabled(storage.name, False)

    async def back(self, old: Storage) -> None:
        """Undo an update. A store that cannot be opened any more is kept by name instead of vanishing."""
        try:
            await self.reopen(old)
        except KvcmError as error:
            await self._storages.remove(old.name)
            await self._storages.add_quarantined(old, error.message)
            reason = f"it cannot be opened: {error.message}"
            self._core.tables.quarantined["storage", old.name] = QuarantinedRecord("storage", old.name, reason)

    def refuse_referenced(self, name: str, force: bool, what: str) -> None:
        """Raises InUse."""
        if force or not self._enforce:
            return
        users = sorted(
            group.name for group in self._core.tables.groups.values() if name in group.storage_candidates or name in group.event_report_storage_candidates
        )
        if users:
            raise InUse(
                f"Storage {name!r} cannot be {what}: instance group {users[0]!r}"
                + (f" and {len(users) - 1} more use it" if len(users) > 1 else " uses it")
                + ". Take it out of the groups first, or force the change."
            )
