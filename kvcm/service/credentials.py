"""Secrets in files, read again when they change: certificates, keys, tokens.

Job: one task for all of them. Contents are compared, not times: a Secret that Kubernetes mounts changes by swapping a symlink, others are overwritten in
place, and both may happen within one tick of a file system's clock.

Dangers: a file that is half written, broken or gone must not take away what works, so the old content stays in force and an error is logged once per
problem; a file system that hangs must not stop the loop, so files are read in a thread that nobody else waits for, with a deadline.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvcm.config.errors import SettingsError

MAX_FILE_BYTES = 1 << 20
_READ_DEADLINE_S = 10.0
_log = logging.getLogger("kvcm.service.credentials")

Contents = tuple[bytes, ...]


@dataclass(slots=True)
class _Entry:
    name: str
    paths: tuple[str, ...]
    take: Callable[[Contents], None]
    seen: bytes = b""
    problem: str = ""


class CredentialFiles:
    """`add` before `start`. `failing`: names whose newest content could not be taken over."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._entries: list[_Entry] = []
        self._each_round: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._reader = ThreadPoolExecutor(1, "kvcm-credentials")

    @property
    def failing(self) -> list[str]:
        return [entry.name for entry in self._entries if entry.problem]

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self._entries]

    async def add(self, name: str, paths: Sequence[str], take: Callable[[Contents], None]) -> None:
        """Read `paths` now and hand them to `take`; from `start` on again whenever one of them changes.

        `take` raises SettingsError for contents that cannot be used, and has then changed nothing. Raises SettingsError.
        """
        entry = _Entry(name, tuple(paths), take)
        contents = await self._read(entry.paths)
        take(contents)
        entry.seen = _digest(contents)
        self._entries.append(entry)

    def each_round(self, remind: Callable[[], None]) -> None:
        """Call `remind` whenever the files are looked at; it must be quick and must not raise."""
        self._each_round.append(remind)

    def start(self) -> None:
        if self._entries:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def check(self) -> None:
        """Look at all files once."""
        for entry in self._entries:
            await self._look(entry)
        for remind in self._each_round:
            remind()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check()

    async def _look(self, entry: _Entry) -> None:
        try:
            contents = await self._read(entry.paths)
            digest = _digest(contents)
            if digest == entry.seen:
                self._settle(entry)
                return
            entry.take(contents)
            entry.seen = digest
        except SettingsError as error:
            if error.message != entry.problem:
                entry.problem = error.message
                _log.error("credentials_kept name=%s: the new content cannot be used, the old one stays in force. %s", entry.name, error.message)
        except Exception:
            # Without the text of the error: it may quote what it stumbled over.
            entry.problem = "it could not be processed"
            _log.error("credentials_kept name=%s: the new content could not be processed, the old one stays in force", entry.name)
        else:
            self._settle(entry)
            _log.info("credentials_taken name=%s", entry.name)

    def _settle(self, entry: _Entry) -> None:
        if entry.problem:
            entry.problem = ""
            _log.info("credentials_well name=%s: the files can be used again", entry.name)

    async def _read(self, paths: Sequence[str]) -> Contents:
        try:
            async with asyncio.timeout(_READ_DEADLINE_S):
                return await asyncio.get_running_loop().run_in_executor(self._reader, _read_all, paths)
        except TimeoutError:
            raise SettingsError(f"The file {paths[0]} cannot be read: its file system does not answer.") from None


def _read_all(paths: Sequence[str]) -> Contents:
    found = []
    for path in paths:
        try:
            # Non-blocking, because opening a pipe would wait for a writer.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise SettingsError(f"The file {path} cannot be read: {error.strerror or 'it is not a file'}.") from None
        if content is None or len(content) > MAX_FILE_BYTES:
            raise SettingsError(f"The file {path} is no plain file of at most {MAX_FILE_BYTES >> 20} MiB.")
        found.append(content)
    return tuple(found)


def _digest(contents: Contents) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).digest()
