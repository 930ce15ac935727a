"""Does a block have to be written? (wire contract 4.12, behaviour 3.5)

One rule for every form of the answer. A location that may be seen (see InstanceShard) counts as "there" when it is

- WRITING or SERVING in an available storage, and covers the specs that are asked for; a SERVING one whose bytes are definitely gone does not count;
- DELETING in a storage whose paths are not unique: a new allocation would get the very same bytes (I-DS-6).

The same goes for any location in a storage without unique paths that shares a spec with the new one: a second copy there would be the first copy's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.data_storage.model import Storage
from kvcm.manager.ports import Storages, WireCodec
from kvcm.manager.shard import InstanceShard
from kvcm.meta.location import Block, Location, Status


class Presence:
    def __init__(self, storages: Storages, codec: WireCodec) -> None:
        self._storages = storages
        self._codec = codec

    def missing(self, shard: InstanceShard, keys: Sequence[int], wanted: Sequence[Sequence[str]], min_replicas: int) -> list[int]:
        """Positions to write. A key that occurs twice is missing at its first position only, unless its second one asks for other specs."""
        if shard.reports is None and not shard.has_groups and not any(shard.index.get_all(keys)) and len(set(keys)) == len(keys):
            return list(range(len(keys)))
        get = shard.index.get if shard.reports is None else shard.get_shown
        seen: set[object] = set()
        positions = []
        for position, key in enumerate(keys):
            mark: object = (key, *wanted[position]) if shard.has_groups else key
            if mark in seen:
                continue
            block = get(key)
            if not block or self.is_missing(block, wanted[position], min_replicas, shard.has_groups, None):
                seen.add(mark)
                positions.append(position)
        return positions

    def is_missing(self, block: Block, wanted: Sequence[str], min_replicas: int, check_coverage: bool, target: Storage | None) -> bool:
        """Is a location for the specs `wanted` still to be written? `target`: the storage that would take it, when it is chosen already."""
        names = frozenset(wanted)
        count = 0
        for location in block:
            name = self._storages.name_of(location.storage_slot)
            if not self._unique_paths(name):
                if target is not None and target.name == name and not names.isdisjoint(self._spec_names(location)):
                    return False
                if location.header[0] == Status.DELETING:
                    if not names.isdisjoint(self._spec_names(location)):
                        return False
                    continue
            if location.header[0] == Status.DELETING:
                continue
            # In the target, availability says nothing: a second copy there would be just as unavailable.
            if not self._storages.available(name) and (target is None or target.name != name):
                continue
            if check_coverage and not names <= self._spec_names(location):
                continue
            count += 1
        return count < max(1, min_replicas)

    def _spec_names(self, location: Location) -> frozenset[str]:
        return frozenset(name for name, _ in self._codec.decode(location.wire)[1])

    def _unique_paths(self, name: str) -> bool:
        backend = self._storages.backend(name)
        # A storage that cannot be opened is treated as the stricter kind.
        return backend is not None and backend.traits.unique_paths
