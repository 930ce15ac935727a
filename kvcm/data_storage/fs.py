"""The file-system calls that storages use, as a port, so that tests can inject faults in front of the real thing.

Everything is relative to an open directory and never follows a symbolic link below it, so no name can lead out of a root. Opening each
directory on the way (instead of one long path) also makes network file systems revalidate what they remember of it, so that a stale "no such
directory" is not taken for an absence. All calls block; all raise OSError.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Protocol

PUNCH_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
"""What `punch` raises where the file system cannot free part of a file."""

_FALLOC_KEEP_SIZE = 0x01
_FALLOC_PUNCH_HOLE = 0x02


class Fs(Protocol):
    def open_root(self, path: str) -> int:
        """Open a directory by its absolute path; links on the way are followed (an administrator chose the path)."""
        ...

    def open_dir(self, dir_fd: int, name: str) -> int: ...

    def open_file(self, dir_fd: int, name: str, flags: int) -> int:
        """Open a file; `flags` as for os.open. Never follows a link, never waits for a pipe."""
        ...

    def close(self, fd: int) -> None: ...

    def stat(self, dir_fd: int, name: str) -> os.stat_result: ...

    def size(self, fd: int) -> int: ...

    def read(self, fd: int, count: int, offset: int) -> bytes: ...

    def write(self, fd: int, data: bytes) -> None: ...

    def sync(self, fd: int) -> None: ...

    def unlink(self, dir_fd: int, name: str) -> None: ...

    def link(self, dir_fd: int, source: str, target: str) -> None:
        """Give `source` a second name; FileExistsError when the target exists."""
        ...

    def mkdir(self, path: str) -> None: ...

    def mkdir_at(self, dir_fd: int, name: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def punch(self, fd: int, offset: int, length: int) -> None:
        """Free a range of a file; its size stays. Raises with an errno of PUNCH_UNSUPPORTED where that cannot be done."""
        ...

    def seek_data(self, fd: int, offset: int) -> int | None:
        """Start of the first data at or after `offset`; None when there is none up to the end of the file."""
        ...

    def seek_hole(self, fd: int, offset: int) -> int: ...


_libc = ctypes.CDLL(None, use_errno=True)


class RealFs:
    """The operating system (Linux)."""

    def open_root(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_dir(self, dir_fd: int, name: str) -> int:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)

    def open_file(self, dir_fd: int, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def stat(self, dir_fd: int, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, count: int, offset: int) -> bytes:
        return os.pread(fd, count, offset)

    def write(self, fd: int, data: bytes) -> None:
        while data:
            data = data[os.write(fd, data) :]

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def unlink(self, dir_fd: int, name: str) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def link(self, dir_fd: int, source: str, target: str) -> None:
        os.link(source, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def mkdir_at(self, dir_fd: int, name: str) -> None:
        os.mkdir(name, dir_fd=dir_fd)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def punch(self, fd: int, offset: int, length: int) -> None:
        fallocate = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
        if fallocate is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        mode = _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE
        if fallocate(ctypes.c_int(fd), ctypes.c_int(mode), ctypes.c_int64(offset), ctypes.c_int64(length)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def seek_data(self, fd: int, offset: int) -> int | None:
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def seek_hole(self, fd: int, offset: int) -> int:
        return os.lseek(fd, offset, os.SEEK_HOLE)
