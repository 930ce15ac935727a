"""A store that tells its changes, in memory: what a real one does to followers, with every suspension a point of a Scheduler.

place = ToldPlace()                        what survives every process
place.begin(1); place.put({7: block}, 1)   a leader
backend = ToldBackend(place, scheduler)    one process's way to it: MetadataBackend and ChangeStream at once
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

from kvcm.common.errors import StorageError
from kvcm.config.errors import FencedOut
from kvcm.meta.changes import Entry, LostTrack, Page, Position
from kvcm.meta.location import Block
from kvcm.meta.testing import Scheduler


class ToldPlace:
    """`tells`: whether the leader at work appends entries; a leader of an older release does not, and leaves the stream of its predecessor alone."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.entries: list[Entry] = []
        self.fence = 0
        self.tells = True
        self._added = 0

    def begin(self, fence: int, *, tells: bool = True) -> None:
        if fence < self.fence:
            raise FencedOut("a newer leader has raised the fence", self.fence)
        replaced, self.fence, self.tells = self.fence, fence, tells
        self._append(fence, replaced=replaced)

    def put(self, changes: Mapping[int, Block], fence: int) -> None:
        if fence < self.fence:
            raise FencedOut("a newer leader has raised the fence", self.fence)
        self.fence = fence
        self._append(fence, tuple(changes))
        self.blocks.update(changes)
        self.blocks = {key: block for key, block in self.blocks.items() if block}

    def trim(self, keep: int) -> None:
        """All but the newest entries go; the very newest stays, as in Redis."""
        self.entries = self.entries[-max(1, keep) :]

    def lose(self) -> None:
        """Everything that was stored, the fence too."""
        self.blocks, self.entries, self.fence = {}, [], 0

    @property
    def added(self) -> int:
        return self._added

    def _append(self, fence: int, keys: Collection[int] = (), replaced: int | None = None) -> None:
        if self.tells:
            self._added += 1
            self.entries.append(Entry(Position(b"%d" % self._added, self._added), fence, tuple(keys), replaced))


class ToldBackend:
    """`failing`: how many of the next calls fail. Without a scheduler each call still gives others a turn."""

    def __init__(self, place: ToldPlace, scheduler: Scheduler | None = None) -> None:
        self.place = place
        self.failing = 0
        self.load_page = 2
        self.interrupted = 0
        self.is_open = False
        self._scheduler = scheduler

    # MetadataBackend

    async def open(self) -> None:
        await self._point("open")
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def raise_fence(self, fence: int) -> None:
        await self._point("raise fence")
        self.place.begin(fence)

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        await self._point("scan")
        keys = list(self.place.blocks)
        for start in range(0, len(keys), self.load_page):
            await self._point("load")
            page = [(key, self.place.blocks[key]) for key in keys[start : start + self.load_page] if key in self.place.blocks]
            # Answers are under way while the store goes on.
            await self._point("loaded")
            yield page

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        await self._point("apply")
        self.place.put(changes, fence)
        return {}

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        await self._point("read")
        return {key: self.place.blocks[key] for key in keys if key in self.place.blocks}

    async def sync(self, keys: Collection[int]) -> None:
        await self._point("sync")

    # ChangeStream

    async def end(self) -> Entry:
        await self._point("end")
        entries = self.place.entries
        if not entries or entries[-1].fence != self.place.fence:
            raise LostTrack("the leader does not tell its changes")
        return entries[-1]

    async def changes_after(self, after: Position, limit: int) -> Page:
        await self._point("changes")
        entries = self.place.entries
        at = next((number for number, entry in enumerate(entries) if entry.position == after), None)
        if at is None:
            raise LostTrack("entries were dropped")
        page = Page(entries[at + 1 : at + 1 + limit], len(entries[at + 1 + limit :]))
        await self._point("changes read")
        return page

    async def wait(self, after: Position, seconds: float) -> None:
        await self._point("wait")

    async def blocks(self, keys: Collection[int]) -> Mapping[int, Block]:
        await self._point("blocks")
        found = {key: self.place.blocks.get(key, ()) for key in keys}
        await self._point("blocks read")
        return found

    def interrupt(self) -> None:
        self.interrupted += 1

    async def _point(self, label: str) -> None:
        if self._scheduler is None:
            await asyncio.sleep(0)
        else:
            await self._scheduler.point(label)
        if self.failing > 0:
            self.failing -= 1
            raise StorageError("the store does not answer")
