"""Blocks of instances that were removed before a crash, in a Redis Cluster: what `RedisContext.stored_instances` is for a single Redis."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvcm.common.redis.cluster_nodes import ClusterNodes
from kvcm.common.redis.cluster_slot import ClusterSlot
from kvcm.common.redis.cluster_slots import slot_of
from kvcm.common.redis.connection import error_word, pack, refused
from kvcm.common.redis.target import RedisTarget
from kvcm.meta.cluster_layout import ClusterLayout, find_layout
from kvcm.meta.cluster_scan import has_blocks


async def stored_instances(target: RedisTarget, list_key: str, in_use: Collection[str]) -> list[str]:
    """Listed instances that are not in use and still have blocks; the others are taken off the list. `list_key`: empty for none. Raises StorageError."""
    if not list_key:
        return []
    key = list_key.encode()
    nodes = ClusterNodes(target, "kvcm-leftovers")
    try:
        await nodes.open()
        names = await _ask(nodes, key, pack("SMEMBERS", key))
        left: list[str] = []
        for instance_id in sorted({name.decode("utf-8", "replace") for name in names} - set(in_use)):
            layout = await find_layout(nodes, instance_id)
            if layout is not None:
                if await has_blocks(nodes, layout):
                    left.append(instance_id)
                    continue
                await _drop_streams(nodes, layout)
            await _ask(nodes, key, pack("SREM", key, instance_id))
        return left
    finally:
        await nodes.close()


async def _drop_streams(nodes: ClusterNodes, layout: ClusterLayout) -> None:
    """Fences stay: an old leader must not come back either."""
    for number in range(layout.buckets):
        stream = layout.stream_key(number)
        await _ask(nodes, stream, pack("DEL", stream))


async def _ask(nodes: ClusterNodes, key: bytes, command: bytes) -> Any:
    (reply,) = await ClusterSlot(nodes, slot_of(key)).ask([command])
    if error_word(reply):
        raise refused(reply, "to list instances")
    return reply
