"""Block metadata in a Redis Cluster, written through (design D6, D7): buckets of blocks, each with its own fence and its own stream of changes.

A change is one script for each bucket that it touches, all under way at once. Each is made as a whole or not at all, but one of them may be while another
is not: keys whose bucket was refused are reported one by one, and one unknown outcome makes the caller read all of them back.

Dangers: a fence that was raised in some buckets only (then nobody may load: `raise_fence` fails, and so does the promotion); a slot that is moved (nothing is
lost, changes wait or fail for certain); a node that loses what it had acknowledged, with the fence, when its replica takes over (documented; nothing here can
see it before the next change of that bucket).
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.redis.cluster_fenced import Begun, Call, FencedSlot
from kvcm.common.redis.cluster_nodes import ClusterNodes
from kvcm.common.redis.cluster_slot import ClusterSlot
from kvcm.common.redis.cluster_slots import slot_of
from kvcm.common.redis.connection import error_word, pack, refused
from kvcm.common.redis.fenced import Superseded
from kvcm.common.redis.target import RedisTarget
from kvcm.config.errors import FencedOut
from kvcm.meta import cluster_scripts
from kvcm.meta.cluster_changes import ClusterChanges, Told
from kvcm.meta.cluster_layout import ClusterLayout, find_layout
from kvcm.meta.cluster_scan import SCAN_TIMEOUT_S, scan
from kvcm.meta.location import Block
from kvcm.meta.record import RecordCodec
from kvcm.meta.redis_context import RedisContext
from kvcm.meta.redis_read import BlockUnpacker
from kvcm.meta.redis_write import PART_BLOCKS, BlockPacker

log = logging.getLogger("kvcm.meta.redis")

_WAVE_BLOCKS = 2048
_PAGE = 256
_PAGES_UNDER_WAY = 6
_CLAIMS_AT_ONCE = 16
_REPORT_EVERY_US = 5_000_000
_NO_FAILURES: Mapping[int, StorageError] = {}


class _Bucket:
    def __init__(self, nodes: ClusterNodes, layout: ClusterLayout, number: int, stream_entries: int, on_forgotten: Callable[[], None]) -> None:
        stream, limit = layout.stream_key(number), b"%d" % stream_entries
        self.prefix = layout.block_prefix(number)
        fence_key = layout.fence_key(number)
        self.redis = FencedSlot(nodes, layout.slots[number], fence_key, lambda fence: cluster_scripts.claim(stream, limit, fence), on_forgotten)
        self.told = Told(self.redis, fence_key, stream)
        self._stream, self._limit = stream, limit
        self._written = 0

    def put(self, blocks: Mapping[int, Block], packer: BlockPacker, fence: int, now_us: int) -> Call:
        """At most PART_BLOCKS."""
        self._written += 1
        change = cluster_scripts.Change(self._stream, self._limit, fence, self._written, self.prefix, now_us, packer.time_field)
        packed = packer.pack(blocks)
        if len(packed) == 1 and packed[0].chain:
            return change.put_chain(blocks, packed[0])
        return change.put({key: packer.fields_of(block) if block else () for key, block in blocks.items()})

    def looks(self, keys: Collection[int]) -> list[bytes]:
        return [pack("HGETALL", self.prefix + b"%d" % key) for key in keys]


class RedisClusterBackend:
    def __init__(self, target: RedisTarget, instance_id: str, records: RecordCodec, context: RedisContext, *, buckets: int, stream_entries: int = 0) -> None:
        """`buckets`: of an instance that has no layout yet. `stream_entries`: that each bucket's stream keeps, 0 for no streams."""
        self._instance_id = instance_id
        self._context = context
        self._stats = context.stats
        self._target = target
        self._wanted_buckets = buckets
        self._stream_entries = stream_entries
        self._nodes = ClusterNodes(target, "kvcm-blocks", self._stats.connected, context.outage_of)
        self._packer = BlockPacker(records)
        self._unpacker = BlockUnpacker(records)
        self._layout: ClusterLayout | None = None
        self._buckets: Sequence[_Bucket] = ()
        self._forgotten = False
        """Some node has lost its data: the layout may have been there."""
        self.changes = ClusterChanges(self._told, stream_entries, self._read_again)
        """What followers read; empty when the writer keeps no streams."""

    async def open(self) -> None:
        await self._nodes.open()
        await self._known()

    async def close(self) -> None:
        await self._nodes.close()

    async def raise_fence(self, fence: int) -> None:
        """In every bucket, or it fails."""
        # Also where the layout is known: a cluster that has lost its data since has none.
        buckets = self._layout.buckets if self._layout is not None else self._wanted_buckets
        self._take(await find_layout(self._nodes, self._instance_id, buckets))
        gate = asyncio.Semaphore(_CLAIMS_AT_ONCE)

        async def claim(bucket: _Bucket) -> None:
            async with gate:
                await bucket.redis.raise_fence(fence)

        failures = [error for error in await asyncio.gather(*map(claim, self._buckets), return_exceptions=True) if error is not None]
        for error in failures:
            if isinstance(error, Superseded):
                raise self._fenced_out(error) from None
        if failures:
            raise failures[0]
        await self._remember()

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        layout = await self._created()
        failures: dict[int, StorageError] = {}
        left = iter(changes.items())
        stored = False
        while wave := dict(islice(left, _WAVE_BLOCKS)):
            failed = await self._put(layout, wave, fence)
            failures.update(failed)
            stored = stored or len(failed) < len(wave)
            if len(failed) == len(wave):
                error = next(iter(failed.values()))
                if not stored:
                    raise next((one for one in failed.values() if isinstance(one, FencedOut)), error)
                failures.update(dict.fromkeys((key for key, _ in left), error))
        return failures or _NO_FAILURES

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        return self._unpacker.unpack_all(await self._look(keys))

    async def sync(self, keys: Collection[int]) -> None:
        """An accepted change is with its master already. How safe it is there is a matter of Redis' own settings."""

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        layout = await self._known()
        if layout is None:
            return
        scanned = await scan(self._nodes, layout)
        total = sum(map(len, scanned.keys))
        progress = self._stats.loading[self._instance_id] = [0, total]
        began = reported = self._context.monotonic_us()
        damaged = 0
        under_way: deque[tuple[array[int], asyncio.Task[list[Any]]]] = deque()
        try:
            pages = _in_turn(scanned.keys)
            while True:
                for number, page in islice(pages, _PAGES_UNDER_WAY - len(under_way)):
                    bucket = self._buckets[number]
                    under_way.append((page, asyncio.get_running_loop().create_task(bucket.redis.ask(bucket.looks(page), SCAN_TIMEOUT_S))))
                if not under_way:
                    break
                page, task = under_way.popleft()
                blocks, odd = self._unpacker.sort(zip(page, _checked(await task), strict=True))
                damaged += sum(one.block is None for one in odd)
                progress[0] += len(page)
                yield blocks
                now = self._context.monotonic_us()
                if now - reported >= _REPORT_EVERY_US:
                    reported = now
                    log.info("metadata_loading instance=%s done=%d of=%d seconds=%.1f", self._instance_id, progress[0], total, (now - began) / 1e6)
        finally:
            del self._stats.loading[self._instance_id]
            for _, task in under_way:
                task.cancel()
            await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
        self._stats.loaded += total
        self._stats.damaged += damaged
        if total:
            log.info("metadata_loaded instance=%s keys=%d seconds=%.2f", self._instance_id, total, (self._context.monotonic_us() - began) / 1e6)
        if damaged:
            log.error("metadata_records_damaged instance=%s count=%d: they are left out and left in Redis", self._instance_id, damaged)
        if scanned.misplaced:
            log.error(
                "metadata_blocks_misplaced instance=%s count=%d: they lie where another layout would have put them; they are left out and left in Redis",
                self._instance_id,
                scanned.misplaced,
            )

    # -- inside --------------------------------------------------------------------------------------------------------------------------------

    async def _put(self, layout: ClusterLayout, changes: Mapping[int, Block], fence: int) -> dict[int, StorageError]:
        """Keys that were not stored, with why; raises OutcomeUnknown."""
        parts: dict[int, dict[int, Block]] = {}
        for key, block in changes.items():
            parts.setdefault(layout.bucket_of(key), {})[key] = block
        now_us = self._context.wall_us()
        deadline = asyncio.get_running_loop().time() + self._target.timeout_s
        calls: list[tuple[FencedSlot, Collection[int], Call, Begun | None]] = []
        for number, whole in parts.items():
            bucket = self._buckets[number]
            left = iter(whole.items())
            while part := dict(islice(left, PART_BLOCKS)):
                call = bucket.put(part, self._packer, fence, now_us)
                calls.append((bucket.redis, part, call, bucket.redis.begin(call, fence)))
        failures: dict[int, StorageError] = {}
        unknown: OutcomeUnknown | None = None
        # All of them, whatever the first one says: they are under way.
        for redis, keys, call, begun in calls:
            try:
                await redis.run(call, fence, deadline, begun)
            except OutcomeUnknown as error:
                unknown = error
            except Superseded as error:
                failures.update(dict.fromkeys(keys, self._fenced_out(error)))
            except StorageError as error:
                failures.update(dict.fromkeys(keys, error))
        self._count(changes, failures, unknown)
        if self._forgotten:
            await self._write_layout_again(layout)
        if unknown is not None:
            raise OutcomeUnknown("the Redis Cluster did not confirm all of a change") from unknown
        return failures

    def _count(self, changes: Mapping[int, Block], failures: Mapping[int, StorageError], unknown: OutcomeUnknown | None) -> None:
        stats = self._stats
        reason = unknown or next(iter(failures.values()), None)
        if any(isinstance(error, FencedOut) for error in failures.values()):
            stats.fenced += 1
            self._context.on_fenced()
        elif reason is not None:
            stats.failed(reason)
        if len(failures) < len(changes) and unknown is None:
            stats.batches += 1
            stats.blocks += len(changes) - len(failures)

    async def _look(self, keys: Collection[int]) -> list[tuple[int, Any]]:
        """What HGETALL says of each key; nothing while the instance has no layout."""
        layout = await self._known()
        if layout is None:
            return []
        parts: dict[int, list[int]] = {}
        for key in keys:
            parts.setdefault(layout.bucket_of(key), []).append(key)
        found: list[tuple[int, Any]] = []
        answers = await asyncio.gather(*(self._look_in(self._buckets[number], part) for number, part in parts.items()))
        for part, replies in zip(parts.values(), answers, strict=True):
            found += zip(part, replies, strict=True)
        return found

    @staticmethod
    async def _look_in(bucket: _Bucket, keys: Sequence[int]) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(keys), _PAGE):
            replies += _checked(await bucket.redis.ask(bucket.looks(keys[start : start + _PAGE])))
        return replies

    async def _read_again(self, keys: Collection[int]) -> Mapping[int, Block]:
        """What `load` would yield for these keys now, with an empty block for what it would leave out."""
        blocks, odd = self._unpacker.sort(await self._look(keys))
        self._stats.damaged += sum(one.is_damaged for one in odd)
        return dict.fromkeys(keys, ()) | dict(blocks)

    async def _told(self) -> Sequence[Told] | None:
        return None if await self._known() is None else [bucket.told for bucket in self._buckets]

    async def _known(self) -> ClusterLayout | None:
        """The layout, if the instance has one."""
        if self._layout is None:
            self._take(await find_layout(self._nodes, self._instance_id))
        return self._layout

    async def _created(self) -> ClusterLayout:
        if self._layout is None:
            self._take(await find_layout(self._nodes, self._instance_id, self._wanted_buckets))
        assert self._layout is not None
        return self._layout

    def _take(self, layout: ClusterLayout | None) -> None:
        """Of several calls at once each brings the same layout, and the first counts."""
        if layout is not None and (self._layout is None or self._layout.buckets != layout.buckets):
            if layout.buckets != self._wanted_buckets:
                log.info("metadata_layout instance=%s buckets=%d: as it was made; cluster_buckets is for new instances", self._instance_id, layout.buckets)
            self._buckets = [_Bucket(self._nodes, layout, number, self._stream_entries, self._note_forgotten) for number in range(layout.buckets)]
            self._layout = layout

    def _note_forgotten(self) -> None:
        self._forgotten = True

    async def _write_layout_again(self, layout: ClusterLayout) -> None:
        """It must name these buckets, or whoever leads next looks for the blocks elsewhere."""
        self._forgotten = False
        try:
            await find_layout(self._nodes, self._instance_id, layout.buckets)
        except StorageError as error:
            log.warning("metadata_layout_unwritten instance=%s: %s; the next change tries again", self._instance_id, error.message)
            self._forgotten = True

    async def _remember(self) -> None:
        """List the instance as this cluster's."""
        key = self._context.list_key(self._target).encode()
        if key:
            slot = ClusterSlot(self._nodes, slot_of(key))
            (reply,) = await slot.ask([pack("SISMEMBER", key, self._instance_id)])
            if not reply:  # a node that is full refuses to be told again
                (reply,) = await slot.ask([pack("SADD", key, self._instance_id)])
            if error_word(reply):
                raise refused(reply, "to list an instance")

    @staticmethod
    def _fenced_out(error: Superseded) -> FencedOut:
        return FencedOut("a newer leader has taken over the metadata in Redis; this process must not write any more", error.fence)


def _in_turn(keys: Sequence[array[int]]) -> Iterator[tuple[int, array[int]]]:
    """Pages of the buckets in turn, so that all nodes work at the same time."""
    for start in range(0, max(map(len, keys)), _PAGE):
        for number, own in enumerate(keys):
            if start < len(own):
                yield number, own[start : start + _PAGE]


def _checked(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if not isinstance(reply, list) and error_word(reply) != "WRONGTYPE":
            raise refused(reply, "to show blocks")
    return replies
