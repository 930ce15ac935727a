"""The backend of storages that are folders: `file`, `hf3fs`, `vcns_hf3fs` and, with a repeatable layout, `dummy`.

The loop side: it names places, cuts probes and deletions into jobs for the I/O pool, and turns "not in time", "queue full" and "closed" into
UNKNOWN. Dangers handled here:

* A job that timed out may still be running in a hung thread and may unlink much later. While it runs, its places are *in flight* and every new
  question about their deletion is UNKNOWN, so no record goes (and with `dummy` no path is given out again) under such a thread.
* A re-opened storage (update) takes over ledger and in-flight places of the old object, see `inherit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol, runtime_checkable

from kvcm.common.clock import Clock
from kvcm.common.errors import StorageError
from kvcm.common.ids import IdSource
from kvcm.data_storage.blocks import Batch, BlockWorker
from kvcm.data_storage.fs import Fs, RealFs
from kvcm.data_storage.layout import Layout, packed_slot
from kvcm.data_storage.ledger import PackLedger
from kvcm.data_storage.model import Storage
from kvcm.data_storage.pool import DEFAULT_DEADLINE_S, BlockingPool, PoolTimeout
from kvcm.data_storage.port import AllocationFailed, AllocationItem, BackendTraits, StorageUnavailable, Truth
from kvcm.data_storage.probe_cache import DEFAULT_TTL_US, ProbeCache
from kvcm.data_storage.root import RootState, StorageRoot

CHUNK = 64
"""URIs per pool job: the sentinel is read once or twice per chunk, and an abandoned job leaves at most this many places in flight."""


@runtime_checkable
class RootedBackend(Protocol):
    """What the DataStorageManager additionally asks of stores that have a root to prove."""

    on_availability_change: Callable[[], None] | None

    async def open_known(self) -> None:
        """Open a storage that was added before: its sentinel must be there already. Raises StorageUnavailable."""
        ...

    async def verify(self) -> bool | None:
        """Look at the sentinel now: True right, False wrong or gone, None when nothing could be learnt."""
        ...

    def root_verified(self) -> bool | None:
        """What the last look at the sentinel said."""
        ...

    def place(self) -> str:
        """Where the blocks lie, as text that is equal for equal places."""
        ...

    def inherit(self, old: object) -> None:
        """Before opening: take over what `old`, an object for the same place, knows about its blocks."""
        ...


class _InFlight:
    """URIs whose deletion runs in a thread. Shared by threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._uris: set[str] = set()

    def enter(self, uris: Sequence[str]) -> list[str]:
        """Those that were free and are now taken."""
        with self._lock:
            free = [uri for uri in uris if uri not in self._uris]
            self._uris.update(free)
            return free

    def leave(self, uris: Sequence[str]) -> None:
        with self._lock:
            self._uris.difference_update(uris)


class FileSystemBackend:
    """One storage in a folder; see `DataStorageBackend` for the contract.

    `deadline_s`: seconds per call, waiting for a thread included. `probe_ttl_us`: how long "the bytes are there" is believed without asking again.
    """

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        pool: BlockingPool,
        clock: Clock,
        ids: IdSource,
        *,
        fs: Fs | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        probe_ttl_us: int = DEFAULT_TTL_US,
    ) -> None:
        self.on_availability_change: Callable[[], None] | None = None
        self._storage = storage
        self._layout = layout
        self._pool = pool
        self._ids = ids
        self.deadline_s = deadline_s
        self._fs: Fs = fs or RealFs()
        self._namer = layout.namer()
        self._root = StorageRoot(self._fs, layout, storage.name)
        self._ledger = PackLedger()
        self._in_flight = _InFlight()
        self._worker = BlockWorker(self._fs, self._root, layout, self._ledger)
        self._cache = ProbeCache(clock, probe_ttl_us)
        self._identity = ""
        self._state: RootState | None = None
        self._trusted = False  # False from a WRONG root until the next VERIFIED one; an unreachable root decides nothing

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def traits(self) -> BackendTraits:
        return self._layout.traits

    async def open(self) -> None:
        await self._open(create=True)

    async def open_known(self) -> None:
        await self._open(create=False)

    async def close(self) -> None:
        self._identity = ""

    def available(self) -> bool:
        return bool(self._identity) and self._trusted

    def root_verified(self) -> bool | None:
        return None if self._state in (None, RootState.UNREACHABLE) else self._state is RootState.VERIFIED

    def place(self) -> str:
        return self._layout.uri_prefix

    def inherit(self, old: object) -> None:
        if isinstance(old, FileSystemBackend) and old.place() == self.place():
            self._ledger = old._ledger
            self._in_flight = old._in_flight
            self._worker = BlockWorker(self._fs, self._root, self._layout, self._ledger)

    async def verify(self) -> bool | None:
        if not self._identity:
            return None
        try:
            self._learn(await self._pool.run(self._root.look, self._identity, deadline_s=self.deadline_s, lane=self._storage.name))
        except StorageError:
            self._learn(RootState.UNREACHABLE)
        return self.root_verified()

    async def allocate(self, items: Sequence[AllocationItem], ids: IdSource) -> list[str]:
        if not self.available():
            why = "is not open" if not self._identity else "cannot see its sentinel, so its root is probably not mounted"
            raise AllocationFailed(f"No place can be allocated: storage '{self._storage.name}' {why}.")
        named = self._namer.allocate(items, ids)
        if not self._layout.traits.unique_paths:
            self._cache.invalidate(named.uris)
        if self._layout.touch and named.uris:
            await self._touch(named.uris)
        if named.runs:
            self._ledger.allocate([(run.relative, run.slots) for run in named.runs])
        return named.uris

    async def probe(self, uris: Sequence[str]) -> list[Truth]:
        remembered = self._cache.present(uris)
        asked = [uri for uri in dict.fromkeys(uris) if uri not in remembered]
        if not asked:
            return [Truth.PRESENT] * len(uris)
        generation = self._cache.generation
        found = await self._in_chunks(self._probe_job, asked)
        self._cache.put([uri for uri, truth in found.items() if truth is Truth.PRESENT], generation)
        return [Truth.PRESENT if uri in remembered else found[uri] for uri in uris]

    async def delete(self, uris: Sequence[str]) -> list[Truth]:
        self._cache.invalidate(uris)
        found = await self._in_chunks(self._delete_job, list(dict.fromkeys(uris)))
        # Once more: a probe that ran meanwhile must not be remembered.
        self._cache.invalidate(uris)
        return [found[uri] for uri in uris]

    def adopt(self, uris: Sequence[str]) -> None:
        """Call for all known locations before the first deletion: an adopted file is unlinked when its known slots are gone."""
        slots = [packed_slot(self._layout, uri) for uri in uris]
        self._ledger.adopt(slot for slot in slots if slot is not None)

    async def _open(self, *, create: bool) -> None:
        name, identity = self._storage.name, self._ids.session_id()
        try:
            claim = await self._pool.run(
                lambda: self._root.claim(identity, create=create, self_test=self._storage.check_storage_available_when_open),
                deadline_s=self.deadline_s,
                lane=name,
                undo=self._root.release_claim,
            )
        except StorageUnavailable:
            raise
        except PoolTimeout as error:
            raise StorageUnavailable(f"Storage '{name}' cannot be opened: its file system did not answer within {self.deadline_s:g} s.") from error
        except StorageError as error:
            raise StorageUnavailable(f"Storage '{name}' cannot be opened: {error.message}") from error
        self._identity = claim.identity
        self._state, self._trusted = RootState.VERIFIED, True

    async def _touch(self, uris: Sequence[str]) -> None:
        identity = self._identity
        try:
            await self._pool.run(
                self._worker.touch,
                identity,
                uris,
                deadline_s=self.deadline_s,
                lane=self._storage.name,
                undo=lambda made: self._worker.untouch(identity, made),
            )
        except (OSError, StorageError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise AllocationFailed(f"No place can be allocated in storage '{self._storage.name}': its files cannot be created ({why}).") from error

    async def _in_chunks(self, job: Callable[[str, Sequence[str]], Batch], uris: list[str]) -> dict[str, Truth]:
        identity = self._identity
        if not identity:
            return dict.fromkeys(uris, Truth.UNKNOWN)
        chunks = [uris[start : start + CHUNK] for start in range(0, len(uris), CHUNK)]
        if len(chunks) == 1:
            answers = [await self._one_chunk(job, identity, uris)]
        else:
            answers = list(await asyncio.gather(*(self._one_chunk(job, identity, chunk) for chunk in chunks)))
        return dict(zip(uris, (truth for answer in answers for truth in answer), strict=True))

    async def _one_chunk(self, job: Callable[[str, Sequence[str]], Batch], identity: str, chunk: list[str]) -> list[Truth]:
        try:
            batch = await self._pool.run(job, identity, chunk, deadline_s=self.deadline_s, lane=self._storage.name)
        except (OSError, StorageError):
            return [Truth.UNKNOWN] * len(chunk)
        if batch.root is not None and identity == self._identity:
            self._learn(batch.root)
        return batch.truths

    def _probe_job(self, identity: str, chunk: Sequence[str]) -> Batch:
        return self._worker.probe(identity, chunk)

    def _delete_job(self, identity: str, chunk: Sequence[str]) -> Batch:
        free = self._in_flight.enter(chunk)
        try:
            batch = self._worker.delete(identity, free)
        finally:
            self._in_flight.leave(free)
        if len(free) == len(chunk):
            return batch
        found = dict(zip(free, batch.truths, strict=True))
        return Batch(batch.root, [found.get(uri, Truth.UNKNOWN) for uri in chunk])

    def _learn(self, state: RootState) -> None:
        before = self.available()
        self._state = state
        if state is not RootState.UNREACHABLE:
            self._trusted = state is RootState.VERIFIED
        if self.available() is not before and self.on_availability_change is not None:
            self.on_availability_change()
