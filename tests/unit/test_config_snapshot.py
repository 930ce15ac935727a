"""Configuration snapshots in detail: the text, every refusal by name, secrets, force, and what a load does to the opened storages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import CapacityReached, DuplicateEntity, InvalidArgument, KvcmError, NotReady, StorageError
from kvcm.config import snapshot_text
from kvcm.config.accounts import Role
from kvcm.config.errors import InUse, VersionConflict
from kvcm.config.model import Instance, InstanceGroup, LocationSpecInfo, MetaBackendConfig, ModelDeployment
from kvcm.config.registry import Registry
from kvcm.config.registry_core import RegistryEvent
from kvcm.config.startup import default_group, default_storage
from kvcm.config.store import Change
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing import FakeStorages, quick_hasher
from kvcm.data_storage.model import MooncakeSpec, NfsSpec, Storage, StorageType

pytestmark = pytest.mark.unit

CANARY = "canarySecret"
STORAGE = default_storage()
GROUP = default_group()
INSTANCE = Instance("i", "default", "default_quota_group", 4, (LocationSpecInfo("tp0", 8),), ModelDeployment("m", "d"))


class World:
    def __init__(self, enforce: bool = True) -> None:
        self.store = MemoryStore()
        self.storages = FakeStorages()
        self.registry = Registry(self.store, self.storages, FakeClock(), enforce, quick_hasher())
        self.events: list[str] = []

    async def open(self, fill: bool = True) -> World:
        await self.registry.recover(1)
        if fill:
            await self.registry.add_storage(STORAGE)
            await self.registry.create_group(GROUP)
            await self.registry.register_instance(INSTANCE)
            await self.registry.accounts.add("ann", "p", Role.ADMIN)
        self.registry.on_change(self._note)
        return self

    def _note(self, event: RegistryEvent) -> None:
        self.events.append(f"{event.kind.value} {event.name}")


def play(story: Callable[[World], Awaitable[None]], **world: bool) -> None:
    async def run() -> None:
        await story(await World(**world).open())

    asyncio.run(run())


async def content(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await world.registry.snapshot())
    return found


def test_the_text_is_json_with_one_record_a_line_sorted_by_name() -> None:
    async def story(world: World) -> None:
        await world.registry.add_storage(replace(STORAGE, name="a"))
        text = await world.registry.snapshot()
        found = json.loads(text)
        assert (found["format"], found["version"]) == ("kvcm-config-snapshot", 1)
        assert [item["global_unique_name"] for item in found["storages"]] == ["a", "nfs_01"]
        assert [item["name"] for item in found["instance_groups"]] == ["default"]
        assert [item["instance_id"] for item in found["instances"]] == ["i"]
        assert found["accounts"] == [{"user_name": "ann", "role": 1}]
        assert found["left_out"] == []
        assert [line for line in text.splitlines() if line.startswith('{"user_name"')] == ['{"user_name":"ann","role":1}']

    play(story)


def test_damaged_records_are_named_and_do_not_stop_it() -> None:
    async def story(world: World) -> None:
        await world.store.apply([Change("instance_group", "bad", {"name": "bad", "version": "x"})], 1)
        await world.registry.recover(2)
        found = await content(world)
        assert found["left_out"] == [{"table": "instance_group", "id": "bad", "reason": "instance_group.version must be an integer of 64 bits"}]
        assert (await world.registry.load_snapshot(json.dumps(found))).count == 0

    play(story)


def test_a_closed_registry_has_no_snapshot_and_takes_none() -> None:
    async def story(world: World) -> None:
        text = await world.registry.snapshot()
        await world.registry.cleanup()
        with pytest.raises(NotReady):
            await world.registry.snapshot()
        with pytest.raises(NotReady):
            await world.registry.load_snapshot(text)

    play(story)


BROKEN: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("'format' must be", lambda found: found.pop("format")),
    ("reads version 1", lambda found: found.update(version=2)),
    ("reads version 1", lambda found: found.update(version=True)),
    ("unknown section 'storage'", lambda found: found.update(storage=[])),
    ("at or after line 1", lambda found: found.update(storages={})),
    ("storages[0]: storage must be a JSON object", lambda found: found.update(storages=[1])),
    ("storages[0]: storage.type must be one of", lambda found: found["storages"][0].update(type="tape")),
    ("storages[0]: the field 'colour' is unknown", lambda found: found["storages"][0].update(colour=1)),
    ("storages[0].storage_spec: the field 'colour' is unknown", lambda found: found["storages"][0]["storage_spec"].update(colour=1)),
    ("storages[0]: storage.storage_spec.root_path must be", lambda found: found["storages"][0]["storage_spec"].update(root_path=1)),
    ("storages[0] takes more than", lambda found: found["storages"][0]["storage_spec"].update(root_path="/" + "x" * (1 << 18))),
    ("storages[1]: the name 'nfs_01' was there before", lambda found: found["storages"].append(found["storages"][0])),
    ("storages[0]: The name of the storage", lambda found: found["storages"][0].update(global_unique_name="a/b")),
    ("instance_groups[0]: instance_group.quota.capacity", lambda found: found["instance_groups"][0]["quota"].update(capacity="1")),
    ("instance_groups[0].quota.quota_config[1]: the field 'x' is unknown", lambda found: found["instance_groups"][0]["quota"]["quota_config"][1].update(x=1)),
    ("storage_candidates must not be empty", lambda found: found["instance_groups"][0].update(storage_candidates=[])),
    ("instances[0]: The instance_id is one of the reserved words", lambda found: found["instances"][0].update(instance_id="account")),
    ("instances[0]: Instance 'i': block_size must be positive", lambda found: found["instances"][0].update(block_size=0)),
    ("accounts[0]: the field 'password' is unknown", lambda found: found["accounts"][0].update(password="p")),
    ("accounts[0]: account.role must be one of the numbers 0, 1", lambda found: found["accounts"][0].update(role=2)),
    ("accounts[0]: account.user_name must be", lambda found: found["accounts"][0].pop("user_name")),
    ("accounts of config_snapshot has more than 1024 entries", lambda found: found.update(accounts=[{"user_name": f"u{n}"} for n in range(1025)])),
]


@pytest.mark.parametrize(("says", "spoil"), BROKEN, ids=[says for says, _ in BROKEN])
def test_every_mistake_is_named_and_nothing_changes(says: str, spoil: Callable[[dict[str, Any]], object]) -> None:
    async def story(world: World) -> None:
        found = await content(world)
        spoil(found)
        before = await world.registry.snapshot()
        with pytest.raises(InvalidArgument) as caught:
            await world.registry.load_snapshot(json.dumps(found))
        assert says in caught.value.message, caught.value.message
        assert caught.value.message.startswith(("config_snapshot", "accounts of config_snapshot"))
        assert await world.registry.snapshot() == before
        assert world.events == []

    play(story)


def test_text_that_is_no_json_is_refused_by_its_line() -> None:
    async def story(world: World) -> None:
        text = await world.registry.snapshot()
        lines = text.splitlines()
        lines[3] = lines[3][:-3]
        for bad in ("", "[]", "null", text[:-3], text + "x", "\n".join(lines), '{"a"', '{"version":NaN}', "[" * 100_000, '{"version":' + "[" * 100_000):
            with pytest.raises(InvalidArgument, match="not valid JSON"):
                await world.registry.load_snapshot(bad)
        with pytest.raises(InvalidArgument, match="line 4"):
            await world.registry.load_snapshot("\n".join(lines))
        with pytest.raises(InvalidArgument, match="twice"):
            await world.registry.load_snapshot('{"version":1,"version":1}')

    play(story)


def test_a_nested_record_ends_in_a_sentence() -> None:
    async def story(world: World) -> None:
        found = await content(world)
        deep: dict[str, Any] = {}
        for _ in range(400):
            deep = {"a": deep}
        found["instance_groups"][0]["cache_config"]["migration_config"] = deep
        try:
            await world.registry.load_snapshot(json.dumps(found))
        except KvcmError as error:
            refused = error.message
        else:
            refused = "loaded"
        assert refused == "loaded" or "nested" in refused or "JSON" in refused

    play(story)


def test_too_much_for_one_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        text = await world.registry.snapshot()
        monkeypatch.setattr(snapshot_text, "MAX_CHARS", 4200)
        await world.registry.add_storage(replace(STORAGE, name="b"))
        with pytest.raises(CapacityReached):
            await world.registry.snapshot()
        with pytest.raises(InvalidArgument, match="more than 4200 characters"):
            await world.registry.load_snapshot(text + " " * 4200)

    play(story)


def test_a_load_opens_moves_switches_and_tells() -> None:
    async def story(world: World) -> None:
        found = await content(world)
        found["storages"].append({**deepcopy(found["storages"][0]), "global_unique_name": "new", "is_available": False})
        found["instance_groups"][0]["user_data"] = "changed"
        found["instances"].append({**found["instances"][0], "instance_id": "j"})
        found["accounts"] = [{"user_name": "ann", "role": 0}, {"user_name": "bob", "role": 1}]
        loaded = await world.registry.load_snapshot(json.dumps(found))
        assert (len(loaded.storages), len(loaded.groups), len(loaded.instances), len(loaded.accounts)) == (1, 1, 1, 2)
        assert not world.storages.opened["new"].enabled
        group = world.registry.get_group("default")
        assert group is not None
        assert (group.user_data, group.version) == ("changed", GROUP.version + 1)
        assert world.events == [
            "storage_added new",
            "group_updated default",
            "instance_registered j",
            "account_updated ann",
            "account_added bob",
        ]
        # A new role, the old password; and nobody can log in as somebody new.
        assert await world.registry.accounts.verify("ann", "p") is Role.USER
        assert await world.registry.accounts.verify("bob", "") is None

        found["storages"][0]["is_available"] = False
        found["storages"][1]["storage_spec"]["key_count_per_file"] = 2
        loaded = await world.registry.load_snapshot(json.dumps(found))
        assert [storage.name for storage in loaded.switched] == ["nfs_01"]
        assert [new.name for _, new in loaded.reopened] == ["new"]
        assert not world.storages.opened["nfs_01"].enabled
        assert world.storages.opened == {storage.name: storage for storage in world.registry.list_storages()}

    play(story)


def test_what_the_single_calls_refuse_a_load_refuses_too() -> None:
    async def story(world: World) -> None:
        async def refused(kind: type[KvcmError], says: str, **changes: Any) -> None:
            found = await content(world)
            for path, value in changes.items():
                section, field, *more = path.split("__")
                target = found[section][0]
                if more:
                    target, field = target[field], more[0]
                target[field] = value
            before = await world.registry.snapshot()
            with pytest.raises(kind, match=says):
                await world.registry.load_snapshot(json.dumps(found))
            assert await world.registry.snapshot() == before

        await refused(InvalidArgument, "type cannot be changed", storages__type="dummy")
        await refused(InUse, "moved to another place by config_snapshot", storages__storage_spec__root_path="/elsewhere/")
        await refused(DuplicateEntity, "block_size differs", instances__block_size=8)
        world.storages.broken = {"nfs_02"}
        await refused(StorageError, "Storage 'nfs_02' of config_snapshot cannot be opened, so nothing was loaded", storages__global_unique_name="nfs_02")

    play(story)


def test_force_moves_a_storage_and_takes_an_instance_without_its_group() -> None:
    async def story(world: World) -> None:
        found = await content(world)
        found["storages"][0]["storage_spec"]["root_path"] = "/elsewhere/"
        found["instance_groups"] = []
        found["instances"].append({**found["instances"][0], "instance_id": "j", "instance_group_name": "nowhere"})
        with pytest.raises(InUse):
            await world.registry.load_snapshot(json.dumps(found))
        loaded = await world.registry.load_snapshot(json.dumps(found), force=True)
        assert loaded.count == 2

    play(story)


def test_without_its_group_an_instance_is_refused_unless_references_are_not_enforced() -> None:
    async def run(enforce: bool) -> None:
        source, target = await World().open(), await World(enforce).open(fill=False)
        found = await content(source)
        found["instance_groups"] = []
        if enforce:
            with pytest.raises(InUse, match="neither it nor this manager has"):
                await target.registry.load_snapshot(json.dumps(found))
        else:
            assert (await target.registry.load_snapshot(json.dumps(found))).count == 3

    asyncio.run(run(True))
    asyncio.run(run(False))


def test_a_version_that_cannot_grow_is_not_turned_back() -> None:
    async def story(world: World) -> None:
        await world.registry.update_group(replace(GROUP, version=(1 << 63) - 1), 1)
        found = await content(world)
        found["instance_groups"][0].update(user_data="x", version=1)
        with pytest.raises(VersionConflict):
            await world.registry.load_snapshot(json.dumps(found))

    play(story)


def _with_secrets() -> tuple[Storage, InstanceGroup]:
    spec = MooncakeSpec("host", f"redis://u:{CANARY}@h:1/?auth={CANARY}", "tcp", "master:1")
    backend = MetaBackendConfig("redis", f"redis://{CANARY}@h:6379/?cluster_name=c")
    indexer = replace(GROUP.cache_config.meta_indexer, backend=backend)
    return Storage("m", StorageType.MOONCAKE, spec), replace(GROUP, name="r", cache_config=replace(GROUP.cache_config, meta_indexer=indexer))


def test_secrets_in_uris_stay_at_home_and_are_found_there_again() -> None:
    async def story(world: World) -> None:
        storage, group = _with_secrets()
        await world.registry.add_storage(storage)
        await world.registry.create_group(group)
        text = await world.registry.snapshot()
        assert CANARY not in text
        assert "redis://***@h:1/?auth=***" in text
        assert (await world.registry.load_snapshot(text)).count == 0

        # Something else changes: the secret stays.
        changed = json.loads(text)
        changed["instance_groups"][1]["user_data"] = "x"
        assert (await world.registry.load_snapshot(json.dumps(changed))).count == 1
        kept = world.registry.get_group("r")
        assert kept is not None
        assert kept.cache_config.meta_indexer.backend.storage_uri == f"redis://{CANARY}@h:6379/?cluster_name=c"

        empty = await World().open(fill=False)
        with pytest.raises(InvalidArgument, match=r"storages\[0\] \('m'\): storage_spec.metadata_connstring has \*\*\* in place of a secret") as caught:
            await empty.registry.load_snapshot(text)
        assert CANARY not in caught.value.message
        # Somewhere else it is not known either: a host is not sent the password of another.
        moved = text.replace("@h:6379", "@other:6379")
        with pytest.raises(InvalidArgument, match=r"cache_config.meta_indexer_config.meta_storage_backend_config.storage_uri has"):
            await world.registry.load_snapshot(moved)
        restored = text.replace("redis://***@h:1/?auth=***", "redis://u:new@h:1/?auth=new").replace("redis://***@h:6379", "redis://new@h:6379")
        assert (await empty.registry.load_snapshot(restored)).count == 6

    play(story)


def test_a_storage_that_was_opened_for_a_load_that_failed_is_closed_again() -> None:
    async def story(world: World) -> None:
        found = await content(world)
        found["storages"] += [{**deepcopy(found["storages"][0]), "global_unique_name": name} for name in ("a", "b", "c")]
        found["storages"][0]["storage_spec"]["key_count_per_file"] = 3
        world.storages.broken = {"c"}
        with pytest.raises(StorageError):
            await world.registry.load_snapshot(json.dumps(found))
        assert world.storages.opened == {"nfs_01": replace(STORAGE, spec=NfsSpec("/tmp/nfs/", 8))}

    play(story)
