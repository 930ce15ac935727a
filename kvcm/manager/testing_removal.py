"""A removal for tests that try to lose data: two blocks that stay, two that are removed, and what must be true at every moment."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from kvcm.manager.ports import WireCodec
from kvcm.manager.testing import ManagerWorld, Metadata, StorageKind, Write, holds_bytes, path_of
from kvcm.meta.location import Status

KEEP, DROP = [1, 2], [3, 4]


class RemovalStory:
    """A world with two blocks that stay and two that are removed."""

    def __init__(self, root: Path, codec: WireCodec, metadata: Metadata = "file") -> None:
        self.world = ManagerWorld(root, codec, metadata=metadata)
        self.kept: Write
        self.dropped: Write

    async def begin(self, kind: StorageKind = "file", per_file: int = 1) -> None:
        await self.world.simple(kind, per_file)
        self.kept = await self.world.put("i", KEEP)
        self.dropped = await self.world.put("i", DROP)

    async def remove(self) -> None:
        await self.world.manager.remove_cache(self.world.shard("i"), DROP)

    def nothing_lost(self) -> None:
        for uri in self.kept.all_uris():
            assert holds_bytes(uri)
        for key in KEEP:
            assert self.world.states("i", key) == [Status.SERVING]

    def records_kept(self) -> None:
        """No proof yet: the records of removed blocks are still there, invisible."""
        self.nothing_lost()
        for key in DROP:
            assert self.world.states("i", key) == [Status.DELETING]

    async def all_gone(self) -> None:
        """In the end the removed blocks are gone, files and records, and what stays can be read."""
        await self.world.rest()
        self.nothing_lost()
        for key in DROP:
            assert self.world.states("i", key) == []
        assert self.world.files() == {path_of(uri) for uri in self.kept.all_uris()}
        assert self.world.manager.deleter.pending == 0
        assert await self.world.read("i", KEEP) == self.kept.uris
        assert self.world.manager.group_usage("g").total == sum(location.size for _, _, location in self.world.locations())


def tell(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await story()

    asyncio.run(run())


def unmount(world: ManagerWorld) -> Path:
    """The share goes away: its mount point is an empty folder."""
    root = world.root_of("s")
    away = world.root / "away"
    root.rename(away)
    root.mkdir()
    return away


def mount(world: ManagerWorld, away: Path) -> None:
    root = world.root_of("s")
    shutil.rmtree(root)
    away.rename(root)
