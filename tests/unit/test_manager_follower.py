"""A process that does not lead: what it follows, what it lets go, what it hands over; and what a manager makes of that when it wins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import StorageError
from kvcm.config.model import MetaBackendConfig
from kvcm.config.persisted import group_to_dict, instance_to_dict
from kvcm.config.store import Change, RegistrySnapshot
from kvcm.config.testing import FaultyStore
from kvcm.manager import follower as follower_module
from kvcm.manager.follower import Follower
from kvcm.manager.testing import ManagerWorld
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.changes import ChangeStream
from kvcm.meta.key_packing import FixedWidth
from kvcm.meta.location import Block, Location, Status, begin_write, condemn, promote
from kvcm.meta.testing import published, written
from kvcm.meta.testing_changes import ToldBackend, ToldPlace
from kvcm.meta.warm import WarmIndex
from kvcm.protocol.location_encoder import ProtoLocationEncoder
from kvcm.service.cluster import CopiesView, CopyState
from kvcm.service.follower_metrics import copies_of

pytestmark = pytest.mark.unit

FOLLOWED = MetaBackendConfig("redis", "redis://one/")
ELSEWHERE = MetaBackendConfig("redis", "redis://two/")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_LOOK_S", "_LOOK_EVERY_S"):
        monkeypatch.setattr(follower_module, name, 0.0)
    for name in ("_PAUSES_S", "_SCAN_PAUSES_S"):
        monkeypatch.setattr(follower_module, name, (0.0,))


class Desk:
    """Places of instances, a registry that names them, and a follower of both."""

    def __init__(self, folder: Path) -> None:
        self.world = ManagerWorld(folder, ProtoLocationEncoder())
        self.store = FaultyStore(self.world.registry_store)
        self.places: dict[tuple[str, str], ToldPlace] = {}
        self.opened: list[ToldBackend] = []
        self.follower = Follower(self.store.load, self.open, FixedWidth(), self.world.clock)

    def place(self, instance_id: str, config: MetaBackendConfig = FOLLOWED) -> ToldPlace:
        place = self.places.get((config.storage_uri, instance_id))
        if place is None:
            place = self.places[config.storage_uri, instance_id] = ToldPlace()
            place.begin(1)
        return place

    def open(self, config: MetaBackendConfig, instance_id: str) -> tuple[MetadataBackend, ChangeStream] | None:
        if config.storage_uri == "redis://silent/":
            return None
        backend = ToldBackend(self.place(instance_id, config))
        self.opened.append(backend)
        return backend, backend

    async def group(self, name: str, config: MetaBackendConfig) -> None:
        group = self.world.group(name, [])
        group = replace(group, cache_config=replace(group.cache_config, meta_indexer=replace(group.cache_config.meta_indexer, backend=config)))
        await self.store.apply([Change("instance_group", name, group_to_dict(group))], 1)

    async def instance(self, instance_id: str, group: str) -> None:
        await self.store.apply([Change("instance", instance_id, instance_to_dict(self.world.instance(instance_id, group)))], 1)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self.world.clock.advance_us(1000)
                await asyncio.sleep(0)

    async def simple(self) -> ToldPlace:
        """One instance with three blocks, followed."""
        await self.group("g", FOLLOWED)
        await self.instance("i", "g")
        place = self.place("i")
        place.put({key: (promote(written(f"{key:08x}")),) for key in (1, 2, 3)}, 1)
        self.follower.start()
        await self.until(lambda: self.follower.state.warm == 1)
        return place


def test_what_the_registry_names_is_followed_and_handed_over(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        place = await desk.simple()
        await desk.group("memory", MetaBackendConfig("local"))
        await desk.instance("not stored", "memory")
        await desk.group("silent", MetaBackendConfig("redis", "redis://silent/"))
        await desk.instance("not told", "silent")
        place.put({4: (written("4"),), 1: ()}, 1)
        await desk.until(lambda: desk.follower.state.blocks == 3 and set(published(desk.follower._copies["i"].index)) == {2, 3, 4})
        assert (desk.follower.state.behind, desk.follower.state.behind_s) == (0, 0.0)
        copies = await desk.follower.hand_over()
        assert set(copies) == {"i"}
        assert copies["i"].is_warm
        assert desk.follower.state.warm == 0
        await copies["i"].close()
        assert not any(backend.is_open for backend in desk.opened)

    run(story())


def test_it_is_ready_when_the_registry_was_seen_and_every_copy_is_complete(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        assert not desk.follower.is_ready  # nobody knows yet what there is
        assert copies_of(desk.follower) == CopiesView(CopyState.COLD)
        desk.follower.start()
        await desk.until(lambda: desk.follower.is_ready)  # nothing
        await desk.group("g", FOLLOWED)
        await desk.group("silent", MetaBackendConfig("redis", "redis://silent/"))
        await desk.instance("not told", "silent")
        await desk.instance("i", "g")
        desk.place("i")
        await desk.until(lambda: desk.follower.state.warm == 1)
        await desk.until(lambda: desk.follower.is_ready)  # what nobody can follow does not count
        assert copies_of(desk.follower) == CopiesView(CopyState.WARM, warm=1)
        desk.follower._copies["i"].is_warm = False
        assert not desk.follower.is_ready
        desk.follower._copies["i"].is_warm = True
        await desk.follower.stop()
        assert not desk.follower.is_ready

    run(story())


def test_an_instance_that_is_gone_or_lies_elsewhere_is_let_go(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        await desk.simple()
        desk.place("i", ELSEWHERE).put({9: (written("9"),)}, 1)
        await desk.group("g", ELSEWHERE)
        await desk.until(lambda: desk.follower.state.warm == 1 and desk.follower._copies["i"].config == ELSEWHERE)
        assert set(published(desk.follower._copies["i"].index)) == {9}
        await desk.store.apply([Change("instance", "i", None)], 1)
        await desk.until(lambda: not desk.follower._copies)
        assert not any(backend.is_open for backend in desk.opened)
        await desk.follower.stop()
        await desk.follower.stop()

    run(story())


def test_a_copy_that_lost_track_is_begun_anew_and_counted(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        place = await desk.simple()
        place.put({5: (written("5"),)}, 1)
        place.put({6: (written("6"),)}, 1)
        place.trim(1)
        await desk.until(lambda: desk.follower.state.blocks == 5)
        assert desk.follower.state.resyncs == 1
        await desk.follower.stop()

    run(story())


def test_a_follower_that_is_too_slow_scans_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        pauses: list[float] = []
        sleep = asyncio.sleep

        async def slept(seconds: float) -> None:
            if seconds >= 0.001:
                pauses.append(seconds)
            await sleep(0)

        monkeypatch.setattr(follower_module, "_SCAN_PAUSES_S", (0.001, 0.002, 0.003))
        desk = Desk(tmp_path)
        place = await desk.simple()
        monkeypatch.setattr(asyncio, "sleep", slept)

        async def lose() -> None:
            seen = desk.follower.state.resyncs
            for key in (5, 6):
                place.put({key: (written(f"{key:08x}"),)}, 1)
            place.trim(1)
            await desk.until(lambda: desk.follower.state.resyncs == seen + 1 and desk.follower.state.warm == 1)

        for _ in range(4):
            await lose()
        assert pauses == [0.001, 0.002, 0.003, 0.003]
        desk.world.clock.advance_us(61_000_000)
        place.put({7: (written("7"),)}, 1)
        await desk.until(lambda: desk.follower.state.blocks == 6)
        pauses.clear()
        await lose()
        assert pauses == [0.001]
        await desk.follower.stop()

    run(story())


def test_a_store_that_does_not_answer_costs_no_copy(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        place = await desk.simple()
        desk.opened[-1].failing = 3
        desk.store.failing_loads = 2
        place.put({5: (written("5"),)}, 1)
        await desk.until(lambda: desk.follower.state.blocks == 4 and not desk.store.failing_loads)
        assert (desk.follower.state.resyncs, len(desk.opened)) == (0, 1)
        await desk.follower.stop()

    run(story())


def test_a_silent_store_is_told_by_the_age_of_the_copy(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path)
        await desk.simple()
        copies = await desk.follower.hand_over()
        desk.world.clock.advance_us(9_000_000)
        assert copies["i"].behind_s >= 9
        await copies["i"].close()

    run(story())


# -- the manager that wins ---------------------------------------------------------------------------------------------------------------------


class Heir:
    """A manager whose instance `i` has a follower's copy over a place with blocks in all states."""

    def __init__(self, folder: Path) -> None:
        self.world = ManagerWorld(folder, ProtoLocationEncoder())
        self.place = ToldPlace()
        self.backend = ToldBackend(self.place)
        self.copy: WarmIndex

    def location(self, number: int, age: int = 0) -> Location:
        world = self.world
        uri = f"file://s{world.root_of('s')}/i/tp0/{number:x}?size=512"
        return begin_write(
            type_code=4,
            storage_slot=world.storages.slot_of("s"),
            create_time_us=1_000_000 - age,
            previous_key=None,
            size=512,
            location_id=f"{number:08x}",
            wire=world.codec.encode(4, [("tp0", uri)]),
        )

    async def win(self, config: MetaBackendConfig) -> None:
        world = self.world
        await world.simple()
        await world.manager.cleanup()
        self.place.begin(1)
        blocks: dict[int, Block] = {key: (promote(self.location(key)),) for key in (1, 2)}
        blocks |= {3: (self.location(3),), 4: (self.location(4, age=50),), 5: (condemn(promote(self.location(5))),)}
        self.place.put(blocks, 1)
        self.copy = WarmIndex(config, "i", self.backend, self.backend, world.codec.packing, world.clock.monotonic_us)
        await self.copy.fill()
        self.place.put({6: (promote(self.location(6)),)}, 1)
        world.term.epoch = 2
        await world.manager.recover({"i": self.copy})


def test_a_copy_becomes_the_index_and_its_unfinished_blocks_go(tmp_path: Path) -> None:
    async def story() -> None:
        heir = Heir(tmp_path)
        await heir.win(MetaBackendConfig("local"))
        world = heir.world
        assert world.shard("i").index is heir.copy.index
        assert len(await world.read("i", [1, 2])) == 2
        assert len(await world.read("i", [6])) == 1
        assert [world.states("i", key) for key in (3, 4, 5)] == [[Status.DELETING]] * 3
        assert world.manager.group_usage("g").total == 6 * 512
        assert world.manager.deleter.pending == 3
        # Storages are told of the places in the background; nothing is deleted before.
        assert world.shard("i").upkeep.deletion_paused
        await world.rest()
        assert not world.shard("i").upkeep.deletion_paused
        assert set(heir.place.blocks) == {1, 2, 6}
        assert world.manager.group_usage("g").total == 3 * 512

    run(story())


def test_a_copy_of_another_store_is_closed_and_the_store_is_loaded(tmp_path: Path) -> None:
    async def story() -> None:
        heir = Heir(tmp_path)
        await heir.win(ELSEWHERE)
        assert heir.world.shard("i").index is not heir.copy.index
        assert not heir.backend.is_open
        assert heir.place.fence == 1

    run(story())


@pytest.mark.parametrize("how", ["trimmed", "silent"])
def test_a_copy_in_doubt_is_not_taken_over(tmp_path: Path, how: str) -> None:
    async def story() -> None:
        place = ToldPlace()
        place.begin(1)
        backend = ToldBackend(place)
        copy = WarmIndex(FOLLOWED, "i", backend, backend, FixedWidth(), lambda: 0)
        await copy.fill()
        if how == "trimmed":
            place.put({1: (written("1"),)}, 1)
            place.trim(1)
        else:
            place.begin(2, tells=False)
            place.put({1: (written("1"),)}, 2)
            place.tells = True
        assert await copy.take_over(3) is None
        assert not backend.is_open

    run(story())


def test_a_copy_that_was_never_complete_is_not_taken_over() -> None:
    async def story() -> None:
        place = ToldPlace()
        place.begin(1)
        backend = ToldBackend(place)
        copy = WarmIndex(FOLLOWED, "i", backend, backend, FixedWidth(), lambda: 0)
        backend.failing = 1
        with pytest.raises(StorageError):
            await copy.fill()
        assert await copy.take_over(2) is None
        assert place.fence == 1

    run(story())


def test_a_read_of_the_registry_that_failed_slowly_is_soon_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """How long nobody answered says nothing about the size of the registry: an outage must not leave a follower blind for minutes after it."""

    async def story() -> None:
        desk = Desk(tmp_path)
        reads: list[int] = []

        async def load() -> RegistrySnapshot:
            reads.append(len(reads))
            if len(reads) in (2, 3):
                desk.world.clock.advance_us(5_000_000)
                raise StorageError("The store did not answer.")
            return await desk.store.load()

        desk.follower = Follower(load, desk.open, FixedWidth(), desk.world.clock)
        desk.follower.start()
        await desk.until(lambda: len(reads) > 3)
        await desk.group("g", FOLLOWED)
        await desk.instance("i", "g")
        await desk.until(lambda: desk.follower.state.warm == 1)
        await desk.follower.stop()

    with caplog.at_level("INFO", "kvcm.follower"):
        run(story())
    said = [record.getMessage().split(":")[0] for record in caplog.records if "registry" in record.getMessage()]
    assert said == ["follower_registry_unknown", "follower_registry_known_again"]


def test_a_large_registry_is_read_less_often_but_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "_LOOK_EVERY_S", 3.0)
    assert [follower_module._pause_s(took_s) for took_s in (0.0, 0.01, 0.2, 1.0, 5.0)] == [3.0, 3.0, 10.0, 50.0, 60.0]
