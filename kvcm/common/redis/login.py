"""User and password of one login at Redis: from the URI, or from files that change while we run (a rotated Kubernetes Secret).

Files are read for each connection, in a thread, because a file system can hang; the deadline of the connection counts. Errors name the file, never what is
in it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from kvcm.common.errors import StorageError
from kvcm.common.redis.target import RedisTarget

_MAX_BYTES = 8192


async def credentials(target: RedisTarget) -> tuple[str, str]:
    """(user, password); empty for what is not given. Raises StorageError for a file that cannot be read or holds anything but one line of text."""
    if not target.password_file:
        return target.user, target.password
    return await asyncio.to_thread(_from_files, target.username_file, target.password_file)


def _from_files(username_file: str, password_file: str) -> tuple[str, str]:
    return _read(username_file) if username_file else "", _read(password_file)


def _read(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StorageError(f"the file {name} with credentials for Redis cannot be read: {error.strerror or 'unknown reason'}") from error
    text = content.decode("utf-8", "replace").strip("\r\n\t ")
    if len(content) > _MAX_BYTES or not text or not text.isprintable():
        raise StorageError(f"the file {name} with credentials for Redis must hold one line of text")
    return text
