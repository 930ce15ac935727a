"""The scripts that change a bucket of blocks in a Redis Cluster, and their arguments. KEYS[1] is the bucket's fence, KEYS[2] its stream.

All keys are declared: a Redis Cluster refuses a script as a whole, or sends it on as a whole, by the keys that it is told.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kvcm.common.redis.cluster_fenced import Call
from kvcm.common.redis.fenced import FENCED, HELD, Script, arg
from kvcm.meta.redis_changes import APPEND
from kvcm.meta.redis_write import Packed

# ARGV: token, limit of the stream, fence. A term's first entry is made by the script that begins the term, so it names the fence that stood there before.
# A node that is full must still get a leader, which may remove something: the stream goes then, and followers begin anew. (A script that has changed something
# is not refused memory any more.)
_CLAIM = Script(
    APPEND
    + HELD
    + """
local token, held = held_now()
local given = string.sub(ARGV[1], 1, 20)
if held > given then return token end
if held < given then
  if ARGV[2] == '0' then
    redis.call('DEL', KEYS[2])
  else
    local before = '0'
    if held ~= '' then before = string.gsub(held, '^0+(%d)', '%1') end
    local failed = append(KEYS[2], ARGV[2], 'f', ARGV[3], 'p', before)
    if failed and not string.find(failed.err, 'OOM', 1, true) then return failed end
  end
end
local done = redis.pcall('SET', KEYS[1], ARGV[1])
if done.err then
  if not string.find(done.err, 'OOM', 1, true) then return done end
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[1], ARGV[1])
end
return {token}
"""
)

# What the scripts that store blocks begin with. A node that is full must be able to become less so: a change that makes no block larger (marks, ends of writes,
# removals) is made, and cannot be told: the stream goes, and followers begin anew. Between the two parts a script refuses (`failed`) what makes one larger.
# Whatever Redis refuses before the first write (out of memory, read-only) is refused as a whole.
_BEGIN = (
    FENCED
    + APPEND
    + """
local function grows(key, fields)
  local there = redis.pcall('HLEN', key)
  return type(there) == 'table' or there < fields
end
local call, pcall, sub, now, stamp = redis.call, redis.pcall, string.sub, ARGV[6], ARGV[7]
local failed = append(KEYS[2], ARGV[2], 'f', ARGV[3], 'n', ARGV[4], 'k', ARGV[5])
if failed then
  if not string.find(failed.err, 'OOM', 1, true) then return failed end
"""
)

_ALL_THE_SAME = """
  redis.call('DEL', KEYS[2])
end
"""

# KEYS[3..]: the blocks. ARGV: token, limit of the stream, fence, number, their keys (8 bytes each), time, name of the time's field; then per block the number
# of further arguments (0: remove it), field names and values.
_PUT = Script(
    _BEGIN
    + """
  local at = 8
  for which = 3, #KEYS do
    local n = tonumber(ARGV[at])
    if n > 0 and grows(KEYS[which], n / 2 + 1) then return failed end
    at = at + 1 + n
  end
"""
    + _ALL_THE_SAME
    + """
local at = 8
for which = 3, #KEYS do
  local key, n = KEYS[which], tonumber(ARGV[at])
  if n == 0 then
    call('DEL', key)
  else
    local added = pcall('HSET', key, stamp, now, unpack(ARGV, at + 1, at + n))
    local wrong = type(added) == 'table'
    if wrong and string.sub(added.err, 1, 9) ~= 'WRONGTYPE' then return added end
    if wrong or call('HLEN', key) ~= n / 2 + 1 then
      call('DEL', key)
      call('HSET', key, stamp, now, unpack(ARGV, at + 1, at + n))
    end
  end
  at = at + 1 + n
end
return 1
"""
)

# As _PUT, for usual blocks, one location each: behind the name of the time's field the pairs of a `Packed` chain (see `redis_write`).
_PUT_CHAIN = Script(
    _BEGIN
    + """
  local before, which = '', 2
  for at = 8, #ARGV, 2 do
    local id, text = ARGV[at], ARGV[at + 1]
    if id == '' then
      before = text
    else
      which = which + 1
      if text ~= '' and grows(KEYS[which], before == '' and 2 or 3) then return failed end
      before = id
    end
  end
"""
    + _ALL_THE_SAME
    + """
local before, which = '', 2
for at = 8, #ARGV, 2 do
  local id, text = ARGV[at], ARGV[at + 1]
  if id == '' then
    before = text
  else
    which = which + 1
    local key, name = KEYS[which], 'L#' .. sub(text, 8, 15)
    if text == '' then
      call('DEL', key)
    elseif before == '' then
      local added = pcall('HSET', key, stamp, now, name, text)
      local wrong = type(added) == 'table'
      if wrong and sub(added.err, 1, 9) ~= 'WRONGTYPE' then return added end
      if wrong or call('HLEN', key) ~= 2 then
        call('DEL', key)
        call('HSET', key, stamp, now, name, text)
      end
    else
      local added = pcall('HSET', key, stamp, now, 'BP#prev_key', before, name, text)
      local wrong = type(added) == 'table'
      if wrong and sub(added.err, 1, 9) ~= 'WRONGTYPE' then return added end
      if wrong or call('HLEN', key) ~= 3 then
        call('DEL', key)
        call('HSET', key, stamp, now, 'BP#prev_key', before, name, text)
      end
    end
    before = id
  end
end
return 1
"""
)

Fields = Sequence[tuple[bytes, bytes]]


def claim(stream: bytes, limit: bytes, fence: int) -> Call:
    return Call(_CLAIM, arg(stream), 1, arg(limit) + arg(b"%d" % fence), 2)


class Change(NamedTuple):
    """What the scripts tell of a change, whatever it is. `number`: of the change, by its writer."""

    stream: bytes
    limit: bytes
    fence: int
    number: int
    prefix: bytes
    now_us: int
    time_field: bytes

    def put(self, blocks: Mapping[int, Fields]) -> Call:
        """`blocks`: what is stored of each, nothing to remove it."""
        args: list[bytes] = []
        count = 0
        for fields in blocks.values():
            args.append(arg(b"%d" % (2 * len(fields))))
            for name, value in fields:
                args += (arg(name), arg(value))
            count += 1 + 2 * len(fields)
        return self._call(_PUT, blocks, b"".join(args), count)

    def put_chain(self, keys: Collection[int], packed: Packed) -> Call:
        """`packed`: a chain of exactly these blocks, in this order."""
        return self._call(_PUT_CHAIN, keys, packed.args, packed.number)

    def _call(self, script: Script, keys: Collection[int], args: bytes, count: int) -> Call:
        raw = array("q", keys).tobytes() if self.limit != b"0" else b""
        told = (self.limit, b"%d" % self.fence, b"%d" % self.number, raw, b"%d" % self.now_us, self.time_field)
        prefix, size = self.prefix, len(self.prefix)
        texts = [b"%d" % key for key in keys]
        names = b"".join([b"$%d\r\n%b%b\r\n" % (size + len(text), prefix, text) for text in texts])
        return Call(script, arg(self.stream) + names, 1 + len(texts), b"".join(map(arg, told)) + args, len(told) + count)
