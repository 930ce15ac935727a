"""Blocks and backends for tests against a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from kvcm.common.clock import Clock, SystemClock
from kvcm.common.redis.target import parse_target
from kvcm.data_storage.model import StorageType
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.backend_redis import RedisBackend
from kvcm.meta.encoder import LocationEncoder
from kvcm.meta.location import Block, Location, begin_write
from kvcm.meta.record import RecordCodec
from kvcm.meta.redis_context import RedisContext
from kvcm.meta.write_behind import PARAMETERS, BehindSettings, WriteBehind


class RedisBlocks:
    """Makes locations of one storage and backends of one Redis. `encoder`: the wire's, from `kvcm.protocol`."""

    def __init__(self, encoder: LocationEncoder, clock: Clock | None = None) -> None:
        slots: dict[str, int] = {}
        self._encoder = encoder
        self.records = RecordCodec(encoder, lambda name: slots.setdefault(name, len(slots)))
        self.context = RedisContext(clock or SystemClock(), "test")

    def location(self, number: int, previous: int | None = None, size: int = 1024, created_us: int | None = None) -> Location:
        """WRITING."""
        uri = f"file://nfs_01/tmp/nfs/i/tp0/{number & (1 << 64) - 1:x}_0123456789abcdef?size={size}"
        return begin_write(
            type_code=StorageType.NFS,
            storage_slot=self.records.slot_of("nfs_01"),
            create_time_us=1_700_000_000_000_000 + number % 1000 if created_us is None else created_us,
            size=size,
            location_id=f"{number & 0xFFFFFFFF:08x}",
            previous_key=previous,
            wire=self._encoder.encode(StorageType.NFS, [("tp0", uri)]),
        )

    @asynccontextmanager
    async def opened(self, port: int, fence: int = 1, instance_id: str = "i1", options: str = "timeout_ms=500") -> AsyncIterator[RedisBackend]:
        """Written through, with the fence raised (0: not)."""
        target = parse_target(f"redis://127.0.0.1:{port}/?{options}", {"redis_layout"})
        backend = RedisBackend(target, instance_id, self.records, self.context, legacy=target.params.get("redis_layout") == "legacy")
        try:
            await backend.open()
            if fence:
                await backend.raise_fence(fence)
            yield backend
        finally:
            await backend.close()

    @asynccontextmanager
    async def behind(self, port: int, fence: int = 1, instance_id: str = "i1", options: str = "timeout_ms=500") -> AsyncIterator[WriteBehind]:
        target = parse_target(f"redis://127.0.0.1:{port}/?{options}", PARAMETERS)
        store = RedisBackend(target, instance_id, self.records, self.context)
        backend = WriteBehind(store, instance_id, BehindSettings.of(target.params), self.context)
        try:
            await backend.open()
            await backend.raise_fence(fence)
            yield backend
        finally:
            await backend.close()


async def loaded(backend: MetadataBackend) -> Mapping[int, Block]:
    """Everything that a recovery sees."""
    return {key: block async for page in backend.load() for key, block in page}
