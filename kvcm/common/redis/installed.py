"""Is the part of the client that comes with the extra `kvcm[redis]` here? Asked at the start of a process, and not when the first request needs Redis."""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.common.errors import Unsupported
from kvcm.common.redis import connection
from kvcm.common.redis.target import is_redis_uri


def check_installed(uris: Iterable[tuple[str, str]]) -> None:
    """`uris`: (name of a setting, its value). Raises Unsupported when one names a Redis that this installation cannot talk to; no URI is repeated."""
    if connection.is_installed():
        return
    for name, uri in uris:
        if is_redis_uri(uri):
            raise Unsupported(f"{name} names a Redis, and {connection.NOT_INSTALLED}")
