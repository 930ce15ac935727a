"""What is slow to make, kept between runs under the user's cache folder and named by what went into it.

An entry appears all at once (it is made beside its place and renamed), so an interrupted build leaves nothing that looks finished.
One build runs at a time per cache; the tree it builds in is deleted whatever happens. Danger: an entry that a running cluster uses must
not go away under it, so pruning keeps the entry that was used before the newest one too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import BedError

_KEPT_PER_NAME = 2
_LOCK_WAIT_S = 45 * 60.0
_LOCK_POLL_S = 0.5

Maker = Callable[[Path, Path], None]
"""make(target, work): fill `target`; `work` is an empty folder on the same disk that is deleted afterwards."""


def key_of(*parts: str | bytes | Path) -> str:
    """A short name for these inputs. A Path stands for the content of that file."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()[:16]


class Cache:
    def __init__(self, root: Path, say: Callable[[str], None]) -> None:
        self.root = root
        self._say = say

    def path(self, name: str, key: str) -> Path:
        return self.root / f"{name}-{key}"

    def has(self, name: str, key: str) -> bool:
        return self.path(name, key).is_dir()

    def obtain(self, name: str, key: str, make: Maker) -> Path:
        """The entry's folder, made first if it is not there. BedError from `make`, or if another build holds the cache too long."""
        entry = self.path(name, key)
        if not entry.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            with self._lock():
                if not entry.is_dir():  # another process may have made it while this one waited
                    self._make(name, entry, make)
        os.utime(entry)
        return entry

    def _make(self, name: str, entry: Path, make: Maker) -> None:
        partial, work = self.root / f"partial-{name}", self.root / f"work-{name}"
        started = time.monotonic()
        self._say(f"making {entry.name} (kept in {self.root} for the next run)")
        try:
            for folder in (partial, work):  # under the lock: what lies here is left over from a build that was killed
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            make(partial, work)
            partial.rename(entry)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(partial, ignore_errors=True)
        self._say(f"made {entry.name} in {time.monotonic() - started:.0f} s")
        self._prune(name)

    def _prune(self, name: str) -> None:
        entries = sorted((path for path in self.root.glob(f"{name}-*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for old in entries[:-_KEPT_PER_NAME]:
            shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.root / "lock").open("w") as file:
            deadline = time.monotonic() + _LOCK_WAIT_S
            waiting = False
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise BedError(f"another build has held {self.root} for {_LOCK_WAIT_S / 60:.0f} minutes") from None
                    if not waiting:
                        self._say("another build is at work in the same cache; waiting for it")
                        waiting = True
                    time.sleep(_LOCK_POLL_S)
            yield
