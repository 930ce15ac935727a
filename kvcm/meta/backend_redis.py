"""Block metadata in Redis, written through: a change is acknowledged when Redis has it (design D7; behaviour 9.2).

One hash per block in upstream's layout. A batch of blocks is one script over one connection, so it costs one round trip; the script compares the fence (see
`kvcm.common.redis.fenced`), so neither an old leader's change nor one that was given up can land later.

Dangers: a huge batch would hold Redis and our loop, so it goes in parts; a key of the keyspace that is not ours (another instance whose id begins alike, or no
block at all) is never touched; a damaged record is left out of a recovery, reported, and stays until its key is written anew.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from itertools import islice
from typing import Any

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.redis.connection import ConnectionLost, RedisConnection, error_word, refused
from kvcm.common.redis.fenced import FencedRedis, Superseded, arg
from kvcm.common.redis.target import RedisTarget
from kvcm.config.errors import FencedOut
from kvcm.meta.backend import Direct, Rest
from kvcm.meta.location import Block
from kvcm.meta.record import RecordCodec
from kvcm.meta.redis_changes import RedisChanges
from kvcm.meta.redis_context import RedisContext
from kvcm.meta.redis_read import BlockUnpacker
from kvcm.meta.redis_scan import KeyScan
from kvcm.meta.redis_scripts import PUT_CHAIN, PUT_FIELDS
from kvcm.meta.redis_write import PART_BLOCKS, BlockPacker

log = logging.getLogger("kvcm.meta.redis")

_MAX_WIDE = 65_536
_PAGE = 256
_PAGES_UNDER_WAY = 6
_LOAD_TIMEOUT_S = 30.0
_REPORT_EVERY_US = 5_000_000
_SAME, _YES, _NO = b"$1\r\n2\r\n", b"$1\r\n1\r\n", b"$1\r\n0\r\n"
_NO_FAILURES: Mapping[int, StorageError] = {}


def block_prefix(instance_id: str) -> str:
    return f"kvcache:instance_{instance_id}:cache_"


def fence_key(instance_id: str) -> str:
    return f"kvcache:instance_{instance_id}:__kvcm_fence__"


class RedisBackend(Direct):
    def __init__(
        self, target: RedisTarget, instance_id: str, records: RecordCodec, context: RedisContext, *, legacy: bool = False, stream_entries: int = 0
    ) -> None:
        """`legacy`: write upstream's older layout. `stream_entries`: that the stream of changes keeps, 0 for no stream."""
        self._instance_id = instance_id
        self._context = context
        self._stats = context.stats
        self._target = target
        self._prefix = block_prefix(instance_id).encode()
        self._redis = FencedRedis(target, fence_key(instance_id), "kvcm-blocks", self._stats.connected, outages=context.outage_of)
        self._packer = BlockPacker(records, legacy=legacy, recent=context.recent)
        self._unpacker = BlockUnpacker(records)
        self.changes = RedisChanges(self._redis, fence_key(instance_id), instance_id, stream_entries, self._read_again)
        """What followers read; empty when the writer keeps no stream."""
        self._ours = False
        """True once a scan has shown that every block there was written in the layout that this backend writes."""
        self._wide: set[int] = set()
        """Keys that may hold more fields than a block with one location has."""
        self._head = arg(self._packer.time_field) + arg(self._prefix)
        self._scan: KeyScan | None = None
        self._expected = True
        context.scans.expect(target)

    async def open(self) -> None:
        await self._redis.reader()

    async def close(self) -> None:
        self._arrived()
        await self._redis.close()

    async def raise_fence(self, fence: int) -> None:
        try:
            await self._redis.raise_fence(fence)
            await self.changes.begin(fence)
        except Superseded as error:
            raise self._fenced_out(error) from None
        await self._context.remember(self._redis, self._target, self._instance_id)
        # Now: a walk that begins later sees all that older leaders have stored. A copy that is taken over has been loaded and needs none.
        self._scan = self._context.scans.join(self._target, self._prefix) if self._expected else None
        self._arrived()

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        if len(changes) <= PART_BLOCKS:
            await self._put(changes, fence)
            return _NO_FAILURES
        left = iter(changes.items())
        done = 0
        while part := dict(islice(left, PART_BLOCKS)):
            try:
                await self._put(part, fence)
            except StorageError as error:
                # Raised as it is while nothing is stored, and when the outcome is unknown: then all keys are read back.
                if not done or isinstance(error, OutcomeUnknown):
                    raise
                return dict.fromkeys([*part, *(key for key, _ in left)], error)
            done += len(part)
        return _NO_FAILURES

    def submit(self, changes: Mapping[int, Block], fence: int, stored: Callable[[], None], otherwise: Callable[[Rest], None]) -> bool:
        if len(changes) > PART_BLOCKS or not self._redis.is_ready(fence):
            return False
        packed = self._packer.pack(changes)
        if len(packed) != 1:
            return False
        ((args, number, chain, _, same),) = packed
        usual = self._usual(changes)

        def done() -> None:
            self._note_stored(changes, chain, usual)
            self._count(changes)
            stored()

        async def go_on(rest: Awaitable[Any]) -> Mapping[int, StorageError]:
            await self._outcome(rest, changes, begun=False)
            self._note_stored(changes, chain, usual)
            self._count(changes)
            return _NO_FAILURES

        script = PUT_CHAIN if chain else PUT_FIELDS
        return self._redis.start(script, self._opening(changes, fence, usual, same) + args, number + 9, fence, done, lambda rest: otherwise(go_on(rest)))

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        self._arrived()
        connection = await self._reader()
        found: dict[int, Block] = {}
        wanted = list(keys)
        for start in range(0, len(wanted), _PAGE):
            page = wanted[start : start + _PAGE]
            replies = await self._replies(connection.send(self._commands(page), len(page), self._target.timeout_s))
            found.update(self._unpacker.unpack_all(zip(page, replies, strict=True)))
            await asyncio.sleep(0)
        return found

    async def _read_again(self, keys: Collection[int]) -> Mapping[int, Block]:
        """What `load` would yield for these keys now, with an empty block for what it would leave out."""
        connection = await self._reader()
        page = list(keys)
        replies = await self._replies(connection.send(self._commands(page), len(page), self._target.timeout_s))
        blocks, odd = self._unpacker.sort(zip(page, replies, strict=True))
        self._stats.damaged += sum(one.is_damaged for one in odd)
        if any(one.reply and (not one.block or self._packer.time_field not in one.reply) for one in odd):
            self._ours = False
        self._note_wide([one.key for one in odd if one.block and len(one.block) > 1])
        return dict.fromkeys(page, ()) | dict(blocks)

    async def sync(self, keys: Collection[int]) -> None:
        """An accepted change is in Redis already. How safe it is there is a matter of Redis' own settings."""

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        scan, self._scan = self._scan or self._context.scans.join(self._target, self._prefix), None
        self._arrived()
        keys = await scan.keys(self._prefix)
        del scan  # with what it found for others
        connection = await self._reader()
        progress = self._stats.loading[self._instance_id] = [0, len(keys)]
        began = reported = self._context.monotonic_us()
        damaged = foreign = 0
        self._ours = False
        self._wide.clear()
        stamp = self._packer.time_field
        try:
            under_way: deque[tuple[array[int], asyncio.Future[list[Any]]]] = deque()
            at = 0
            while at < len(keys) or under_way:
                while at < len(keys) and len(under_way) < _PAGES_UNDER_WAY:
                    page = keys[at : at + _PAGE]
                    at += len(page)
                    under_way.append((page, connection.send(self._commands(page), len(page), _LOAD_TIMEOUT_S)))
                page, future = under_way.popleft()
                blocks, odd = self._unpacker.sort(zip(page, await self._replies(future), strict=True))
                for key, flat, block in odd:
                    if block is None:
                        damaged += 1
                    elif block:
                        foreign += stamp not in flat
                        if len(block) > 1:
                            self._wide.add(key)
                progress[0] += len(page)
                yield blocks
                now = self._context.monotonic_us()
                if now - reported >= _REPORT_EVERY_US:
                    reported = now
                    log.info("metadata_loading instance=%s done=%d of=%d seconds=%.1f", self._instance_id, progress[0], len(keys), (now - began) / 1e6)
        finally:
            del self._stats.loading[self._instance_id]
        self._ours = not foreign and not damaged
        self._note_wide(())
        self._stats.loaded += len(keys)
        self._stats.damaged += damaged
        if keys:
            log.info("metadata_loaded instance=%s keys=%d seconds=%.2f", self._instance_id, len(keys), (self._context.monotonic_us() - began) / 1e6)
        if damaged:
            log.error("metadata_records_damaged instance=%s count=%d: they are left out and left in Redis", self._instance_id, damaged)

    async def _put(self, changes: Mapping[int, Block], fence: int) -> None:
        """At most PART_BLOCKS. All of them, none, or OutcomeUnknown."""
        usual = self._usual(changes)
        begun = False
        for args, number, chain, _, same in self._packer.pack(changes):
            # Each script tells all the keys: a follower may read between the two.
            opening = self._opening(changes, fence, usual, same)
            await self._outcome(self._redis.run(PUT_CHAIN if chain else PUT_FIELDS, opening + args, number + 9, fence), changes, begun=begun)
            begun = True
            self._note_stored(changes, chain, usual)
        self._count(changes)

    async def _outcome(self, attempt: Awaitable[Any], changes: Mapping[int, Block], *, begun: bool) -> None:
        """`begun`: an earlier part of the changes is stored."""
        try:
            await attempt
        except StorageError as error:
            if isinstance(error, Superseded):
                self._stats.fenced += 1
                self._context.on_fenced()
            else:
                self._stats.failed(error)
            if begun or isinstance(error, OutcomeUnknown):
                self._note_wide(changes)
                raise OutcomeUnknown("Redis did not confirm all of a change") from error
            if isinstance(error, Superseded):
                raise self._fenced_out(error) from None
            raise

    def _usual(self, changes: Mapping[int, Block]) -> bool:
        return self._ours and self._wide.isdisjoint(changes)

    def _opening(self, changes: Mapping[int, Block], fence: int, usual: bool, same: bool) -> bytes:
        """The arguments in front of the packed blocks."""
        now = b"%d" % self._context.wall_us()
        kind = (_SAME if same else _YES) if usual else _NO
        return b"$%d\r\n%b\r\n%b%b%b" % (len(now), now, self._head, kind, self.changes.arguments(changes, fence))

    def _note_stored(self, changes: Mapping[int, Block], chain: bool, usual: bool) -> None:
        if not chain or not usual:
            self._wide.difference_update(changes)
            self._note_wide([key for key, block in changes.items() if len(block) > 1])

    def _count(self, changes: Mapping[int, Block]) -> None:
        self._stats.batches += 1
        self._stats.blocks += len(changes)

    def _arrived(self) -> None:
        if self._expected:
            self._expected = False
            self._context.scans.arrived(self._target)

    def _note_wide(self, keys: Collection[int]) -> None:
        self._wide.update(keys)
        if len(self._wide) > _MAX_WIDE:  # then every block is looked at
            self._wide.clear()
            self._ours = False

    async def _reader(self) -> RedisConnection:
        return await self._redis.reader()

    def _commands(self, keys: Collection[int]) -> bytes:
        prefix, size = self._prefix, len(self._prefix)
        texts = [b"%d" % key for key in keys]
        return b"".join([b"*2\r\n$7\r\nHGETALL\r\n$%d\r\n%b%b\r\n" % (size + len(text), prefix, text) for text in texts])

    async def _replies(self, future: asyncio.Future[list[Any]]) -> list[Any]:
        try:
            replies = await future
        except ConnectionLost as error:
            raise StorageError(f"the metadata in Redis could not be read: {error.message}") from error
        for reply in replies:
            if not isinstance(reply, list) and error_word(reply) != "WRONGTYPE":
                raise refused(reply, "to show blocks")
        return replies

    @staticmethod
    def _fenced_out(error: Superseded) -> FencedOut:
        return FencedOut("a newer leader has taken over the metadata in Redis; this process must not write any more", error.fence)
