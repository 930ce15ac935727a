"""The registry: which storages, instance groups and instances exist (behaviour 15; wire contract 4.4, 5.2-5.4).

Job: the one object that the manager and the services ask and tell. Reads are plain look-ups in published memory; mutations run one at a
time and reach the store before they are visible (see registry_core).

Life: `recover(epoch)` when leadership is won, `apply_startup` after it, `cleanup()` when leadership is lost; then again. Dangers: recovery
must come through with a damaged record or a storage that cannot be opened (both are quarantined and listed), and the startup configuration
must never reset something that an administrator has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kvcm.common.clock import Clock
from kvcm.common.errors import KvcmError, NotReady
from kvcm.config.accounts import Accounts
from kvcm.config.model import Instance, InstanceGroup
from kvcm.config.passwords import PasswordHasher
from kvcm.config.registry_core import RegistryCore, RegistryEvent, RegistryEventKind, Tables
from kvcm.config.registry_entities import GroupRegistry, InstanceRegistry
from kvcm.config.registry_load import Loaded, SnapshotLoader
from kvcm.config.registry_storages import StorageRegistry, Storages
from kvcm.config.registry_tables import read_tables
from kvcm.config.snapshot import snapshot_of
from kvcm.config.store import QuarantinedRecord, RegistryStore
from kvcm.data_storage.model import Storage

_OPEN_AT_ONCE = 8
_log = logging.getLogger("kvcm.config.registry")


class Registry:
    """`enforce_references=False` gives upstream's lax removal (what is referenced may go).

    `hasher`: how passwords of `accounts` are hashed; whoever gives one closes it.
    """

    def __init__(
        self,
        store: RegistryStore,
        storages: Storages,
        clock: Clock,
        enforce_references: bool = True,
        hasher: PasswordHasher | None = None,
    ) -> None:
        self._core = RegistryCore(store)
        self._opened = storages
        self._clock = clock
        self._storages = StorageRegistry(self._core, storages, enforce_references)
        self._groups = GroupRegistry(self._core, enforce_references)
        self._instances = InstanceRegistry(self._core)
        self._loader = SnapshotLoader(self._core, self._storages, storages, enforce_references)
        self.accounts = Accounts(self._core, hasher or PasswordHasher(), clock)
        """Names, roles and passwords; see `kvcm.config.accounts`."""
        self._startup_applied = False
        self.recovered_at_us: int | None = None

    # Storages

    async def add_storage(self, storage: Storage) -> None:
        """Raises InvalidArgument, DuplicateEntity, StorageError (cannot be opened or stored; then nothing has changed)."""
        await self._core.mutate(lambda: self._storages.add(storage))

    async def update_storage(self, storage: Storage, force: bool = False) -> None:
        """Replace the configuration; whether it is enabled stays. Changing the type is InvalidArgument, moving a referenced one InUse."""
        await self._core.mutate(lambda: self._storages.update(storage, force))

    async def remove_storage(self, name: str, force: bool = False) -> None:
        """Raises NotFound, InUse. Removes a damaged record of that name too."""
        await self._core.mutate(lambda: self._storages.remove(name, force))

    async def set_storage_enabled(self, name: str, enabled: bool) -> None:
        """Raises NotFound. Survives fail-over."""
        await self._core.mutate(lambda: self._storages.set_enabled(name, enabled))

    def get_storage(self, name: str) -> Storage | None:
        return self._core.tables.storages.get(name)

    def list_storages(self) -> list[Storage]:
        return list(self._core.tables.storages.values())

    # Instance groups

    async def create_group(self, group: InstanceGroup) -> None:
        """Raises InvalidArgument, DuplicateEntity (also for an identical group)."""
        await self._core.mutate(lambda: self._groups.create(group))

    async def update_group(self, group: InstanceGroup, current_version: int) -> None:
        """Raises InvalidArgument, NotFound, VersionConflict."""
        await self._core.mutate(lambda: self._groups.update(group, current_version))

    async def remove_group(self, name: str, force: bool = False) -> None:
        """Raises NotFound, InUse."""
        await self._core.mutate(lambda: self._groups.remove(name, force))

    def get_group(self, name: str) -> InstanceGroup | None:
        return self._core.tables.groups.get(name)

    def list_groups(self) -> list[InstanceGroup]:
        return list(self._core.tables.groups.values())

    # Instances

    async def register_instance(self, instance: Instance) -> bool:
        """True when it is new, False when the same one was registered before.

        Raises InvalidArgument, DuplicateEntity (other configuration), InstanceNotExist (unknown group), CapacityReached.
        """
        if self.is_open and self._instances.is_registered(instance):
            # Engines repeat this at every start: answered from memory, never behind a slow store.
            return False
        return await self._core.mutate(lambda: self._instances.register(instance))

    async def remove_instance(self, instance_id: str) -> None:
        """Raises InstanceNotExist."""
        await self._core.mutate(lambda: self._instances.remove(instance_id))

    def get_instance(self, instance_id: str) -> Instance | None:
        return self._core.tables.instances.get(instance_id)

    def list_instances(self, group_name: str | None = None) -> list[Instance]:
        """All instances, or those of one group; an unknown group has none."""
        return [item for item in self._core.tables.instances.values() if group_name is None or item.instance_group_name == group_name]

    # The whole configuration

    async def snapshot(self) -> str:
        """All storages, groups, instances and accounts as a text for `load_snapshot`; without secrets. Raises CapacityReached, NotReady."""
        if not self.is_open:
            raise NotReady("The registry is not open: this manager is not the leader or is still starting.")
        return await snapshot_of(self._core.tables)

    async def load_snapshot(self, text: str, force: bool = False) -> Loaded:
        """Make everything that the text names as it says, or nothing (see registry_load). New instances still have to be opened by the manager.

        `force`: also move storages that groups use, and take instances without their group. Raises InvalidArgument, InUse, DuplicateEntity,
        CapacityReached, Unsupported, StorageError.
        """
        return await self._core.mutate(lambda: self._loader.load(text, force))

    # Life

    def on_change(self, callback: Callable[[RegistryEvent], None]) -> None:
        """`callback` is called after a change is stored and published, on the loop, and must not block."""
        self._core.on_change(callback)

    def quarantined(self) -> list[QuarantinedRecord]:
        """Stored records that are not usable, with the reason. An overwrite or removal of the id ends it."""
        return list(self._core.tables.quarantined.values())

    def storage_reopened(self, name: str) -> None:
        """A storage that could not be opened at recovery has come back; its quarantine ends."""
        self._core.tables.quarantined.pop(("storage", name), None)

    @property
    def is_open(self) -> bool:
        return self._core.fence is not None

    async def recover(self, fence: int) -> None:
        """Raise the store's fence to this epoch, then rebuild memory from the store and open the storages.

        Raises FencedOut or StorageError; then the registry stays closed. A second call without `cleanup` does the same again (I-RG-6).
        """
        await self._core.exclusive(lambda: self._recover(fence))

    async def cleanup(self) -> None:
        """Drop memory and close the storages. Waits for the mutation under way. Idempotent."""
        await self._core.exclusive(self._cleanup)

    async def apply_startup(self, storage: Storage | None, group: InstanceGroup | None) -> None:
        """Add what does not exist yet; once per process, repeated at the next leadership after a failure (behaviour 15.3, 27)."""
        await self._core.mutate(lambda: self._apply_startup(storage, group))

    async def _apply_startup(self, storage: Storage | None, group: InstanceGroup | None) -> None:
        if self._startup_applied:
            return
        if storage is not None and not self._taken("storage", storage.name):
            await self._storages.add(storage)
        if group is not None and not self._taken("instance_group", group.name):
            await self._groups.create(group)
        self._startup_applied = True

    def _taken(self, table: str, name: str) -> bool:
        """Stored, even if damaged: a whole table that cannot be read may hold any name."""
        tables = self._core.tables
        known = tables.storages if table == "storage" else tables.groups
        return name in known or (table, name) in tables.quarantined or (table, "") in tables.quarantined

    async def _recover(self, fence: int) -> None:
        await self._cleanup()
        store = self._core.store
        # Before the scan: after this, nothing that an old leader still writes can land (design D6).
        await store.apply((), fence)
        snapshot = await store.load()
        tables = read_tables(snapshot)
        limit = asyncio.Semaphore(_OPEN_AT_ONCE)
        outcomes = await asyncio.gather(*(self._open(storage, tables, limit) for storage in tables.storages.values()), return_exceptions=True)
        self._core.tables = tables
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                await self._cleanup()
                raise outcome
        self._core.fence = fence
        self.recovered_at_us = self._clock.wall_us()
        for item in tables.quarantined.values():
            _log.error("stored record %s %r is quarantined: %s", item.table, item.id, item.reason)
        self._core.emit(RegistryEventKind.RECOVERED)

    async def _open(self, storage: Storage, tables: Tables, limit: asyncio.Semaphore) -> None:
        async with limit:
            try:
                await self._opened.add(storage, known=True)
            except KvcmError as error:
                reason = f"it cannot be opened: {error.message}"
                tables.quarantined["storage", storage.name] = QuarantinedRecord("storage", storage.name, reason)
                await self._opened.add_quarantined(storage, error.message)
                return
            if not storage.enabled:
                self._opened.set_enabled(storage.name, False)

    async def _cleanup(self) -> None:
        was_open = self._core.fence is not None
        self._core.fence = None
        self._core.forget_doubt()
        names = list(self._core.tables.storages)
        self._core.tables = Tables()
        for name in names:
            try:
                await self._opened.remove(name)
            except KvcmError as error:
                _log.warning("closing storage %s failed: %s", name, error.message)
        if was_open:
            self._core.emit(RegistryEventKind.CLEANED_UP)
