"""Write-behind: a change is acknowledged when it is queued, and reaches the store a moment later (design D7; behaviour 9.4).

The queue holds the newest content of each block that waits, so changes of a block that follow each other quickly reach the store as one, and never in another
order than they were accepted in (I-MB-2). It goes out in rounds: all that waits becomes the next round, and a round ends when the store has confirmed every
block of it. `sync` waits for the round that its blocks are in (I-MB-3).

Dangers: what waits is lost in a crash. It is bounded (`max_blocks`), counted (`RedisStats.behind`), and physical deletion waits for `sync`. A store that is
down fills the queue, and then changes fail instead of waiting for ever. A store that a newer leader has taken over makes everything that waits worthless: it
is dropped, counted, and said loudly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass

from kvcm.common.errors import KvcmError, NotReady, OutcomeUnknown, StorageError
from kvcm.common.redis.target import number
from kvcm.config.errors import FencedOut
from kvcm.meta.backend import Eager, MetadataBackend
from kvcm.meta.location import Block
from kvcm.meta.redis_context import RedisContext

log = logging.getLogger("kvcm.meta.behind")

_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_NO_FAILURES: Mapping[int, StorageError] = {}
PARAMETERS = frozenset(
    {"async_queue_count", "async_max_batch", "async_wait_us", "async_max_size", "async_enqueue_timeout_ms", "async_sync_timeout_ms", "async_drain_ms"}
)


@dataclass(frozen=True, slots=True)
class BehindSettings:
    """`max_blocks`: that may wait; `wait_us`: how long a round lets blocks gather."""

    max_blocks: int = 131_072
    wait_us: int = 5_000
    enqueue_timeout_ms: int = 1_000
    sync_timeout_ms: int = 5_000
    drain_ms: int = 5_000

    @classmethod
    def of(cls, params: Mapping[str, str]) -> BehindSettings:
        """From upstream's parameters of a URI. Queues and batches are counted by blocks here: `async_max_size` is per queue there. Raises InvalidArgument."""
        queues = number(params, "async_queue_count", 1, 1, 2048)
        number(params, "async_max_batch", 512, 1, 1_000_000)
        usual = cls()
        return cls(
            max_blocks=queues * number(params, "async_max_size", usual.max_blocks // queues or 1, 1, 100_000_000),
            wait_us=number(params, "async_wait_us", usual.wait_us, 1, 10_000_000),
            enqueue_timeout_ms=number(params, "async_enqueue_timeout_ms", usual.enqueue_timeout_ms, 0, 600_000),
            sync_timeout_ms=number(params, "async_sync_timeout_ms", usual.sync_timeout_ms, 1, 600_000),
            drain_ms=number(params, "async_drain_ms", usual.drain_ms, 1, 600_000),
        )


class WriteBehind(Eager):
    """In front of another backend, for one instance."""

    def __init__(self, store: MetadataBackend, instance_id: str, settings: BehindSettings, context: RedisContext) -> None:
        self._store = store
        self._instance_id = instance_id
        self._settings = settings
        self._context = context
        self._pending: dict[int, Block] = {}
        self._flying: Mapping[int, Block] = {}
        self._since_us = 0
        self._fence = 0
        self._round = 0
        """Of the blocks that are under way now, or were last."""
        self._done = 0
        """The last round that is stored."""
        self._hurry = asyncio.Event()
        """Set when somebody waits for the round: it begins at once then."""
        self._closing = False
        self._lost: FencedOut | None = None
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Blocks that a crash would lose the last change of."""
        return len(self._pending) + len(self._flying)

    async def open(self) -> None:
        await self._store.open()
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())

    async def close(self) -> None:
        """Store what waits, for a bounded time; what is left is dropped and counted."""
        self._closing = True
        self._hurry.set()
        self._wake.set()
        flusher, self._flusher = self._flusher, None
        if flusher is not None:
            await asyncio.wait({flusher}, timeout=self._settings.drain_ms / 1000)
            flusher.cancel()
            await asyncio.gather(flusher, return_exceptions=True)
        self._drop("the instance was closed before they were stored")
        await self._store.close()

    async def raise_fence(self, fence: int) -> None:
        await self._store.raise_fence(fence)
        self._fence = fence

    def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        return self._store.load()

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        if fence < self._fence:
            raise FencedOut("a newer leader has taken over the metadata; this process must not write any more", self._fence)
        if self._closing or self._lost is not None:
            raise self._lost or StorageError("the metadata store has been closed")
        if self.waiting + len(changes) > self._settings.max_blocks and self.waiting:
            await self._wait_for_room(changes)
        self._fence = fence
        if not self._pending:
            if not self._since_us:
                self._since_us = self._context.monotonic_us()
            self._wake.set()
        self._pending.update(changes)
        self._context.stats.behind[self._instance_id] = (len(self._pending) + len(self._flying), self._since_us)
        return _NO_FAILURES

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        """What the store will hold when everything that was accepted is stored."""
        overlay = {key: self._pending.get(key, self._flying.get(key)) for key in keys}
        stored = await self._store.read([key for key, block in overlay.items() if block is None])
        return {**stored, **{key: block for key, block in overlay.items() if block}}

    async def sync(self, keys: Collection[int]) -> None:
        if self._lost is not None:
            raise self._lost
        if not self._pending.keys().isdisjoint(keys):
            target = self._round + 1
        elif not self._flying.keys().isdisjoint(keys):
            target = self._round
        else:
            target = 0
        if self._done < target:
            self._hurry.set()
            self._wake.set()
            try:
                async with asyncio.timeout(self._settings.sync_timeout_ms / 1000):
                    while self._done < target and self._lost is None and not self._closing:
                        await self._moved.wait()
            except TimeoutError:
                raise StorageError(f"the metadata store did not take the last changes within {self._settings.sync_timeout_ms} ms") from None
            if self._done < target:
                raise self._lost or StorageError("the metadata store was closed before it took the last changes")
        await self._store.sync(keys)

    async def _wait_for_room(self, changes: Mapping[int, Block]) -> None:
        """Raises StorageError when the queue stays full; then nothing was accepted."""
        limit = self._settings
        self._hurry.set()
        self._wake.set()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit.enqueue_timeout_ms / 1000
        while self.waiting and self.waiting + len(changes) > limit.max_blocks:
            left = deadline - loop.time()
            moved = loop.create_task(self._moved.wait())
            done, _ = await asyncio.wait({moved}, timeout=max(0.0, left))
            moved.cancel()
            if self._lost is not None:
                raise self._lost
            if not done:
                raise StorageError(f"{self.waiting} blocks wait to be stored in Redis, more than may; it does not take them fast enough")

    async def _flush(self) -> None:
        attempt = 0
        while True:
            if not self._flying:
                if not self._pending:
                    if self._closing:
                        return
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                await self._gather()
                self._flying, self._pending = self._pending, {}
                self._round += 1
            attempt = await self._store_round(attempt)
            if self._lost is not None:
                return
            if attempt:
                await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S)) - 1])

    async def _gather(self) -> None:
        try:
            async with asyncio.timeout(self._settings.wait_us / 1e6):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    async def _store_round(self, attempt: int) -> int:
        """One try to store the blocks under way. Returns the number of tries that failed in a row."""
        try:
            failures = await self._store.apply(self._flying, self._fence)
            reason: KvcmError | None = next(iter(failures.values()), None)
            left: Mapping[int, Block] = {key: self._flying[key] for key in failures}
        except FencedOut as error:
            self._lost = error
            self._drop("a newer leader has taken over")
            self._stir()
            return 0
        except OutcomeUnknown as error:
            # Whole blocks, and nothing sent before lands after what is sent next: repeating is safe.
            reason, left = error, self._flying
        except StorageError as error:
            reason, left = error, self._flying
        except Exception as error:
            log.exception("metadata_backend_bug: a round of %d blocks ended with an unexpected error; it is repeated", len(self._flying))
            reason, left = NotReady(type(error).__name__), self._flying
        self._flying = left
        if not left:
            self._done = self._round
            self._since_us = self._context.monotonic_us() if self._pending else 0
            if attempt:
                log.info("metadata_behind_recovered instance=%s waiting=%d", self._instance_id, self.waiting)
            attempt = 0
        else:
            attempt += 1
            if attempt == 1 and reason is not None:
                log.error("metadata_behind_stuck instance=%s waiting=%d: %s; it is repeated", self._instance_id, self.waiting, reason.message)
        self._context.stats.behind[self._instance_id] = (self.waiting, self._since_us)
        self._stir()
        return attempt

    def _stir(self) -> None:
        """Let those who wait look again."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _drop(self, why: str) -> None:
        lost = self._pending.keys() | self._flying.keys()
        self._pending, self._flying, self._since_us = {}, {}, 0
        self._context.stats.behind.pop(self._instance_id, None)
        if lost:
            self._context.stats.dropped += len(lost)
            log.error("metadata_behind_lost instance=%s blocks=%d: %s", self._instance_id, len(lost), why)
