"""Reads where such systems are known to break: weights that stick, errors that look like absence, copies that nobody finds, filters that lie."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from pathlib import Path

import pytest

from kvcm.common.errors import InvalidArgument, KvcmError
from kvcm.config.model import QueryType
from kvcm.data_storage.sentinel import SENTINEL_NAME
from kvcm.manager.errors import AllStoragesDown, NoStorage
from kvcm.manager.testing import ManagerWorld, Metadata, StorageKind, Write, path_of
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario

KEYS = [1, 2, 3]
READS = (QueryType.PREFIX_MATCH, QueryType.BATCH_GET)


def make_world(root: Path, metadata: Metadata = "local") -> ManagerWorld:
    return ManagerWorld(root, ProtoLocationEncoder(), metadata=metadata)


async def two_copies(world: ManagerWorld, first: StorageKind, second: StorageKind) -> tuple[Write, Write]:
    """Every key once in storage `a` and once in `b`; both are candidates."""
    await world.open()
    await world.add_storage("a", first)
    await world.add_storage("b", second)
    await world.add_group(world.group("g", ["a"]))
    await world.manager.register(world.instance("i", "g"))
    in_a = await world.put("i", KEYS)
    await world.update_group("g", storage_candidates=("b",))
    in_b = await world.put("i", KEYS, replicas=2)
    assert in_b.keys == KEYS
    await world.update_group("g", storage_candidates=("a", "b"))
    return in_a, in_b


async def unmount(world: ManagerWorld, name: str) -> None:
    world.sentinel_of(name).rename(world.root / f"{name}{SENTINEL_NAME}")
    await world.storages.verify_roots()


async def mount(world: ManagerWorld, name: str) -> None:
    (world.root / f"{name}{SENTINEL_NAME}").rename(world.sentinel_of(name))
    await world.storages.verify_roots()


async def draws(world: ManagerWorld, query_type: QueryType, count: int = 200) -> list[str]:
    """Which storage each of `count` reads of one key takes, from one and the same state of chance."""
    world.random.seed(7)
    found = [await world.read("i", [1], query_type) for _ in range(count)]
    return [places["tp0"].partition("://")[2].partition("/")[0] for (places,) in found]


# -- which copy --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query_type", READS)
def test_an_outage_does_not_change_the_weights_for_good(tmp_path: Path, query_type: QueryType) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await two_copies(world, "file", "hf3fs")
        before = await draws(world, query_type)
        share = Counter(before)
        assert set(share) == {"a", "b"}
        assert share["a"] > share["b"]  # 5 to 3
        for name, other in (("a", "b"), ("b", "a")):
            await unmount(world, name)
            assert set(await draws(world, query_type)) == {other}
            await mount(world, name)
            assert await draws(world, query_type) == before

    asyncio.run(scenario())


@pytest.mark.parametrize("query_type", READS)
@pytest.mark.parametrize("disable", [False, True])
def test_a_storage_of_a_kind_without_a_weight_is_not_read_while_it_is_down(tmp_path: Path, query_type: QueryType, disable: bool) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await two_copies(world, "file", "dummy")
        assert set(await draws(world, query_type)) == {"a", "b"}
        if disable:
            await world.registry.set_storage_enabled("b", False)
        else:
            await unmount(world, "b")
        assert set(await draws(world, query_type)) == {"a"}
        await unmount(world, "a")
        with pytest.raises(AllStoragesDown):
            await world.read("i", [1], query_type)

    asyncio.run(scenario())


@pytest.mark.parametrize("query_type", READS)
def test_copies_outside_the_candidates_are_read_while_a_candidate_is_down(tmp_path: Path, query_type: QueryType) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.open()
        await world.add_storage("cold")
        await world.add_storage("hot")
        await world.add_group(world.group("g", ["cold"]))
        await world.manager.register(world.instance("i", "g"))
        cold = await world.put("i", KEYS)
        await world.update_group("g", storage_candidates=("hot",))
        await world.put("i", [4])
        await unmount(world, "hot")
        assert await world.read("i", KEYS, query_type) == cold.uris
        found = await world.read("i", [*KEYS, 4], query_type)
        assert found[:3] == cold.uris
        assert [places for places in found[3:] if any(places.values())] == []
        assert world.states("i", 4) == [Status.SERVING]  # unreachable is not lost

    asyncio.run(scenario())


def test_a_look_at_the_metadata_shows_the_most_useful_copy(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        in_a, in_b = await two_copies(world, "file", "file")
        shard = world.shard("i")

        def shown(key: int) -> tuple[str, dict[str, str]]:
            (view,) = world.manager.view(shard, [key])
            return view.meta_json, world.split(view.wire)[0]

        assert "CLS_SERVING" in shown(1)[0]
        await world.manager.deleter.condemn(shard, [1], 10**9, lambda _, location: world.uris_of(location) == [in_a.uris[0]["tp0"]])
        assert sorted(world.states("i", 1)) == sorted([Status.SERVING, Status.DELETING])
        assert ("CLS_SERVING" in shown(1)[0], shown(1)[1]) == (True, in_b.uris[0])
        await world.manager.remove_cache(shard, [1])
        assert "CLS_DELETING" in shown(1)[0]
        rewritten = await world.start("i", [1])
        assert ("CLS_WRITING" in shown(1)[0], shown(1)[1]) == (True, rewritten.uris[0])
        world.write(rewritten)
        await world.finish(rewritten)
        assert ("CLS_SERVING" in shown(1)[0], shown(1)[1]) == (True, rewritten.uris[0])
        assert [view.meta_json for view in world.manager.view(shard, [99])] == ['{"status":"CLS_NOT_FOUND"}']

    asyncio.run(scenario())


# -- errors are no absence ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("kind", ["hf3fs", "dummy"])
def test_a_storage_error_is_not_read_as_absence(tmp_path: Path, kind: StorageKind, code: int) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple(kind)
        write = await world.put("i", KEYS)
        world.fs.fail("stat", code)
        for query_type in READS:
            try:
                found = await world.read("i", KEYS, query_type)
                assert not any(uri for places in found for uri in places.values())  # not used while nobody knows
            except AllStoragesDown:
                pass
        try:
            again = await world.start("i", KEYS)
        except NoStorage:
            again = None
        assert again is None or again.keys == []  # no second copy
        await world.rest()
        assert [world.states("i", key) for key in KEYS] == [[Status.SERVING]] * 3  # and none is lost
        world.fs.on("stat", None)
        await world.storages.verify_roots()
        for query_type in READS:
            assert await world.read("i", KEYS, query_type) == write.uris
        path_of(write.uris[1]["tp0"]).unlink()
        world.clock.advance_us(3_600_000_000)  # what was found present is remembered for a while
        assert await world.read("i", KEYS, QueryType.BATCH_GET) == [write.uris[0], {"tp0": ""}, write.uris[2]]

    asyncio.run(scenario())


@pytest.mark.parametrize("query_type", READS)
def test_a_damaged_record_costs_its_own_block_only_and_no_bytes(tmp_path: Path, query_type: QueryType) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, "file")
        await world.simple()
        first, damaged, last = [await world.put("i", [key]) for key in KEYS]
        (stored,) = (path for path in (tmp_path / "meta").rglob("*") if path.is_file() and path.stat().st_size)
        place = damaged.uris[0]["tp0"].encode()
        stored.write_bytes(stored.read_bytes().replace(place, b"\xff" * len(place)))
        await world.restart()
        assert await world.read("i", [1, 3], query_type) == [*first.uris, *last.uris]
        assert (await world.start("i", [1, 3])).keys == []
        assert not any((await world.read("i", [2], QueryType.BATCH_GET))[0].values())
        await world.rest()
        assert path_of(damaged.uris[0]["tp0"]) in world.files()

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOST_REQUEST, Fault.LOST_ANSWER])
def test_an_error_of_the_metadata_store_does_not_shorten_a_prefix(tmp_path: Path, fault: Fault) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, "suspending")
        await world.simple()
        write = await world.put("i", KEYS)
        store = world.stores["i"]
        store.failing_reads = 100
        store.failing_keys = set(KEYS)
        store.faults.append(fault)
        with pytest.raises(KvcmError):
            await world.manager.remove_cache(world.shard("i"), [2])
        assert await world.read("i", KEYS) == write.uris

    asyncio.run(scenario())


@pytest.mark.parametrize("per_file", [1, 3])
def test_an_unmounted_storage_is_an_error_and_no_short_prefix(tmp_path: Path, per_file: int) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple(per_file=per_file)
        write = await world.put("i", KEYS)
        await unmount(world, "s")
        for query_type, window in ((QueryType.PREFIX_MATCH, 0), (QueryType.BATCH_GET, 0), (QueryType.REVERSE_ROLL_SW_MATCH, 2)):
            with pytest.raises(AllStoragesDown):
                await world.read("i", KEYS, query_type, window=window)
        await mount(world, "s")
        assert await world.read("i", KEYS) == write.uris

    asyncio.run(scenario())


# -- the shape of an answer --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, -1, 4, 1 << 31])
def test_a_window_of_no_size_is_refused_and_does_not_hang(tmp_path: Path, window: int) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple()
        write = await world.put("i", KEYS)
        with pytest.raises(InvalidArgument):
            await world.read("i", KEYS, QueryType.REVERSE_ROLL_SW_MATCH, window=window)
        with pytest.raises(InvalidArgument):
            await world.read("i", [], QueryType.REVERSE_ROLL_SW_MATCH, window=window)
        assert (await world.read("i", KEYS, QueryType.REVERSE_ROLL_SW_MATCH, window=2))[1:] == write.uris[1:]

    asyncio.run(scenario())


@pytest.mark.parametrize("wanted", [["a"], ["c", "a"], ["b"], ["nobody"], []])
@pytest.mark.parametrize("query_type", READS)
def test_the_number_of_specs_follows_the_filter(tmp_path: Path, query_type: QueryType, wanted: list[str]) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path)
        await world.simple(instances=())
        await world.manager.register(world.instance("i", "g", (("a", 64), ("b", 64), ("c", 64))))
        await world.put("i", KEYS)
        located = await world.locate("i", [*KEYS, 9], query_type, spec_names=wanted)
        answer = meta.GetCacheLocationResponse.FromString(b"".join(located.parts)).locations
        assert len(answer) == (3 if query_type is QueryType.PREFIX_MATCH else 4)
        for location in answer:
            assert location.spec_size == len(location.location_specs)
            names = {spec.name for spec in location.location_specs}
            assert names == ({"a", "b", "c"} & set(wanted) if wanted else {"a", "b", "c"})

    asyncio.run(scenario())
