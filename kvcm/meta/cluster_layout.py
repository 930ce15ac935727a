"""How the blocks of one instance lie in a Redis Cluster: our own layout, since upstream's names would put each block into a slot of its own, beside no fence.

    kvcm:{<i>}:layout                  hash `buckets` = B, `instance` = its id. Written once, never changed: it says where everything is.
    kvcm:{<i>.<B>-<b>.<n>}:b:<key>     a block of bucket b, a hash with the fields of upstream's layout (behaviour 9.2)
    kvcm:{<i>.<B>-<b>.<n>}:fence       who may write the bucket (see `kvcm.common.redis.cluster_fenced`)
    kvcm:{<i>.<B>-<b>.<n>}:stream      which blocks of the bucket were changed (see `cluster_changes`)

`<i>` is a hash of the instance's id, which may contain braces. A bucket is what one script can change as a whole, so it lies in one slot: `<n>` is the smallest
number that puts bucket b into the b-th of B equal parts of all slots. Masters hold ranges of slots as a rule, so an instance is spread evenly over them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import count as numbers
from typing import Any

from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.common.redis.cluster_nodes import ClusterNodes
from kvcm.common.redis.cluster_slot import ClusterSlot
from kvcm.common.redis.cluster_slots import SLOTS, slot_of
from kvcm.common.redis.connection import error_word, pack, refused
from kvcm.common.redis.target import number

PARAMETER = "cluster_buckets"
DEFAULT_BUCKETS = 16
MAX_BUCKETS = 256
_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15  # keys may be consecutive numbers; Fibonacci hashing


def buckets_of(params: Mapping[str, str]) -> int:
    """Of an instance that has no layout yet. Raises InvalidArgument."""
    buckets = number(params, PARAMETER, DEFAULT_BUCKETS, 1, MAX_BUCKETS)
    if buckets & (buckets - 1):
        raise InvalidArgument(f"the parameter {PARAMETER} of a Redis URI must be a power of two")
    return buckets


class ClusterLayout:
    def __init__(self, instance_id: str, buckets: int) -> None:
        """`buckets`: a power of two."""
        self.instance_id = instance_id
        self.buckets = buckets
        self._shift = 65 - buckets.bit_length()
        name = instance_name(instance_id)
        self._prefixes = [b"kvcm:{%b}:" % _tag(name, buckets, bucket) for bucket in range(buckets)]
        self.slots = [slot_of(prefix) for prefix in self._prefixes]
        self.pattern = b"kvcm:{%b.*}:b:*" % name
        """Of all its blocks, for SCAN; also of those in a layout that it does not have any more."""
        self._by_head = {prefix + b"b": bucket for bucket, prefix in enumerate(self._prefixes)}

    def bucket_of(self, key: int) -> int:
        return ((key * _SPREAD) & _MASK) >> self._shift

    def block_prefix(self, bucket: int) -> bytes:
        return self._prefixes[bucket] + b"b:"

    def fence_key(self, bucket: int) -> bytes:
        return self._prefixes[bucket] + b"fence"

    def stream_key(self, bucket: int) -> bytes:
        return self._prefixes[bucket] + b"stream"

    def block_of(self, name: bytes) -> tuple[int, int] | None:
        """(bucket, block key) of a name in Redis; None when it is no block's, or not where that block would be looked for."""
        head, _, digits = name.rpartition(b":")
        bucket = self._by_head.get(head)
        try:
            key = int(digits)
        except ValueError:
            return None
        if bucket is None or not -(1 << 63) <= key < 1 << 63 or b"%d" % key != digits or self.bucket_of(key) != bucket:
            return None
        return bucket, key


def instance_name(instance_id: str) -> bytes:
    return hashlib.sha256(instance_id.encode()).hexdigest()[:16].encode()


def layout_key(instance_id: str) -> bytes:
    return b"kvcm:{%b}:layout" % instance_name(instance_id)


async def find_layout(nodes: ClusterNodes, instance_id: str, create: int = 0) -> ClusterLayout | None:
    """The layout that the cluster has for the instance. `create`: make one with so many buckets where there is none. Raises StorageError."""
    key = layout_key(instance_id)
    slot = ClusterSlot(nodes, slot_of(key))
    look = pack("HMGET", key, "buckets", "instance")
    found, owner = await _told(slot, look)
    if found is None and create:
        # Not before: a node that is full refuses it. Whoever comes second reads what the first one wrote.
        found, owner = await _told(slot, pack("HSETNX", key, "instance", instance_id), pack("HSETNX", key, "buckets", create), look)
    if found is None:
        return None
    if owner not in (None, instance_id.encode()):
        raise StorageError(f"instance {instance_id} cannot be kept in this Redis Cluster: its short name is that of another instance")
    if not found.isdigit() or not 0 < int(found) <= MAX_BUCKETS or int(found) & (int(found) - 1):
        raise StorageError(f"the layout of instance {instance_id} in the Redis Cluster is damaged: see {key.decode()}")
    return ClusterLayout(instance_id, int(found))


async def _told(slot: ClusterSlot, *commands: bytes) -> Any:
    """The last reply."""
    replies = await slot.ask(commands)
    for reply in replies:
        if error_word(reply):
            raise refused(reply, "the layout of an instance")
    return replies[-1]


def _tag(name: bytes, buckets: int, bucket: int) -> bytes:
    first, end = bucket * SLOTS // buckets, (bucket + 1) * SLOTS // buckets
    for attempt in numbers():
        tag = b"%b.%d-%d.%d" % (name, buckets, bucket, attempt)
        if first <= slot_of(tag) < end:
            return tag
    raise AssertionError("unreachable")
