"""What the registry accepts and refuses, in sentences, without any change."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kvcm.common.errors import CapacityReached, DuplicateEntity, InstanceNotExist, InvalidArgument, NotFound, StorageError
from kvcm.config.errors import InUse, VersionConflict
from kvcm.config.model import CacheConfig, CachePreferStrategy, Instance, InstanceGroup, LocationSpecInfo, ModelDeployment
from kvcm.config.registry_core import RegistryEvent, RegistryEventKind
from kvcm.config.registry_rules import MAX_RECORD_CHARS
from kvcm.config.startup import default_group, default_storage
from kvcm.config.testing import Fault
from kvcm.config.testing_world import World, instance, scenario
from kvcm.data_storage.model import DummySpec, NfsSpec, Storage, StorageType

pytestmark = pytest.mark.unit


def test_a_storage_is_opened_stored_published_and_announced() -> None:
    async def work(world: World) -> None:
        await world.registry.add_storage(default_storage())
        with pytest.raises(DuplicateEntity, match="nfs_01"):
            await world.registry.add_storage(default_storage())

    world = scenario(work)
    assert world.registry.list_storages() == [default_storage()]
    assert world.storages.opened == {"nfs_01": default_storage()}
    assert world.events[-1] == RegistryEvent(RegistryEventKind.STORAGE_ADDED, "nfs_01")


def test_adding_an_existing_storage_does_not_touch_its_record() -> None:
    async def work(world: World) -> None:
        await world.registry.add_storage(default_storage())
        await world.registry.set_storage_enabled("nfs_01", False)
        with pytest.raises(DuplicateEntity):
            await world.registry.add_storage(replace(default_storage(), spec=NfsSpec("/elsewhere/")))
        await world.registry.recover(2)
        assert world.registry.get_storage("nfs_01") == replace(default_storage(), enabled=False)
        assert world.storages.opened["nfs_01"].enabled is False

    scenario(work)


def test_a_storage_that_cannot_be_opened_or_stored_leaves_nothing() -> None:
    async def work(world: World) -> None:
        world.storages.broken.add("nfs_01")
        with pytest.raises(StorageError):
            await world.registry.add_storage(default_storage())
        world.storages.broken.clear()
        world.store.faults = [Fault.FAIL]
        with pytest.raises(StorageError):
            await world.registry.add_storage(default_storage())
        assert world.registry.list_storages() == []
        assert world.storages.opened == {}
        assert (await world.store.load()).tables["storage"] == {}

    scenario(work)


def test_updating_a_storage_keeps_it_disabled_refuses_another_type_and_a_move_under_a_group() -> None:
    async def work(world: World) -> None:
        registry = world.registry
        with pytest.raises(NotFound, match="nfs_01"):
            await registry.update_storage(default_storage())
        await registry.add_storage(default_storage())
        await registry.set_storage_enabled("nfs_01", False)
        await registry.update_storage(replace(default_storage(), spec=NfsSpec("/tmp/nfs/", 4)))
        stored = registry.get_storage("nfs_01")
        assert stored is not None
        assert (stored.enabled, stored.spec) == (False, NfsSpec("/tmp/nfs/", 4))
        assert world.storages.opened["nfs_01"] == stored
        with pytest.raises(InvalidArgument, match="type"):
            await registry.update_storage(Storage("nfs_01", StorageType.DUMMY, DummySpec("/tmp/nfs/")), force=True)
        moved = replace(default_storage(), spec=NfsSpec("/moved/", 4))
        await registry.create_group(default_group())
        with pytest.raises(InUse, match="'default'"):
            await registry.update_storage(moved)
        await registry.update_storage(moved, force=True)
        assert world.storages.opened["nfs_01"].spec == NfsSpec("/moved/", 4)

    scenario(work)


def test_an_update_that_is_not_stored_goes_back_to_the_old_store() -> None:
    async def work(world: World) -> None:
        await world.registry.add_storage(default_storage())
        world.store.faults = [Fault.FAIL]
        with pytest.raises(StorageError):
            await world.registry.update_storage(replace(default_storage(), spec=NfsSpec("/tmp/nfs/", 4)))
        assert world.registry.get_storage("nfs_01") == default_storage() == world.storages.opened["nfs_01"]

    scenario(work)


def test_removing_what_is_referenced_is_refused_unless_forced() -> None:
    async def work(world: World) -> None:
        registry = world.registry
        await registry.apply_startup(default_storage(), default_group())
        await registry.register_instance(instance())
        with pytest.raises(InUse, match="'default' uses it"):
            await registry.remove_storage("nfs_01")
        with pytest.raises(InUse, match="1 registered instances"):
            await registry.remove_group("default")
        await registry.remove_storage("nfs_01", force=True)
        await registry.remove_group("default", force=True)
        assert (registry.list_storages(), registry.list_groups(), world.storages.opened) == ([], [], {})
        assert registry.get_instance("one") is not None
        for removal in (registry.remove_storage("nfs_01"), registry.remove_group("default")):
            with pytest.raises(NotFound):
                await removal

    scenario(work)


def test_without_enforcement_references_do_not_hold_anything() -> None:
    async def work(world: World) -> None:
        await world.registry.apply_startup(default_storage(), default_group())
        await world.registry.register_instance(instance())
        await world.registry.remove_storage("nfs_01")
        await world.registry.remove_group("default")
        assert world.registry.list_groups() == []

    scenario(work, enforce_references=False)


def test_a_group_may_name_storages_that_do_not_exist() -> None:
    async def work(world: World) -> None:
        await world.registry.create_group(default_group())
        with pytest.raises(DuplicateEntity):
            await world.registry.create_group(default_group())
        assert world.registry.get_group("default") == default_group()

    scenario(work)


def test_the_optimistic_lock_of_a_group() -> None:
    async def work(world: World) -> None:
        registry = world.registry
        with pytest.raises(NotFound):
            await registry.update_group(replace(default_group(), version=2), 1)
        await registry.create_group(default_group())
        with pytest.raises(VersionConflict, match="version 1, not 3"):
            await registry.update_group(replace(default_group(), version=4), 3)
        with pytest.raises(VersionConflict, match="greater than 1"):
            await registry.update_group(default_group(), 1)
        await registry.update_group(replace(default_group(), version=5, user_data="new"), 1)
        stored = registry.get_group("default")
        assert stored is not None
        assert (stored.version, stored.user_data) == (5, "new")

    scenario(work)


@pytest.mark.parametrize(
    "bad",
    [
        replace(default_group(), name=""),
        replace(default_group(), name="a\nb"),
        replace(default_group(), name=" a"),
        replace(default_group(), name="x" * 257),
        replace(default_group(), name="__kvcm_fence__"),
        replace(default_group(), storage_candidates=()),
        replace(default_group(), storage_candidates=("a/b",)),
        replace(default_group(), storage_candidates=("a",) * 257),
        replace(default_group(), global_quota_group_name=""),
        replace(default_group(), max_instance_count=-1),
        replace(default_group(), revisit_interval_buckets="5,5"),
        replace(default_group(), cache_config=CacheConfig(data_storage_strategy=CachePreferStrategy.UNSPECIFIED)),
        replace(default_group(), cache_config=CacheConfig(migration_json="{")),
        replace(default_group(), version=1 << 63),
    ],
)
def test_a_bad_group_is_refused(bad: InstanceGroup) -> None:
    async def work(world: World) -> None:
        with pytest.raises(InvalidArgument):
            await world.registry.create_group(bad)
        assert (await world.store.load()).tables["instance_group"] == {}

    scenario(work)


def test_registering_again_is_idempotent_and_another_configuration_is_named() -> None:
    async def work(world: World) -> None:
        registry = world.registry
        await registry.create_group(default_group())
        assert await registry.register_instance(instance()) is True
        world.store.faults = [Fault.FAIL]
        assert await registry.register_instance(instance(user_data="other", group="not compared")) is False
        assert world.store.faults == [Fault.FAIL]
        stored = registry.get_instance("one")
        assert stored is not None
        assert (stored.quota_group_name, stored.model_deployment.user_data) == ("default_quota_group", "")
        with pytest.raises(DuplicateEntity) as caught:
            await registry.register_instance(instance(block_size=32))
        assert "'one'" in caught.value.message
        details = json.loads(caught.value.message[caught.value.message.index("{") :])
        assert details == {"error_msg": ["block_size differs from the registered one"]}

    scenario(work)


def test_an_unknown_group_and_a_full_group_are_named() -> None:
    async def work(world: World) -> None:
        registry = world.registry
        with pytest.raises(InstanceNotExist, match="'default'"):
            await registry.register_instance(instance())
        await registry.create_group(replace(default_group(), max_instance_count=1))
        await registry.create_group(replace(default_group(), name="open", max_instance_count=0))
        await registry.register_instance(instance())
        with pytest.raises(CapacityReached, match="maximum of 1"):
            await registry.register_instance(instance("two"))
        for number in range(3):
            assert await registry.register_instance(instance(f"open{number}", "open"))
        assert [item.instance_id for item in registry.list_instances("open")] == ["open0", "open1", "open2"]
        assert len(registry.list_instances()) == 4
        assert registry.list_instances("nobody") == []
        await registry.remove_instance("one")
        with pytest.raises(InstanceNotExist, match="'one'"):
            await registry.remove_instance("one")

    scenario(work)


@pytest.mark.parametrize("name", ["", "a/b", "a?b", "a#b", "a&b", " a", "a ", "a\x00", "a\x7f", "x" * 257, "..", ".", "storage", "__kvcm_x", "a\ud800"])
def test_a_bad_instance_id_is_refused(name: str) -> None:
    async def work(world: World) -> None:
        await world.registry.create_group(default_group())
        with pytest.raises(InvalidArgument, match="instance_id"):
            await world.registry.register_instance(instance(name))

    scenario(work)


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "a:b", "..", "a\tb", "x" * 300])
def test_a_bad_storage_name_is_refused(name: str) -> None:
    async def work(world: World) -> None:
        with pytest.raises(InvalidArgument):
            await world.registry.add_storage(replace(default_storage(), name=name))
        assert world.storages.opened == {}

    scenario(work)


@pytest.mark.parametrize(
    "bad",
    [
        instance(block_size=0),
        instance(group=""),
        replace(instance(), location_spec_infos=()),
        replace(instance(), location_spec_infos=(LocationSpecInfo("../x", 1),)),
        replace(instance(), model_deployment=ModelDeployment("", "fp8")),
    ],
)
def test_a_bad_instance_is_refused(bad: Instance) -> None:
    async def work(world: World) -> None:
        await world.registry.create_group(default_group())
        with pytest.raises(InvalidArgument):
            await world.registry.register_instance(bad)

    scenario(work)


@pytest.mark.parametrize("what", ["instance", "group", "storage", "storage update", "group update"])
def test_no_entity_is_larger_than_a_store_that_is_written_whole_can_bear(what: str) -> None:
    big = "x" * MAX_RECORD_CHARS
    group, storage = replace(default_group(), name="g"), replace(default_storage(), name="s")
    large_storage = replace(storage, spec=NfsSpec(f"/{big}"))

    async def work(world: World) -> None:
        registry = world.registry
        await registry.add_storage(default_storage())
        await registry.create_group(default_group())
        await registry.add_storage(storage)
        before = await registry.snapshot()
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "instance": lambda: registry.register_instance(instance(user_data=json.dumps(big))),
            "group": lambda: registry.create_group(replace(group, user_data=json.dumps(big))),
            "storage": lambda: registry.add_storage(replace(large_storage, name="t")),
            "storage update": lambda: registry.update_storage(large_storage),
            "group update": lambda: registry.update_group(replace(default_group(), user_data=json.dumps(big), version=2), 1),
        }
        with pytest.raises(InvalidArgument, match="takes more than"):
            await attempts[what]()
        assert await registry.snapshot() == before

    world = scenario(work)
    assert set(world.storages.opened) == {default_storage().name, "s"}
