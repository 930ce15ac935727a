"""Loading a configuration snapshot into a registry (wire contract 2.3 LoadConfigSnapshot): everything it names is afterwards as it says; what it does not
name stays.

All or nothing: the whole text is checked first, then the storages are opened, then one change of the store holds everything, then it is published. Until
the store has it, whatever was opened is closed again.

Rules: the same again changes nothing. A group that differs gets the version of the snapshot, or a greater one than it has (I-RG-3). An instance of another
configuration, a storage of another kind, and the move of a storage that groups use are refused, as by the calls for one entity. How many instances a group
may have is not asked: a snapshot tells what was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from kvcm.common.errors import CapacityReached, InvalidArgument, KvcmError, StorageError, Unsupported
from kvcm.config.accounts import MAX_ACCOUNTS
from kvcm.config.errors import InUse, VersionConflict
from kvcm.config.model import Instance, InstanceGroup
from kvcm.config.persisted import group_to_dict, instance_to_dict, storage_to_dict
from kvcm.config.persisted_account import Account, account_to_dict
from kvcm.config.registry_core import RegistryCore, RegistryEventKind
from kvcm.config.registry_entities import MAX_GROUPS, MAX_INSTANCES, InstanceRegistry
from kvcm.config.registry_rules import moves
from kvcm.config.registry_storages import MAX_STORAGES, StorageRegistry, Storages
from kvcm.config.snapshot import Snapshot, read_snapshot
from kvcm.config.store import Change
from kvcm.data_storage.model import Storage

_OPEN_AT_ONCE = 8
_SLICE = 256
_MAX_VERSION = (1 << 63) - 1
_log = logging.getLogger("kvcm.config.registry")


@dataclass(slots=True)
class Loaded:
    """What a load changed. `storages`: (name, opened anew)."""

    new_storages: list[Storage] = field(default_factory=list)
    reopened: list[tuple[Storage, Storage]] = field(default_factory=list)
    switched: list[Storage] = field(default_factory=list)
    groups: list[InstanceGroup] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=list)

    @property
    def storages(self) -> list[Storage]:
        return [*self.new_storages, *(new for _, new in self.reopened), *self.switched]

    @property
    def count(self) -> int:
        return len(self.storages) + len(self.groups) + len(self.instances) + len(self.accounts)


class SnapshotLoader:
    def __init__(self, core: RegistryCore, storages: StorageRegistry, opened: Storages, enforce_references: bool) -> None:
        self._core = core
        self._storages = storages
        self._opened = opened
        self._enforce = enforce_references

    async def load(self, text: str, force: bool) -> Loaded:
        """Under the registry's lock only. Raises InvalidArgument, InUse, DuplicateEntity, CapacityReached, Unsupported, StorageError."""
        plan = await self._plan(await read_snapshot(text, self._core.tables), force)
        if not plan.count:
            return plan
        undo: list[Callable[[], Awaitable[None]]] = []

        async def take_back() -> None:
            for step in reversed(undo):
                try:
                    await step()
                except KvcmError as error:
                    _log.error("a snapshot that was not loaded left a storage behind: %s", error.message)

        try:
            await self._open(plan, undo)
            changes = await _changes(plan)
        except BaseException:
            await take_back()
            raise
        await self._core.commit(changes, self._publisher(plan), take_back)
        return plan

    async def _plan(self, snapshot: Snapshot, force: bool) -> Loaded:
        plan, tables = Loaded(), self._core.tables
        for storage in snapshot.storages:
            self._plan_storage(plan, storage, force)
        for group in snapshot.groups:
            old = tables.groups.get(group.name)
            if old is None or not (old.version >= group.version and replace(old, version=group.version) == group):
                plan.groups.append(group if old is None else replace(group, version=_next_version(old, group)))
        group_names = {group.name for group in snapshot.groups} | set(tables.groups)
        for number, instance in enumerate(snapshot.instances):
            self._plan_instance(plan, instance, group_names, force)
            await _breathe(number)
        for account in snapshot.accounts:
            known = tables.accounts.get(account.user_name)
            if known is None or known.role is not account.role:
                plan.accounts.append(account if known is None else replace(known, role=account.role))
        _check_room("storages", len(tables.storages) + len(plan.new_storages), MAX_STORAGES)
        _check_room("instance groups", len(tables.groups.keys() | {group.name for group in plan.groups}), MAX_GROUPS)
        _check_room("instances", len(tables.instances) + len(plan.instances), MAX_INSTANCES)
        _check_room("accounts", len(tables.accounts.keys() | {account.user_name for account in plan.accounts}), MAX_ACCOUNTS)
        return plan

    def _plan_storage(self, plan: Loaded, storage: Storage, force: bool) -> None:
        old = self._core.tables.storages.get(storage.name)
        if old is None:
            plan.new_storages.append(storage)
            return
        if old.type is not storage.type:
            raise InvalidArgument(
                f"config_snapshot has storage {storage.name!r} with type '{storage.type.type_name}', and the existing one has '{old.type.type_name}'; "
                "a type cannot be changed."
            )
        if moves(old.spec, storage.spec):
            self._storages.refuse_referenced(old.name, force, "moved to another place by config_snapshot")
        if storage == old:
            return
        if storage == replace(old, enabled=storage.enabled):
            plan.switched.append(storage)
        else:
            plan.reopened.append((old, storage))

    def _plan_instance(self, plan: Loaded, instance: Instance, group_names: set[str], force: bool) -> None:
        old = self._core.tables.instances.get(instance.instance_id)
        if old is None:
            if self._enforce and not force and instance.instance_group_name not in group_names:
                raise InUse(
                    f"config_snapshot has instance {instance.instance_id!r} in group {instance.instance_group_name!r}, which neither it nor this manager has."
                )
            plan.instances.append(instance)
            return
        InstanceRegistry.compare(old, instance)

    async def _open(self, plan: Loaded, undo: list[Callable[[], Awaitable[None]]]) -> None:
        limit = asyncio.Semaphore(_OPEN_AT_ONCE)

        async def one(name: str, work: Callable[[], Awaitable[None]], back: Callable[[], Awaitable[None]]) -> None:
            async with limit:
                try:
                    await work()
                except KvcmError as error:
                    raise _as_load_error(name, error) from error
                undo.append(back)

        async def add(storage: Storage) -> None:
            await self._opened.add(storage)
            if not storage.enabled:
                self._opened.set_enabled(storage.name, False)

        steps = [one(item.name, lambda item=item: add(item), lambda item=item: self._opened.remove(item.name)) for item in plan.new_storages]  # type: ignore[misc]
        steps += [
            one(new.name, lambda new=new: self._storages.reopen(new), lambda old=old: self._storages.back(old))  # type: ignore[misc]
            for old, new in plan.reopened
        ]
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _publisher(self, plan: Loaded) -> Callable[[], Awaitable[None]]:
        tables, emit, kinds = self._core.tables, self._core.emit, RegistryEventKind

        async def publish() -> None:
            known = (set(tables.storages), set(tables.groups), set(tables.accounts))
            for storage in plan.switched:
                self._opened.set_enabled(storage.name, storage.enabled)
            tables.storages.update((storage.name, storage) for storage in plan.storages)
            tables.groups.update((group.name, group) for group in plan.groups)
            tables.instances.update((instance.instance_id, instance) for instance in plan.instances)
            tables.accounts.update((account.user_name, account) for account in plan.accounts)
            # Published; the news may take its time.
            for storage in plan.storages:
                emit(kinds.STORAGE_UPDATED if storage.name in known[0] else kinds.STORAGE_ADDED, storage.name)
            for group in plan.groups:
                emit(kinds.GROUP_UPDATED if group.name in known[1] else kinds.GROUP_CREATED, group.name)
            for number, instance in enumerate(plan.instances):
                emit(kinds.INSTANCE_REGISTERED, instance.instance_id)
                await _breathe(number)
            for account in plan.accounts:
                emit(kinds.ACCOUNT_UPDATED if account.user_name in known[2] else kinds.ACCOUNT_ADDED, account.user_name)

        return publish


async def _changes(plan: Loaded) -> list[Change]:
    changes = [
        *(Change("storage", storage.name, storage_to_dict(storage)) for storage in plan.storages),
        *(Change("account", account.user_name, account_to_dict(account)) for account in plan.accounts),
        *(Change("instance_group", group.name, group_to_dict(group)) for group in plan.groups),
    ]
    for number, instance in enumerate(plan.instances):
        changes.append(Change("instance", instance.instance_id, instance_to_dict(instance)))
        await _breathe(number)
    return changes


async def _breathe(number: int) -> None:
    """Let others run, every so often."""
    if number % _SLICE == _SLICE - 1:
        await asyncio.sleep(0)


def _next_version(old: InstanceGroup, wanted: InstanceGroup) -> int:
    if old.version >= _MAX_VERSION:
        raise VersionConflict(f"config_snapshot changes instance group {old.name!r}, whose version is the greatest there is; remove the group first.")
    return max(wanted.version, old.version + 1)


def _check_room(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise CapacityReached(f"With config_snapshot there would be {count} {what}; there can be at most {limit}.")


def _as_load_error(name: str, error: KvcmError) -> KvcmError:
    kind = next((kind for kind in (InvalidArgument, Unsupported) if isinstance(error, kind)), StorageError)
    return kind(f"Storage {name!r} of config_snapshot cannot be opened, so nothing was loaded: {error.message}")
