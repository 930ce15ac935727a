"""TrimCache (wire contract 4.15, behaviour 3.7): everything, or what was served and made within a time, both ends included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvcm.manager.testing import ManagerWorld
from kvcm.manager.trimmer import TrimRange
from kvcm.meta.location import Status
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

S, W, D = Status.SERVING, Status.WRITING, Status.DELETING


def run(root: Path, story: Callable[[ManagerWorld], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = ManagerWorld(root, ProtoLocationEncoder())
        await world.simple(instances=("i", "other"))
        await story(world)

    asyncio.run(whole())


def now_s(world: ManagerWorld) -> int:
    return world.clock.wall_us() // 1_000_000


def test_everything_goes_whatever_its_state_and_nothing_of_others(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.put("i", [1, 2])
        await world.start("i", [3], timeout_s=600)
        other = await world.put("other", [1])
        assert await world.manager.trim(world.shard("i"), None) == 3
        assert [world.states("i", key) for key in (1, 2, 3)] == [[D], [D], [D]]
        assert await world.read("i", [1, 2]) == []
        assert await world.manager.trim(world.shard("i"), None) == 0
        await world.rest()
        assert [world.states("i", key) for key in (1, 2, 3)] == [[], [], []]
        assert await world.read("other", [1]) == other.uris
        assert len(world.files()) == 1

    run(tmp_path, story)


def test_an_empty_instance_has_nothing_to_trim(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        assert await world.manager.trim(world.shard("i"), None) == 0
        assert await world.manager.trim(world.shard("i"), TrimRange(0, (1 << 31) - 1)) == 0

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("begin", "end", "gone"),
    [(10, 10, [2]), (10, 20, [2, 3, 4]), (11, 19, []), (0, 9, [1]), (20, 20, [3, 4]), (21, 99, []), (0, 99, [1, 2, 3, 4]), (-99, -1, [])],
    ids=str,
)
def test_a_time_names_blocks_by_the_second_they_were_made_in(begin: int, end: int, gone: list[int], tmp_path: Path) -> None:
    """Seconds after the start: key 1 at 0, 2 at 10, 3 at 20, 4 at the last microsecond of second 20."""

    async def story(world: ManagerWorld) -> None:
        zero = now_s(world)
        for key, wait_us in ((1, 0), (2, 10_000_000), (3, 10_000_000), (4, 999_999)):
            world.clock.advance_us(wait_us)
            await world.put("i", [key])
        assert await world.manager.trim(world.shard("i"), TrimRange(zero + begin, zero + end)) == len(gone)
        assert [key for key in (1, 2, 3, 4) if world.states("i", key) == [D]] == gone
        assert [key for key in (1, 2, 3, 4) if world.states("i", key) == [S]] == [key for key in (1, 2, 3, 4) if key not in gone]

    run(tmp_path, story)


def test_a_time_names_no_block_that_is_still_being_written_or_removed_already(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.put("i", [1, 2])
        write = await world.start("i", [3], timeout_s=600)
        await world.manager.remove_cache(world.shard("i"), [2])
        always = TrimRange(0, now_s(world))
        assert await world.manager.trim(world.shard("i"), always) == 1
        assert [world.states("i", key) for key in (1, 2, 3)] == [[D], [D], [W]]
        world.write(write)
        await world.finish(write)
        assert await world.read("i", [3]) == write.uris
        assert await world.manager.trim(world.shard("i"), always) == 1

    run(tmp_path, story)


def test_of_a_block_with_several_locations_only_those_of_the_time_go(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        old = await world.put("i", [1])
        world.clock.advance_us(5_000_000)
        new = await world.put("i", [1], replicas=2)
        assert await world.manager.trim(world.shard("i"), TrimRange(0, now_s(world) - 1)) == 1
        assert sorted(world.states("i", 1)) == sorted([S, D])
        assert await world.read("i", [1]) == new.uris
        await world.rest()
        assert (world.states("i", 1), len(world.files())) == ([S], 1)
        assert old.all_uris() != new.all_uris()

    run(tmp_path, story)


def test_more_blocks_than_fit_a_page_all_go(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        count = 3000
        await world.finish(await world.start("i", range(count)))
        assert await world.manager.trim(world.shard("i"), TrimRange(0, now_s(world))) == count
        assert world.manager.deleter.pending == count

    run(tmp_path, story)
