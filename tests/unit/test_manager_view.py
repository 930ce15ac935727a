"""GetCacheMeta (wire contract 4.9): what an index holds for each key, whatever its state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from kvcm.manager.testing import SIZE, ManagerWorld
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit


def run(root: Path, story: Callable[[ManagerWorld], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = ManagerWorld(root, ProtoLocationEncoder())
        await world.open()
        await world.add_storage("s")
        await world.add_group(world.group("g", ["s"]))
        await world.manager.register(world.instance("i", "g", [("tp0", SIZE), ("tp1", SIZE)]))
        await story(world)

    asyncio.run(whole())


def look(world: ManagerWorld, keys: Sequence[int]) -> list[tuple[str, dict[str, str]]]:
    """(status, places by spec) for each key; ids must be those of the index, and only missing blocks have none."""
    views = world.manager.view(world.shard("i"), keys)
    locations = meta.GetCacheMetaResponse.FromString(b"".join(view.wire for view in views)).locations
    assert len(locations) == len(views) == len(keys)
    found = []
    for key, view, location in zip(keys, views, locations, strict=True):
        text = json.loads(view.meta_json)
        ids = [stored.location_id for stored in world.shard("i").index.get(key)]
        assert text["id"] in ids if ids else "id" not in text
        assert (location.type, location.spec_size) == ((meta.ST_NFS, 2) if ids else (meta.ST_UNSPECIFIED, 0))
        found.append((text["status"], {spec.name: spec.uri for spec in location.location_specs}))
    return found


def test_every_key_has_an_entry_with_its_state(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        served = await world.put("i", [1, 3])
        open_ = await world.start("i", [2], timeout_s=600)
        await world.manager.remove_cache(world.shard("i"), [3])
        missing: tuple[str, dict[str, str]] = ("CLS_NOT_FOUND", {})
        one, two, three = ("CLS_SERVING", served.uris[0]), ("CLS_WRITING", open_.uris[0]), ("CLS_DELETING", served.uris[1])
        assert look(world, [1, 2, 3, 4]) == [one, two, three, missing]
        assert look(world, [4, 3, 4, 1, 1]) == [missing, three, missing, one, one]
        assert look(world, []) == []

    run(tmp_path, story)


def test_a_write_changes_its_state_when_it_is_finished(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.start("i", [1, 2])
        assert [status for status, _ in look(world, [1, 2])] == ["CLS_WRITING", "CLS_WRITING"]
        world.write(write)
        await world.finish(write, [True, False])
        assert [status for status, _ in look(world, [1, 2])] == ["CLS_SERVING", "CLS_DELETING"]
        await world.rest()
        assert [status for status, _ in look(world, [1, 2])] == ["CLS_SERVING", "CLS_NOT_FOUND"]

    run(tmp_path, story)


def test_of_several_locations_the_most_useful_one_is_shown(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        await world.put("i", [1])
        await world.manager.remove_cache(world.shard("i"), [1])
        second = await world.start("i", [1], timeout_s=600)
        assert look(world, [1]) == [("CLS_WRITING", second.uris[0])]
        third = await world.put("i", [1], replicas=2)
        assert look(world, [1]) == [("CLS_SERVING", third.uris[0])]

    run(tmp_path, story)


def test_looking_changes_nothing(tmp_path: Path) -> None:
    async def story(world: ManagerWorld) -> None:
        write = await world.put("i", [1])
        await world.registry.set_storage_enabled("s", False)
        before = world.locations()
        assert look(world, [1, 2]) == [("CLS_SERVING", write.uris[0]), ("CLS_NOT_FOUND", {})]
        assert world.locations() == before

    run(tmp_path, story)
