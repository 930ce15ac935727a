"""I-RG-1 .. I-RG-6 under random sequences of operations, with a store that fails before, after, or without telling."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.clock import FakeClock
from kvcm.common.errors import InvalidArgument, KvcmError, OutcomeUnknown
from kvcm.config.errors import InUse, VersionConflict
from kvcm.config.model import Instance, LocationSpecGroup, LocationSpecInfo, ModelDeployment
from kvcm.config.registry import Registry
from kvcm.config.startup import default_group, default_storage
from kvcm.config.store import RESERVED_IDS, RegistryStore
from kvcm.config.store_local import LocalStore
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing import FakeStorages, Fault, FaultyStore
from kvcm.data_storage.model import NfsSpec

pytestmark = pytest.mark.property

STORAGES = ("s0", "s1")
GROUPS = ("g0", "g1")
INSTANCES = ("i0", "i1", "i2")


@dataclass(frozen=True)
class Op:
    kind: str
    name: str
    number: int
    flag: bool


def _ops(kinds: tuple[str, ...], names: tuple[str, ...]) -> st.SearchStrategy[Op]:
    return st.builds(Op, st.sampled_from(kinds), st.sampled_from(names), st.integers(0, 3), st.booleans())


OPS = st.one_of(
    _ops(("add_storage", "update_storage", "remove_storage", "enable_storage"), STORAGES),
    _ops(("create_group", "update_group", "remove_group"), GROUPS),
    _ops(("register", "register", "remove_instance"), INSTANCES),
    _ops(("recover", "cleanup_recover"), ("",)),
)
FAULTS = st.sampled_from((None, None, Fault.FAIL, Fault.LOST_ANSWER, Fault.LOST_REQUEST))


def make_instance(op: Op) -> Instance:
    return Instance(
        instance_id=op.name,
        instance_group_name=GROUPS[op.number % 2],
        quota_group_name="",
        block_size=16 if op.flag else 32,
        location_spec_infos=(LocationSpecInfo("tp0", 1), LocationSpecInfo("b", 1)),
        model_deployment=ModelDeployment("m", "d"),
        location_spec_groups=(LocationSpecGroup("z", ("tp0",)), LocationSpecGroup("a", ("tp0", "b"))),
    )


class World:
    def __init__(self, store: RegistryStore) -> None:
        self.store = FaultyStore(store)
        self.storages = FakeStorages()
        self.registry = Registry(self.store, self.storages, FakeClock())
        self.epoch = 1

    async def run(self, op: Op) -> None:
        registry = self.registry
        match op.kind:
            case "add_storage":
                await registry.add_storage(replace(default_storage(), name=op.name, enabled=op.flag))
            case "update_storage":
                await registry.update_storage(replace(default_storage(), name=op.name, spec=NfsSpec("/r/", op.number + 1)), force=op.flag)
            case "remove_storage":
                await registry.remove_storage(op.name, force=op.flag)
            case "enable_storage":
                await registry.set_storage_enabled(op.name, op.flag)
            case "create_group":
                candidates = STORAGES[: 1 + op.flag]
                await registry.create_group(replace(default_group(), name=op.name, storage_candidates=candidates, max_instance_count=op.number))
            case "update_group":
                old = registry.get_group(op.name)
                current = old.version if old is not None and op.flag else op.number
                await registry.update_group(replace(default_group(), name=op.name, version=current + op.number), current)
            case "remove_group":
                await registry.remove_group(op.name, force=op.flag)
            case "register":
                await registry.register_instance(make_instance(op))
            case "remove_instance":
                await registry.remove_instance(op.name)
            case "cleanup_recover":
                await registry.cleanup()
                self.epoch += op.number
                await registry.recover(self.epoch)
            case _:
                self.epoch += op.number
                await registry.recover(self.epoch)

    def memory(self) -> dict[str, object]:
        return view(self.registry)


def view(registry: Registry) -> dict[str, object]:
    return {
        "storages": {item.name: item for item in registry.list_storages()},
        "groups": {item.name: item for item in registry.list_groups()},
        "instances": {item.instance_id: item for item in registry.list_instances()},
        "quarantined": {(item.table, item.id) for item in registry.quarantined()},
    }


async def recovered(store: RegistryStore, epoch: int) -> dict[str, object]:
    """What a fresh process would see."""
    registry = Registry(store, FakeStorages(), FakeClock())
    await registry.recover(epoch)
    return view(registry)


@settings(deadline=None, max_examples=80)
@given(st.lists(OPS, max_size=25))
def test_I_RG_1_recovery_in_an_empty_process_gives_the_same_state(ops: list[Op]) -> None:
    async def run() -> None:
        world = World(MemoryStore())
        await world.registry.recover(1)
        for op in ops:
            try:
                await world.run(op)
            except KvcmError:
                continue
            assert await recovered(world.store.inner, world.epoch) == world.memory()
            assert world.storages.opened == world.memory()["storages"]

    asyncio.run(run())


@settings(deadline=None, max_examples=25)
@given(st.lists(OPS, max_size=12))
def test_I_RG_1_holds_for_the_registry_file(ops: list[Op]) -> None:
    async def run(path: Path) -> None:
        store = LocalStore(str(path))
        world = World(store)
        await world.registry.recover(1)
        for op in ops:
            try:
                await world.run(op)
            except KvcmError:
                continue
        fresh = LocalStore(str(path))
        assert await recovered(fresh, world.epoch) == world.memory()
        await store.close()
        await fresh.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "registry.json"))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(OPS, FAULTS, st.booleans()), max_size=20), st.sets(st.sampled_from(STORAGES)))
def test_I_RG_2_a_failed_mutation_leaves_memory_and_store_equal(steps: list[tuple[Op, Fault | None, bool]], broken: set[str]) -> None:
    async def run() -> None:
        world = World(MemoryStore())
        await world.registry.recover(1)
        for number, (op, fault, unreadable) in enumerate(steps):
            if op.kind in ("recover", "cleanup_recover"):
                continue
            world.storages.broken = broken if number % 3 == 2 else set()
            before, stored_before = world.memory(), await world.store.inner.load()
            world.store.faults = [fault]
            world.store.failing_loads = 1 if unreadable else 0
            try:
                await world.run(op)
            except OutcomeUnknown:
                # Not settled yet: nothing is published, and the next mutation settles it first, whatever its own fate.
                assert world.memory() == before
                world.store.faults, world.store.failing_loads, world.storages.broken = [], 0, set()
                with pytest.raises(KvcmError):
                    await world.registry.remove_instance("nobody")
            except KvcmError:
                assert (await world.store.inner.load()).tables == stored_before.tables
            world.storages.broken = set()
            memory = world.memory()
            assert await recovered(world.store.inner, world.epoch) == memory
            assert world.storages.opened == memory["storages"]

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=12))
def test_I_RG_3_versions_grow_and_one_of_concurrent_updates_wins(updates: list[tuple[int, int]]) -> None:
    async def run() -> None:
        world = World(MemoryStore())
        registry = world.registry
        await registry.recover(1)
        await registry.create_group(default_group())
        seen = [1]

        def note(_: object) -> None:
            group = registry.get_group("default")
            if group is not None:
                seen.append(group.version)

        registry.on_change(note)
        for current, new in updates:
            try:
                await registry.update_group(replace(default_group(), version=new), current)
            except VersionConflict:
                assert current != seen[-1] or new <= current
        assert seen == sorted(set(seen))
        base = seen[-1]
        rivals = [registry.update_group(replace(default_group(), version=base + 1 + n, user_data=str(n)), base) for n in range(4)]
        outcomes = await asyncio.gather(*rivals, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 1
        assert sum(isinstance(outcome, VersionConflict) for outcome in outcomes) == 3

    asyncio.run(run())


@settings(deadline=None, max_examples=40)
@given(st.lists(_ops(("register", "register", "remove_instance"), INSTANCES), max_size=12))
def test_I_RG_4_a_listed_instance_has_its_record_at_every_moment(ops: list[Op]) -> None:
    async def run(path: Path) -> None:
        store = LocalStore(str(path))
        world = World(store)
        await world.registry.recover(1)
        for name in GROUPS:
            await world.registry.create_group(replace(default_group(), name=name, max_instance_count=0))
        for op in ops:
            try:
                await world.run(op)
            except KvcmError:
                continue
            raw = json.loads(path.read_text())
            listed = json.loads(raw.get("instance", "{}"))
            assert all(name in json.loads(raw[name]) for name in listed)
            assert set(listed) == {item.instance_id for item in world.registry.list_instances()}
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "registry.json"))


@settings(deadline=None, max_examples=80)
@given(st.one_of(st.sampled_from(sorted(RESERVED_IDS)), st.text(max_size=12).map(lambda text: "__kvcm_" + text), st.text(max_size=12)))
def test_I_RG_4b_no_accepted_id_collides_with_a_reserved_key(name: str) -> None:
    async def run() -> bool:
        world = World(MemoryStore())
        await world.registry.recover(1)
        await world.registry.create_group(replace(default_group(), name="g0"))
        try:
            return await world.registry.register_instance(replace(make_instance(Op("", "i", 0, True)), instance_id=name))
        except InvalidArgument:
            return False

    accepted = asyncio.run(run())
    if name in RESERVED_IDS or name.startswith("__kvcm_"):
        assert not accepted
    if name.isalnum() and name.isascii() and name not in RESERVED_IDS:
        assert accepted


@settings(deadline=None, max_examples=80)
@given(st.lists(OPS, max_size=25))
def test_I_RG_5_nothing_that_is_referenced_vanishes_without_force(ops: list[Op]) -> None:
    def referenced(registry: Registry) -> set[tuple[str, str]]:
        groups = {("group", item.instance_group_name) for item in registry.list_instances()}
        return groups | {("storage", name) for group in registry.list_groups() for name in group.storage_candidates}

    def present(registry: Registry) -> set[tuple[str, str]]:
        return {("group", item.name) for item in registry.list_groups()} | {("storage", item.name) for item in registry.list_storages()}

    async def run() -> None:
        world = World(MemoryStore())
        await world.registry.recover(1)
        for op in ops:
            forced = op.kind in ("remove_storage", "remove_group") and op.flag
            guarded = referenced(world.registry) & present(world.registry)
            refused = False
            try:
                await world.run(op)
            except InUse:
                refused = True
            except KvcmError:
                pass
            if not forced:
                still = guarded - present(world.registry)
                assert not still
            if refused:
                assert not forced

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(st.lists(OPS, max_size=15), st.lists(st.booleans(), min_size=1, max_size=6))
def test_I_RG_6_recover_after_cleanup_is_idempotent(ops: list[Op], cleanups: list[bool]) -> None:
    async def run() -> None:
        world = World(MemoryStore())
        await world.registry.recover(1)
        for op in ops:
            try:
                await world.run(op)
            except KvcmError:
                continue
        before, opened, stored = world.memory(), dict(world.storages.opened), await world.store.load()
        for cleanup in cleanups:
            if cleanup:
                await world.registry.cleanup()
                assert world.storages.opened == {}
            await world.registry.recover(world.epoch)
            assert world.memory() == before
            assert world.storages.opened == opened
        assert await world.store.load() == stored

    asyncio.run(run())
