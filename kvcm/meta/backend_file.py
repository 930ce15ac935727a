"""Block metadata in a file, written at every change: the `dummy` metadata backend (wire contract 8.3).

One journal per instance, next to the configured path: `<path>.<instance id>`. Meant for tests and single nodes; the design's durable store is Redis.
A change that did not end in time or failed half-way has an unknown outcome. The journal is serial, and a change that has not begun when its caller stops
waiting is never made, so reading it back waits for the write and tells the truth.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from kvcm.common.errors import InvalidArgument, OutcomeUnknown, StorageError
from kvcm.common.uri import parse_uri
from kvcm.config.errors import FencedOut
from kvcm.data_storage.pool import BlockingPool, PoolRefused, PoolTimeout
from kvcm.meta.journal import TEMPORARY, Journal
from kvcm.meta.location import Block
from kvcm.meta.record import DamagedRecord, RecordCodec

log = logging.getLogger("kvcm.meta.file")

T = TypeVar("T")

_DEADLINE_S = 10.0
_LOAD_DEADLINE_S = 600.0  # opening and loading read the whole file: a million blocks take several seconds
_PAGE = 256
_FENCED = "a newer leader has taken over the metadata file; this process must not write any more"
_NO_FAILURES: Mapping[int, StorageError] = {}


def _file_of(uri: str, instance_id: str) -> Path:
    parsed = parse_uri(uri)
    if parsed.scheme != "file" or not parsed.path.startswith("/") or parsed.host:
        raise InvalidArgument("the storage_uri of a 'dummy' metadata backend must be file:///<absolute path>")
    return Path(f"{parsed.path}.{quote(instance_id, safe='')}")


class FileBackend:
    def __init__(self, uri: str, instance_id: str, records: RecordCodec, pool: BlockingPool, *, deadline_s: float = _DEADLINE_S) -> None:
        """`uri`: `file://<path>[?fsync=false]`; `deadline_s`: of one change or one reading back. Raises InvalidArgument."""
        self._path = _file_of(uri, instance_id)
        self._fsync = parse_uri(uri).params.get("fsync") != "false"
        self._journal = Journal(self._path, fsync=self._fsync)
        self._records = records
        self._pool = pool
        self._deadline_s = deadline_s
        self._lane = f"meta:{self._path}"

    @staticmethod
    async def stored_instances(uri: str, in_use: Collection[tuple[str, str]], pool: BlockingPool) -> list[str]:
        """Ids that have a file beside this path, without the files of `in_use` (URI, instance id): a path may begin like another one.

        Raises InvalidArgument, StorageError.
        """
        base = _file_of(uri, "")
        used = {_file_of(other, instance_id).name for other, instance_id in in_use}

        def look() -> list[str]:
            try:
                names = [entry.name for entry in base.parent.iterdir() if entry.is_file()]
            except FileNotFoundError:
                return []
            found = (name.removeprefix(base.name) for name in names if name.startswith(base.name) and name not in used and not name.endswith(TEMPORARY))
            return sorted(unquote(name) for name in found if name and quote(unquote(name), safe="") == name)

        try:
            return await pool.run(look, deadline_s=_DEADLINE_S, lane=f"meta:{base}")
        except (StorageError, OSError) as error:
            raise StorageError("the folder of the metadata files could not be listed") from error

    async def open(self) -> None:
        await self._run(self._journal.open, "opened", _LOAD_DEADLINE_S)

    async def close(self) -> None:
        try:
            await self._run(self._journal.close, "closed")
        except StorageError as error:
            log.warning("metadata_file_close_failed: %s", error.message)

    async def raise_fence(self, fence: int) -> None:
        if not await self._run(lambda: self._journal.append({}, fence), "fenced"):
            raise FencedOut(_FENCED, self._journal.highest_fence)

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        stored = await self._run(self._journal.read, "read", _LOAD_DEADLINE_S)
        page: list[tuple[int, Block]] = []
        damaged = self._journal.damaged_lines
        for key, records in stored.items():
            try:
                page.append((int(key), self._records.block_from_list(records)))
            except (ValueError, DamagedRecord):
                damaged += 1
            if len(page) >= _PAGE:
                yield page
                page = []
        if page:
            yield page
        if damaged:
            log.error("metadata_records_damaged file=%s count=%d: they are left out and left in the file", self._path.name, damaged)

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        lines: dict[str, list[dict[str, Any]] | None] = {}
        for key, block in changes.items():
            lines[str(key)] = self._records.block_to_list(block) if block else None
            if not len(lines) % _PAGE:
                await asyncio.sleep(0)  # a call may name many thousand blocks; others must not wait for all of them
        abandoned = threading.Event()
        try:
            accepted = await self._pool.run(self._journal.append, lines, fence, abandoned, deadline_s=self._deadline_s, lane=self._lane)
        except PoolRefused as error:
            raise StorageError(f"the metadata file could not be written: {error.message}") from error
        except (PoolTimeout, OSError) as error:
            raise OutcomeUnknown("the metadata file did not confirm a change") from error
        finally:
            abandoned.set()  # whoever leaves early, for whatever reason, leaves no change behind that lands later
        if not accepted:
            raise FencedOut(_FENCED, self._journal.highest_fence)
        return _NO_FAILURES

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        wanted = {str(key) for key in keys}
        stored = await self._run(lambda: self._journal.read(wanted), "read")
        try:
            return {int(key): self._records.block_from_list(records) for key, records in stored.items()}
        except DamagedRecord as error:
            raise StorageError("the metadata file holds a damaged record") from error

    async def sync(self, keys: Collection[int]) -> None:
        if not self._fsync:  # else every accepted change is on disk already
            await self._run(self._journal.sync, "synced")

    async def _run(self, job: Callable[[], T], verb: str, deadline_s: float | None = None) -> T:
        try:
            return await self._pool.run(job, deadline_s=deadline_s or self._deadline_s, lane=self._lane)
        except (StorageError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it did not answer in time"
            raise StorageError(f"the metadata file '{self._path.name}' could not be {verb}: {reason or type(error).__name__}") from error
