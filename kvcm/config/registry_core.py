"""The heart of the registry: published tables, one mutation at a time, and the commit that keeps memory and store equal.

Order of every mutation: validate -> check duplicates -> open -> persist -> publish. Nothing is published that is not stored (I-RG-1), and a
failure leaves both as they were (I-RG-2).

Dangers:
- an unknown outcome. It is resolved by reading the store. If even that fails, the mutation stays *in doubt*: no further mutation is
  accepted before a read has told what happened, because any of them might rest on a wrong belief.
- a caller that goes away (a cancelled RPC) between persist and publish. Mutations run in tasks of their own and always finish.
- an endless queue behind a hanging store: the number of waiting mutations is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from kvcm.common.errors import KvcmError, NotReady, OutcomeUnknown, StorageError
from kvcm.config.errors import FencedOut
from kvcm.config.model import Instance, InstanceGroup
from kvcm.config.persisted_account import Account
from kvcm.config.store import Change, QuarantinedRecord, RegistryStore
from kvcm.data_storage.model import Storage

MAX_WAITING_MUTATIONS = 256
_log = logging.getLogger("kvcm.config.registry")
_T = TypeVar("_T")


class RegistryEventKind(Enum):
    STORAGE_ADDED = "storage_added"
    STORAGE_UPDATED = "storage_updated"
    STORAGE_ENABLED = "storage_enabled"
    STORAGE_DISABLED = "storage_disabled"
    STORAGE_REMOVED = "storage_removed"
    GROUP_CREATED = "group_created"
    GROUP_UPDATED = "group_updated"
    GROUP_REMOVED = "group_removed"
    INSTANCE_REGISTERED = "instance_registered"
    INSTANCE_REMOVED = "instance_removed"
    ACCOUNT_ADDED = "account_added"
    ACCOUNT_UPDATED = "account_updated"
    ACCOUNT_REMOVED = "account_removed"
    RECOVERED = "recovered"
    CLEANED_UP = "cleaned_up"
    # The store knows a newer leader: this process must step down.
    FENCED_OUT = "fenced_out"


@dataclass(frozen=True, slots=True)
class RegistryEvent:
    """`name` is the id of the entity, empty for events about the whole registry."""

    kind: RegistryEventKind
    name: str = ""


@dataclass(slots=True)
class Tables:
    """What readers see. Changed only by publishing."""

    storages: dict[str, Storage] = field(default_factory=dict)
    groups: dict[str, InstanceGroup] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    # (table, id) -> why a stored record is not usable.
    quarantined: dict[tuple[str, str], QuarantinedRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Doubt:
    changes: tuple[Change, ...]
    publish: Callable[[], Awaitable[None]]
    undo: Callable[[], Awaitable[None]]


async def nothing() -> None:
    """For a commit that has nothing to undo."""


class RegistryCore:
    def __init__(self, store: RegistryStore) -> None:
        self.store = store
        self.tables = Tables()
        self.fence: int | None = None
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._doubt: _Doubt | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listeners: list[Callable[[RegistryEvent], None]] = []

    def on_change(self, callback: Callable[[RegistryEvent], None]) -> None:
        self._listeners.append(callback)

    def emit(self, kind: RegistryEventKind, name: str = "") -> None:
        event = RegistryEvent(kind, name)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                # The change is stored already: a listener's bug must not turn it into a failure for the caller.
                _log.exception("a listener of registry changes failed at %s", kind.value)

    async def mutate(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run one mutation after all earlier ones. Raises NotReady before recovery and when too many wait."""
        return await self.exclusive(lambda: self._checked(work))

    async def exclusive(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run `work` under the lock, in a task that finishes even if the caller goes away."""
        if self._waiting >= MAX_WAITING_MUTATIONS:
            raise NotReady("Too many configuration changes are waiting; try again later.")
        self._waiting += 1
        task = asyncio.get_running_loop().create_task(self._locked(work))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return await asyncio.shield(task)

    async def _locked(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._lock:
            return await work()

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._waiting -= 1
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: the caller may have gone away

    async def _checked(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        if self.fence is None:
            raise NotReady("The registry is not open: this manager is not the leader or is still starting.")
        await self._settle_doubt()
        return await work()

    async def commit(
        self,
        changes: Sequence[Change],
        publish: Callable[[], Awaitable[None]],
        undo: Callable[[], Awaitable[None]] = nothing,
    ) -> None:
        """Persist, then publish; on a definite failure undo and raise. Call it under the lock only."""
        assert self.fence is not None
        try:
            await self.store.apply(changes, self.fence)
        except OutcomeUnknown:
            self._doubt = _Doubt(tuple(changes), publish, undo)
            if not await self._settle_doubt():
                raise StorageError("The configuration change was not stored.") from None
            return
        except StorageError as error:
            await self._undo(undo)
            if isinstance(error, FencedOut):
                self.emit(RegistryEventKind.FENCED_OUT)
            raise
        await self._publish(changes, publish)

    async def _publish(self, changes: Sequence[Change], publish: Callable[[], Awaitable[None]]) -> None:
        for change in changes:
            # What has been overwritten is not damaged any more, neither the record nor its table.
            self.tables.quarantined.pop((change.table, change.id), None)
            self.tables.quarantined.pop((change.table, ""), None)
        await publish()

    async def _settle_doubt(self) -> bool:
        """Ask the store what became of the mutation in doubt, then publish or undo it. True when it is stored, or nothing was in doubt.

        Raises OutcomeUnknown while the store cannot be read.
        """
        doubt = self._doubt
        if doubt is None:
            return True
        try:
            snapshot = await self.store.load()
        except StorageError as error:
            raise OutcomeUnknown(
                "The registry store does not tell whether the last configuration change was stored; no change is accepted until it does."
            ) from error
        self._doubt = None
        if all(snapshot.get(change.table, change.id) == change.record for change in doubt.changes):
            await self._publish(doubt.changes, doubt.publish)
            return True
        await self._undo(doubt.undo)
        return False

    @staticmethod
    async def _undo(undo: Callable[[], Awaitable[None]]) -> None:
        try:
            await undo()
        except KvcmError as error:
            # The caller must hear of the failure that made us undo, not of this one.
            _log.error("a configuration change that was not stored could not be undone: %s", error.message)

    def forget_doubt(self) -> None:
        """The tables are about to be rebuilt from the store, which is the truth."""
        self._doubt = None
