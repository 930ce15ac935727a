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
from collections.abc import AsyncIterator, Collection, Mapping
from itertools import islice
from typing import Any

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.redis.connection import ConnectionLost, RedisConnection, error_word, glob_escaped, pack, refused
from kvcm.common.redis.fenced import FENCED, FencedRedis, Script, Superseded, arg
from kvcm.common.redis.target import RedisTarget
from kvcm.config.errors import FencedOut
from kvcm.meta.location import Block
from kvcm.meta.record import DamagedRecord, RecordCodec
from kvcm.meta.redis_context import RedisContext
from kvcm.meta.redis_read import BlockUnpacker
from kvcm.meta.redis_write import BlockPacker

log = logging.getLogger("kvcm.meta.redis")

_KEYS_PER_SCRIPT = 512
_PAGE = 512
_SCAN_COUNT = 4096
_PAGES_UNDER_WAY = 3
_LOAD_TIMEOUT_S = 30.0
_REPORT_EVERY_US = 5_000_000
_NO_FAILURES: Mapping[int, StorageError] = {}

# ARGV: token, time, name of the time's field, key prefix, whether every key that exists has that field; then per block: its key, the number of
# further arguments, field names and values.
# HSET first and only then a look whether older fields are left. Where every key has the time's field, a key that got only new fields did not exist before, and
# the look is saved. A key of another type is replaced.
_PUT = Script(
    FENCED
    + """
local call, pcall, now, stamp, prefix, ours = redis.call, redis.pcall, ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local at, last = 6, #ARGV
while at < last do
  local key, n = prefix .. ARGV[at], ARGV[at + 1]
  if n == '0' then
    call('DEL', key)
    at = at + 2
  else
    local added, fields
    if n == '4' then
      fields = 3
      added = pcall('HSET', key, stamp, now, ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
    else
      fields = n / 2 + 1
      added = pcall('HSET', key, stamp, now, unpack(ARGV, at + 2, at + 1 + n))
    end
    if not ours or added ~= fields then
      if type(added) == 'table' and string.sub(added.err, 1, 9) ~= 'WRONGTYPE' then return added end
      if type(added) == 'table' or call('HLEN', key) ~= fields then
        call('DEL', key)
        call('HSET', key, stamp, now, unpack(ARGV, at + 2, at + 1 + n))
      end
    end
    at = at + 2 + n
  end
end
return 1
"""
)


def block_prefix(instance_id: str) -> str:
    return f"kvcache:instance_{instance_id}:cache_"


def fence_key(instance_id: str) -> str:
    return f"kvcache:instance_{instance_id}:__kvcm_fence__"


class RedisBackend:
    def __init__(self, target: RedisTarget, instance_id: str, records: RecordCodec, context: RedisContext, *, legacy: bool = False) -> None:
        """`legacy`: write upstream's older layout."""
        self._instance_id = instance_id
        self._context = context
        self._stats = context.stats
        self._target = target
        self._prefix = block_prefix(instance_id).encode()
        self._redis = FencedRedis(target, fence_key(instance_id), "kvcm-blocks", self._stats.connected)
        self._packer = BlockPacker(records, legacy=legacy)
        self._unpacker = BlockUnpacker(records)
        self._ours = False
        """True once a scan has shown that every block there was written in the layout that this backend writes."""

    async def open(self) -> None:
        await self._redis.reader()

    async def close(self) -> None:
        await self._redis.close()

    async def raise_fence(self, fence: int) -> None:
        try:
            await self._redis.raise_fence(fence)
        except Superseded as error:
            raise self._fenced_out(error) from None
        await self._context.remember(self._redis, self._target, self._instance_id)

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        if len(changes) <= _KEYS_PER_SCRIPT:
            await self._put(changes, fence)
            return _NO_FAILURES
        left = iter(changes.items())
        done = 0
        while part := dict(islice(left, _KEYS_PER_SCRIPT)):
            try:
                await self._put(part, fence)
            except StorageError as error:
                # Raised as it is while nothing is stored, and when the outcome is unknown: then all keys are read back.
                if not done or isinstance(error, OutcomeUnknown):
                    raise
                return dict.fromkeys([*part, *(key for key, _ in left)], error)
            done += len(part)
        return _NO_FAILURES

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        connection = await self._reader()
        found: dict[int, Block] = {}
        wanted = list(keys)
        for start in range(0, len(wanted), _PAGE):
            page = wanted[start : start + _PAGE]
            for key, flat in zip(page, await self._replies(connection.send(self._commands(page), len(page), self._target.timeout_s)), strict=True):
                if not isinstance(flat, list):
                    continue  # a key that is no hash is no block
                try:
                    block = self._unpacker.unpack(flat)
                except DamagedRecord as error:
                    raise StorageError("the metadata in Redis holds a damaged record") from error
                if block:
                    found[key] = block
            await asyncio.sleep(0)
        return found

    async def sync(self, keys: Collection[int]) -> None:
        """An accepted change is in Redis already. How safe it is there is a matter of Redis' own settings."""

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        connection = await self._reader()
        keys = await self._scan(connection)
        progress = self._stats.loading[self._instance_id] = [0, len(keys)]
        began = reported = self._context.monotonic_us()
        damaged = foreign = 0
        self._ours = False
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
                blocks: list[tuple[int, Block]] = []
                unpack = self._unpacker.unpack
                for key, flat in zip(page, await self._replies(future), strict=True):
                    try:
                        block = unpack(flat) if isinstance(flat, list) else None
                    except DamagedRecord:
                        block = None
                    if block:
                        blocks.append((key, block))
                        foreign += stamp not in flat
                    elif block is None:
                        damaged += 1
                progress[0] += len(page)
                yield blocks
                now = self._context.monotonic_us()
                if now - reported >= _REPORT_EVERY_US:
                    reported = now
                    log.info("metadata_loading instance=%s done=%d of=%d seconds=%.1f", self._instance_id, progress[0], len(keys), (now - began) / 1e6)
        finally:
            del self._stats.loading[self._instance_id]
        self._ours = not foreign and not damaged
        self._stats.loaded += len(keys)
        self._stats.damaged += damaged
        if keys:
            log.info("metadata_loaded instance=%s keys=%d seconds=%.2f", self._instance_id, len(keys), (self._context.monotonic_us() - began) / 1e6)
        if damaged:
            log.error("metadata_records_damaged instance=%s count=%d: they are left out and left in Redis", self._instance_id, damaged)

    async def _put(self, changes: Mapping[int, Block], fence: int) -> None:
        args, count = await self._packer.pack(changes)
        head = arg(b"%d" % self._context.wall_us()) + arg(self._packer.time_field) + arg(self._prefix) + (b"$1\r\n1\r\n" if self._ours else b"$1\r\n0\r\n")
        stats = self._stats
        try:
            await self._redis.run(_PUT, head + args, count + 4, fence)
        except Superseded as error:
            stats.fenced += 1
            raise self._fenced_out(error) from None
        except StorageError as error:
            stats.failed(error)
            raise
        stats.batches += 1
        stats.blocks += len(changes)

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

    async def _scan(self, connection: RedisConnection) -> array[int]:
        """Keys of the instance's blocks. One that exists all the while is there, possibly twice."""
        pattern = glob_escaped(self._prefix.decode()) + "*"
        size = len(self._prefix)
        found: array[int] = array("q")
        cursor = b"0"
        while True:
            future = connection.send(pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT), 1, _LOAD_TIMEOUT_S)
            ((cursor, names),) = await self._replies(future)
            for name in names:
                try:
                    key = int(name[size:])
                    if b"%d" % key == name[size:]:
                        found.append(key)
                except (ValueError, OverflowError):
                    continue  # of an instance whose id begins with this one's name and ':cache_'
            if cursor == b"0":
                return found

    @staticmethod
    def _fenced_out(error: Superseded) -> FencedOut:
        return FencedOut("a newer leader has taken over the metadata in Redis; this process must not write any more", error.fence)
