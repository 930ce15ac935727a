"""GetCacheLocation (wire contract 4.3, 4.6): three query types, masks, windows, the spec filter, merging, padding, checksums."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.block_mask import BlockMask
from kvcm.common.errors import InvalidArgument, Unsupported
from kvcm.common.uri import parse_uri
from kvcm.config.model import QueryType
from kvcm.manager.errors import AllStoragesDown
from kvcm.manager.testing import SIZE, ManagerWorld
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

PREFIX, BATCH, WINDOW = QueryType.PREFIX_MATCH, QueryType.BATCH_GET, QueryType.REVERSE_ROLL_SW_MATCH
SPECS = [("tp1", SIZE), ("tp0", SIZE)]
PADDING = (meta.ST_UNSPECIFIED, 2, [("tp1", ""), ("tp0", "")])
GONE = [0, 4, 8, 20]


def run(root: Path, story: Callable[[ManagerWorld], Awaitable[None]]) -> None:
    """Instance `two` serves keys 1 to 9 but for 4 and 8; 4 is being written, 8 being removed. Its specs are not registered in the order of names."""

    async def whole() -> None:
        world = ManagerWorld(root, ProtoLocationEncoder())
        await world.simple()
        await world.add_storage("t")
        await world.manager.register(world.instance("two", "g", SPECS, [("A", ["tp0"]), ("B", ["tp1"])]))
        await world.put("two", [1, 2, 3, 5, 6, 7, 8, 9])
        await world.start("two", [4])
        await world.manager.remove_cache(world.shard("two"), [8])
        await story(world)

    asyncio.run(whole())


async def locations(world: ManagerWorld, keys: Sequence[int], query_type: QueryType = PREFIX, **options: Any) -> list[meta.CacheLocation]:
    located = await world.locate("two", keys, query_type, **options)
    return list(meta.GetCacheLocationResponse.FromString(b"".join(located.parts)).locations)


def shown(location: meta.CacheLocation) -> tuple[int, int, list[tuple[str, str]]]:
    return location.type, location.spec_size, [(spec.name, spec.uri) for spec in location.location_specs]


async def hits(world: ManagerWorld, keys: Sequence[int], query_type: QueryType, **options: Any) -> list[bool]:
    """For each location of the reply: does it have places? What has none must be padding."""
    found = [shown(location) for location in await locations(world, keys, query_type, **options)]
    assert all(specs == PADDING or all(uri for _, uri in specs[2]) for specs in found)
    return [specs != PADDING for specs in found]


@pytest.mark.parametrize(
    ("keys", "length"),
    [([1, 2, 3], 3), ([1, 2, 3, 4, 5], 3), ([4, 1], 0), ([8, 1], 0), ([20], 0), ([9, 9, 1, 9], 4), ([3, 2, 1, 20, 5], 3), ([7, 8, 9], 1)],
    ids=str,
)
def test_a_prefix_read_ends_at_the_first_block_that_is_not_served(keys: list[int], length: int, tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        assert await hits(world, keys, PREFIX) == [True] * length
        assert (await world.locate("two", keys)).hits == length

    run(tmp_path, story)


@pytest.mark.parametrize("keys", [[1, 4, 2, 8, 20, 3], [20], [5, 5, 20, 5], [4, 8]], ids=str)
def test_a_batch_read_answers_for_every_key_and_pads_what_is_not_served(keys: list[int], tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        assert await hits(world, keys, BATCH) == [key not in GONE for key in keys]
        assert await hits(world, keys, BATCH, mask=BlockMask(offset=len(keys)), window=99) == [key not in GONE for key in keys]

    run(tmp_path, story)


def test_the_places_of_a_reply_are_those_of_the_write(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.put("two", [30, 31])
        for query_type, window in ((PREFIX, 0), (BATCH, 0), (WINDOW, 2)):
            found = await locations(world, [30, 31], query_type, window=window)
            assert [shown(location) for location in found] == [(meta.ST_NFS, 2, list(places.items())) for places in write.uris]

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("keys", "mask", "asked"),
    [
        ([4, 1, 2], BlockMask(offset=1), [1, 2]),
        ([1, 2, 3], BlockMask(offset=0), [1, 2, 3]),
        ([1, 2, 3], BlockMask(offset=3), []),
        ([1, 2, 3], BlockMask(offset=6), []),
        ([1, 2, 3], BlockMask(offset=-1), []),
        ([1, 4, 2, 20], BlockMask(values=(False, True, False, True)), [1, 2]),
        ([4, 1, 2, 3], BlockMask(values=(True,)), [1, 2, 3]),
        ([1, 2], BlockMask(values=(True, False, True, True)), [2]),
        ([1, 2], BlockMask(values=()), [1, 2]),
        ([1, 4, 2, 3], BlockMask(values=(True, False)), []),
    ],
    ids=str,
)
def test_a_mask_takes_keys_out_of_a_prefix_read(keys: list[int], mask: BlockMask, asked: list[int], tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        assert await world.read("two", keys, mask=mask) == await world.read("two", asked)
        assert len(await world.read("two", asked)) == len(asked)

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("keys", "window", "kept"),
    [
        ([1, 2, 3], 3, [0, 1, 2]),
        ([1, 2, 3], 2, [1, 2]),
        ([1, 2, 3], 1, [2]),
        ([1, 2, 3, 4, 5, 6, 8, 9], 2, [4, 5]),
        ([1, 2, 3, 4, 5, 6, 8, 9], 3, [0, 1, 2]),
        ([1, 2, 3, 4, 5, 6, 8, 9], 1, [7]),
        ([1, 2, 3, 4, 5, 6, 8, 9], 4, []),
        ([4, 1, 2], 2, [1, 2]),
        ([1, 2, 4], 2, [0, 1]),
        ([4], 1, []),
        ([1], 1, [0]),
        ([1, 1, 1, 4], 2, [1, 2]),
    ],
    ids=str,
)
def test_a_window_read_keeps_the_right_most_run_of_its_length(keys: list[int], window: int, kept: list[int], tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        for mask in (None, BlockMask(offset=len(keys))):  # a mask does not matter here
            assert await hits(world, keys, WINDOW, window=window, mask=mask) == [position in kept for position in range(len(keys))]

    run(tmp_path, story)


@pytest.mark.parametrize("window", [0, -1, 4, (1 << 31) - 1])
def test_a_window_that_does_not_fit_the_keys_is_refused(window: int, tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        with pytest.raises(InvalidArgument, match="sw_size"):
            await world.locate("two", [1, 2, 3], WINDOW, window=window)

    run(tmp_path, story)


def test_other_query_types_are_refused(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        with pytest.raises(InvalidArgument, match="query_type must be set"):
            await world.locate("two", [1], QueryType.UNSPECIFIED)
        with pytest.raises(Unsupported):
            await world.locate("two", [1], QueryType.PREFIX_MATCH_WITH_MAMBA)

    run(tmp_path, story)


@pytest.mark.parametrize("names", [("tp0",), ("tp1",), ("tp0", "tp1"), ("tp0", "unknown"), ("unknown",)], ids=str)
def test_a_spec_filter_keeps_the_named_specs_also_in_padding_and_counts_them(names: tuple[str, ...], tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        whole = await locations(world, [1, 20, 2], BATCH)
        found = await locations(world, [1, 20, 2], BATCH, spec_names=names)
        kept = [[(name, uri) for name, uri in shown(location)[2] if name in names] for location in whole]
        assert [shown(location) for location in found] == [(full.type, len(specs), specs) for full, specs in zip(whole, kept, strict=True)]
        # A hit stays a hit, even when nothing of it is left.
        assert len(await locations(world, [1, 2, 20], PREFIX, spec_names=names)) == 2

    run(tmp_path, story)


def test_locations_of_one_storage_are_merged_and_sorted_by_spec(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        tp1 = await world.put("two", [40], groups=["B"])
        assert await world.read("two", [40]) == tp1.uris
        tp0 = await world.put("two", [40], groups=["A"])
        await world.put("two", [40], groups=["A"], replicas=2)  # the first one of each spec is taken
        (found,) = await locations(world, [40])
        assert shown(found) == (meta.ST_NFS, 2, [("tp0", tp0.uris[0]["tp0"]), ("tp1", tp1.uris[0]["tp1"])])

    run(tmp_path, story)


def test_locations_of_different_storages_are_never_mixed(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        first = await world.put("two", [40], groups=["A"])
        await world.update_group("g", storage_candidates=("t",))
        second = await world.put("two", [40], groups=["B"])
        answers = {tuple((await world.read("two", [40]))[0].items()) for _ in range(100)}
        assert answers == {tuple(first.uris[0].items()), tuple(second.uris[0].items())}
        assert {parse_uri(uri).host for uri in second.all_uris()} == {"t"}
        # A storage that is switched off never answers while another one can.
        await world.registry.set_storage_enabled("t", False)
        assert [await world.read("two", [40]) for _ in range(20)] == [first.uris] * 20

    run(tmp_path, story)


def test_a_group_without_a_readable_storage_is_an_error_and_no_miss(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.registry.set_storage_enabled("s", False)
        for query_type in (PREFIX, BATCH, WINDOW):
            with pytest.raises(AllStoragesDown):
                await world.locate("two", [1, 20], query_type, window=1)
        await world.registry.set_storage_enabled("s", True)
        assert len(await world.read("two", [1, 20])) == 1

    run(tmp_path, story)


def test_checksums_come_on_request_one_for_each_location(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        sums = [(1 << 62) + 5, -7, 0]
        write = await world.start("two", [40, 41, 42])
        await world.finish(write, [True, True, True], sums)
        assert (await world.locate("two", [40, 41, 42, 20])).checksums is None
        assert (await world.locate("two", [40, 41, 42, 20], want_checksums=True)).checksums == sums
        assert (await world.locate("two", [20, 41, 1, 40], BATCH, want_checksums=True)).checksums == [0, -7, 0, sums[0]]
        assert (await world.locate("two", [40, 41, 20], WINDOW, window=1, want_checksums=True)).checksums == [0, -7, 0]
        assert (await world.locate("two", [40, 41], mask=BlockMask(offset=1), want_checksums=True)).checksums == [-7]

    run(tmp_path, story)
