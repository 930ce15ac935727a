"""The sentinel: a small file under a storage's root that proves that this root is the right one (design D5).

An unmounted network share looks like an empty folder, and an empty folder looks as if every block were gone. So a storage writes
`.kvcm-storage.json` once, when it is added, and whoever cannot see it later knows nothing. It is never overwritten and never silently adopted:
a root that carries another storage's name belongs to that storage. Sync code; runs in the I/O pool.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import dataclass

from kvcm.data_storage.fs import Fs

SENTINEL_NAME = ".kvcm-storage.json"
FORMAT = 1
_MAX_BYTES = 4096
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class SentinelUnreadable(Exception):
    """There is a sentinel, but it is not one that this version understands."""


@dataclass(frozen=True, slots=True)
class Sentinel:
    """`storage` is the owner's name; `identity` is drawn once per root and never changes."""

    storage: str
    identity: str


def read(fs: Fs, root_fd: int, file_name: str) -> Sentinel | None:
    """The sentinel in this folder, None when there is none. Raises SentinelUnreadable, or OSError when nothing can be known."""
    try:
        fd = fs.open_file(root_fd, file_name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        raw = fs.read(fd, _MAX_BYTES, 0)
    finally:
        fs.close(fd)
    try:
        record = json.loads(raw)
    except ValueError:
        raise SentinelUnreadable("it is damaged") from None
    if not isinstance(record, dict) or not isinstance(record.get("storage"), str) or not isinstance(record.get("id"), str):
        raise SentinelUnreadable("it is damaged")
    if record.get("format") != FORMAT:
        raise SentinelUnreadable("it was written by another version of KVCM")
    return Sentinel(record["storage"], record["id"])


def write_new(fs: Fs, root_fd: int, file_name: str, sentinel: Sentinel) -> bool:
    """Write it, whole or not at all, unless one exists already (then False). Raises OSError; leaves no temporary file."""
    data = json.dumps({"format": FORMAT, "storage": sentinel.storage, "id": sentinel.identity}).encode() + b"\n"
    temporary = f"{file_name}.{sentinel.identity}.tmp"
    _write_file(fs, root_fd, temporary, data)
    try:
        fs.link(root_fd, temporary, file_name)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Without hard links: exclusive creation. A crash in between leaves a damaged sentinel, which is refused later, never trusted.
        try:
            _write_file(fs, root_fd, file_name, data)
        except FileExistsError:
            return False
    finally:
        with contextlib.suppress(OSError):
            fs.unlink(root_fd, temporary)
    try:
        fs.sync(root_fd)
    except OSError:
        fs.unlink(root_fd, file_name)
        raise
    return True


def _write_file(fs: Fs, root_fd: int, name: str, data: bytes) -> None:
    fd = fs.open_file(root_fd, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        fs.write(fd, data)
        fs.sync(fd)
    except OSError:
        fs.unlink(root_fd, name)
        raise
    finally:
        fs.close(fd)
