"""GetCacheLocationsByBackend (wire contract 4.8): one location per selector and key, of exactly the kind that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from kvcm.data_storage.model import StorageType
from kvcm.manager.by_backend import BackendQuery, BackendSelector, SelectStrategy
from kvcm.manager.errors import AllStoragesDown
from kvcm.manager.testing import SIZE, ManagerWorld, Write, path_of
from kvcm.meta.location import Block, LocationFields, Status, restore
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

NFS, DUMMY, L1P5, L2 = StorageType.NFS, StorageType.DUMMY, StorageType.EVENT_REPORT_L1P5, StorageType.EVENT_REPORT_L2
PREFIX, COVERAGE, RANDOM = SelectStrategy.PEER_PREFIX, SelectStrategy.PEER_COVERAGE, SelectStrategy.WEIGHTED_RANDOM
Found = list[list[dict[str, str]]]


def run(root: Path, story: Callable[[ManagerWorld], Awaitable[None]]) -> None:
    """Storages `s`, `t` (file) and `d` (dummy); instance `i` with specs tp0 and tp1 in the groups A and B."""

    async def whole() -> None:
        world = ManagerWorld(root, ProtoLocationEncoder())
        await world.open()
        for name in ("s", "t"):
            await world.add_storage(name)
        await world.add_storage("d", "dummy")
        await world.add_group(world.group("g", ["s", "t", "d"]))
        await world.manager.register(world.instance("i", "g", [("tp0", SIZE), ("tp1", SIZE)], [("A", ["tp0"]), ("B", ["tp1"])]))
        await story(world)

    asyncio.run(whole())


async def put_in(world: ManagerWorld, storage: str, keys: Sequence[int], groups: str = "", replicas: int = 1) -> Write:
    await world.update_group("g", storage_candidates=(storage,))
    write = await world.put("i", keys, groups=[groups] * len(keys) if groups else [], replicas=replicas)
    assert write.keys == list(keys)
    await world.update_group("g", storage_candidates=("s", "t", "d"))
    return write


async def ask(world: ManagerWorld, keys: Sequence[int], *selectors: BackendSelector, specs: Sequence[str] = ()) -> Found:
    query = BackendQuery(keys, selectors, specs)
    found = await world.manager.locate_by_backend(world.shard("i"), query, world.clock.wall_us())
    return [[dict(world.codec.decode(wire)[1]) for wire in entry] for entry in found]


async def report(world: ManagerWorld, key: int, host: str, kind: StorageType = L2, specs: Sequence[str] = ("tp0",)) -> None:
    """A host says that it holds a block. The place stands in storage `s`, which is there."""
    size = len(world.shard("i").index.get(key))
    fields = LocationFields(Status.SERVING, kind, world.storages.slot_of("s"), 1, SIZE, f"{key}-{size}", None, 0)
    wire = world.codec.encode(kind, [(name, f"vineyard://{host}/mem?spec={name}&size={SIZE}") for name in specs])

    def add(position: int, key: int, block: Block) -> Block:
        return (*block, restore(fields, wire))

    (outcome,) = await world.shard("i").index.mutate([key], add, world.term.epoch)
    assert outcome.changed


def hosts(found: Found) -> list[list[str]]:
    return [[next(iter(places.values())).split("//")[1].split("/")[0] for places in entry] for entry in found]


def test_each_selector_finds_its_own_kind_in_the_order_of_the_selectors(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        first = await put_in(world, "s", [1, 2])
        second = await put_in(world, "d", [2, 3], replicas=2)
        file, dummy = first.uris, second.uris
        assert await ask(world, [1, 2, 3, 4], BackendSelector(NFS)) == [[file[0]], [file[1]], [], []]
        assert await ask(world, [1, 2, 3, 4], BackendSelector(DUMMY)) == [[], [dummy[0]], [dummy[1]], []]
        assert await ask(world, [4, 2, 2], BackendSelector(DUMMY), BackendSelector(NFS)) == [[], [dummy[0], file[1]], [dummy[0], file[1]]]
        assert await ask(world, [1], BackendSelector(NFS), BackendSelector(NFS)) == [[file[0], file[0]]]
        assert await ask(world, [1, 2, 3], BackendSelector(StorageType.HF3FS)) == [[], [], []]
        assert await ask(world, [], BackendSelector(NFS)) == []

    run(tmp_path, story)


@pytest.mark.parametrize("strategy", list(SelectStrategy))
def test_every_strategy_draws_a_storage_where_no_host_reports(strategy: SelectStrategy, tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await put_in(world, "s", [1])
        await put_in(world, "t", [1], replicas=2)
        assert {hosts(await ask(world, [1], BackendSelector(NFS, strategy)))[0][0] for _ in range(200)} == {"s", "t"}
        await world.registry.set_storage_enabled("s", False)
        assert {hosts(await ask(world, [1], BackendSelector(NFS, strategy)))[0][0] for _ in range(20)} == {"t"}

    run(tmp_path, story)


def test_what_is_not_readable_now_is_never_named(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.start("i", [1], timeout_s=600)
        await put_in(world, "s", [2])
        await world.manager.remove_cache(world.shard("i"), [2])
        write = await put_in(world, "d", [3, 4])
        path_of(write.uris[0]["tp1"]).unlink()
        found = await ask(world, [1, 2, 3, 4], BackendSelector(NFS), BackendSelector(DUMMY))
        assert found == [[], [], [], [write.uris[1]]]
        await world.manager._work.ended()
        assert world.states("i", 3) == [Status.DELETING]  # half of it is left, so it goes the ordinary way
        for name in ("s", "t", "d"):
            await world.registry.set_storage_enabled(name, False)
        with pytest.raises(AllStoragesDown):
            await ask(world, [4], BackendSelector(DUMMY))

    run(tmp_path, story)


def test_locations_of_one_storage_are_merged_and_a_filter_looks_at_each_of_them_first(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        tp1 = (await put_in(world, "s", [1, 2], "B")).uris
        tp0 = (await put_in(world, "s", [1], "A")).uris
        file = BackendSelector(NFS, RANDOM)
        assert await ask(world, [1, 2], file) == [[tp0[0] | tp1[0]], [tp1[1]]]
        assert await ask(world, [1, 2], file, specs=["tp0"]) == [[tp0[0]], []]
        assert await ask(world, [1, 2], file, specs=["tp1", "other"]) == [[tp1[0]], [tp1[1]]]
        assert await ask(world, [1, 2], file, specs=["other"]) == [[], []]

    run(tmp_path, story)


def test_a_filter_never_draws_a_storage_that_lacks_what_is_asked_for(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        tp0 = (await put_in(world, "s", [1], "A")).uris
        await put_in(world, "t", [1], "B")
        for _ in range(30):
            assert await ask(world, [1], BackendSelector(NFS), specs=["tp0"]) == [[tp0[0]]]

    run(tmp_path, story)


def test_one_host_answers_for_all_keys_and_only_for_those_it_has(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        for key, names in enumerate(["a:1 b:2", "a:1 b:2", "b:2", "c:3", "b:2 a:1", "a:1", "a:1"]):
            for name in names.split():
                await report(world, key, name)
        keys = list(range(8))
        prefix, coverage = await ask(world, keys, BackendSelector(L2, PREFIX)), await ask(world, keys, BackendSelector(L2, COVERAGE))
        assert hosts(prefix) == [["b:2"], ["b:2"], ["b:2"], [], [], [], [], []]
        assert hosts(coverage) == [["a:1"], ["a:1"], [], [], ["a:1"], ["a:1"], ["a:1"], []]
        assert hosts(await ask(world, [7, 0], BackendSelector(L2, PREFIX))) == [[], []]
        assert hosts(await ask(world, [7, 0], BackendSelector(L2, COVERAGE))) == [[], ["a:1"]]
        assert await ask(world, [0, 1], BackendSelector(L1P5, PREFIX)) == [[], []]

    run(tmp_path, story)


def test_a_host_must_have_a_spec_that_is_asked_for(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await report(world, 0, "a:1", specs=["tp0"])
        await report(world, 0, "b:2", specs=["tp0", "tp1"])
        await report(world, 1, "a:1", specs=["tp0"])
        best = BackendSelector(L2, COVERAGE)
        assert hosts(await ask(world, [0, 1], best)) == [["a:1"], ["a:1"]]
        (found,) = await ask(world, [0], best, specs=["tp1"])
        assert found == [{"tp1": f"vineyard://b:2/mem?spec=tp1&size={SIZE}"}]
        assert await ask(world, [0, 1], best, specs=["other"]) == [[], []]

    run(tmp_path, story)


def test_a_hosts_location_is_its_own_and_never_merged_with_that_of_another(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await report(world, 0, "a:1", specs=["tp0"])
        await report(world, 0, "b:2", specs=["tp1"])
        (entry,) = await ask(world, [0], BackendSelector(L2, PREFIX))
        assert entry == [{"tp0": f"vineyard://a:1/mem?spec=tp0&size={SIZE}"}]

    run(tmp_path, story)
