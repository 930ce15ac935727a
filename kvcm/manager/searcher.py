"""Reads: which locations answer a query (behaviour section 4, wire contract 4.6). The hot path.

While every storage that holds blocks of the instance is available and needs no probe, a prefix read is one C-level loop over published bytes; only keys
with a choice to make (several locations) are looked at one by one. Otherwise every key goes through the chooser.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import InvalidArgument, Unsupported
from kvcm.config.model import InstanceGroup, QueryType
from kvcm.manager.chooser import Chooser, Chosen
from kvcm.manager.ports import Storages, WireCodec
from kvcm.manager.shard import InstanceShard
from kvcm.meta.block_table import Part

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


class Searcher:
    def __init__(self, storages: Storages, codec: WireCodec, chooser: Chooser) -> None:
        self._storages = storages
        self._codec = codec
        self._chooser = chooser

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
            shard.plain, shard.plain_stamp = self._chooser.is_plain(shard), stamp
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

    def _plain_rest(self, shard: InstanceShard, keys: Sequence[int], done: int, parts: list[Part]) -> int:
        """Go on behind a key that has no single SERVING location: it may have several, and others may follow. Returns how many keys are hits."""
        total = len(keys)
        while done < total:
            chosen = self._chooser.choose(shard, keys[done], frozenset())
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

    async def _choose_all(self, shard: InstanceShard, group: InstanceGroup | None, keys: Sequence[int]) -> list[Chosen | None]:
        doubtful = await self._chooser.doubtful(shard, group, keys)
        choose = self._chooser.choose
        return [choose(shard, key, doubtful) for key in keys]

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
