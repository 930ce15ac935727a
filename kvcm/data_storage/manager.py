"""The storages of one manager: by name, with their backends, their availability and small numbers for compact records.

Adding, updating and removing await the backend; reading is synchronous and never blocks. Dangers handled here:

* A storage that was added before must find its old sentinel: recovery uses `add(known=True)`; only a first add may make a root.
* A storage that cannot be opened at recovery is *quarantined*: listed, unavailable, and its deletions stay UNKNOWN, so no record is lost.
* Answers have the length of the question (I-DS-1), whatever a backend does, and an unknown storage answers UNKNOWN, never nothing.
* Two changes of one name cannot interleave: the second is a Conflict.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from kvcm.common.clock import Clock
from kvcm.common.errors import CapacityReached, Conflict, DuplicateEntity, InvalidArgument, KvcmError, NotFound
from kvcm.common.ids import IdSource
from kvcm.data_storage.filesystem import RootedBackend
from kvcm.data_storage.model import Storage
from kvcm.data_storage.naming import check_storage_name
from kvcm.data_storage.port import AllocationFailed, AllocationItem, DataStorageBackend, Truth

BackendFactory = Callable[[Storage], DataStorageBackend]
MAX_SLOT = 65_535

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """`backend` is None exactly while the storage is quarantined; then `problem` says why."""

    storage: Storage
    backend: DataStorageBackend | None
    problem: str = ""


class AllocationObserver(Protocol):
    """Must be cheap and must not raise. `kind`: the storage's type name; times are microseconds, `now_us` monotonic."""

    def allocated(self, kind: str, name: str, count: int, size: int, elapsed_us: int, now_us: int) -> None: ...

    def failed(self, kind: str, name: str) -> None: ...


class DataStorageManager:
    """All methods run on the manager's loop. `factory` makes a backend that is not opened yet (see `factory.open_backend`)."""

    def __init__(self, factory: BackendFactory, clock: Clock, ids: IdSource) -> None:
        self._factory = factory
        self._clock = clock
        self._ids = ids
        self._entries: dict[str, _Entry] = {}
        self._changing: set[str] = set()
        self._slots: dict[str, int] = {}
        self._names: list[str] = [""]
        self.observer: AllocationObserver | None = None
        """Told of every request for places."""
        self.availability_epoch = 0
        """Grows whenever the answer of `available` may have changed for any storage; readers cache decisions by it."""
        self.roots_verified_at_us = 0
        """When `verify_roots` last ended (the clock's monotonic microseconds); 0 before the first time."""

    # Changes.

    async def add(self, storage: Storage, *, known: bool = False) -> None:
        """Open and list a storage.

        known: it was added before (recovery), so its root must carry its sentinel already. Raises DuplicateEntity, Conflict, InvalidArgument,
        Unsupported, StorageUnavailable; nothing is left then.
        """
        check_storage_name(storage.name)
        with self._change(storage.name):
            if storage.name in self._entries:
                raise DuplicateEntity(f"A storage named '{storage.name}' exists already.")
            self.slot_of(storage.name)
            backend = await self._open(storage, None, known=known)
            self._entries[storage.name] = _Entry(storage, backend)
            self._bump()

    async def remove(self, name: str) -> None:
        """Close and forget a storage; its bytes and its sentinel stay. Raises NotFound, Conflict."""
        with self._change(name):
            entry = self._entry(name)
            del self._entries[name]
            self._bump()
            if entry.backend is not None:
                await self._close(entry.backend)

    async def update(self, storage: Storage) -> None:
        """Replace a storage's configuration: the new backend opens first, then the old one closes; a failure leaves the old one serving.

        A root that stays the same must still carry the sentinel. Blocks below an earlier, different root are UNKNOWN afterwards. Raises NotFound,
        InvalidArgument (another type), Conflict, Unsupported, StorageUnavailable.
        """
        with self._change(storage.name):
            old = self._entry(storage.name)
            if old.storage.type is not storage.type:
                raise InvalidArgument(
                    f"The type of storage '{storage.name}' cannot be changed from '{old.storage.type.type_name}' to '{storage.type.type_name}'. "
                    "Add a storage with another name instead."
                )
            # A quarantined storage with the same configuration was added before as well.
            backend = await self._open(storage, old.backend, known=old.backend is None and _same_place(old.storage, storage))
            self._entries[storage.name] = _Entry(storage, backend)
            self._bump()
            if old.backend is not None:
                await self._close(old.backend)

    def set_enabled(self, name: str, enabled: bool) -> None:
        """Allow or forbid new blocks and reads; deletions and probes go on. Raises NotFound."""
        entry = self._entry(name)
        entry.storage = replace(entry.storage, enabled=enabled)
        self._bump()

    async def add_quarantined(self, storage: Storage, reason: str) -> None:
        """List a storage that cannot be opened, as unavailable. Raises DuplicateEntity, Conflict, InvalidArgument."""
        check_storage_name(storage.name)
        with self._change(storage.name):
            if storage.name in self._entries:
                raise DuplicateEntity(f"A storage named '{storage.name}' exists already.")
            self.slot_of(storage.name)
            self._entries[storage.name] = _Entry(storage, None, reason)
            self._bump()

    async def retry_quarantined(self) -> list[str]:
        """Try to open each quarantined storage again; the names that came back. The others keep a fresh `problem`."""
        recovered = []
        for name in sorted(name for name, entry in self._entries.items() if entry.backend is None):
            if name in self._changing:
                continue
            with self._change(name):
                entry = self._entries.get(name)
                if entry is None or entry.backend is not None:
                    continue
                try:
                    backend = await self._open(entry.storage, None, known=True)
                except KvcmError as error:
                    entry.problem = error.message
                    continue
                entry.backend, entry.problem = backend, ""
                recovered.append(name)
                self._bump()
        return recovered

    async def verify_roots(self) -> None:
        """Look at the sentinel of each opened storage that has one; call it every few seconds. A root that vanished or came back bumps the epoch."""
        rooted = [root for entry in self._entries.values() if (root := _rooted(entry.backend)) is not None]
        await asyncio.gather(*(root.verify() for root in rooted))
        self.roots_verified_at_us = self._clock.monotonic_us()

    async def close(self) -> None:
        """Close all backends and forget all storages."""
        entries, self._entries = self._entries, {}
        self._bump()
        for entry in entries.values():
            if entry.backend is not None:
                await self._close(entry.backend)

    # Reading.

    def get(self, name: str) -> Storage | None:
        entry = self._entries.get(name)
        return entry.storage if entry is not None else None

    def backend(self, name: str) -> DataStorageBackend | None:
        """The opened backend; None when the storage is unknown or quarantined."""
        entry = self._entries.get(name)
        return entry.backend if entry is not None else None

    def available(self, name: str) -> bool:
        """May be written to and read from: opened, enabled, and not known to be broken."""
        entry = self._entries.get(name)
        return entry is not None and entry.backend is not None and entry.storage.enabled and entry.backend.available()

    def problem(self, name: str) -> str:
        """Why a storage is unavailable, as a sentence; empty when nothing is wrong (being disabled is not a problem). Raises NotFound."""
        entry = self._entry(name)
        if entry.problem or self.root_verified(name) is not False:
            return entry.problem
        return f"Storage '{name}' does not find its sentinel under its root, so the root is probably not mounted; its blocks are kept meanwhile."

    def root_verified(self, name: str) -> bool | None:
        """What the last look at the storage's sentinel said: True right, False wrong or gone, None not known or no such kind."""
        root = _rooted(self.backend(name))
        return root.root_verified() if root is not None else None

    def slot_of(self, name: str) -> int:
        """The number of this name, 1 to 65535, the same for the life of the process; given out on first use. Raises CapacityReached."""
        slot = self._slots.get(name)
        if slot is None:
            slot = len(self._names)
            if slot > MAX_SLOT:
                raise CapacityReached(f"This process has seen {MAX_SLOT} storage names and cannot take another until it is restarted.")
            self._slots[name] = slot
            self._names.append(name)
        return slot

    def name_of(self, slot: int) -> str:
        """The name that has this number. Raises NotFound."""
        if not 0 < slot < len(self._names):
            raise NotFound(f"No storage has the number {slot}.")
        return self._names[slot]

    # Bytes.

    async def allocate(self, name: str, items: Sequence[AllocationItem]) -> list[str]:
        """Places in one storage, in order. Raises AllocationFailed, also when the storage is unknown, disabled or broken."""
        backend = self.backend(name)
        if backend is None or not self.available(name):
            raise AllocationFailed(f"No place can be allocated: storage '{name}' is not available.")
        if self.observer is None:
            return await backend.allocate(items, self._ids)
        began = self._clock.monotonic_us()
        kind = backend.storage.type.type_name
        try:
            uris = await backend.allocate(items, self._ids)
        except KvcmError:
            self.observer.failed(kind, name)
            raise
        ended = self._clock.monotonic_us()
        self.observer.allocated(kind, name, len(items), sum([item.size for item in items]), ended - began, ended)
        return uris

    async def probe(self, uris: Sequence[str]) -> list[Truth]:
        """One answer per URI, in order; UNKNOWN where the storage is unknown, quarantined or does not answer. Never raises."""
        return await self._by_storage("probe", uris)

    async def delete(self, uris: Sequence[str]) -> list[Truth]:
        """Delete the bytes and say what is true afterwards, one answer per URI, in order. Disabled storages delete too. Never raises."""
        return await self._by_storage("delete", uris)

    async def _by_storage(self, action: Literal["probe", "delete"], uris: Sequence[str]) -> list[Truth]:
        truths = [Truth.UNKNOWN] * len(uris)
        places: dict[str, list[int]] = {}
        for index, uri in enumerate(uris):
            places.setdefault(host_of(uri), []).append(index)

        async def ask(backend: DataStorageBackend, indices: Sequence[int]) -> None:
            answers = await _ask(backend, action, [uris[index] for index in indices])
            for index, truth in zip(indices, answers, strict=True):
                truths[index] = truth

        asked = [(backend, indices) for host, indices in places.items() if (backend := self.backend(host)) is not None]
        if len(asked) == 1:
            await ask(*asked[0])
        elif asked:
            await asyncio.gather(*(ask(backend, indices) for backend, indices in asked))
        return truths

    # Inside.

    async def _open(self, storage: Storage, old: DataStorageBackend | None, *, known: bool) -> DataStorageBackend:
        backend = self._factory(storage)
        root, old_root = _rooted(backend), _rooted(old)
        if root is None:
            await backend.open()
            return backend
        root.on_availability_change = self._bump
        if old_root is not None and old_root.place() == root.place():
            root.inherit(old)
            known = True
        await (root.open_known() if known else backend.open())
        return backend

    async def _close(self, backend: DataStorageBackend) -> None:
        if (root := _rooted(backend)) is not None:
            root.on_availability_change = None
        try:
            await backend.close()
        except (KvcmError, OSError):
            _log.warning("storage %s did not close cleanly", backend.storage.name)

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"No storage is named '{name}'.")
        return entry

    def _bump(self) -> None:
        self.availability_epoch += 1

    @contextmanager
    def _change(self, name: str) -> Iterator[None]:
        if name in self._changing:
            raise Conflict(f"Storage '{name}' is being changed by another request; try again when that has ended.")
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)

    # Last, because the name hides the builtin in the annotations that follow it.
    def list(self) -> list[Storage]:
        """All storages, quarantined ones too, by name."""
        return [self._entries[name].storage for name in sorted(self._entries)]


def _rooted(backend: object) -> RootedBackend | None:
    return backend if isinstance(backend, RootedBackend) else None


def host_of(uri: str) -> str:
    """The storage name in a location URI; empty when there is none."""
    _, separator, rest = uri.partition("://")
    return rest.partition("/")[0].partition("?")[0] if separator else ""


def _same_place(old: Storage, new: Storage) -> bool:
    """Whether two configurations mean the same root (compared as configured: only used for storages that could not be opened)."""
    fields = ("root_path", "mountpoint", "root_dir")
    return all(getattr(old.spec, name, None) == getattr(new.spec, name, None) for name in fields)


async def _ask(backend: DataStorageBackend, action: Literal["probe", "delete"], uris: list[str]) -> list[Truth]:
    try:
        answers = await (backend.probe(uris) if action == "probe" else backend.delete(uris))
    except Exception:
        # The port forbids this; a broken backend must not take records with it.
        _log.exception("storage %s failed to %s", backend.storage.name, action)
        answers = []
    return answers if len(answers) == len(uris) else [Truth.UNKNOWN] * len(uris)
