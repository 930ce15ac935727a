"""What the registry accepts and refuses, in sentences, without any change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import CapacityReached, DuplicateEntity, InstanceNotExist, InvalidArgument, NotFound, NotReady, StorageError
from kvcm.config.errors import FencedOut, InUse, VersionConflict
from kvcm.config.model import CacheConfig, CachePreferStrategy, Instance, InstanceGroup, LocationSpecInfo, ModelDeployment
from kvcm.config.registry import Registry
from kvcm.config.registry_core import RegistryEvent, RegistryEventKind
from kvcm.config.registry_rules import MAX_RECORD_CHARS
from kvcm.config.startup import default_group, default_storage
from kvcm.config.store import Change
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing import FakeStorages, Fault, FaultyStore
from kvcm.data_storage.model import DummySpec, NfsSpec, Storage, StorageType

pytestmark = pytest.mark.unit


class World:
    def __init__(self, enforce_references: bool = True) -> None:
        self.store = FaultyStore(MemoryStore())
        self.storages = FakeStorages()
        self.registry = Registry(self.store, self.storages, FakeClock(), enforce_references)
        self.events: list[RegistryEvent] = []
        self.registry.on_change(self.events.append)


def scenario(work: Callable[[World], Awaitable[None]], enforce_references: bool = True) -> World:
    world = World(enforce_references)

    async def run() -> None:
        await world.registry.recover(1)
        await work(world)

    asyncio.run(run())
    return world


def instance(instance_id: str = "one", group: str = "default", block_size: int = 16, user_data: str = "") -> Instance:
    return Instance(
        instance_id=instance_id,
        instance_group_name=group,
        quota_group_name="from the caller",
        block_size=block_size,
        location_spec_infos=(LocationSpecInfo("tp0", 1024),),
        model_deployment=ModelDeployment("model", "fp8", user_data=user_data),
    )


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


def test_damaged_records_and_stores_that_do_not_open_never_block_recovery() -> None:
    async def work(world: World) -> None:
        registry = world.registry
        await registry.apply_startup(default_storage(), default_group())
        await registry.register_instance(instance())
        bad: list[Change] = [
            Change("storage", "s", {"type": "nonsense"}),
            Change("instance_group", "g", {"name": "another"}),
            Change("instance", "i", {"block_size": "x"}),
            Change("account", "root", {"user_name": "root"}),
        ]
        await world.store.apply(bad, 1)
        world.storages.broken.add("nfs_01")
        await registry.recover(2)
        assert {(item.table, item.id) for item in registry.quarantined()} == {
            ("storage", "s"),
            ("storage", "nfs_01"),
            ("instance_group", "g"),
            ("instance", "i"),
        }
        assert set(world.storages.quarantined) == {"nfs_01"}
        assert registry.get_instance("one") is not None
        # A damaged record can be removed or overwritten; a storage that came back can be updated.
        await registry.remove_storage("s")
        await registry.remove_group("g")
        await registry.register_instance(instance("i"))
        world.storages.broken.clear()
        await registry.update_storage(default_storage())
        assert registry.quarantined() == []
        snapshot = await world.store.load()
        assert snapshot.get("account", "root") == {"user_name": "root"}
        assert snapshot.get("storage", "s") is None

    scenario(work)


def test_a_storage_that_came_back_by_itself_leaves_quarantine() -> None:
    async def work(world: World) -> None:
        await world.registry.add_storage(default_storage())
        world.storages.broken.add("nfs_01")
        await world.registry.recover(2)
        world.registry.storage_reopened("nfs_01")
        assert world.registry.quarantined() == []

    scenario(work)


def test_startup_content_never_resets_what_is_stored_and_is_retried_after_a_failure() -> None:
    async def work(world: World) -> None:
        registry = world.registry
        changed = replace(default_group(), user_data="mine")
        await registry.create_group(changed)
        world.store.faults = [Fault.FAIL]
        with pytest.raises(StorageError):
            await registry.apply_startup(default_storage(), default_group())
        await registry.cleanup()
        await registry.recover(2)
        await registry.apply_startup(default_storage(), default_group())
        assert registry.get_group("default") == changed
        assert registry.get_storage("nfs_01") == default_storage()
        await registry.remove_storage("nfs_01", force=True)
        await registry.recover(3)
        await registry.apply_startup(default_storage(), default_group())
        assert registry.list_storages() == []

    scenario(work)


def test_startup_content_does_not_overwrite_a_damaged_record() -> None:
    async def work(world: World) -> None:
        await world.store.apply([Change("storage", "nfs_01", {"type": "?"})], 1)
        await world.registry.recover(2)
        await world.registry.apply_startup(default_storage(), None)
        assert (await world.store.load()).get("storage", "nfs_01") == {"type": "?"}

    scenario(work)


def test_nothing_is_accepted_before_recovery_or_after_cleanup() -> None:
    world = World()

    async def run() -> None:
        with pytest.raises(NotReady):
            await world.registry.create_group(default_group())
        await world.registry.recover(1)
        await world.registry.create_group(default_group())
        await world.registry.cleanup()
        await world.registry.cleanup()
        assert world.registry.list_groups() == []
        with pytest.raises(NotReady):
            await world.registry.create_group(default_group())

    asyncio.run(run())
    assert [event.kind for event in world.events] == [
        RegistryEventKind.RECOVERED,
        RegistryEventKind.GROUP_CREATED,
        RegistryEventKind.CLEANED_UP,
    ]


def test_an_old_leader_cannot_write_and_is_told_so() -> None:
    async def work(world: World) -> None:
        await world.store.apply((), 9)
        with pytest.raises(FencedOut):
            await world.registry.create_group(default_group())
        assert world.registry.list_groups() == []
        with pytest.raises(FencedOut):
            await world.registry.recover(8)
        assert not world.registry.is_open

    world = scenario(work)
    assert RegistryEvent(RegistryEventKind.FENCED_OUT) in world.events


def test_a_lost_answer_is_resolved_by_reading_and_an_unreadable_store_keeps_the_doubt() -> None:
    async def work(world: World) -> None:
        registry = world.registry
        world.store.faults = [Fault.LOST_ANSWER]
        await registry.create_group(default_group())
        assert registry.get_group("default") is not None
        world.store.faults = [Fault.LOST_REQUEST]
        with pytest.raises(StorageError, match="was not stored"):
            await registry.remove_group("default")
        assert registry.get_group("default") is not None
        world.store.faults, world.store.failing_loads = [Fault.LOST_ANSWER], 2
        for _ in range(2):
            with pytest.raises(StorageError, match="no change is accepted"):
                await registry.remove_group("default")
        # The store answers again: first the doubt is settled (it was removed), then the call is looked at.
        with pytest.raises(NotFound):
            await registry.remove_group("default")
        assert registry.list_groups() == []

    scenario(work)


def test_a_caller_that_goes_away_does_not_split_memory_from_store() -> None:
    class SlowStore(FaultyStore):
        def __init__(self) -> None:
            super().__init__(MemoryStore())
            self.entered, self.go = asyncio.Event(), asyncio.Event()

        async def apply(self, changes: object, fence: int) -> None:
            await super().apply(changes, fence)  # type: ignore[arg-type]
            if changes:
                self.entered.set()
                await self.go.wait()

    async def run() -> None:
        store = SlowStore()
        registry = Registry(store, FakeStorages(), FakeClock())
        await registry.recover(1)
        caller = asyncio.create_task(registry.create_group(default_group()))
        await store.entered.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        store.go.set()
        await registry.create_group(replace(default_group(), name="second"))
        assert [group.name for group in registry.list_groups()] == ["default", "second"]

    asyncio.run(run())


def test_the_queue_of_waiting_changes_is_bounded() -> None:
    async def run() -> None:
        world = World()
        await world.registry.recover(1)
        groups = [replace(default_group(), name=f"g{number}") for number in range(300)]
        results = await asyncio.gather(*(world.registry.create_group(group) for group in groups), return_exceptions=True)
        assert sum(isinstance(result, NotReady) for result in results) == 300 - 256
        assert len(world.registry.list_groups()) == 256

    asyncio.run(run())


def test_a_listener_that_fails_does_not_fail_the_change(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        def bad(_: RegistryEvent) -> None:
            raise RuntimeError("listener")

        world.registry.on_change(bad)
        await world.registry.create_group(default_group())
        assert world.registry.get_group("default") is not None

    scenario(work)
    assert "listener" in caplog.text


def test_an_update_that_can_neither_be_stored_nor_undone_keeps_the_storage_by_name() -> None:
    class BreaksAfterOneUpdate(FakeStorages):
        async def update(self, storage: Storage) -> None:
            await super().update(storage)
            self.broken.add(storage.name)

    async def run() -> None:
        store, storages = FaultyStore(MemoryStore()), BreaksAfterOneUpdate()
        registry = Registry(store, storages, FakeClock())
        await registry.recover(1)
        await registry.add_storage(default_storage())
        store.faults = [Fault.FAIL]
        with pytest.raises(StorageError, match="refused"):
            await registry.update_storage(replace(default_storage(), spec=NfsSpec("/tmp/nfs/", 4)))
        assert registry.get_storage("nfs_01") == default_storage() == storages.opened["nfs_01"]
        assert set(storages.quarantined) == {"nfs_01"}
        assert [item.id for item in registry.quarantined()] == ["nfs_01"]

    asyncio.run(run())


def test_an_unexpected_failure_while_opening_leaves_the_registry_closed_and_nothing_open() -> None:
    class Buggy(FakeStorages):
        async def add(self, storage: Storage, *, known: bool = False) -> None:
            if known and storage.name == "bad":
                raise RuntimeError("bug")
            await super().add(storage, known=known)

    async def run() -> None:
        storages = Buggy()
        registry = Registry(MemoryStore(), storages, FakeClock())
        await registry.recover(1)
        await registry.add_storage(default_storage())
        await registry.add_storage(replace(default_storage(), name="bad"))
        with pytest.raises(RuntimeError):
            await registry.recover(2)
        assert not registry.is_open
        assert storages.opened == {}
        assert registry.list_storages() == []

    asyncio.run(run())


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
