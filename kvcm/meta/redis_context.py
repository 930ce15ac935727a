"""What the metadata stores in Redis of one manager share: time, counters, and the list of instances that this cluster has stored blocks of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from kvcm.common.clock import Clock
from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.redis.connection import RedisConnection, RedisRefused, ask, connect, glob_escaped, pack
from kvcm.common.redis.fenced import FencedRedis
from kvcm.common.redis.outage import Outage
from kvcm.common.redis.target import RedisTarget
from kvcm.meta.redis_scan import KeyScans
from kvcm.meta.redis_write import RecentWrites

log = logging.getLogger("kvcm.meta.redis")

STREAM = "__kvcm_stream__"
_SCAN_COUNT = 4096
_TIMEOUT_S = 30.0


@dataclass(slots=True)
class RedisStats:
    """Monotone counters, except those of the write-behind queues and `loading`."""

    connections: int = 0
    batches: int = 0
    blocks: int = 0
    failures: int = 0
    unknown: int = 0
    fenced: int = 0
    loaded: int = 0
    damaged: int = 0
    dropped: int = 0
    """Blocks whose last change was accepted for writing behind and never reached Redis."""
    loading: dict[str, list[int]] = field(default_factory=dict)
    """Instance id -> [blocks looked at, blocks found by the scan], while a recovery is under way."""
    behind: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Instance id -> (blocks that wait, monotonic microseconds since when the oldest does; 0: none)."""

    def connected(self) -> None:
        self.connections += 1

    def failed(self, error: StorageError) -> None:
        if isinstance(error, OutcomeUnknown):
            self.unknown += 1
        else:
            self.failures += 1


def _nobody() -> None:
    return


class RedisContext:
    def __init__(self, clock: Clock, cluster_name: str = "") -> None:
        """`cluster_name`: of the manager, for URIs that do not name one."""
        self.wall_us = clock.wall_us
        self.monotonic_us = clock.monotonic_us
        self.stats = RedisStats()
        self.recent = RecentWrites()
        self.scans = KeyScans()
        self.on_fenced: Callable[[], None] = _nobody
        """Called when a change was refused because a newer leader has taken over: this process must step down."""
        self._cluster_name = cluster_name
        self._outages: dict[str, Outage] = {}

    def outage_of(self, shown: str) -> Outage:
        """One for all instances of a Redis, so that it is told once."""
        return self._outages.setdefault(shown, Outage(shown))

    def list_key(self, target: RedisTarget) -> str:
        """Of the set of this cluster's instances. Empty when it has no name: nobody could tell its instances from those of others in the same Redis."""
        name = target.cluster_name or self._cluster_name
        return f"kvcm:{name}:instances" if name else ""

    async def remember(self, redis: FencedRedis, target: RedisTarget, instance_id: str) -> None:
        """List the instance as this cluster's. Raises StorageError."""
        key = self.list_key(target)
        if key:
            connection = await redis.connection()
            try:
                (known,) = await ask(connection, [pack("SISMEMBER", key, instance_id)], target.timeout_s)
                if not known:  # a Redis that is full refuses to be told again
                    await ask(connection, [pack("SADD", key, instance_id)], target.timeout_s)
            except RedisRefused as error:
                raise StorageError(f"instance {instance_id} cannot be listed under {key} in Redis at {target.shown}: {error.message}") from error

    async def stored_instances(self, target: RedisTarget, in_use: Collection[str]) -> list[str]:
        """Instances of this cluster that are not in use and still have blocks. Raises StorageError."""
        key = self.list_key(target)
        if not key:
            return []
        connection = await connect(target, "kvcm-leftovers")
        try:
            (names,) = await ask(connection, [pack("SMEMBERS", key)], target.timeout_s)
            candidates = {name.decode("utf-8", "replace") for name in names} - set(in_use)
            left = [instance_id for instance_id in sorted(candidates) if await _has_blocks(connection, instance_id)]
            gone = sorted(candidates - set(left))
            if gone:
                streams = [f"kvcache:instance_{instance_id}:{STREAM}" for instance_id in gone]
                await ask(connection, [pack("SREM", key, *gone), pack("DEL", *streams)], target.timeout_s)
            return left
        finally:
            connection.close()


async def _has_blocks(connection: RedisConnection, instance_id: str) -> bool:
    cursor = b"0"
    pattern = glob_escaped(f"kvcache:instance_{instance_id}:cache_") + "*"
    while True:
        ((cursor, names),) = await ask(connection, [pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)], _TIMEOUT_S)
        if names:
            return True
        if cursor == b"0":
            return False
