"""What the parts of MetaService share: finding the instance of a call, its keys, and masks between wire and domain."""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import ErrorCode
from kvcm.manager.cache_manager import CacheManager
from kvcm.manager.shard import InstanceShard
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.mask_codec import mask_from_proto
from kvcm.service.rpc import Call

OK = int(ErrorCode.OK)


class MetaHandlers:
    """Base of the handler classes. Every request of an instance fails first when the instance is unknown (wire contract 4.2)."""

    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager

    def _shard(self, instance_id: str, call: Call) -> InstanceShard:
        shard = self._manager.shard(instance_id)
        call.instance = instance_id
        call.group = shard.instance.instance_group_name
        return shard


def domain_mask(proto: meta.BlockMask) -> BlockMask:
    mask = mask_from_proto(proto)
    return BlockMask(offset=mask) if isinstance(mask, int) else BlockMask(values=mask)


def proto_mask(mask: BlockMask) -> int | Sequence[bool]:
    return mask.offset if mask.values is None else mask.values
