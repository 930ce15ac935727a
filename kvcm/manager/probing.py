"""Ask storages whether the bytes of SERVING locations are there, and take out what is definitely gone (behaviour 4.3, design D5).

Only storages whose traits say so are asked (never plain NFS). A location counts as lost as soon as the storage says ABSENT for one of its specs: a block
with a missing part cannot be read. UNKNOWN means "do not use it for this read, and leave it alone".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvcm.common.errors import KvcmError
from kvcm.data_storage.port import Truth
from kvcm.manager.deleter import Deleter, Target
from kvcm.manager.ports import Leadership, Storages, WireCodec
from kvcm.manager.shard import InstanceShard
from kvcm.meta.location import AbsenceProof, Block, Location, Status, condemn, prove_absence

log = logging.getLogger("kvcm.probing")


@dataclass(frozen=True, slots=True)
class Probed:
    """What the storage said about one SERVING location, one truth per spec."""

    key: int
    location: Location
    truths: Sequence[Truth]

    @property
    def usable(self) -> bool:
        return all(truth is Truth.PRESENT for truth in self.truths)

    @property
    def lost(self) -> bool:
        return any(truth is Truth.ABSENT for truth in self.truths)


class Prober:
    def __init__(self, storages: Storages, codec: WireCodec) -> None:
        self._storages = storages
        self._codec = codec

    async def probe(self, shard: InstanceShard, keys: Iterable[int]) -> list[Probed]:
        """One entry per SERVING location of `keys` in a probing storage. Does not suspend when there is none."""
        probing = {slot for slot in shard.index.storage_slots() if self.probes(self._storages.name_of(slot))}
        if not probing:
            return []
        asked: list[tuple[int, Location, int, int]] = []
        uris: list[str] = []
        for key in dict.fromkeys(keys):
            for location in shard.index.get(key):
                if location.header[0] == Status.SERVING and location.storage_slot in probing:
                    start = len(uris)
                    uris.extend(uri for _, uri in self._codec.decode(location.wire)[1])
                    asked.append((key, location, start, len(uris)))
        truths = await self._storages.probe(uris) if uris else []
        return [Probed(key, location, truths[start:end]) for key, location, start, end in asked]

    def probes(self, storage_name: str) -> bool:
        backend = self._storages.backend(storage_name)
        return backend is not None and backend.traits.probe_on_read


class Pruner:
    """Take lost locations out. All bytes proven gone: the record goes at once. Some left: the ordinary deletion deals with them."""

    def __init__(self, deleter: Deleter, leadership: Leadership) -> None:
        self._deleter = deleter
        self._leadership = leadership

    async def prune(self, shard: InstanceShard, lost: Sequence[Probed], delay_us: int) -> None:
        """What has changed since the probe is left alone. Store failures are logged and left to the next read; never raises KvcmError."""
        gone = [(probed, proof) for probed in lost if (proof := prove_absence(probed.location, probed.truths)) is not None]
        partly = [probed for probed in lost if probed.lost and prove_absence(probed.location, probed.truths) is None]

        def plan(position: int, key: int, block: Block) -> Block | None:
            location = gone[position][0].location
            return tuple(condemn(loc) if loc == location else loc for loc in block) if location in block else None

        try:
            if partly:
                doomed = {probed.location for probed in partly}
                await self._deleter.condemn(shard, [probed.key for probed in partly], delay_us, lambda _, location: location in doomed)
            if gone:
                outcomes = await shard.index.mutate([probed.key for probed, _ in gone], plan, self._leadership.epoch)
                condemned = [(probed.key, condemn(probed.location), proof) for (probed, proof), outcome in zip(gone, outcomes, strict=True) if outcome.changed]
                self._deleter.stats.condemned += len(condemned)
                self._deleter.push(shard, await self._bury(shard, condemned), delay_us)
        except KvcmError as error:
            log.warning("prune_failed instance=%s locations=%d: %s", shard.instance_id, len(lost), error.message)
            return
        log.info("pruned instance=%s locations=%d: their bytes are gone from the storage", shard.instance_id, len(lost))

    async def _bury(self, shard: InstanceShard, condemned: Sequence[tuple[int, Location, AbsenceProof]]) -> list[Target]:
        """Those that are still there as DELETING, and so have to be queued."""
        try:
            return await self._deleter.bury_proven(shard, condemned)
        except KvcmError:
            return [(key, location.location_id) for key, location, _ in condemned]
