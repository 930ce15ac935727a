"""StartWriteCache (wire contract 4.12): what counts as there already, in which form that is said, and which places are handed out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import InvalidArgument
from kvcm.common.uri import parse_uri
from kvcm.config.model import CachePreferStrategy
from kvcm.data_storage.model import StorageType
from kvcm.manager.errors import NoStorage, QuotaReached, SessionUnknown
from kvcm.manager.testing import SIZE, ManagerWorld, Write
from kvcm.meta.errors import KeyLimitReached
from kvcm.meta.location import Status
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

SPECS = [("tp0", SIZE), ("tp1", 2 * SIZE)]
GROUPS = [("A", ["tp0"]), ("B", ["tp1"]), ("both", ["tp1", "tp0"]), ("none", [])]


def run(root: Path, story: Callable[[ManagerWorld], Awaitable[None]]) -> None:
    """`i` has one spec, `two` has two of them in groups."""

    async def whole() -> None:
        world = ManagerWorld(root, ProtoLocationEncoder())
        await world.simple()
        await world.manager.register(world.instance("two", "g", SPECS, GROUPS))
        await story(world)

    asyncio.run(whole())


def names(write: Write) -> list[list[str]]:
    return [list(places) for places in write.uris]


def test_the_worked_cases_of_the_contract(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        for keys, mask, handed_out in [
            ([1, 2, 3, 4], BlockMask(offset=0), [1, 2, 3, 4]),
            ([1, 2, 3, 4], BlockMask(offset=4), []),
            ([1, 2, 3, 4, 5, 6], BlockMask(offset=4), [5, 6]),
            ([5, 6, 7, 8], BlockMask(offset=2), [7, 8]),
            ([5, 55, 66, 6], BlockMask(values=(True, False, False, True)), [55, 66]),
        ]:
            write = await world.start("two", keys)
            assert (write.mask, write.keys) == (mask, handed_out)
            assert names(write) == [["tp0", "tp1"]] * len(handed_out)
            assert all(parse_uri(uri).size() == size for places in write.uris for uri, (_, size) in zip(places.values(), SPECS, strict=True))
            assert len(write.session_id) == 32

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("keys", "mask"),
    [
        ([3, 1], BlockMask(values=(False, True))),
        ([1, 2, 3, 9], BlockMask(values=(True, True, False, True))),
        ([1, 2, 9], BlockMask(offset=3)),
        ([3], BlockMask(offset=0)),
        ([3, 4], BlockMask(offset=0)),
        ([9, 3, 4], BlockMask(offset=1)),
        ([3, 4, 9], BlockMask(values=(False, False, True))),
    ],
    ids=str,
)
def test_the_mask_is_a_number_exactly_when_what_is_there_is_a_prefix(keys: list[int], mask: BlockMask, tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.put("i", [1, 2])
        await world.start("i", [9])
        assert (await world.start("i", keys)).mask == mask

    run(tmp_path, story)


def test_a_key_that_is_named_twice_is_handed_out_once(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.start("i", [1, 1, 2, 1])
        assert (write.mask, write.keys) == (BlockMask(values=(False, True, False, True)), [1, 2])

    run(tmp_path, story)


def test_a_spec_group_names_what_is_written_of_each_block(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.start("two", [1, 2, 3], groups=["A", "both", "B"])
        # In the order of registration, whatever the order inside the group.
        assert names(write) == [["tp0"], ["tp0", "tp1"], ["tp1"]]
        again = await world.start("two", [1, 2, 3], groups=["both", "A", "B"])
        assert (again.mask, again.keys) == (BlockMask(values=(False, True, True)), [1])

    run(tmp_path, story)


def test_a_block_is_there_only_when_one_location_covers_the_whole_group(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.put("two", [1], groups=["A"])
        assert (await world.start("two", [1], groups=["A"])).mask == BlockMask(offset=1)
        await world.put("two", [1], groups=["B"])
        both = await world.start("two", [1], groups=["both"])  # tp0 and tp1 are there, but in two locations
        assert (both.mask, names(both)) == (BlockMask(offset=0), [["tp0", "tp1"]])
        assert (await world.start("two", [1])).mask == BlockMask(offset=1)

    run(tmp_path, story)


@pytest.mark.parametrize(("groups", "says"), [(["A"], "1 entries"), (["A", "x"], "'x' is not"), (["", "A"], "'' is not"), (["none", "A"], "no bytes")])
def test_a_wrong_spec_group_is_refused_before_anything_is_allocated(groups: list[str], says: str, tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        with pytest.raises(InvalidArgument, match=says):
            await world.start("two", [1, 2], groups=groups)
        assert (world.storages.allocated, world.locations(), len(world.manager.sessions)) == ([], [], 0)

    run(tmp_path, story)


def test_more_replicas_are_written_until_there_are_enough(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.put("i", [1])
        for replicas in (-(1 << 31), 0, 1):
            assert (await world.start("i", [1], replicas=replicas)).mask == BlockMask(offset=1)
        second = await world.start("i", [1, 2], replicas=2)
        assert (second.mask, second.keys) == (BlockMask(offset=0), [1, 2])
        third = await world.start("i", [1, 2], replicas=2)  # what is being written counts
        assert (third.mask, third.keys) == (BlockMask(offset=1), [2])
        assert (await world.start("i", [1, 2], replicas=2)).mask == BlockMask(offset=2)
        places = [uri for _, key, location in world.locations() for uri in world.uris_of(location)]
        assert len(set(places)) == len(places) == 4

    run(tmp_path, story)


def test_a_block_that_is_being_removed_may_be_written_anew(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        old = await world.put("i", [1])
        await world.manager.remove_cache(world.shard("i"), [1])
        write = await world.start("i", [1])
        assert (write.mask, world.states("i", 1)) == (BlockMask(offset=0), [Status.DELETING, Status.WRITING])
        assert set(write.all_uris()).isdisjoint(old.all_uris())

    run(tmp_path, story)


@pytest.mark.parametrize(("timeout_s", "lives_s"), [(30, 30), (10_000_000, 1800), (0, 0), (-5, 0)])
def test_a_session_lives_as_long_as_asked_and_no_longer_than_half_an_hour(timeout_s: int, lives_s: int, tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.start("i", [1], timeout_s=timeout_s)
        if lives_s:
            await world.advance(lives_s - 0.000001)
        else:
            assert len(world.manager.sessions) == 1
        assert world.states("i", 1) == [Status.WRITING]
        await world.advance(0.000001)
        assert len(world.manager.sessions) == 0
        assert Status.WRITING not in world.states("i", 1)
        with pytest.raises(SessionUnknown):
            await world.finish(write)

    run(tmp_path, story)


def test_a_session_without_blocks_lives_ten_seconds(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.put("i", [1])
        await world.finish(await world.start("i", [1], timeout_s=600))
        await world.start("i", [1], timeout_s=600)
        await world.advance(9.9)
        assert len(world.manager.sessions) == 1
        await world.advance(0.1)
        assert len(world.manager.sessions) == 0

    run(tmp_path, story)


def test_the_key_limit_counts_new_blocks_only(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.add_group(world.group("small", ["s"], max_keys=3))
        await world.manager.register(world.instance("k", "small"))
        await world.put("k", [1, 2])
        with pytest.raises(KeyLimitReached, match="2 of 3 blocks"):
            await world.start("k", [1, 2, 3, 4])
        assert (await world.start("k", [1, 2, 3])).keys == [3]
        assert (await world.start("k", [1, 2, 3], replicas=2)).keys == [1, 2, 3]

    run(tmp_path, story)


def test_the_byte_quota_is_looked_at_before_anything_is_allocated(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.add_group(world.group("tight", ["s"], capacity=3 * SIZE))
        await world.add_group(world.group("shut", ["s"], capacity=-1))
        await world.add_group(world.group("typed", ["s"], by_type=[(StorageType.NFS, SIZE)]))
        for name in ("tight", "shut", "typed"):
            await world.manager.register(world.instance(name, name))
        await world.put("tight", [1, 2])
        allocated = list(world.storages.allocated)
        for instance_id, keys in (("tight", [3, 4]), ("shut", [1]), ("typed", [1, 2])):
            with pytest.raises(QuotaReached):
                await world.start(instance_id, keys)
        assert world.storages.allocated == allocated
        assert (await world.start("tight", [1, 2, 3])).keys == [3]
        assert (await world.start("typed", [1])).keys == [1]

    run(tmp_path, story)


def test_the_strategy_of_the_group_chooses_the_storage(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.add_storage("fast", "hf3fs")
        for strategy, candidates, chosen in [
            (CachePreferStrategy.PREFER_3FS, ["s", "fast"], "fast"),
            (CachePreferStrategy.PREFER_3FS, ["s"], "s"),
            (CachePreferStrategy.PREFER_MOONCAKE, ["absent", "s", "fast"], "s"),
            (CachePreferStrategy.ALWAYS_3FS, ["s", "fast"], "fast"),
        ]:
            name = f"{strategy.name}-{len(candidates)}"
            await world.add_group(world.group(name, candidates, strategy=strategy))
            await world.manager.register(world.instance(name, name))
            assert {parse_uri(uri).host for uri in (await world.start(name, [1, 2])).all_uris()} == {chosen}
        for name, candidates in (("strict", ["s"]), ("nothing", ["absent"])):
            await world.add_group(world.group(name, candidates, strategy=CachePreferStrategy.ALWAYS_3FS))
            await world.manager.register(world.instance(name, name))
            with pytest.raises(NoStorage):
                await world.start(name, [1])

    run(tmp_path, story)
