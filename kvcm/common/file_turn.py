"""Taking turns in a folder that several processes change: each change happens whole, and a process that is stopped in its turn holds up nobody.

    <name>.lock    never written; flock() of it is the queue, so that turns come one after the other
    <name>.turn    a directory: the turn that counts. What is written is prepared in it and renamed out of it

flock() alone would let a process that was stopped with the lock in its hand (SIGSTOP, a frozen container, a debugger) keep all others out until somebody
finds it. So the lock only orders the turns, and what makes them safe is the directory: a turn begins by renaming a new one over the last. From that moment the
kernel refuses the one before both to create a file in its directory and to rename one out of it, because that directory is gone. Whoever lost its turn this
way is told so (`TurnLost`), and nothing of what it was about to write is ever seen. Hence, when a change succeeds, nobody else has changed anything since
its turn began, and what was read in the turn still held.

That needs rename() to be atomic, no lock. Everything of a turn happens in the folder as it was opened, so a folder that is moved away takes its turns with it.

Dangers:
- a queue that is passed over too soon costs a turn of somebody who was only slow, who must try again: so only a process that the system calls stopped is
  passed over at once; any other first costs its waiters an error each, and is passed over when it has kept them waiting for `_PASS_OVER_S`;
- NFS has not been tried. rename() is atomic on its server, and each turn changes the folder, which makes a client ask the server for its names anew. A client
  that keeps an open file by renaming it (.nfs..., .fuse_hidden...) keeps the turn of a process that is stopped while it prepares;
- a turn needs room on the disk for a directory and a file.
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
_PASS_OVER_S = 10.0
_FORGET_S = 30.0  # longer than any pause that a caller makes between its attempts
_log = logging.getLogger("kvcm.common.file_turn")


class TurnLost(StorageError):
    """The change was not made: another process has begun its turn, because this one did not run for a while. Trying again helps."""


class Turn:
    """What may be done in a turn. Raises TurnLost, and OSError when the file system fails."""

    def __init__(self, path: Path, folder: int, directory: int) -> None:
        """`folder` and `directory`: the folder and the turn in it, opened; `path`: what should still be that folder."""
        self._path = path
        self._folder = folder
        self._directory = directory

    def prepare(self, data: bytes, durable: bool, mode: int = 0o644) -> None:
        """What the next `commit` puts in its place. `durable`: on the disk when this returns."""
        try:
            with self._kept(), opened("new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, self._directory, mode) as fd:
                with open(fd, "wb", closefd=False) as file:
                    file.write(data)
                if durable:
                    os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink("new", dir_fd=self._directory)  # of a full disk it is the last room
            raise

    def commit(self, name: str) -> None:
        """Replaces a file of the folder as a whole; see `sync`."""
        with self._kept():
            os.replace("new", name, src_dir_fd=self._directory, dst_dir_fd=self._folder)
            if not os.path.samestat(os.stat(self._path), os.fstat(self._folder)):
                raise TurnLost("The folder was replaced by another one meanwhile; the change was made in the old one.")

    def sync(self) -> None:
        """What was committed is in its place after a power failure too."""
        os.fsync(self._folder)

    def remove(self, name: str) -> None:
        """No error when the file is gone."""
        with self._kept():
            with opened("gone", os.O_WRONLY | os.O_CREAT, self._directory):
                pass
            with contextlib.suppress(FileNotFoundError):
                os.replace(name, "gone", src_dir_fd=self._folder, dst_dir_fd=self._directory)
            os.unlink("gone", dir_fd=self._directory)  # fails if the turn is over, and then nothing is known of the line before

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if not self._path.is_dir():
                raise
            raise TurnLost("Another process has changed the folder meanwhile, because this one did not run for a while; the change was not made.") from error


class Turns:
    """The turns of one purpose in one folder, as one process takes them. Not thread-safe. `wait_s`: how long one call queues; `mode`: of what is made."""

    def __init__(self, folder: Path, name: str, wait_s: float, mode: int = 0o644) -> None:
        self._path = folder
        self._lock = f"{name}.lock"
        self._turn = f"{name}.turn"
        self._wait_s = wait_s
        self._mode = mode
        self._waiting: tuple[float, float] | None = None
        """Since when this process has waited for the lock in vain, over several calls, and when it last did."""

    @contextmanager
    def take(self) -> Iterator[Turn]:
        """Raises StorageError when others keep the queue or never end their turns, OSError when the file system fails."""
        with opened(self._path, os.O_RDONLY | os.O_DIRECTORY) as folder, self._queue(folder):
            made = f"{self._turn}.{os.getpid()}-{secrets.token_hex(4)}"
            os.mkdir(made, self._mode | (self._mode & 0o444) >> 2, dir_fd=folder)
            try:
                with opened(made, os.O_RDONLY | os.O_DIRECTORY, folder) as directory:
                    self._begin(folder, made)
                    yield Turn(self._path, folder, directory)
            finally:
                with contextlib.suppress(OSError):
                    os.rmdir(made, dir_fd=folder)  # there only when the turn did not begin

    @contextmanager
    def queue_only(self) -> Iterator[None]:
        """The queue without a turn, which needs no room: whoever is stopped in it may be passed over, and must do nothing that harms when it is done late."""
        with opened(self._path, os.O_RDONLY | os.O_DIRECTORY) as folder, self._queue(folder):
            yield

    def sweep(self, wall_s: float) -> None:
        """Removes what processes left that were killed between making a directory and beginning their turn. `wall_s`: Unix seconds."""
        for entry in os.scandir(self._path):
            if entry.name.startswith(f"{self._turn}."):
                with contextlib.suppress(OSError):
                    if entry.stat().st_mtime < wall_s - _LEFT_S:
                        os.rmdir(entry.path)

    def _begin(self, folder: int, made: str) -> None:
        # rename() takes the place of an empty directory only: what a turn that was killed, or is still going on, has prepared in it goes first.
        for _ in range(_EMPTYINGS):
            try:
                os.rename(made, self._turn, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                with contextlib.suppress(FileNotFoundError), opened(self._turn, os.O_RDONLY | os.O_DIRECTORY, folder) as last:
                    for name in os.listdir(last):
                        os.unlink(name, dir_fd=last)
            else:
                return
        raise StorageError("What others have prepared in the folder cannot be cleared away.")

    @contextmanager
    def _queue(self, folder: int) -> Iterator[None]:
        until = time.monotonic() + self._wait_s
        while True:
            with opened(self._lock, os.O_RDWR | os.O_CREAT, folder, self._mode) as fd:
                if self._acquired(fd, until):
                    self._waiting = None
                    yield
                    return
                self._pass_over(folder, fd)

    def _acquired(self, fd: int, until: float) -> bool:
        """False: whoever has the lock is to be passed over. Raises StorageError when it only takes its time."""
        polls = 0
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(_LOCK_POLL_S)
            polls += 1
            now = time.monotonic()
            since, last = self._waiting or (now, now)
            if now > last + _FORGET_S:  # that was another time
                since = now
            self._waiting = since, now
            if now >= since + _PASS_OVER_S or (polls % _STOPPED_POLLS == 0 and _is_stopped(_holder(fd))):
                return False
            if now >= until:
                pid = _holder(fd)
                raise StorageError(f"The folder is locked by {f'process {pid}' if pid else 'another process'} for longer than {self._wait_s:g} s.")

    def _pass_over(self, folder: int, fd: int) -> None:
        """Everybody queues at a new lock from now on."""
        self._waiting = None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._lock, dir_fd=folder), os.fstat(fd)):
                _log.warning("turn_passed_over lock=%s process=%s: it keeps the lock and does not go on", self._lock, _holder(fd) or "unknown")
                os.unlink(self._lock, dir_fd=folder)


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
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] == "T"
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
