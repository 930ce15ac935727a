"""Secrets and certificates from files that change while we run (a rotated Kubernetes Secret).

File systems can hang, so all of this runs in a thread with a deadline. Errors name the file, never what is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kvcm.etcd.errors import EtcdUnavailable

_DEADLINE_S = 5.0
MAX_PEM_BYTES = 1 << 20
MAX_SECRET_BYTES = 8192
_T = TypeVar("_T")

Stamp = tuple[int, ...]


async def in_thread(work: Callable[[], _T]) -> _T:
    """Raises EtcdUnavailable when the files do not answer in time."""
    try:
        async with asyncio.timeout(_DEADLINE_S):
            return await asyncio.to_thread(work)
    except TimeoutError:
        raise EtcdUnavailable("The files with credentials for etcd cannot be read in time.") from None


def stamp(names: tuple[str, ...]) -> Stamp:
    """Changes when one of the files does. Raises EtcdUnavailable."""
    found: list[int] = []
    for name in names:
        try:
            info = Path(name).stat()
        except OSError as error:
            raise _unreadable(name, error) from error
        found += (info.st_mtime_ns, info.st_size, info.st_ino)
    return tuple(found)


def read(name: str, limit: int) -> bytes:
    """Raises EtcdUnavailable."""
    try:
        with Path(name).open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise _unreadable(name, error) from error
    if len(content) > limit:
        raise EtcdUnavailable(f"The file {name} with credentials for etcd is larger than {limit} bytes.")
    return content


def read_secret(name: str) -> str:
    """One line of text. Raises EtcdUnavailable."""
    text = read(name, MAX_SECRET_BYTES).decode("utf-8", "replace").strip("\r\n\t ")
    if not text or not text.isprintable():
        raise EtcdUnavailable(f"The file {name} with credentials for etcd must hold one line of text.")
    return text


def _unreadable(name: str, error: OSError) -> EtcdUnavailable:
    return EtcdUnavailable(f"The file {name} with credentials for etcd cannot be read: {error.strerror or 'unknown reason'}.")
