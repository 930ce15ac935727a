"""A copy of one instance's index in a process that does not lead, ready to be the leader's (design D7).

    fill       note where the stream of changes ends -> scan the store -> read again every block that was changed meanwhile
    follow     wait for entries, read the blocks that they name, and only then move on
    take_over  raise the fence (nothing of the old leader lands any more) -> read the stream to its end -> the copy equals the store

Dangers: a scan that brings back what was removed behind it (blocks named by entries are read after the scan, whatever it found); a missed change (see
`changes`); a chain of terms with a missing link. Whatever is doubtful ends in LostTrack, and then in a scan: by the follower, or by the leader itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from itertools import islice

from kvcm.common.errors import KvcmError
from kvcm.config.model import MetaBackendConfig
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.changes import ChangeStream, Entry, LostTrack, Page, Position
from kvcm.meta.index import MetaIndex
from kvcm.meta.key_packing import KeyPacking
from kvcm.meta.location import Block, Status

log = logging.getLogger("kvcm.meta.warm")

_ENTRIES = 256
_BLOCKS = 512
_LOOK_EVERY_US = 500_000
_MAX_CHANGED = 1_000_000
_MAX_UNSETTLED = 100_000
_CATCH_UP_S = 5.0
_NO_KEY_LIMIT = 1 << 62
_SILENCE_US = 3_000_000  # a follower that is well asks more often
_START = Entry(Position(b""), 0)


class WarmIndex:
    def __init__(
        self,
        config: MetaBackendConfig,
        instance_id: str,
        backend: MetadataBackend,
        changes: ChangeStream,
        packing: KeyPacking,
        monotonic_us: Callable[[], int],
    ) -> None:
        self.config = config
        self.instance_id = instance_id
        self.index = MetaIndex(backend, max_key_count=_NO_KEY_LIMIT, packing=packing)
        self._backend = backend
        self._changes = changes
        self._monotonic_us = monotonic_us
        self._last = _START
        self._unsettled: set[int] | None = set()
        self._page = Page(())
        self._current_us = 0
        self.is_warm = False
        """The copy is complete up to its position."""

    @property
    def behind(self) -> int:
        """Entries that were not read yet, when the store was last asked."""
        return self._page.behind

    @property
    def behind_s(self) -> float:
        """How old the copy may be, by entries that were seen and not read, and by the time since the store last answered. 0: nothing is known to be missing."""
        silent_us = self._monotonic_us() - self._current_us if self.is_warm else 0
        return max(self._page.behind_ms / 1000, silent_us / 1e6 if silent_us > _SILENCE_US else 0.0)

    @property
    def unsettled(self) -> list[int] | None:
        """Keys of blocks with a location that is WRITING or DELETING; None when they are too many to have been noted."""
        return None if self._unsettled is None else list(self._unsettled)

    async def fill(self) -> None:
        """Into an empty index. Raises LostTrack, StorageError: then this object is of no further use and is to be closed."""
        await self.index.open()
        self._last = await self._changes.end()
        changed: set[int] = set()
        looked = self._monotonic_us()
        pages = self._backend.load()
        try:
            async for page in pages:
                self._take(dict(page))
                await asyncio.sleep(0)
                if self._monotonic_us() - looked >= _LOOK_EVERY_US:
                    # Before the stream is cut behind us. The blocks themselves are read when the scan cannot bring anything older any more.
                    await self._note(changed)
                    looked = self._monotonic_us()
        finally:
            if isinstance(pages, AsyncGenerator):
                await pages.aclose()
        await self._note(changed)
        await self._read_again(changed)
        self._current_us = self._monotonic_us()
        self.is_warm = True

    async def follow(self, seconds: float) -> None:
        """Wait at most so long for changes, and take them. After LostTrack this object is of no further use; after any other StorageError call it again."""
        await self._changes.wait(self._last.position, seconds)
        await self._catch_up()

    async def take_over(self, fence: int) -> MetaIndex | None:
        """The index, equal to the store and writable under this fence; None when it cannot be had so. Then this object is closed and the store must be scanned.

        The caller has made sure that nobody else calls this object any more.
        """
        try:
            if not self.is_warm:
                raise LostTrack("the copy was not complete")
            self._changes.interrupt()
            async with asyncio.timeout(_CATCH_UP_S):
                await self.index.raise_fence(fence)
                await self._catch_up()
            if self._last.fence != fence:
                raise LostTrack("this term's first entry did not come back")
        except (KvcmError, TimeoutError) as error:
            reason = error.message if isinstance(error, KvcmError) else f"the last changes could not be read within {_CATCH_UP_S:.0f} s"
            log.warning("warm_copy_dropped instance=%s: %s; the store is scanned", self.instance_id, reason)
            await self.close()
            return None
        except asyncio.CancelledError:
            await self.close()
            raise
        return self.index

    async def close(self) -> None:
        self.is_warm = False
        self._changes.interrupt()
        await self.index.close()

    # -- inside --------------------------------------------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        while True:
            page = await self._changes.changes_after(self._last.position, _ENTRIES)
            last = self._last
            for entry in page.entries:
                last = _next(last, entry)
            await self._read_again({key for entry in page.entries for key in entry.keys})
            # Only now: whoever is cut off before comes back to the same entries.
            self._arrived(last, page)
            if len(page.entries) < _ENTRIES:
                return

    async def _note(self, changed: set[int]) -> None:
        while True:
            page = await self._changes.changes_after(self._last.position, _ENTRIES)
            last = self._last
            for entry in page.entries:
                last = _next(last, entry)
                changed.update(entry.keys)
            if len(changed) > _MAX_CHANGED:
                raise LostTrack("more blocks were changed during the scan than can be kept in mind")
            self._arrived(last, page)
            if len(page.entries) < _ENTRIES:
                return

    def _arrived(self, last: Entry, page: Page) -> None:
        self._last, self._page = last, page
        self._current_us = self._monotonic_us()

    async def _read_again(self, keys: Collection[int]) -> None:
        left = iter(keys)
        while part := list(islice(left, _BLOCKS)):
            self._take(await self._changes.blocks(part))
            await asyncio.sleep(0)

    def _take(self, blocks: Mapping[int, Block]) -> None:
        self.index.restore(blocks)
        if self._unsettled is None:
            return
        for key, block in blocks.items():
            if all(header[0] == Status.SERVING for header, _ in block):
                self._unsettled.discard(key)
            else:
                self._unsettled.add(key)
        if len(self._unsettled) > _MAX_UNSETTLED:
            self._unsettled = None


def _next(last: Entry, entry: Entry) -> Entry:
    """Raises LostTrack unless the entry belongs to the same term, or begins one that replaced it."""
    if entry.fence != last.fence and entry.replaced != last.fence:
        raise LostTrack("a leader in between did not tell its changes")
    return entry
