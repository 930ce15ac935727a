"""Taking turns in a folder that several processes change: each change happens whole, and a process that is stopped in its turn holds up nobody.

    <name>.lock    never written; flock() of it is the queue, so that turns come one after the other
    <name>.turn    a directory: the turn that counts. What is written is prepared in it and renamed out of it

flock() alone would let a process that was stopped with the lock in its hand (SIGSTOP, a frozen container, a debugger) keep all others out until somebody
finds it. So the lock only orders the turns, and what makes them safe is the directory: a turn begins by renaming a new one over the last. From that moment the
kernel refuses the one before both to create a file in its directory and to rename one out of it, because that directory is gone. Whoever lost its turn this
way is told so (`TurnLost`), and nothing of what it was about to write is ever seen. Hence, when a change succeeds, nobody else has changed anything since
its turn began, and what was read in the turn still held.

That needs rename() to be atomic, no lock. Dangers:
- a queue that is passed over too soon costs a turn of somebody who was only slow, who tries again: so only a process that the system calls stopped is passed
  over at once, any other after `wait_s`;
- NFS has not been tried. rename() is atomic on its server, and each turn changes the folder, which makes a client ask the server for its names anew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvcm.common.errors import StorageError

_LOCK_POLL_S = 0.002
_STOPPED_POLLS = 10
_EMPTYINGS = 100
_LEFT_S = 3600.0
_log = logging.getLogger("kvcm.common.file_turn")


class TurnLost(StorageError):
    """Nothing was written: another process has begun its turn, because this one did not run for a while. Trying again helps."""


class Turn:
    """What may be done in a turn. Raises TurnLost, and OSError when the file system fails."""

    def __init__(self, folder: Path, directory: int) -> None:
        self._folder = folder
        self._directory = directory

    def prepare(self, data: bytes, durable: bool, mode: int = 0o644) -> None:
        """What the next `commit` puts in its place. `durable`: on the disk when this returns."""
        with self._kept(), opened("new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, self._directory, mode) as fd:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            if durable:
                os.fsync(fd)

    def commit(self, name: str) -> None:
        """Replaces a file of the folder as a whole; see `sync`."""
        with self._kept():
            os.replace("new", self._folder / name, src_dir_fd=self._directory)

    def sync(self) -> None:
        """What was committed is in its place after a power failure too."""
        with opened(self._folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.fsync(fd)

    def remove(self, name: str) -> None:
        """No error when the file is gone, or when the turn is: what another process has put there meanwhile stays."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._folder / name, "gone", dst_dir_fd=self._directory)
            os.unlink("gone", dir_fd=self._directory)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise TurnLost("Another process has changed the folder meanwhile, because this one did not run for a while. Nothing was written.") from error


class Turns:
    """The turns of one purpose in one folder, as one process takes them. `wait_s`: how long it queues behind a process that seems to go on."""

    def __init__(self, folder: Path, name: str, wait_s: float) -> None:
        self._folder = folder
        self._lock = folder / f"{name}.lock"
        self._turn = folder / f"{name}.turn"
        self._wait_s = wait_s

    @contextmanager
    def take(self) -> Iterator[Turn]:
        """Raises StorageError when the turns of others never end, OSError when the file system fails."""
        with self._queue():
            made = self._turn.with_name(f"{self._turn.name}.{os.getpid()}-{secrets.token_hex(4)}")
            os.mkdir(made, 0o755)
            try:
                with opened(made, os.O_RDONLY | os.O_DIRECTORY) as directory:
                    self._begin(made)
                    yield Turn(self._folder, directory)
            finally:
                with contextlib.suppress(OSError):
                    os.rmdir(made)  # there only when the turn did not begin

    def sweep(self, wall_s: float) -> None:
        """Removes what processes left that were killed between making a directory and beginning their turn. `wall_s`: Unix seconds."""
        for entry in os.scandir(self._folder):
            if entry.name.startswith(f"{self._turn.name}."):
                with contextlib.suppress(OSError):
                    if entry.stat().st_mtime < wall_s - _LEFT_S:
                        os.rmdir(entry.path)

    def _begin(self, made: Path) -> None:
        # rename() takes the place of an empty directory only: what a turn that was killed, or is still going on, has prepared in it goes first.
        for _ in range(_EMPTYINGS):
            try:
                os.rename(made, self._turn)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                with contextlib.suppress(FileNotFoundError):
                    for name in os.listdir(self._turn):
                        os.unlink(self._turn / name)
            else:
                return
        raise StorageError("The folder is changed by others without a pause.")

    @contextmanager
    def _queue(self) -> Iterator[None]:
        with opened(self._lock, os.O_RDWR | os.O_CREAT) as fd:
            for waited in range(max(1, int(self._wait_s / _LOCK_POLL_S))):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_POLL_S)
                if waited % _STOPPED_POLLS == _STOPPED_POLLS - 1 and _is_stopped(_holder(fd)):
                    self._pass_over(fd)
                    break
            else:
                self._pass_over(fd)
            yield

    def _pass_over(self, fd: int) -> None:
        """Everybody queues at a new lock from now on."""
        _log.warning("turn_passed_over lock=%s process=%s: it keeps the lock and does not go on", self._lock.name, _holder(fd) or "unknown")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._lock)


def _holder(fd: int) -> int:
    """The process that has the lock; 0 when it is on another machine, in another process namespace, or gone."""
    inode = os.fstat(fd).st_ino
    try:
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if "->" not in fields and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                return max(0, int(fields[4]))
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _is_stopped(pid: int) -> bool:
    if not pid:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


@contextmanager
def opened(path: Path | str, flags: int, directory: int | None = None, mode: int = 0o644) -> Iterator[int]:
    """`path` is below `directory` (a descriptor) when one is given."""
    fd = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)
