"""The choice of a coordinator by URI (`kvcm.coordination.uri`; wire contract 1.4)."""

from __future__ import annotations

from kvcm.common.clock import Clock
from kvcm.common.errors import InvalidArgument
from kvcm.common.redis.target import is_redis_uri
from kvcm.coordination.file import open_file
from kvcm.coordination.memory import MemoryCoordinator
from kvcm.coordination.port import Coordinator
from kvcm.coordination.redis import open_redis


def open_coordinator(uri: str, clock: Clock, epoch_floor: int = 0) -> Coordinator:
    """Nothing is connected or written yet. Raises InvalidArgument; messages never repeat the URI, which may hold a password.

    `epoch_floor` is the highest fence that a durable store of this process remembers: a coordinator that has forgotten its epochs (memory after a
    restart, a Redis that lost its data) goes on above it, or the store would refuse the new leader.
    """
    scheme, separator, _ = uri.partition("://")
    if not uri or (scheme == "memory" and separator):
        return MemoryCoordinator(clock, epoch_floor)
    if separator and scheme == "file":
        return open_file(uri, clock, epoch_floor)
    if separator and is_redis_uri(uri):
        return open_redis(uri, epoch_floor)
    if separator and scheme == "etcd":
        from kvcm.coordination.etcd import EtcdCoordinator  # gRPC with it, for those who need it

        return EtcdCoordinator(uri, epoch_floor)
    raise InvalidArgument("The coordination URI has an unknown scheme: use etcd://, redis:// or file:// for several managers, or leave it empty to run one.")
