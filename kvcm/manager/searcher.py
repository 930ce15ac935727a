"""Reads: which locations answer a query (behaviour section 4, wire contract 4.6). The hot path.

While every storage that holds blocks of the instance is available and needs no probe, a prefix read is one C-level loop over published bytes; only keys
with a choice to make (several locations) are looked at one by one. Otherwise every key goes through `_choose`.

Truth about bytes comes from the storage and has three values: only ABSENT hides a location and takes it out; UNKNOWN skips it for this read and leaves it
alone. A probe suspends, so locations are read again afterwards: a reply never contains one that is not SERVING at the time it is built (I-LOC-4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from random import Random

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import InvalidArgument, Unsupported
from kvcm.config.model import InstanceGroup, QueryType
from kvcm.data_storage.model import StorageType
from kvcm.manager.errors import AllStoragesDown
from kvcm.manager.ports import Storages, WireCodec
from kvcm.manager.probing import Probed, Prober
from kvcm.manager.shard import InstanceShard
from kvcm.meta.block_table import Part
from kvcm.meta.location import Location, Status

_STATIC_WEIGHTS = {StorageType.NFS: 5, StorageType.MOONCAKE: 3, StorageType.HF3FS: 3, StorageType.TAIR_MEMPOOL: 3}
_DEFAULT_WEIGHT = 1
_STRETCH = 256


@dataclass(frozen=True, slots=True)
class LocateQuery:
    query_type: QueryType
    keys: Sequence[int]
    mask: BlockMask | None = None
    window: int = 0
    spec_names: Collection[str] = ()
    want_checksums: bool = False


@dataclass(slots=True)
class Located:
    """`parts`: framed CacheLocation bytes in reply order, one or more locations each. `checksums`: one per location, when asked for.
    `hits`: how many are no padding.
    """

    parts: list[Part]
    hits: int
    checksums: list[int] | None = None


Chosen = tuple[bytes, int]
"""(framed bytes, checksum)."""


class Searcher:
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

    async def locate(self, shard: InstanceShard, group: InstanceGroup | None, query: LocateQuery, now_us: int) -> Located:
        """Answer one query. Raises InvalidArgument (unspecified type, window out of range), Unsupported, AllStoragesDown."""
        if query.query_type is QueryType.PREFIX_MATCH:
            keys = query.keys if query.mask is None else query.mask.unmasked(query.keys)
            if not query.spec_names and not query.want_checksums:
                plain = self.plain_prefix(shard, keys, None, now_us)
                if plain is not None:
                    return Located(*plain)
            return self._finish(query, await self._prefix(shard, group, keys, now_us), shard)
        if query.query_type is QueryType.BATCH_GET:
            chosen = await self._choose_all(shard, group, query.keys)
            self._touch(shard, query.keys, chosen, now_us)
            return self._finish(query, chosen, shard)
        if query.query_type is QueryType.REVERSE_ROLL_SW_MATCH:
            return self._finish(query, await self._window(shard, group, query, now_us), shard)
        if query.query_type is QueryType.UNSPECIFIED:
            raise InvalidArgument("query_type must be set: QT_BATCH_GET, QT_PREFIX_MATCH or QT_REVERSE_ROLL_SW_MATCH")
        raise Unsupported(f"query_type {int(query.query_type)} is not served for cache locations")

    # -- prefix --------------------------------------------------------------------------------------------------------------------------------

    def plain_prefix(self, shard: InstanceShard, keys: Sequence[int], packed: bytes | None, now_us: int) -> tuple[list[Part], int] | None:
        """The hot path: (framed locations in parts, hits). None unless every storage in use is available and needs no probe.

        `packed`: the same keys in the index's packing, if the caller has them so.
        """
        index = shard.index
        stamp = (self._storages.availability_epoch, index.slots_version)
        if stamp != shard.plain_stamp:
            shard.plain, shard.plain_stamp = self._is_plain(shard), stamp
        if not shard.plain:
            return None
        parts: list[Part] = []
        total = len(keys)
        done = index.serving_run(keys, parts, packed)
        if done < total:
            done = self._plain_rest(shard, keys, done, parts)
        if done:
            index.access.touch_end(keys[done - 1], now_us)
        return parts, done

    def _is_plain(self, shard: InstanceShard) -> bool:
        for slot in shard.index.storage_slots():
            name = self._storages.name_of(slot)
            if not self._storages.available(name) or self._prober.probes(name):
                return False
        return True

    def _plain_rest(self, shard: InstanceShard, keys: Sequence[int], done: int, parts: list[Part]) -> int:
        """Go on behind a key that has no single SERVING location: it may have several, and others may follow. Returns how many keys are hits."""
        total = len(keys)
        while done < total:
            chosen = self._choose(shard, keys[done], frozenset())
            if chosen is None:
                break
            parts.append(chosen[0])
            done += 1
            while done < total:  # a stretch at a time: copying all that is left after each such key would be quadratic
                stretch = keys[done : done + _STRETCH]
                run = shard.index.serving_run(stretch, parts)
                done += run
                if run < len(stretch):
                    break
        return done

    async def _prefix(self, shard: InstanceShard, group: InstanceGroup | None, keys: Sequence[int], now_us: int) -> list[Chosen | None]:
        chosen = await self._choose_all(shard, group, keys)
        length = next((index for index, hit in enumerate(chosen) if hit is None), len(chosen))
        if length:
            shard.index.access.touch_chain(keys[length - 1], now_us)
        return chosen[:length]

    # -- window --------------------------------------------------------------------------------------------------------------------------------

    async def _window(self, shard: InstanceShard, group: InstanceGroup | None, query: LocateQuery, now_us: int) -> list[Chosen | None]:
        if not 1 <= query.window <= len(query.keys):
            raise InvalidArgument(f"sw_size must be between 1 and the number of keys ({len(query.keys)}), not {query.window}")
        chosen = await self._choose_all(shard, group, query.keys)
        end = _last_run(chosen, query.window)
        first = end - query.window
        kept = [hit if first <= index < end else None for index, hit in enumerate(chosen)]
        self._touch(shard, query.keys, kept, now_us)
        return kept

    # -- choosing ------------------------------------------------------------------------------------------------------------------------------

    async def _choose_all(self, shard: InstanceShard, group: InstanceGroup | None, keys: Sequence[int]) -> list[Chosen | None]:
        self._check_storages(shard, group)
        doubtful = await self._probe(shard, keys)
        if doubtful:  # the probe may be what found out that a mount is gone
            self._check_storages(shard, group)
        return [self._choose(shard, key, doubtful) for key in keys]

    async def _probe(self, shard: InstanceShard, keys: Sequence[int]) -> set[Location]:
        """SERVING locations that must not be used now. Lost ones are reported, wherever they stand in the request."""
        unusable = [probed for probed in await self._prober.probe(shard, keys) if not probed.usable]
        lost = [probed for probed in unusable if probed.lost]
        if lost:
            self._on_lost(shard, lost)
        return {probed.location for probed in unusable}

    def _choose(self, shard: InstanceShard, key: int, doubtful: Set[Location]) -> Chosen | None:
        """One answer among the usable locations of a key: a storage drawn by weight, its locations merged."""
        usable: dict[int, list[Location]] = {}
        for location in shard.index.get(key):
            if location.header[0] != Status.SERVING or location in doubtful:
                continue
            slot = location.storage_slot
            if slot in usable:
                usable[slot].append(location)
            elif self._storages.available(self._storages.name_of(slot)):
                usable[slot] = [location]
        if not usable:
            return None
        slots = list(usable)
        slot = slots[0] if len(slots) == 1 else self._random.choices(slots, [self._weight(usable[s][0]) for s in slots])[0]
        return self._merge(usable[slot])

    @staticmethod
    def _weight(location: Location) -> int:
        return _STATIC_WEIGHTS.get(StorageType(location.type_code), _DEFAULT_WEIGHT)

    def _merge(self, locations: Sequence[Location]) -> Chosen:
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

    # -- replies -------------------------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _touch(shard: InstanceShard, keys: Sequence[int], chosen: Sequence[Chosen | None], now_us: int) -> None:
        shard.index.access.touch_keys((key for key, hit in zip(keys, chosen, strict=True) if hit is not None), now_us)

    def _finish(self, query: LocateQuery, chosen: Sequence[Chosen | None], shard: InstanceShard) -> Located:
        padding: Chosen = (shard.padded, 0)
        entries = [padding if hit is None else hit for hit in chosen]
        parts: list[Part] = [wire for wire, _ in entries]
        if query.spec_names:
            wanted = set(query.spec_names)
            parts = [self._filter(wire, wanted) for wire, _ in entries]
        hits = sum(hit is not None for hit in chosen)
        return Located(parts, hits, [checksum for _, checksum in entries] if query.want_checksums else None)

    def _filter(self, wire: bytes, wanted: Collection[str]) -> bytes:
        type_code, specs = self._codec.decode(wire)
        return self._codec.encode(type_code, [spec for spec in specs if spec[0] in wanted])


def _last_run(chosen: Sequence[Chosen | None], width: int) -> int:
    """End (exclusive) of the right-most run of `width` hits, 0 if there is none."""
    run = 0
    for index in range(len(chosen) - 1, -1, -1):
        run = run + 1 if chosen[index] is not None else 0
        if run == width:
            return index + width
    return 0
