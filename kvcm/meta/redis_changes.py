"""The stream of changes of one instance in Redis: what the writer appends, and how followers read it (see `changes`).

    XADD <stream> MAXLEN ~ <limit> * f <fence> n <number> k <keys, 8 bytes each, little-endian>       a change, in the script that makes it
    XADD <stream> MAXLEN ~ <limit> * f <fence> p <fence before>                                       a term begins
    (deleted)                                                                                         the writer is configured not to tell its changes

Positions are checked by reading from the last known entry on, that entry included: where it is missing the stream was cut, deleted or lost, and no clock and no
version of Redis has to be trusted. Ids are milliseconds, so a stream that was lost and began anew at once may use one twice: the writer's own number differs.
The newest entry is never cut, so a follower that has read everything stays in place however long nothing happens.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from kvcm.common.errors import StorageError
from kvcm.common.redis.connection import ConnectionLost, error_word, pack, refused
from kvcm.common.redis.fenced import FENCED, FencedRedis, Script, arg, fence_of
from kvcm.meta.changes import Entry, LostTrack, Page, Position
from kvcm.meta.location import Block
from kvcm.meta.redis_context import STREAM

DEFAULT_MAX_ENTRIES = 16_384
PARAMETER = "stream_max_entries"
MAX_ENTRIES = 10_000_000

# First, so that nothing was changed when it fails. A key of another type there is not ours.
APPEND = """
local function append(stream, limit, ...)
  if limit == '0' then return end
  local done = redis.pcall('XADD', stream, 'MAXLEN', '~', limit, '*', ...)
  if type(done) == 'table' and string.sub(done.err or '', 1, 9) == 'WRONGTYPE' then
    redis.call('DEL', stream)
    done = redis.pcall('XADD', stream, 'MAXLEN', '~', limit, '*', ...)
  end
  if type(done) == 'table' and done.err then return done end
end
"""

# ARGV: token, stream, limit, fence, fence before. For a Redis that is full see `redis_scripts`.
_BEGIN = Script(
    FENCED
    + APPEND
    + """
if ARGV[3] == '0' then
  redis.call('DEL', ARGV[2])
  return 1
end
local failed = append(ARGV[2], ARGV[3], 'f', ARGV[4], 'p', ARGV[5])
if failed and string.find(failed.err, 'OOM', 1, true) then
  redis.call('DEL', KEYS[1] .. ':none')
  failed = append(ARGV[2], ARGV[3], 'f', ARGV[4], 'p', ARGV[5])
end
return failed or 1
"""
)


def stream_key(instance_id: str) -> str:
    return f"kvcache:instance_{instance_id}:{STREAM}"


def keys_of(raw: bytes) -> Collection[int]:
    """Raises ValueError."""
    found: array[int] = array("q")
    found.frombytes(raw)
    return found


class RedisChanges:
    def __init__(
        self,
        redis: FencedRedis,
        fence_key: str,
        instance_id: str,
        max_entries: int,
        read_blocks: Callable[[Collection[int]], Awaitable[Mapping[int, Block]]],
    ) -> None:
        """`read_blocks`: see ChangeStream.blocks. `max_entries`: that the stream keeps, 0 for no stream."""
        self._redis = redis
        self._fence_key = fence_key
        self._stream = stream_key(instance_id).encode()
        self._timeout_s = redis.target.timeout_s
        self._read_blocks = read_blocks
        self.max_entries = max_entries
        self._written = 0
        self._term: tuple[int, bytes] | None = None
        """A fence, and what is packed in front of every change under it."""
        self._head = arg(self._stream) + arg(b"%d" % max_entries)

    # -- writing -------------------------------------------------------------------------------------------------------------------------------

    async def begin(self, fence: int) -> None:
        """A term begins. Raises Superseded, StorageError."""
        await self._redis.run(_BEGIN, self._head + arg(b"%d" % fence) + arg(b"%d" % self._redis.replaced), 4, fence)

    def arguments(self, keys: Collection[int], fence: int) -> bytes:
        """Five packed arguments of a script that changes these blocks: stream, limit, fence, number, keys."""
        raw = array("q", keys).tobytes() if self.max_entries else b""
        self._written += 1
        term = self._term
        if term is None or term[0] != fence:
            term = self._term = fence, self._head + arg(b"%d" % fence)
        number = b"%d" % self._written
        return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (term[1], len(number), number, len(raw), raw)

    # -- following -----------------------------------------------------------------------------------------------------------------------------

    async def end(self) -> Entry:
        info, token = await self._ask(pack("XINFO", "STREAM", self._stream), pack("GET", self._fence_key))
        state = _state(info)
        last = state.get(b"last-entry")
        if not last:
            raise LostTrack("nobody has told of changes yet")
        entry = entry_of(last, state.get(b"entries-added", -1))
        if entry.fence != fence_of(token if isinstance(token, bytes) else None):
            raise LostTrack("the leader does not tell its changes")
        return entry

    async def changes_after(self, after: Position, limit: int) -> Page:
        found, info = await self._ask(pack("XRANGE", self._stream, after.entry, "+", "COUNT", limit + 1), pack("XINFO", "STREAM", self._stream))
        if not isinstance(found, list) or not found or found[0][0] != after.entry or entry_of(found[0], 0).position.mark != after.mark:
            raise LostTrack("the store has dropped changes that were not read yet")
        number = after.number
        entries = [entry_of(raw, number + at if number >= 0 else -1) for at, raw in enumerate(found[1:], 1)]
        state = _state(info)
        last = entries[-1].position if entries else after
        newest = state.get(b"last-generated-id", last.entry)
        added = state.get(b"entries-added", -1)
        behind = added - last.number if added >= 0 and last.number >= 0 else int(newest != last.entry)
        return Page(entries, max(0, behind), max(0, _ms(newest) - _ms(last.entry)))

    async def blocks(self, keys: Collection[int]) -> Mapping[int, Block]:
        return await self._read_blocks(keys)

    async def wait(self, after: Position, seconds: float) -> None:
        command = pack("XREAD", "COUNT", 1, "BLOCK", max(1, int(seconds * 1000)), "STREAMS", self._stream, after.entry)
        await self._send(command, 1, seconds + self._timeout_s)

    def interrupt(self) -> None:
        self._redis.hang_up()

    async def _ask(self, *commands: bytes) -> list[Any]:
        return await self._send(b"".join(commands), len(commands), self._timeout_s)

    async def _send(self, data: bytes, count: int, timeout_s: float) -> list[Any]:
        connection = await self._redis.reader()
        try:
            replies = await connection.send(data, count, timeout_s)
        except ConnectionLost as error:
            raise StorageError(f"the changes in Redis could not be read: {error.message}") from error
        for reply in replies:
            # ERR: there is no such stream. Both mean the same to whoever follows one.
            if error_word(reply) not in ("", "ERR", "WRONGTYPE"):
                raise refused(reply, "to show changes")
        return replies


def _state(info: object) -> dict[bytes, Any]:
    return dict(zip(info[::2], info[1::2], strict=True)) if isinstance(info, list) else {}


def entry_of(raw: Any, number: int) -> Entry:
    """One entry of a stream, as Redis gives it. Raises LostTrack: what cannot be read may name any block."""
    try:
        identity, flat = raw
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        fence, replaced, own = fields[b"f"], fields.get(b"p"), fields.get(b"n", b"")
        keys = keys_of(fields[b"k"]) if replaced is None else ()
        position = Position(bytes(identity), number, b"%b.%b" % (fence, own))
        return Entry(position, int(fence), tuple(keys), None if replaced is None else int(replaced))
    except (KeyError, TypeError, ValueError):
        raise LostTrack("an entry of the changes cannot be read") from None


def _ms(entry: bytes) -> int:
    head = entry.partition(b"-")[0]
    return int(head) if head.isdigit() else 0
