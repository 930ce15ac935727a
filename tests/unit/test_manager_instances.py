"""Instances come and go: registering, removing, registering again, metadata that cannot be opened, groups that change."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import CapacityReached, InstanceNotExist, KvcmError, NotReady, StorageError
from kvcm.config.model import MetaBackendConfig
from kvcm.config.testing import Fault as RegistryFault
from kvcm.config.testing import FaultyStore
from kvcm.data_storage.model import StorageType
from kvcm.manager.errors import QuotaReached
from kvcm.manager.testing import SIZE, ManagerWorld
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault, Scheduler
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

CODEC = ProtoLocationEncoder()


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_an_instance_that_is_not_registered_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        with pytest.raises(InstanceNotExist, match="'nobody'"):
            world.manager.shard("nobody")
        with pytest.raises(InstanceNotExist, match="'nobody'"):
            await world.manager.remove_instance("nobody")

    run(story())


def test_a_group_that_is_not_there_is_named_and_nothing_is_registered(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple(instances=())
        with pytest.raises(InstanceNotExist, match="'missing'"):
            await world.manager.register(world.instance("i", "missing"))
        assert world.registry.get_instance("i") is None
        assert world.manager.shards() == []

    run(story())


def test_a_removed_instance_is_unknown_at_once_and_its_bytes_go_later(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple(instances=("i", "j"))
        write = await world.put("i", [1, 2])
        kept = await world.put("j", [1])
        open_ = await world.start("i", [3])
        await world.manager.remove_instance("i")
        with pytest.raises(InstanceNotExist):
            world.shard("i")
        with pytest.raises(InstanceNotExist):
            await world.finish(open_)
        assert {location.status for name, _, location in world.locations() if name == "i"} == {Status.DELETING}
        assert world.manager.group_usage("g").total == 4 * SIZE, "the bytes are still there and count"
        await world.rest()
        assert world.manager.group_usage("g").total == SIZE
        assert not any(Path(uri.split("?")[0].removeprefix("file://s")).exists() for uri in write.all_uris())
        assert await world.read("j", [1]) == kept.uris
        assert [shard.instance_id for shard in world.holders()] == ["j"]

    run(story())


@pytest.mark.parametrize("kind", ["file", "dummy"])
def test_an_id_that_is_registered_again_starts_empty(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple(kind)  # type: ignore[arg-type]
        await world.put("i", [1, 2])
        await world.manager.remove_instance("i")
        assert await world.manager.register(world.instance("i", "g", [("other", 2 * SIZE)])) is True
        assert await world.read("i", [1, 2]) == []
        assert world.shard("i").spec_sizes == {"other": 2 * SIZE}
        again = await world.put("i", [1])
        assert list(again.uris[0]) == ["other"], "old places have other specs, so nothing collides"
        await world.rest()
        assert await world.read("i", [1, 2]) == again.uris
        assert world.manager.group_usage("g").total == 2 * SIZE == world.shard("i").index.usage.total

    run(story())


def test_an_id_that_moves_to_another_group_takes_its_usage_along(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple()
        await world.add_group(world.group("h", ["s"]))
        await world.put("i", [1, 2])
        await world.manager.remove_instance("i")
        await world.manager.register(world.instance("i", "h"))
        assert (world.manager.group_usage("g").total, world.manager.group_usage("h").total) == (0, 2 * SIZE)
        await world.rest()
        assert (world.manager.group_usage("g").total, world.manager.group_usage("h").total) == (0, 0)

    run(story())


def test_an_id_does_not_move_to_another_metadata_store_while_old_blocks_are_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        await world.add_group(world.group("h", ["s"]))
        await world.put("i", [1])
        await world.manager.remove_instance("i")
        with pytest.raises(NotReady, match="still being deleted"):
            await world.manager.register(world.instance("i", "h"))
        assert world.registry.get_instance("i") is None, "the registration was taken back"
        await world.rest()
        assert await world.manager.register(world.instance("i", "h")) is True

    run(story())


def test_blocks_that_the_store_does_not_let_go_keep_the_id_from_coming_back(tmp_path: Path) -> None:
    """A new registration must not serve blocks of the old one."""

    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending")
        await world.simple()
        await world.put("i", [1, 2])
        world.stores["i"].failing_keys = {2}
        await world.manager.remove_instance("i")
        with pytest.raises(StorageError):
            await world.manager.register(world.instance("i", "g"))
        assert world.registry.get_instance("i") is None
        world.stores["i"].failing_keys = set()
        assert await world.manager.register(world.instance("i", "g")) is True
        assert await world.read("i", [1, 2]) == []
        await world.rest()
        assert world.locations() == []

    run(story())


def test_a_removal_that_the_registry_refuses_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        registry_store = FaultyStore(world.registry_store)
        world.registry_store = registry_store
        await world.simple()
        write = await world.put("i", [1])
        registry_store.faults.append(RegistryFault.FAIL)
        with pytest.raises(StorageError):
            await world.manager.remove_instance("i")
        assert await world.read("i", [1]) == write.uris

    run(story())


def test_a_registration_whose_metadata_cannot_be_opened_is_taken_back(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple(instances=())
        (tmp_path / "meta").mkdir(exist_ok=True)
        (tmp_path / "meta" / "g.i").mkdir()  # a folder where the file should be
        with pytest.raises(StorageError):
            await world.manager.register(world.instance("i", "g"))
        assert world.registry.get_instance("i") is None
        assert world.manager.group_usage("g").total == 0
        (tmp_path / "meta" / "g.i").rmdir()
        assert await world.manager.register(world.instance("i", "g")) is True

    run(story())


def test_an_unknown_metadata_backend_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.simple(instances=())
        for name, kind in (("redis", "redis"), ("odd", "no such thing")):
            group = world.group(name, ["s"])
            indexer = replace(group.cache_config.meta_indexer, backend=MetaBackendConfig(kind))
            await world.add_group(replace(group, cache_config=replace(group.cache_config, meta_indexer=indexer)))
            with pytest.raises(KvcmError, match=kind):
                await world.manager.register(world.instance("i", name))
            assert world.registry.get_instance("i") is None

    run(story())


def test_an_instance_whose_metadata_is_damaged_is_repaired_by_itself_when_the_store_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple(instances=("i", "j"))
        write = await world.put("i", [1])
        file = tmp_path / "meta" / "g.i"
        file.rename(tmp_path / "kept")
        file.mkdir()
        await world.restart()
        with pytest.raises(NotReady, match="cannot be opened"):
            world.shard("i")
        assert [shard.instance_id for shard in world.manager.shards()] == ["j"]
        with pytest.raises(StorageError):  # a repeated registration says why
            await world.manager.register(world.instance("i", "g"))
        assert world.registry.get_instance("i") is not None, "it was registered before, so it stays so"
        file.rmdir()
        (tmp_path / "kept").rename(file)
        await world.manager.sweep()
        assert await world.read("i", [1]) == write.uris

    run(story())


def test_an_instance_that_is_removed_while_its_metadata_cannot_be_opened_is_deleted_later(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple()
        await world.put("i", [1, 2])
        file = tmp_path / "meta" / "g.i"
        file.rename(tmp_path / "kept")
        file.mkdir()
        await world.restart()
        await world.manager.remove_instance("i")
        with pytest.raises(InstanceNotExist):
            world.shard("i")
        await world.manager.sweep()
        file.rmdir()
        (tmp_path / "kept").rename(file)
        await world.rest()
        assert world.files() == set()
        assert world.holders() == []

    run(story())


def test_two_instances_whose_ids_differ_by_a_suffix_have_separate_files(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        ids = ("a", "a.tmp", "a%tmp", "a.b")
        await world.simple(instances=ids)
        writes = {name: await world.put(name, [number]) for number, name in enumerate(ids)}
        for _ in range(2):
            await world.restart()
            for name, write in writes.items():
                assert await world.read(name, write.keys) == write.uris

    run(story())


def test_a_group_whose_path_begins_like_anothers_does_not_take_its_instances_for_leftovers(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="file")
        await world.simple(instances=())
        await world.add_group(world.group("g.x", ["s"]))
        await world.manager.register(world.instance("i", "g.x"))  # its file is g.x.i, which reads like `x.i` of g
        write = await world.put("i", [1])
        await world.restart()
        assert [shard.instance_id for shard in world.holders()] == ["i"]
        assert await world.read("i", [1]) == write.uris

    run(story())


def test_registering_and_removing_take_turns(tmp_path: Path) -> None:
    async def story() -> None:
        scheduler = Scheduler()
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending", scheduler=scheduler)
        await scheduler.run([world.simple(instances=())])
        calls = [world.manager.register(world.instance("i", "g")), world.manager.remove_instance("i"), world.manager.register(world.instance("i", "g"))]
        assert await scheduler.run(calls) == [True, None, True]
        assert len(world.manager.shards()) == 1
        assert not world.shard("i").closed

    run(story())


def test_limits_of_a_group_are_those_of_its_latest_version(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.open()
        await world.add_storage("s")
        group = world.group("g", ["s"], max_keys=2)
        await world.add_group(group)
        await world.manager.register(world.instance("i", "g"))
        await world.put("i", [1, 2])
        with pytest.raises(CapacityReached, match="2 of 2 blocks"):
            await world.start("i", [3])
        await world.update_group("g", cache_config=replace(group.cache_config, meta_indexer=replace(group.cache_config.meta_indexer, max_key_count=3)))
        await world.put("i", [3])
        await world.update_group("g", quota=replace(group.quota, capacity=3 * SIZE), cache_config=world.group("g", ["s"]).cache_config)
        with pytest.raises(QuotaReached):
            await world.start("i", [4])
        assert world.manager.group_usage("g").by_type() == {StorageType.NFS: 3 * SIZE}

    run(story())


def test_a_full_index_gives_back_what_it_allocated(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC)
        await world.open()
        await world.add_storage("s")
        await world.add_group(world.group("g", ["s"], max_keys=2))
        await world.manager.register(world.instance("i", "g"))
        await world.put("i", [1])
        with pytest.raises(CapacityReached):
            await world.start("i", [1, 2, 3])
        assert world.storages.allocated[1:] == []
        assert world.states("i", 2) == []
        await world.put("i", [2, 1])
        assert (await world.start("i", [1, 2])).keys == [], "known blocks can still be asked for"

    run(story())


def test_a_lost_registry_answer_does_not_lose_the_instance(tmp_path: Path) -> None:
    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending")
        registry_store = FaultyStore(world.registry_store)
        world.registry_store = registry_store
        await world.simple(instances=())
        registry_store.faults.append(RegistryFault.LOST_ANSWER)
        assert await world.manager.register(world.instance("i", "g")) is True
        world.stores["i"].faults.append(Fault.LOST_ANSWER)
        assert len((await world.start("i", [1, 2])).keys) == 2

    run(story())
