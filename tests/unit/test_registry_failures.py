"""A registry with damaged records, stores that fail, answers that are lost and callers that go away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import NotFound, NotReady, StorageError
from kvcm.config.errors import FencedOut
from kvcm.config.registry import Registry
from kvcm.config.registry_core import RegistryEvent, RegistryEventKind
from kvcm.config.startup import default_group, default_storage
from kvcm.config.store import Change
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing import FakeStorages, Fault, FaultyStore
from kvcm.config.testing_world import World, instance, scenario
from kvcm.data_storage.model import NfsSpec, Storage

pytestmark = pytest.mark.unit


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
