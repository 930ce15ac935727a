"""I-SEL-1 .. I-SEL-4 (behaviour 6): which storage takes new blocks, over all groups, storages and usages."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import CapacityReached, NotFound
from kvcm.config.model import CacheConfig, CachePreferStrategy, InstanceGroup, MetaIndexerConfig, Quota, QuotaConfig
from kvcm.data_storage.model import NfsSpec, Storage, StorageType
from kvcm.manager.errors import NoStorage, QuotaReached
from kvcm.manager.ports import Storages
from kvcm.manager.selector import select_storage
from kvcm.manager.testing import SIZE, ManagerWorld
from kvcm.meta.usage import UsageCounter
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.property

NAMES = ("a", "b", "c", "d")
TYPES = [kind for kind in StorageType if kind is not StorageType.UNSPECIFIED]
KIND_OF = {
    CachePreferStrategy.ALWAYS_3FS: StorageType.HF3FS,
    CachePreferStrategy.ALWAYS_MOONCAKE: StorageType.MOONCAKE,
    CachePreferStrategy.ALWAYS_TAIR_MEMPOOL: StorageType.TAIR_MEMPOOL,
    CachePreferStrategy.ALWAYS_VCNS_3FS: StorageType.VCNS_HF3FS,
    CachePreferStrategy.ALWAYS_TAIR_MEMPOOL_SSD: StorageType.TAIR_MEMPOOL_SSD,
}


@dataclass
class Known:
    storages: dict[str, Storage]
    up: set[str]

    def get(self, name: str) -> Storage | None:
        return self.storages.get(name)

    def available(self, name: str) -> bool:
        return name in self.up


def _group(candidates: list[str], strategy: CachePreferStrategy, capacity: int, by_type: list[tuple[StorageType, int]]) -> InstanceGroup:
    quota = Quota(capacity, tuple(QuotaConfig(kind, limit) for kind, limit in by_type))
    return InstanceGroup("g", tuple(candidates), "q", 0, quota, CacheConfig(data_storage_strategy=strategy, meta_indexer=MetaIndexerConfig()))


def _known(types: dict[str, StorageType], up: set[str]) -> Known:
    return Known({name: Storage(name, kind, NfsSpec("/x/")) for name, kind in types.items()}, up)


def _usage(used: list[tuple[StorageType, int]]) -> UsageCounter:
    counter = UsageCounter()
    for kind, amount in used:
        counter.add_bytes(int(kind), amount)
    return counter


AMOUNTS = st.integers(0, 30)
GROUPS = st.builds(
    _group,
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=5),
    st.sampled_from(CachePreferStrategy),
    st.one_of(st.integers(-2, 60), st.integers(80, 200)),
    st.lists(st.tuples(st.sampled_from(TYPES), AMOUNTS), max_size=4),
)
KNOWN = st.builds(_known, st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TYPES)), st.sets(st.sampled_from(NAMES)))
USAGE = st.lists(st.tuples(st.sampled_from(TYPES), AMOUNTS), max_size=4)


def chosen(group: InstanceGroup, known: Known, used: list[tuple[StorageType, int]], wanted: int) -> Storage | None:
    try:
        return select_storage(group, cast(Storages, known), _usage(used), wanted)
    except (QuotaReached, NoStorage):
        return None


@given(GROUPS, KNOWN, USAGE, AMOUNTS)
@settings(deadline=None, max_examples=100)
def test_I_SEL_1_the_choice_is_a_candidate_available_and_within_its_quota(
    group: InstanceGroup, known: Known, used: list[tuple[StorageType, int]], wanted: int
) -> None:
    storage = chosen(group, known, used, wanted)
    if storage is None:
        return
    assert storage.name in group.storage_candidates
    assert storage.name in known.up
    assert storage.type.allocatable
    usage = _usage(used)
    for quota in group.quota.by_type:
        if quota.storage_type.quota_type is storage.type.quota_type:  # VCNS 3FS counts as 3FS
            assert usage.bytes_of(storage.type) + wanted <= quota.capacity


@given(GROUPS, KNOWN, USAGE, AMOUNTS)
@settings(deadline=None, max_examples=100)
def test_I_SEL_2_always_x_gives_type_x_only(group: InstanceGroup, known: Known, used: list[tuple[StorageType, int]], wanted: int) -> None:
    for strategy, kind in KIND_OF.items():
        storage = chosen(replace(group, cache_config=replace(group.cache_config, data_storage_strategy=strategy)), known, used, wanted)
        assert storage is None or storage.type is kind


@given(GROUPS, KNOWN, USAGE, AMOUNTS)
@settings(deadline=None, max_examples=100)
def test_I_SEL_3_the_choice_is_repeatable_and_follows_the_configured_order(
    group: InstanceGroup, known: Known, used: list[tuple[StorageType, int]], wanted: int
) -> None:
    storage = chosen(group, known, used, wanted)
    assert storage == chosen(group, known, used, wanted)
    anything = replace(group, cache_config=CacheConfig(data_storage_strategy=CachePreferStrategy.UNSPECIFIED))
    open_ = [name for name in group.storage_candidates if chosen(replace(anything, storage_candidates=(name,)), known, used, wanted) is not None]
    if storage is None:
        assert not open_ or group.cache_config.data_storage_strategy in KIND_OF
        return
    alike = [name for name in open_ if known.storages[name].type is storage.type]
    assert storage.name in (open_[0], alike[0])


@given(st.integers(-5, 3), st.integers(1, 4), st.integers(1, 4))
@settings(deadline=None, max_examples=25)
def test_I_SEL_4_no_place_is_allocated_when_the_group_is_full(blocks_of_room: int, first: int, second: int) -> None:
    async def story(root: Path) -> None:
        world = ManagerWorld(root, ProtoLocationEncoder())
        await world.open()
        await world.add_storage("s")
        await world.add_group(world.group("g", ["s"], capacity=blocks_of_room * SIZE))
        await world.manager.register(world.instance("i", "g"))
        used = 0
        for start, count in ((0, first), (100, second)):
            allocated = len(world.storages.allocated)
            try:
                write = await world.start("i", range(start, start + count))
            except (CapacityReached, NotFound):
                assert used + count > blocks_of_room
                assert len(world.storages.allocated) == allocated
            else:
                used += len(write.keys)
                assert used <= blocks_of_room
        assert world.manager.group_usage("g").total == used * SIZE

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))
