"""The reads of MetaService (wire contract 4.6 to 4.10).

GetCacheLocation is hot: its reply is joined from bytes that were encoded when the location was made (design D2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvcm.common.errors import InvalidArgument
from kvcm.config.model import QueryType
from kvcm.data_storage.model import StorageType
from kvcm.manager.by_backend import BackendQuery, BackendSelector, SelectStrategy
from kvcm.manager.searcher import LocateQuery
from kvcm.manager.viewer import BlockDetail
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.key_packing import packed_block_keys
from kvcm.protocol.location_encoder import encode_ok_header, frame_vectors
from kvcm.service.meta_service_base import OK, MetaHandlers, domain_mask
from kvcm.service.rpc import Call, Reply

_PREFIX = int(QueryType.PREFIX_MATCH)
_WORTH_PACKING = 8  # fewer keys are looked up one by one faster than their request is serialised anew
_QUERY_TYPES = {int(kind): kind for kind in QueryType}
_STORAGE_TYPES = {int(kind): kind for kind in StorageType if kind is not StorageType.UNSPECIFIED}
_STRATEGIES = {int(strategy): strategy for strategy in SelectStrategy}
_DETAIL_SLICE = 64  # keys between two chances for others: a key costs some ten microseconds
_PREVIOUS_KEY = "BP#prev_key"


class MetaReads(MetaHandlers):
    async def get_cache_location(self, request: meta.GetCacheLocationRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        given = request.block_keys
        # Keys need no hashing, so the common call has nothing to wait for.
        keys = self._manager.keys_of(shard, given, ()) if given else await self._manager.keys_for(shard, given, request.token_ids)
        call.keys = call.queried_blocks = count = len(keys)
        masked = request.HasField("block_mask")
        names = request.location_spec_names
        if request.query_type == _PREFIX and not masked and not names and not request.want_checksums:
            packed = packed_block_keys(request) if count >= _WORTH_PACKING and given else None
            plain = self._manager.plain_prefix(shard, keys, packed, call.now_us)
            if plain is not None:
                parts, call.hit_blocks = plain
                return OK, b"".join((encode_ok_header(call.request_id), *parts))
        mask = domain_mask(request.block_mask) if masked else None
        query = LocateQuery(_query_type(request.query_type), keys, mask, request.sw_size, tuple(names), request.want_checksums)
        found = await self._manager.locate(shard, query, call.now_us)
        call.hit_blocks = found.hits
        tail = [] if found.checksums is None else [meta.GetCacheLocationResponse(checksums=found.checksums).SerializeToString()]
        return OK, b"".join((encode_ok_header(call.request_id), *found.parts, *tail))

    async def get_cache_location_len(self, request: meta.GetCacheLocationLenRequest, call: Call) -> Reply:
        """How many locations GetCacheLocation would answer with, padding not counted."""
        shard = self._shard(request.instance_id, call)
        keys = await self._manager.keys_for(shard, request.block_keys, request.token_ids)
        call.keys = call.queried_blocks = len(keys)
        found = await self._manager.locate(shard, LocateQuery(_query_type(request.query_type), keys, window=request.sw_size), call.now_us)
        call.hit_blocks = found.hits
        return OK, encode_ok_header(call.request_id) + meta.GetCacheLocationLenResponse(cache_location_len=found.hits).SerializeToString()

    async def get_cache_locations_by_backend(self, request: meta.GetCacheLocationsByBackendRequest, call: Call) -> Reply:
        """Mask and window of the request mean nothing here."""
        shard = self._shard(request.instance_id, call)
        keys = await self._manager.keys_for(shard, request.block_keys, request.token_ids)
        call.keys = call.queried_blocks = len(keys)
        if request.query_type != meta.QT_BATCH_GET:
            raise InvalidArgument("GetCacheLocationsByBackend answers QT_BATCH_GET only")
        query = BackendQuery(keys, [_selector(selector) for selector in request.backend_selectors], tuple(request.location_spec_names))
        found = await self._manager.locate_by_backend(shard, query, call.now_us)
        call.hit_blocks = sum(map(bool, found))
        return OK, b"".join((encode_ok_header(call.request_id), *frame_vectors(found)))

    async def get_cache_meta(self, request: meta.GetCacheMetaRequest, call: Call) -> Reply:
        shard = self._shard(request.instance_id, call)
        keys = await self._manager.keys_for(shard, request.block_keys, request.token_ids)
        if request.HasField("block_mask"):
            keys = domain_mask(request.block_mask).unmasked(keys)
        call.keys = len(keys)
        views = await self._manager.view_in_slices(shard, keys)
        tail = meta.GetCacheMetaResponse(metas=[view.meta_json for view in views]).SerializeToString()
        return OK, b"".join([encode_ok_header(call.request_id), *(view.wire for view in views), tail])

    async def get_cache_meta_detail(self, request: meta.GetCacheMetaDetailRequest, call: Call) -> Reply:
        """Others run after every few keys; each item is what was true when it was made."""
        shard = self._shard(request.instance_id, call)
        keys = await self._manager.keys_for(shard, request.block_keys, request.token_ids)
        positions: Sequence[int] = range(len(keys))
        if request.HasField("block_mask"):
            positions = domain_mask(request.block_mask).unmasked(positions)
        call.keys = len(positions)
        parts = [encode_ok_header(call.request_id)]
        for start in range(0, len(positions), _DETAIL_SLICE):
            if start:
                await asyncio.sleep(0)
            slice_ = positions[start : start + _DETAIL_SLICE]
            items = [_detail_item(position, keys[position], self._manager.detail(shard, keys[position])) for position in slice_]
            parts.append(meta.GetCacheMetaDetailResponse(items=items).SerializeToString())
        return OK, b"".join(parts)


def _query_type(number: int) -> QueryType:
    query_type = _QUERY_TYPES.get(number)
    if query_type is None:
        raise InvalidArgument(f"query_type {number} is unknown")
    return query_type


def _selector(selector: meta.BackendLocationSelector) -> BackendSelector:
    kind = _STORAGE_TYPES.get(selector.backend_type)
    if kind is None:
        raise InvalidArgument(f"backend_type {selector.backend_type} of backend_selectors is no kind of storage")
    strategy = _STRATEGIES.get(selector.strategy)
    if strategy is None:
        raise InvalidArgument(f"strategy {selector.strategy} of backend_selectors is unknown")
    return BackendSelector(kind, strategy)


def _detail_item(position: int, key: int, detail: BlockDetail) -> meta.CacheMetaDetailItem:
    item = meta.CacheMetaDetailItem(request_index=position, block_key=key, status=meta.Status(code=meta.OK))
    if not detail.locations:
        item.locations.add(status=meta.CLS_NOT_FOUND)
        return item
    if detail.previous_key is not None:
        item.prev_block_key = str(detail.previous_key)
    item.properties[_PREVIOUS_KEY] = item.prev_block_key
    for location in detail.locations:
        item.locations.add(
            location_id=location.location_id,
            status=int(location.status),
            type=location.type_code,
            spec_size=len(location.specs),
            create_time=location.create_time_us,
            location_specs=[meta.LocationSpec(name=name, uri=uri) for name, uri in location.specs],
        )
    return item
