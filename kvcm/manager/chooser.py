"""Which stored locations may answer a read, and which of them does (behaviour 4.3, wire contract 4.6).

Truth about bytes comes from the storage and has three values: only ABSENT hides a location and takes it out; UNKNOWN skips it for this read and leaves it
alone. A probe suspends, so locations are read again afterwards: a reply never contains one that is not SERVING at the time it is built (I-LOC-4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from random import Random

from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import StorageType
from kvcm.manager.errors import AllStoragesDown
from kvcm.manager.ports import Storages, WireCodec
from kvcm.manager.probing import Probed, Prober
from kvcm.manager.shard import InstanceShard
from kvcm.meta.location import REPORTED_CODES, Location, Status, place_of

STATIC_WEIGHTS = {StorageType.NFS: 5, StorageType.MOONCAKE: 3, StorageType.HF3FS: 3, StorageType.TAIR_MEMPOOL: 3}
_DEFAULT_WEIGHT = 1

Chosen = tuple[bytes, int]
"""(framed CacheLocation bytes, checksum)."""

Usable = Mapping[bytes, Sequence[Location]]
"""Place (see `place_of`: storage type and storage; and the host, when hosts report the storage) -> locations there that may be read now, oldest first."""


class Chooser:
    def __init__(
        self,
        storages: Storages,
        codec: WireCodec,
        random: Random,
        prober: Prober,
        on_lost: Callable[[InstanceShard, list[Probed]], None],
    ) -> None:
        """`on_lost` is told of SERVING locations whose bytes are definitely gone; it must not suspend."""
        self._storages = storages
        self._codec = codec
        self._random = random
        self._prober = prober
        self._on_lost = on_lost

    def is_plain(self, shard: InstanceShard) -> bool:
        """Is every storage in use available, without having to be asked about its bytes, and is nothing there that may have to be hidden?"""
        for slot in shard.index.storage_slots():
            name = self._storages.name_of(slot)
            storage = self._storages.get(name)
            if storage is None or storage.type.reported or not self._storages.available(name) or self._prober.probes(name):
                return False
        return True

    async def doubtful(self, shard: InstanceShard, group: InstanceGroup | None, keys: Iterable[int]) -> set[Location]:
        """SERVING locations of `keys` that must not be used now; lost ones are reported, wherever they stand in the request.

        Raises AllStoragesDown. Suspends only when a storage has to be asked.
        """
        self._check_storages(shard, group)
        unusable = [probed for probed in await self._prober.probe(shard, keys) if not probed.usable]
        if not unusable:
            return set()
        lost = [probed for probed in unusable if probed.lost]
        if lost:
            self._on_lost(shard, lost)
        self._check_storages(shard, group)  # the probe may be what found out that a mount is gone
        return {probed.location for probed in unusable}

    def usable(self, shard: InstanceShard, key: int, doubtful: Set[Location]) -> Usable:
        """The locations of a key that may answer, by place."""
        found: dict[bytes, list[Location]] = {}
        reports = shard.reports
        for location in shard.index.get(key):
            if location.header[0] != Status.SERVING or location in doubtful:
                continue
            place = place_of(location.header)
            if reports is not None and place[0] in REPORTED_CODES:
                source = reports.source_of(location)
                if source is None or not reports.is_shown(location):
                    continue
                place += source.reporter.host.encode()  # hosts do not share bytes, so their copies are not merged
            if place in found:
                found[place].append(location)
            elif self._storages.available(self._storages.name_of(location.storage_slot)):
                found[place] = [location]
        return found

    def choose(self, shard: InstanceShard, key: int, doubtful: Set[Location]) -> Chosen | None:
        """One answer among the usable locations of a key: a storage drawn by weight, its locations merged."""
        usable = self.usable(shard, key, doubtful)
        return self.merge(self.draw(usable)) if usable else None

    def draw(self, usable: Usable) -> Sequence[Location]:
        """The locations of one place, drawn by weight; `usable` must not be empty."""
        places = list(usable.values())
        if len(places) == 1:
            return places[0]
        return self._random.choices(places, [STATIC_WEIGHTS.get(StorageType(place[0].type_code), _DEFAULT_WEIGHT) for place in places])[0]

    def merge(self, locations: Sequence[Location]) -> Chosen:
        """One answer from the locations of one place. One that is alone stays as it was written; else each spec once, by name."""
        first = locations[0]
        if len(locations) == 1:
            return first.wire, first.checksum
        specs: dict[str, str] = {}
        for location in locations:
            for name, uri in self._codec.decode(location.wire)[1]:
                specs.setdefault(name, uri)
        return self._codec.encode(first.type_code, sorted(specs.items())), first.checksum

    def _check_storages(self, shard: InstanceShard, group: InstanceGroup | None) -> None:
        """An unreadable group is an error, not a miss: an engine must not recompute and rewrite everything because a mount is gone."""
        names = [self._storages.name_of(slot) for slot in shard.index.storage_slots()]
        if names and group is not None:
            names.extend(group.storage_candidates)
        if names and not any(self._storages.available(name) for name in names):
            raise AllStoragesDown("no storage of this instance group is available; check that its storages are enabled and mounted")
