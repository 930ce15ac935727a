"""What the index holds for a key, whatever its state (wire contract 4.9, 4.10). Looking is no access: it touches nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from kvcm.manager.ports import WireCodec
from kvcm.manager.shard import InstanceShard
from kvcm.meta.encoder import LocationSpec
from kvcm.meta.location import Location, Status, is_reported, previous_key_of

_SLICE = 256
_USEFULNESS = (Status.SERVING, Status.WRITING, Status.NEW, Status.DELETING)
_NOT_FOUND = '{"status":"CLS_NOT_FOUND"}'


@dataclass(frozen=True, slots=True)
class BlockView:
    """What GetCacheMeta shows of one key: framed location bytes and a small JSON text."""

    wire: bytes
    meta_json: str


@dataclass(frozen=True, slots=True)
class LocationDetail:
    """`create_time_us`: microseconds since the epoch."""

    location_id: str
    status: Status
    type_code: int
    create_time_us: int
    specs: Sequence[LocationSpec]


@dataclass(frozen=True, slots=True)
class BlockDetail:
    """Every location of a block that may be known, oldest first; none when the block does not exist.

    `previous_key`: the key in front of it in the request that wrote the oldest location; None for the first key of a request. It is part of each stored
    location, so it costs no memory of its own; when that location goes, the next one's request counts.
    """

    previous_key: int | None
    locations: Sequence[LocationDetail]


class Viewer:
    def __init__(self, codec: WireCodec) -> None:
        self._codec = codec

    def view(self, shard: InstanceShard, keys: Sequence[int]) -> list[BlockView]:
        """One entry per key: its most useful location whatever its state (SERVING before WRITING before DELETING)."""
        return [self._view_one(shard, key) for key in keys]

    async def view_in_slices(self, shard: InstanceShard, keys: Sequence[int]) -> list[BlockView]:
        """`view`, letting others run after every few keys; each entry is what was true when it was made."""
        views: list[BlockView] = []
        for start in range(0, len(keys), _SLICE):
            if start:
                await asyncio.sleep(0)
            views.extend(self.view(shard, keys[start : start + _SLICE]))
        return views

    def detail(self, shard: InstanceShard, key: int) -> BlockDetail:
        block = shard.get_shown(key)
        written = next((location for location in block if not is_reported(location)), None)
        return BlockDetail(previous_key_of(written) if written else None, [self._detail_one(shard, location) for location in block])

    def _view_one(self, shard: InstanceShard, key: int) -> BlockView:
        block = shard.get_shown(key)
        if not block:
            return BlockView(self._codec.encode(0, ()), _NOT_FOUND)
        location = min(block, key=lambda loc: _USEFULNESS.index(loc.status))
        text = json.dumps({"id": _public_id(shard, location), "status": f"CLS_{location.status.name}"}, separators=(",", ":"))
        return BlockView(location.wire, text)

    def _detail_one(self, shard: InstanceShard, location: Location) -> LocationDetail:
        specs = self._codec.decode(location.wire)[1]
        return LocationDetail(_public_id(shard, location), location.status, location.type_code, location.create_time_us, specs)


def _public_id(shard: InstanceShard, location: Location) -> str:
    return location.location_id if shard.reports is None or not is_reported(location) else shard.reports.public_id(location)
