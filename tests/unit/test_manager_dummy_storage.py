"""The `dummy` storage under the manager (wire contract 8.3): bytes that are gone are found out by reads, and rewritten at the same paths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvcm.common.block_mask import BlockMask
from kvcm.config.model import QueryType
from kvcm.manager.errors import AllStoragesDown
from kvcm.manager.testing import SIZE, ManagerWorld, Write, path_of
from kvcm.meta.location import Status
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

KEYS = [1, 2, 3, 4, 5, 6]
LATER_S = 2


def run(root: Path, story: Callable[[ManagerWorld], Awaitable[None]]) -> None:
    """`i` has one spec, `two` has tp0 and tp1 in groups of their own."""

    async def whole() -> None:
        world = ManagerWorld(root, ProtoLocationEncoder())
        await world.simple("dummy")
        await world.manager.register(world.instance("two", "g", [("tp0", SIZE), ("tp1", SIZE)], [("GroupA", ["tp0"]), ("GroupB", ["tp1"])]))
        await story(world)

    asyncio.run(whole())


def lose(world: ManagerWorld, write: Write, *keys: int) -> None:
    """Unlink the files of some blocks. The next read must see it, however soon it comes."""
    for key, places in zip(write.keys, write.uris, strict=True):
        if key in keys:
            for uri in places.values():
                path_of(uri).unlink()


async def later(world: ManagerWorld) -> None:
    """Two seconds on; what a read has found to be lost is taken out by a task of its own."""
    await world.manager._work.ended()
    await world.advance(LATER_S)


def places(write: Write) -> dict[int, dict[str, str]]:
    return dict(zip(write.keys, write.uris, strict=True))


@pytest.mark.parametrize("lost", [[3], [1], [6], [2, 5], [1, 2, 3, 4, 5, 6], [4, 6]], ids=str)
def test_a_prefix_read_ends_at_the_first_lost_block_and_all_lost_ones_are_rewritten_in_place(lost: list[int], tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.put("i", KEYS)
        assert await world.read("i", KEYS) == write.uris
        lose(world, write, *lost)
        assert await world.read("i", KEYS) == write.uris[: lost[0] - 1]
        await later(world)
        assert [key for key in KEYS if not world.states("i", key)] == lost
        again = await world.start("i", KEYS)
        assert again.keys == lost
        assert places(again) == {key: places(write)[key] for key in lost}
        world.write(again)
        await world.finish(again)
        assert await world.read("i", KEYS) == write.uris

    run(tmp_path, story)


def test_a_start_write_finds_lost_blocks_without_a_read_before_it(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.put("i", KEYS)
        lose(world, write, 2, 5)
        again = await world.start("i", KEYS)
        assert again.mask == BlockMask(values=(True, False, True, True, False, True))
        assert places(again) == {key: places(write)[key] for key in (2, 5)}

    run(tmp_path, story)


def test_a_batch_read_pads_lost_blocks_only(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.put("i", KEYS)
        lose(world, write, 2, 5)
        found = await world.read("i", KEYS, QueryType.BATCH_GET)
        assert found == [{"tp0": ""} if key in (2, 5) else places(write)[key] for key in KEYS]
        assert (await world.locate("i", [1, 3, 4, 6])).hits == 4

    run(tmp_path, story)


def test_a_block_that_is_being_removed_is_not_handed_out_again_before_it_is_gone(tmp_path: Path) -> None:
    """The new place would be the old one, and the deletion would take the new bytes."""

    async def story(world: ManagerWorld) -> None:
        write = await world.put("i", [1, 2])
        await world.manager.remove_cache(world.shard("i"), [1])
        early = await world.start("i", [1, 2])
        assert (early.mask, early.keys) == (BlockMask(offset=2), [])
        await later(world)
        late = await world.start("i", [1, 2])
        assert (late.keys, late.uris) == ([1], [write.uris[0]])
        assert not path_of(write.uris[0]["tp0"]).exists()

    run(tmp_path, story)


def test_a_second_replica_in_the_same_storage_would_be_the_first_one(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.put("i", [1])
        more = await world.start("i", [1, 2], replicas=2)
        assert more.keys == [2]
        world.write(more)
        await world.finish(more)
        assert len({*write.all_uris(), *more.all_uris()}) == len(world.files()) == 2

    run(tmp_path, story)


async def written_by_group(world: ManagerWorld) -> tuple[Write, Write]:
    return await world.put("two", KEYS, groups=["GroupA"] * 6), await world.put("two", KEYS, groups=["GroupB"] * 6)


def merged(first: Write, second: Write) -> list[dict[str, str]]:
    return [one | other for one, other in zip(first.uris, second.uris, strict=True)]


def test_groups_that_are_written_one_after_the_other_are_read_as_one(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        first = await world.put("two", KEYS, groups=["GroupA"] * 6)
        assert await world.read("two", KEYS) == first.uris
        second = await world.put("two", KEYS, groups=["GroupB"] * 6)
        assert [list(spec) for spec in first.uris + second.uris] == [["tp0"]] * 6 + [["tp1"]] * 6
        assert await world.read("two", KEYS) == merged(first, second)
        assert world.states("two", 1) == [Status.SERVING, Status.SERVING]

    run(tmp_path, story)


def test_a_lost_group_leaves_the_other_one_readable_and_is_rewritten_alone(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        first, second = await written_by_group(world)
        lose(world, first, *KEYS)
        assert await world.read("two", KEYS) == second.uris
        await later(world)
        assert (await world.start("two", KEYS, groups=["GroupB"] * 6)).keys == []
        again = await world.put("two", KEYS, groups=["GroupA"] * 6)
        assert (again.keys, again.uris) == (KEYS, first.uris)
        assert await world.read("two", KEYS) == merged(first, second)

    run(tmp_path, story)


def test_a_block_without_both_of_its_groups_ends_the_prefix(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        first, second = await written_by_group(world)
        lose(world, first, 2, 4)
        lose(world, second, 4)
        whole = merged(first, second)
        assert await world.read("two", KEYS) == [whole[0], second.uris[1], whole[2]]
        await later(world)
        assert (await world.start("two", KEYS, groups=["GroupA"] * 6)).keys == [2, 4]
        assert (await world.start("two", KEYS, groups=["GroupB"] * 6)).keys == [4]

    run(tmp_path, story)


def test_a_storage_that_cannot_be_asked_loses_nothing(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.put("i", KEYS)
        away = world.root_of("s").rename(tmp_path / "away")  # the whole mount is gone, marker included
        for query_type in (QueryType.PREFIX_MATCH, QueryType.BATCH_GET):  # the first of them finds out
            with pytest.raises(AllStoragesDown):
                await world.read("i", KEYS, query_type)
        await later(world)
        assert [world.states("i", key) for key in KEYS] == [[Status.SERVING]] * 6
        away.rename(world.root_of("s"))
        await world.storages.verify_roots()
        assert await world.read("i", KEYS) == write.uris

    run(tmp_path, story)
