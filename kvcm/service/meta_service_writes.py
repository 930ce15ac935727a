"""The writes of MetaService (wire contract 4.12 to 4.15). Starting and finishing a write are hot."""

from __future__ import annotations

from kvcm.common.errors import InvalidArgument, Unsupported
from kvcm.manager.trimmer import TrimRange
from kvcm.manager.writer import StartWrite
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import encode_ok_header, reframe_all
from kvcm.protocol.mask_codec import mask_to_proto
from kvcm.service.meta_service_base import OK, MetaHandlers, domain_mask, proto_mask
from kvcm.service.replies import missing
from kvcm.service.rpc import Call, Reply

_LOCATIONS_IN_START_WRITE = 4


class MetaWrites(MetaHandlers):
    async def start_write_cache(self, request: meta.StartWriteCacheRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        keys = await self._manager.keys_for(shard, request.block_keys[:], request.token_ids)
        call.keys = len(keys)
        names = request.location_spec_group_names
        wanted = StartWrite(keys, tuple(names) if names else (), request.write_timeout_seconds, request.min_replica_count)
        started = await self._manager.start_write(shard, wanted)
        head = meta.StartWriteCacheResponse(write_session_id=started.session_id)
        mask_to_proto(proto_mask(started.mask), head.block_mask)
        parts = [encode_ok_header(call.request_id), head.SerializeToString()]
        parts.extend(reframe_all(started.locations, _LOCATIONS_IN_START_WRITE))
        return OK, b"".join(parts)

    async def finish_write_cache(self, request: meta.FinishWriteCacheRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        if not request.write_session_id:
            raise missing("FinishWriteCache", "write_session_id")
        if not request.HasField("success_blocks"):
            raise missing("FinishWriteCache", "success_blocks")
        await self._manager.finish_write(shard, request.write_session_id, domain_mask(request.success_blocks), request.checksums[:])
        return OK, encode_ok_header(call.request_id)

    async def remove_cache(self, request: meta.RemoveCacheRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        keys = await self._manager.keys_for(shard, request.block_keys, request.token_ids)
        call.keys = len(keys)
        await self._manager.remove_cache(shard, keys)
        return OK, encode_ok_header(call.request_id)

    async def trim_cache(self, request: meta.TrimCacheRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        await self._manager.trim(shard, _trim_range(request))
        return OK, encode_ok_header(call.request_id)


def _trim_range(request: meta.TrimCacheRequest) -> TrimRange | None:
    if request.strategy == meta.TS_REMOVE_ALL_CACHE:
        return None
    if request.strategy == meta.TS_UNSPECIFIED:
        raise missing("TrimCache", "strategy")
    if request.strategy != meta.TS_TIMESTAMP:
        raise Unsupported(f"trim strategy {request.strategy} is not served; use TS_REMOVE_ALL_CACHE or TS_TIMESTAMP")
    if request.begin_timestamp < 0 or request.begin_timestamp > request.end_timestamp:
        raise InvalidArgument("a trim by time needs 0 <= begin_timestamp <= end_timestamp, in seconds since the epoch")
    return TrimRange(request.begin_timestamp, request.end_timestamp)
