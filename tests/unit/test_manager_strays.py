"""Places that nobody got: given back at once, or kept until their storage can say that they are gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvcm.common.errors import StorageError
from kvcm.data_storage.sentinel import SENTINEL_NAME
from kvcm.manager import strays as module
from kvcm.manager.testing import ManagerWorld, holds_bytes
from kvcm.meta.testing import Fault
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

CODEC = ProtoLocationEncoder()


async def touching(root: Path) -> ManagerWorld:
    """A storage that makes a file for every place at once, so that a lost place is seen."""
    world = ManagerWorld(root, CODEC, metadata="suspending")
    await world.open()
    await world.add_storage("s", "hf3fs", touch=True)
    await world.add_group(world.group("g", ["s"]))
    await world.manager.register(world.instance("i", "g"))
    return world


async def failed_start(world: ManagerWorld, keys: list[int]) -> None:
    """Places are made, the metadata store refuses, and by then the root is unmounted."""
    sentinel, away = world.sentinel_of("s"), world.root / SENTINEL_NAME
    world.stores["i"].faults.append(Fault.REFUSE)
    inner = world.storages.allocate

    async def allocate_then_unmount(name: str, items: object) -> list[str]:
        uris = await inner(name, items)  # type: ignore[arg-type]
        sentinel.rename(away)
        return uris

    world.storages.allocate = allocate_then_unmount  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        await world.start("i", keys)
    world.storages.allocate = inner  # type: ignore[method-assign]


async def mount(world: ManagerWorld) -> None:
    (world.root / SENTINEL_NAME).rename(world.sentinel_of("s"))
    await world.storages.verify_roots()


def test_places_of_an_unmounted_root_are_freed_when_it_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        world = await touching(tmp_path)
        await failed_start(world, [1, 2])
        strays = world.manager._writer.strays
        assert len(strays) == len(world.files()) == 2
        for _ in range(3):
            await world.advance(1)
            assert len(strays) == 2
        await mount(world)
        await world.advance(1)
        assert len(strays) == 0
        assert world.files() == set()

    asyncio.run(story())


def test_what_does_not_fit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(module, "_MAX_KEPT", 2)
        world = await touching(tmp_path)
        await failed_start(world, [1, 2, 3])
        strays = world.manager._writer.strays
        assert (len(strays), strays.forgotten) == (2, 1)
        await mount(world)
        await world.advance(1)
        assert (len(strays), len(world.files())) == (0, 1)

    asyncio.run(story())


def test_a_repeatable_path_is_never_deleted_for_a_start_that_failed(tmp_path: Path) -> None:
    """The path belongs to whoever has a location there."""

    async def story() -> None:
        world = ManagerWorld(tmp_path, CODEC, metadata="suspending")
        await world.simple("dummy")
        write = await world.put("i", [1])
        strays = world.manager._writer.strays
        await strays.give_back("s", write.all_uris())
        await strays.give_back("no such storage", write.all_uris())
        assert world.storages.deleted == []
        assert len(strays) == 0
        assert holds_bytes(write.uris[0]["tp0"])

    asyncio.run(story())


def test_a_lost_term_forgets_them(tmp_path: Path) -> None:
    async def story() -> None:
        world = await touching(tmp_path)
        await failed_start(world, [1])
        await world.manager.cleanup()
        assert len(world.manager._writer.strays) == 0
        await mount(world)
        await world.manager.recover()
        await world.advance(1)
        assert world.storages.deleted != []
        assert world.locations() == []

    asyncio.run(story())
