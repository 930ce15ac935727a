"""A snapshot taken, loaded, and taken again is the same; a load changes all or nothing; what is wrong with a text is said."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.clock import FakeClock
from kvcm.common.errors import InvalidArgument, KvcmError, OutcomeUnknown
from kvcm.config.accounts import Role
from kvcm.config.model import Instance, InstanceGroup, LocationSpecGroup, LocationSpecInfo, ModelDeployment, QueryType, QuotaConfig
from kvcm.config.registry import Registry
from kvcm.config.startup import default_group, default_storage
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing import FakeStorages, Fault, FaultyStore, quick_hasher
from kvcm.data_storage.model import DummySpec, Hf3fsSpec, NfsSpec, Storage, StorageType

pytestmark = pytest.mark.property

NAMES = st.sampled_from(("a", "b", "c d", "\u00fc"))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

SPECS = st.one_of(
    st.builds(NfsSpec, st.sampled_from(("/r/", "/s/")), st.integers(1, 8)).map(lambda spec: (StorageType.NFS, spec)),
    st.builds(DummySpec, st.just("/d/"), st.just(1)).map(lambda spec: (StorageType.DUMMY, spec)),
    st.builds(Hf3fsSpec, st.just("/m"), TEXTS, TEXTS).map(lambda spec: (StorageType.HF3FS, spec)),
)


@st.composite
def storages(draw: st.DrawFn) -> Storage:
    kind, spec = draw(SPECS)
    return Storage(draw(st.sampled_from(("s0", "s1", "s2"))), kind, spec, draw(st.booleans()), draw(st.booleans()))


@st.composite
def groups(draw: st.DrawFn) -> InstanceGroup:
    usual = default_group()
    return replace(
        usual,
        name=draw(NAMES),
        storage_candidates=tuple(draw(st.lists(st.sampled_from(("s0", "s1")), min_size=1, max_size=2))),
        max_instance_count=draw(st.integers(0, 3)),
        quota=replace(usual.quota, capacity=draw(INT64), by_type=tuple(QuotaConfig(StorageType.NFS, n) for n in draw(st.lists(INT64, max_size=2)))),
        user_data=draw(TEXTS),
        extra_info=draw(TEXTS),
        version=draw(INT64),
    )


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    return Instance(
        draw(st.sampled_from(("i0", "i1", "i2", "i3"))),
        draw(NAMES),
        "",
        draw(st.integers(1, 64)),
        (LocationSpecInfo("tp0", 1), LocationSpecInfo("tp1", 2)),
        ModelDeployment("m", "d", draw(st.booleans()), user_data=draw(TEXTS)),
        draw(st.sampled_from(((), (LocationSpecGroup("g", ("tp0",)),)))),
        draw(st.sampled_from(QueryType)),
    )


class World:
    def __init__(self) -> None:
        self.store = FaultyStore(MemoryStore())
        self.storages = FakeStorages()
        self.registry = Registry(self.store, self.storages, FakeClock(), hasher=quick_hasher())

    async def fill(self, entities: list[Storage | InstanceGroup | Instance | tuple[str, Role]]) -> World:
        registry = self.registry
        await registry.recover(1)
        for entity in entities:
            try:
                match entity:
                    case Storage():
                        await registry.add_storage(entity)
                    case InstanceGroup():
                        await registry.create_group(entity)
                    case Instance():
                        await registry.register_instance(entity)
                    case (name, role):
                        await registry.accounts.add(name, "p", role)
            except KvcmError:
                continue
        return self

    def memory(self) -> dict[str, object]:
        registry = self.registry
        return {
            "storages": {item.name: item for item in registry.list_storages()},
            "groups": {item.name: item for item in registry.list_groups()},
            "instances": {item.instance_id: item for item in registry.list_instances()},
            "accounts": {item.user_name: item for item in registry.accounts.list()},
            "opened": dict(self.storages.opened),
        }


async def load(target: World, text: str) -> tuple[KvcmError | None, int]:
    """(the refusal, how many entities changed)"""
    try:
        return None, (await target.registry.load_snapshot(text)).count
    except KvcmError as error:
        return error, 0


ACCOUNTS = st.tuples(st.sampled_from(("ann", "bob")), st.sampled_from(Role))
ENTITIES = st.lists(st.one_of(storages(), groups(), instances(), ACCOUNTS), max_size=14)


@settings(deadline=None, max_examples=60)
@given(ENTITIES)
def test_a_snapshot_loaded_into_an_empty_registry_is_the_same_snapshot(entities: list[object]) -> None:
    async def run() -> None:
        source = await World().fill(entities)  # type: ignore[arg-type]
        text = await source.registry.snapshot()
        before = source.memory()
        assert (await source.registry.load_snapshot(text)).count == 0
        assert source.memory() == before

        target = await World().fill([])
        await target.registry.load_snapshot(text)
        assert await target.registry.snapshot() == text
        for table in ("storages", "groups", "instances", "opened"):
            assert target.memory()[table] == before[table]
        # And the next process sees it too.
        after = target.memory()
        await target.registry.recover(2)
        assert target.memory() == after

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(ENTITIES, ENTITIES)
def test_a_load_into_another_registry_gives_what_it_says_or_changes_nothing_and_again_changes_nothing(here: list[object], there: list[object]) -> None:
    async def run() -> None:
        source, target = await World().fill(there), await World().fill(here)  # type: ignore[arg-type]
        text = await source.registry.snapshot()
        before = target.memory()
        refused, _ = await load(target, text)
        if refused is not None:
            assert "config_snapshot" in refused.message or "Instance" in refused.message
            assert target.memory() == before
            return
        after = target.memory()
        for table in ("storages", "groups", "instances"):
            wanted, found, had = source.memory()[table], after[table], before[table]
            assert isinstance(wanted, dict)
            assert isinstance(found, dict)
            assert isinstance(had, dict)
            assert set(found) == set(wanted) | set(had)
            for name in wanted:
                if table == "groups":
                    assert replace(found[name], version=0) == replace(wanted[name], version=0)
                    assert name not in had or found[name] == had[name] or found[name].version > had[name].version, "I-RG-3"
                elif table == "storages":
                    assert found[name] == wanted[name]
        assert after["opened"] == after["storages"]
        assert (await target.registry.load_snapshot(text)).count == 0
        assert target.memory() == after
        await target.registry.recover(2)
        assert target.memory() == after

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(ENTITIES, ENTITIES, st.sampled_from((Fault.FAIL, Fault.LOST_REQUEST, Fault.LOST_ANSWER)), st.sets(st.sampled_from(("s0", "s1", "s2"))))
def test_I_RG_2_a_load_that_fails_half_way_changes_nothing(here: list[object], there: list[object], fault: Fault, broken: set[str]) -> None:
    async def run() -> None:
        source, target = await World().fill(there), await World().fill(here)  # type: ignore[arg-type]
        text = await source.registry.snapshot()
        before, stored = target.memory(), (await target.store.inner.load()).tables
        target.storages.broken = broken
        target.store.faults = [fault]
        refused, _ = await load(target, text)
        target.store.faults, target.storages.broken = [], set()
        assert not isinstance(refused, OutcomeUnknown), "the store can be read, so nothing is unknown"
        if refused is not None:
            assert (await target.store.inner.load()).tables == stored
            # A storage that was replaced and cannot be opened as it was is kept by its name (see the undo of an update).
            assert {**target.memory(), "opened": {}} == {**before, "opened": {}}
            assert set(target.storages.opened) == set(before["opened"])  # type: ignore[call-overload]
            return
        after = target.memory()
        await target.registry.recover(2)
        assert {**target.memory(), "opened": {}} == {**after, "opened": {}}

    asyncio.run(run())


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_text_that_was_damaged_is_refused_with_a_sentence_or_still_means_something(data: st.DataObject) -> None:
    async def run() -> None:
        entities = [default_storage(), replace(default_group(), storage_candidates=("nfs_01",)), ("ann", Role.USER)]
        text = await (await World().fill(entities)).registry.snapshot()  # type: ignore[arg-type]
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 5))
        damaged = text[:at] + data.draw(st.text(st.characters(codec="utf-8"), max_size=3)) + text[at + cut :]
        target = await World().fill([])
        before = target.memory()
        refused, _ = await load(target, damaged)
        if refused is not None:
            assert refused.message
            assert "Traceback" not in refused.message
            assert target.memory() == before
        else:
            assert await target.registry.snapshot()

    asyncio.run(run())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
)


@settings(deadline=None, max_examples=100)
@given(JSON, st.sampled_from(("storages", "instance_groups", "instances", "accounts", "version", "format", "")))
def test_any_json_in_any_place_is_refused_or_loaded(value: object, place: str) -> None:
    content = {"format": "kvcm-config-snapshot", "version": 1, place: value} if place else value
    if place in ("storages", "instance_groups", "instances", "accounts"):
        content = {"format": "kvcm-config-snapshot", "version": 1, place: [value]}

    async def run() -> None:
        target = await World().fill([])
        refused, count = await load(target, json.dumps(content))
        assert count == 0
        assert refused is None or isinstance(refused, InvalidArgument)
        assert target.memory() == {"storages": {}, "groups": {}, "instances": {}, "accounts": {}, "opened": {}}

    asyncio.run(run())
