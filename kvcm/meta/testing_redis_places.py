"""One instance in a Redis or in a Redis Cluster, with leaders and followers, for stories that must be true of both.

place = RedisPlace(server, ProtoLocationEncoder())            server: RedisServer or RedisCluster
async with place.leader(1) as leader, place.copy() as copy: ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kvcm.common.redis.testing import RedisServer
from kvcm.common.redis.testing_cluster import RedisCluster
from kvcm.config.model import MetaBackendConfig
from kvcm.data_storage.pool import BlockingPool
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.changes import ChangeStream
from kvcm.meta.cluster_layout import DEFAULT_BUCKETS, ClusterLayout
from kvcm.meta.encoder import LocationEncoder
from kvcm.meta.index import MetaIndex
from kvcm.meta.key_packing import FixedWidth
from kvcm.meta.location import Block, promote
from kvcm.meta.open_backend import MetadataStores
from kvcm.meta.testing import published
from kvcm.meta.testing_redis import RedisBlocks
from kvcm.meta.warm import WarmIndex


class RedisPlace(RedisBlocks):
    def __init__(self, server: RedisServer | RedisCluster, encoder: LocationEncoder, instance_id: str = "i1") -> None:
        super().__init__(encoder)
        self.server = server
        self.instance_id = instance_id
        self.layout = ClusterLayout(instance_id, DEFAULT_BUCKETS)

    @property
    def nodes(self) -> Sequence[RedisServer]:
        return self.server.nodes if isinstance(self.server, RedisCluster) else [self.server]

    def config(self, kind: str = "redis", options: str = "") -> MetaBackendConfig:
        usual = "" if "timeout_ms" in options else "timeout_ms=3000"
        return MetaBackendConfig(kind, f"{self.server.uri}?{'&'.join(part for part in (usual, options) if part)}")

    def backend(self, kind: str = "redis", options: str = "") -> tuple[MetadataBackend, ChangeStream]:
        """Not opened. `kind`: redis or async_redis."""
        opened = MetadataStores(BlockingPool(threads=1), self.context).open_followed(self.config(kind, options), self.instance_id, self.records)
        assert opened is not None
        return opened

    @asynccontextmanager
    async def leader(self, fence: int, kind: str = "redis", options: str = "") -> AsyncIterator[MetadataBackend]:
        """With the fence raised (0: not)."""
        backend, _ = self.backend(kind, options)
        try:
            await backend.open()
            if fence:
                await backend.raise_fence(fence)
            yield backend
        finally:
            await backend.close()

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[WarmIndex]:
        backend, changes = self.backend()
        copy = WarmIndex(self.config(), self.instance_id, backend, changes, FixedWidth(), self.context.monotonic_us)
        try:
            yield copy
        finally:
            await copy.close()

    async def scanned(self) -> MetaIndex:
        """What a leader without a copy finds, closed again."""
        backend, _ = self.backend()
        index = MetaIndex(backend, max_key_count=1 << 40)
        await index.open()
        await index.recover()
        await index.close()
        return index

    async def scanned_keys(self) -> set[int]:
        return set(published(await self.scanned()))

    def block(self, key: int) -> Block:
        """SERVING."""
        return (promote(self.location(key)),)

    # -- what is stored ------------------------------------------------------------------------------------------------------------------------

    def name_of(self, key: int) -> str:
        if isinstance(self.server, RedisCluster):
            return f"{self.layout.block_prefix(self.layout.bucket_of(key)).decode()}{key}"
        return f"kvcache:instance_{self.instance_id}:cache_{key}"

    @property
    def streams(self) -> list[str]:
        if isinstance(self.server, RedisCluster):
            return [self.layout.stream_key(bucket).decode() for bucket in range(DEFAULT_BUCKETS)]
        return [f"kvcache:instance_{self.instance_id}:__kvcm_stream__"]

    @property
    def fences(self) -> list[str]:
        if isinstance(self.server, RedisCluster):
            return [self.layout.fence_key(bucket).decode() for bucket in range(DEFAULT_BUCKETS)]
        return [f"kvcache:instance_{self.instance_id}:__kvcm_fence__"]

    def node_of(self, name: str) -> RedisServer:
        return self.server.of_key(name) if isinstance(self.server, RedisCluster) else self.server

    def flush(self) -> None:
        for node in self.nodes:
            node.call("FLUSHALL")
