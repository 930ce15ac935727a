"""A registry in one local file (`local://<path>`).

Job: durable, atomic changes. A change is written to a temporary file, synced, renamed over the old one, and the folder is synced; a
crash at any point leaves the old or the new content, never a mixture.

Dangers: file I/O can hang (a network mount), so it runs in one thread of its own with a deadline; that one thread also orders a `load`
behind a write that timed out. Two processes may point at the same file: turns (`kvcm.common.file_turn`) make read-check-write one step, also
when a process is stopped in the middle, and the fence in the file refuses the older leader.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from kvcm.common.errors import InvalidArgument, KvcmError, OutcomeUnknown, StorageError
from kvcm.common.failpoints import FailPoints
from kvcm.common.file_turn import Turn, Turns
from kvcm.config.errors import FencedOut, StoreDamaged
from kvcm.config.registry_file import RegistryFile
from kvcm.config.store import Change, RegistrySnapshot

DEFAULT_DEADLINE_S = 10.0
MAX_FILE_BYTES = 256 << 20
_MAX_WAITING = 8

_T = TypeVar("_T")


class LocalStore:
    """`path` is everything behind `local://`; `deadline_s` bounds each call."""

    def __init__(self, path: str, deadline_s: float = DEFAULT_DEADLINE_S, points: FailPoints | None = None) -> None:
        if not path or "\0" in path:
            raise InvalidArgument("The registry URI local://<path> needs a path.")
        self._path = os.path.realpath(path)
        # Half the deadline: a turn that does not come must be reported as "nothing written", not as a time-out.
        self._turns = Turns(Path(self._path).parent, os.path.basename(self._path), deadline_s / 2, 0o600)
        self._deadline_s = deadline_s
        self._points = points
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvcm-registry")
        self._waiting = 0
        self._closed = False

    async def open(self) -> None:
        await self._call(self._prepare, unknown_on_timeout=False)

    async def load(self) -> RegistrySnapshot:
        return await self._call(lambda _: self._read().snapshot(), unknown_on_timeout=False)

    async def probe(self) -> None:
        await self._call(lambda _: self._touch(), unknown_on_timeout=False)

    async def apply(self, changes: Sequence[Change], fence: int) -> None:
        todo = tuple(changes)
        await self._call(lambda given_up: self._write(todo, fence, given_up), unknown_on_timeout=True)

    async def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False)

    async def _call(self, work: Callable[[threading.Event], _T], unknown_on_timeout: bool) -> _T:
        if self._closed:
            raise StorageError("The registry file has been closed.")
        if self._waiting >= _MAX_WAITING:
            raise StorageError("The registry file does not answer; earlier requests are still waiting for it.")
        self._waiting += 1
        given_up = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._guarded, work, given_up)
        future.add_done_callback(self._finished)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(future)
        except TimeoutError:
            given_up.set()
            if unknown_on_timeout:
                raise OutcomeUnknown("The registry file did not confirm the write in time.") from None
            raise StorageError("The registry file could not be read in time.") from None

    def _finished(self, future: asyncio.Future[_T]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # retrieved: the caller may have given up waiting

    @staticmethod
    def _guarded(work: Callable[[threading.Event], _T], given_up: threading.Event) -> _T:
        try:
            return work(given_up)
        except KvcmError:
            raise
        except OSError as error:
            raise StorageError(f"The registry file cannot be used: {error.strerror or 'input/output error'}.") from error

    # From here on: in the thread.

    def _prepare(self, given_up: threading.Event) -> None:
        folder = os.path.dirname(self._path)
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise StorageError("The folder of the registry file is not writable.")
        self._turns.sweep(time.time())
        self._read().snapshot()

    def _touch(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.read(1)
        except FileNotFoundError:
            # Nothing was written yet; but a folder that has gone is a mount that has.
            os.stat(os.path.dirname(self._path))

    def _read(self) -> RegistryFile:
        try:
            with open(self._path, "rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return RegistryFile({})
        if len(content) > MAX_FILE_BYTES:
            raise StoreDamaged(f"The registry file is larger than {MAX_FILE_BYTES} bytes.")
        return RegistryFile.parse(content)

    def _write(self, changes: tuple[Change, ...], fence: int, given_up: threading.Event) -> None:
        with self._turns.take() as mine:
            content = self._read()
            stored = content.fence
            if stored > fence:
                raise FencedOut("The registry file has been taken over by a newer leader.", stored)
            if not changes and stored == fence:
                return
            content.set_fence(fence)
            content.apply(changes)
            data = content.data()
            if len(data) > MAX_FILE_BYTES:
                raise StorageError(f"The registry would grow beyond {MAX_FILE_BYTES} bytes; remove entries that are not needed.")
            if given_up.is_set():
                # The caller has been told that the outcome is unknown; not writing is the outcome it can live with best.
                raise StorageError("The write to the registry file was given up before it began.")
            self._replace(mine, data)

    def _replace(self, mine: Turn, data: bytes) -> None:
        try:
            mode = os.stat(self._path).st_mode & 0o777
        except FileNotFoundError:
            mode = 0o600  # the file may hold account secrets
        mine.prepare(data, durable=True, mode=mode)
        if self._points is not None:
            self._points.passing("registry.replace.before")
        mine.commit(os.path.basename(self._path))
        if self._points is not None:
            self._points.passing("registry.replace.after")
        try:
            mine.sync()
        except OSError as error:
            raise OutcomeUnknown("The registry file was replaced, but its folder could not be synced.") from error
