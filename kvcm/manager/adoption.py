"""Tell storages which places live, so that a packed file goes with its last block and never before.

Needed whenever an opened storage cannot know: after the metadata was loaded, and when a storage comes back as a new object (it was quarantined at recovery,
or removed and added again). The danger is a storage that knows *some* blocks of a file: it may take the file with the last of those. So nothing of a shard
is deleted while its places are being told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from kvcm.data_storage.port import PACKED_MARK
from kvcm.manager.ports import Leadership, Storages, WireCodec
from kvcm.manager.shard import InstanceShard


class Adopter:
    def __init__(self, storages: Storages, codec: WireCodec, leadership: Leadership) -> None:
        self._storages = storages
        self._codec = codec
        self._leadership = leadership

    async def adopt_loaded(self, shard: InstanceShard) -> None:
        """After a load: every place of the shard."""
        await self._adopt(shard, set(shard.index.storage_slots()))

    def adopt_later(self, shard: InstanceShard) -> None:
        """The same, but by the next `adopt_returned`; until then nothing of the shard is deleted."""
        slots = shard.index.storage_slots()
        shard.upkeep.adopted.update(dict.fromkeys(slots))
        shard.upkeep.deletion_paused = any(self._storages.backend(self._storages.name_of(slot)) is not None for slot in slots)

    async def adopt_returned(self, shard: InstanceShard) -> None:
        """The places in storages that have been opened anew since the shard last looked. Cheap when there is none."""
        returned = set()
        for slot in shard.index.storage_slots():
            backend = self._storages.backend(self._storages.name_of(slot))
            # The first location in a storage was allocated there, so the storage knows it.
            if shard.upkeep.adopted.setdefault(slot, backend) is not backend and backend is not None:
                returned.add(slot)
        if returned:
            await self._adopt(shard, returned)

    async def _adopt(self, shard: InstanceShard, slots: Collection[int]) -> None:
        backends = {slot: self._storages.backend(self._storages.name_of(slot)) for slot in slots}
        # Until all is told: a walk that does not come to its end (leadership goes) lets nothing be deleted, and the next one begins anew.
        shard.upkeep.deletion_paused = True
        shard.upkeep.adopted.update(dict.fromkeys(slots))
        for page in shard.index.pages():
            if self._leadership.ending:
                return
            uris: dict[int, list[str]] = {}
            for key in page:
                for location in shard.index.get(key):
                    # Looked for in the encoded bytes: almost no place is packed, and decoding a million costs seconds.
                    if PACKED_MARK in location.wire and backends.get(location.storage_slot) is not None:
                        uris.setdefault(location.storage_slot, []).extend(uri for _, uri in self._codec.decode(location.wire)[1])
            for slot, places in uris.items():
                backend = backends[slot]
                if backend is not None:
                    backend.adopt(places)
            await asyncio.sleep(0)
        shard.upkeep.adopted.update(backends)
        shard.upkeep.deletion_paused = False
