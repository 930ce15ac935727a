"""Blocking reads and writes of one block in a file. Runs in pool threads; raises OSError, `Truncated` or `Stopped`.

Each block has its own byte range, so writers of one packed file never need a lock, and the file grows as blocks arrive. A file is complete
only when every write call took all its bytes; nothing here reports success earlier. Folders above a file are made on first use.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvcm.client.types import BlockBuffer

# Between two pieces of this size the deadline is looked at again.
CHUNK_BYTES = 16 << 20
_MAX_VIEWS = 512
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Stopped(Exception):
    """The call was stopped or late between two pieces of a block."""


class Truncated(Exception):
    """The file ends before the block does."""


@contextmanager
def opened(path: str, *, write: bool) -> Iterator[int]:
    """A descriptor of a regular file; when writing, the file and the folders above it are created."""
    fd = _open_for_write(path) if write else os.open(path, os.O_RDONLY | _SAFE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(None, "it is not a regular file")
        yield fd
    finally:
        os.close(fd)


def write_block(fd: int, offset: int, buffer: BlockBuffer, go_on: Callable[[], bool]) -> None:
    """Write every piece that is not ignored to its place. A short write is continued; a write that takes nothing is an error."""
    for position, views in _batches(buffer, offset):
        while views:
            if not go_on():
                raise Stopped
            written = os.pwritev(fd, views, position)
            if written <= 0:
                raise OSError(None, "the store took no more bytes")
            position += written
            views = _after(views, written)


def read_block(fd: int, offset: int, staging: memoryview, go_on: Callable[[], bool]) -> None:
    """Fill `staging` from the file."""
    done = 0
    while done < len(staging):
        if not go_on():
            raise Stopped
        count = os.preadv(fd, [staging[done : done + CHUNK_BYTES]], offset + done)
        if count <= 0:
            raise Truncated
        done += count


def copy_out(staging: memoryview, buffer: BlockBuffer) -> None:
    """Scatter a block into the caller's pieces; ignored pieces keep what they hold."""
    start = 0
    for iov in buffer.iovs:
        if not iov.ignore:
            iov.view[:] = staging[start : start + iov.size]
        start += iov.size


def flush(fd: int, path: str, root: str) -> None:
    """Flush the file and the folders between it and the root to the device."""
    os.fsync(fd)
    folder = os.path.dirname(path)
    while True:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)
        above = os.path.dirname(folder)
        if len(folder) <= len(root.rstrip("/")) or above == folder:
            return
        folder = above


def _open_for_write(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | _SAFE
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def _batches(buffer: BlockBuffer, offset: int) -> Iterator[tuple[int, list[memoryview]]]:
    """Runs of neighbouring pieces, cut to at most CHUNK_BYTES and _MAX_VIEWS, each with its place in the file."""
    views: list[memoryview] = []
    start = position = offset
    for iov in buffer.iovs:
        if iov.ignore and views:
            yield start, views
            views = []
        if not iov.ignore:
            for at in range(0, iov.size, CHUNK_BYTES):
                piece = iov.view[at : at + CHUNK_BYTES]
                if views and (len(views) == _MAX_VIEWS or position + at + len(piece) - start > CHUNK_BYTES):
                    yield start, views
                    views = []
                if not views:
                    start = position + at
                views.append(piece)
        position += iov.size
    if views:
        yield start, views


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of `views` once the first `count` bytes are gone."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
