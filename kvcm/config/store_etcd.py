"""A registry in etcd (`etcd://host:port[,...]/prefix`; the whole URI: `kvcm.etcd.uri`): one key per entity, see `etcd_entries`.

Every write is a transaction that compares the revision at which our fence key was last changed. A new leader changes it, so nothing that an older one has
sent can land afterwards, wherever it still is. The same makes an unknown outcome final: before `load` reads, it changes the fence key once more (to the same
epoch), and then the transaction in question either has happened or never will.

The fence also names the process that has set it. A process that finds its own epoch there with another name has been overtaken: there are two elections that
do not know of each other, each with a leader of that epoch, and the other one has read the registry after everything that landed before.

Dangers:
- changes beyond what one transaction takes (a snapshot of thousands). They are written aside in parts, made valid by one small transaction, and then spread
  over the entities; whoever finds such a batch first, also another leader after a crash, finishes it before anything else, and `load` shows it as done;
- a read in pages. All pages are of one revision; if etcd forgets it meanwhile, everything is read again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.failpoints import FailPoints
from kvcm.common.this_process import THIS_PROCESS
from kvcm.config.errors import FencedOut, StoreDamaged
from kvcm.config.etcd_entries import (
    MAX_OPS,
    Batch,
    Keys,
    batch_of,
    changes_of,
    dump,
    epoch_of,
    fence_value,
    last_of_each,
    part_value,
    process_of,
    record_of,
    slices,
)
from kvcm.config.store import TABLES, Change, QuarantinedRecord, Record, RegistrySnapshot, Table
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.errors import Compacted, EtcdError, RequestTooLarge
from kvcm.etcd.failing import FailingEtcd
from kvcm.etcd.model import Compare, Delete, Get, KeyValue, Op, Put, prefix_end
from kvcm.etcd.uri import parse_etcd_uri

DEADLINE_S = 30.0
_SPREAD_S = 60.0
_MAX_TOTAL_BYTES = 256 << 20
_TRIES = 5
_PAGE = 256
_SLICE = 64
_TABLES = {str(table): table for table in TABLES}
_log = logging.getLogger("kvcm.config.registry")


@dataclass(frozen=True, slots=True)
class _State:
    """What everything depends on, as of one moment. `fence_at`: the revision of the fence key's last change, 0 when there is none."""

    fence: KeyValue | None
    commit: KeyValue | None
    revision: int

    @property
    def fence_at(self) -> int:
        return self.fence.mod_revision if self.fence is not None else 0


class EtcdStore:
    def __init__(self, uri: str, deadline_s: float = DEADLINE_S, points: FailPoints | None = None, *, process: str = THIS_PROCESS.decode()) -> None:
        """`process`: names the writer's. Raises InvalidArgument."""
        config = parse_etcd_uri(uri)
        self._client = EtcdClient(config) if points is None else FailingEtcd(config, points, "registry.transaction")
        self._keys = Keys.of(config)
        self._shown = f"{','.join(config.endpoints)}/{config.prefix}"
        self._process = process
        self._claimed: int | None = None
        """The epoch under which the fence has had our name."""
        self._overtaken: int | None = None
        """The epoch under which it had another name after ours."""
        self._deadline_s = deadline_s
        self._lock = asyncio.Lock()
        self._doubt: int | None = None
        """What a transaction without an answer compared the fence's revision with."""
        self._to_spread = False

    async def open(self) -> None:
        async with self._limited():
            await self._state()

    async def probe(self) -> None:
        async with self._limited():
            await self._client.get(self._keys.fence)

    async def close(self) -> None:
        await self._client.close()

    async def load(self) -> RegistrySnapshot:
        async with self._limited(), self._lock:
            await self._settle()
            for _ in range(_TRIES):
                try:
                    return await self._load(await self._state())
                except Compacted:
                    continue
        raise StorageError("etcd forgets its history faster than the registry can be read; compact it less often.")

    async def apply(self, changes: Sequence[Change], fence: int) -> None:
        todo = last_of_each(changes)
        try:
            async with self._limited(), self._lock:
                await self._settle()
                for _ in range(_TRIES):
                    if await self._apply(todo, fence, await self._state()):
                        break
                else:
                    raise StorageError("The registry in etcd is being changed by another process all the time; nothing was written.")
        except RequestTooLarge:
            raise StorageError("An entry of the registry is larger than etcd takes in one request; nothing was written.") from None
        if self._to_spread:
            await self._spread_behind()

    # Writing. What returns a bool says False when the fence has been changed meanwhile, so that everything has to be looked at anew.

    async def _apply(self, changes: list[Change], fence: int, state: _State) -> bool:
        fence_at = await self._claim(fence, state)
        if fence_at is None:
            return False
        if state.commit is not None and not await self._spread(fence_at, state.commit):
            return False
        if not changes:
            return True
        if len(list(slices(changes, MAX_OPS))) == 1:
            try:
                return await self._write(fence_at, [self._keys.op(change) for change in changes]) is not None
            except RequestTooLarge:
                # Perhaps this etcd takes fewer operations than is usual.
                if len(changes) == 1:
                    raise
        return await self._apply_large(fence_at, changes)

    async def _claim(self, fence: int, state: _State) -> int | None:
        """See to it that the fence has our epoch and our name; the revision at which it got them, None when it has been changed meanwhile."""
        stored, holder = epoch_of(state.fence) or 0, process_of(state.fence)
        if stored > fence:
            raise FencedOut("The registry in etcd has been taken over by a newer leader.", stored)
        if stored == fence == self._claimed and holder not in ("", self._process) and fence != self._overtaken:
            self._overtaken = fence
            _log.error(
                "etcd_two_leaders at=%s epoch=%d: another process writes the registry under the same epoch; do all managers have the same "
                "kvcm.coordination.uri?",
                self._shown,
                fence,
            )
        if fence == self._overtaken:
            raise FencedOut("The registry in etcd has been taken over by another leader of the same epoch.", stored)
        fence_at: int | None = state.fence_at
        if stored < fence or holder != self._process:
            fence_at = await self._write(state.fence_at, [Put(self._keys.fence, fence_value(fence, self._process))])
        if fence_at is not None:
            self._claimed = fence
        return fence_at

    async def _apply_large(self, fence_at: int, changes: list[Change]) -> bool:
        batch, count = secrets.token_hex(8), 0
        # Until the commit nothing of this counts. A part that nobody heard of leaves the fence in doubt, so that it cannot come in between later.
        try:
            if await self._write(fence_at, [Delete(self._keys.parts, prefix_end(self._keys.parts))], commit_at=0) is None:
                return False
            for count, run in enumerate(slices(changes, None), 1):
                if await self._write(fence_at, [Put(self._keys.part(batch, count), part_value(run))], commit_at=0) is None:
                    return False
        except OutcomeUnknown:
            raise StorageError("etcd did not answer while a large change was prepared; nothing of it counts.") from None
        self._to_spread = await self._write(fence_at, [Put(self._keys.commit, dump({"batch": batch, "parts": count}))], commit_at=0) is not None
        return self._to_spread

    async def _spread_behind(self) -> None:
        """The change counts already. Whatever goes wrong here, the next one who writes finishes it."""
        self._to_spread = False
        try:
            async with self._limited(_SPREAD_S), self._lock:
                await self._settle()
                state = await self._state()
                if state.commit is not None:
                    await self._spread(state.fence_at, state.commit)
        except StorageError as error:
            _log.warning("registry_batch_not_spread: a large change is stored and will be spread later (%s)", error.message)

    async def _spread(self, fence_at: int, commit: KeyValue) -> bool:
        """Repeating it, also parts of it, changes nothing more: no other change happens before it is done."""
        batch, changes = await self._batch(commit, 0)
        parts = self._keys.parts_of(batch.name)
        max_ops = MAX_OPS
        while True:
            try:
                for run in slices(changes, max_ops):
                    if await self._write(fence_at, [self._keys.op(change) for change in run], commit.mod_revision) is None:
                        return False
                return await self._write(fence_at, [Delete(self._keys.commit), Delete(parts, prefix_end(parts))], commit.mod_revision) is not None
            except OutcomeUnknown:
                raise StorageError("etcd did not answer while an earlier large change was being spread; it will be gone on with.") from None
            except RequestTooLarge:
                if max_ops == 1:
                    raise
                max_ops = max(max_ops // 4, 1)

    async def _write(self, fence_at: int, ops: Sequence[Op], commit_at: int | None = None) -> int | None:
        """The revision of the write; None when the fence (or the batch, if `commit_at` is given) has been changed and nothing was written."""
        compares = [Compare(self._keys.fence, "mod_revision", fence_at)]
        if commit_at is not None:
            compares.append(Compare(self._keys.commit, "mod_revision", commit_at))
        # Stays when the answer is lost, and when the caller gives up waiting.
        self._doubt = fence_at
        try:
            answer = await self._client.txn(compares, ops)
        except EtcdError:
            self._doubt = None
            raise
        self._doubt = None
        return answer.revision if answer.succeeded else None

    async def _settle(self) -> None:
        """Make the outcome of a transaction without an answer final. Raises StorageError while that is not possible."""
        if self._doubt is None:
            return
        state = await self._state()
        if state.fence_at == self._doubt:
            value = state.fence.value if state.fence is not None else dump({"epoch": 0})
            try:
                await self._client.txn([Compare(self._keys.fence, "mod_revision", self._doubt)], [Put(self._keys.fence, value)])
            except OutcomeUnknown:
                raise StorageError("etcd does not tell yet what became of the last change of the registry.") from None
        self._doubt = None

    # Reading.

    async def _state(self) -> _State:
        answer = await self._client.txn((), [Get(self._keys.fence), Get(self._keys.commit)])
        return _State(answer.found(0), answer.found(1), answer.revision)

    async def _load(self, state: _State) -> RegistrySnapshot:
        tables: dict[Table, dict[str, Record]] = {table: {} for table in TABLES}
        bad: dict[tuple[str, str], QuarantinedRecord] = {}
        number = 0
        async for kv in self._pages(self._keys.entities, state.revision):
            table, record_id = self._keys.table_and_id(kv.key)
            record = record_of(kv.value)
            if table not in _TABLES or not record_id:
                bad[table, record_id] = QuarantinedRecord(table, record_id, "there is no such table in this version")
            elif record is None:
                bad[table, record_id] = QuarantinedRecord(table, record_id, "its record cannot be read, or was written by a newer version")
            else:
                tables[_TABLES[table]][record_id] = record
            number += 1
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        if state.commit is not None:
            for change in (await self._batch(state.commit, state.revision))[1]:
                bad.pop((change.table, change.id), None)
                if change.record is None:
                    tables[change.table].pop(change.id, None)
                else:
                    tables[change.table][change.id] = change.record
        fence = epoch_of(state.fence)
        quarantined = list(bad.values())
        if fence is None:
            quarantined.append(QuarantinedRecord("fence", "", "the record of the last leader cannot be read and counts as absent"))
        return RegistrySnapshot(tables=tables, quarantined=tuple(quarantined), fence=fence or 0)

    async def _batch(self, commit: KeyValue, revision: int) -> tuple[Batch, list[Change]]:
        """Raises StoreDamaged: half a batch must not pass for a whole one."""
        batch, changes, count = batch_of(commit), list[Change](), 0
        if batch is not None:
            async for kv in self._pages(self._keys.parts_of(batch.name), revision):
                found = changes_of(kv.value)
                if found is None:
                    break
                changes += found
                count += 1
        if batch is None or count != batch.parts:
            raise StoreDamaged("A large change of the registry in etcd cannot be read; restore etcd, or delete the key registry/batch/commit to give it up.")
        return batch, changes

    async def _pages(self, prefix: bytes, revision: int) -> AsyncIterator[KeyValue]:
        """Everything below the prefix as it was at this revision (0: at that of the first page)."""
        start, limit, size = prefix, _PAGE, 0
        while True:
            try:
                page = await self._client.range(start, prefix_end(prefix), limit=limit, revision=revision)
            except RequestTooLarge:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            for kv in page.kvs:
                size += len(kv.key) + len(kv.value)
                yield kv
            if size > _MAX_TOTAL_BYTES:
                raise StoreDamaged(f"The registry in etcd is larger than {_MAX_TOTAL_BYTES} bytes; is its prefix used by something else?")
            if not page.more or not page.kvs:
                return
            start, revision = page.kvs[-1].key + b"\0", revision or page.revision

    @asynccontextmanager
    async def _limited(self, limit_s: float | None = None) -> AsyncIterator[None]:
        """One deadline for all requests of a call."""
        try:
            async with asyncio.timeout(self._deadline_s if limit_s is None else limit_s):
                yield
        except TimeoutError:
            if self._doubt is not None:
                raise OutcomeUnknown("etcd did not confirm the change of the registry in time.") from None
            raise StorageError("The registry in etcd did not answer in time.") from None
