"""The scripts that store blocks. Both begin with the fence and go on with: time, name of the time's field, key prefix, whether the keys are `usual` (0: no,
1: yes, 2: `same`), and what `redis_changes` says of the change.

HSET first, and only then a look whether older fields are left, which would cost as much as the change itself. In usual keys (every block has the time's field,
and none of these has more than one location) the number of fields that HSET has added says so: all of them, then there was no block; none, then there was
this one. `same`: they are usual, and only the state of their locations changes, so what precedes each block is not told again, unless HSET finds the location
missing; then the whole block is written anew.
A key of another type is replaced. Whatever Redis refuses before the first write (out of memory, read-only) is refused as a whole.

A Redis that is full must be able to become less so, and bytes go only after their block was marked, which is a HSET. So a change that makes no block larger
(marks, ends of writes, removals) is made all the same: Redis refuses a script no memory once it has written something, here a key that is never there. What
that can add is bounded by the length of the stream.
"""

from __future__ import annotations

from kvcm.common.redis.fenced import FENCED, Script
from kvcm.meta.redis_changes import APPEND

_BEGIN = (
    FENCED
    + APPEND
    + """
local function change()
  local failed = append(ARGV[6], ARGV[7], 'f', ARGV[8], 'n', ARGV[9], 'k', ARGV[10])
  if failed then return failed end
  local call, pcall, sub = redis.call, redis.pcall, string.sub
  local now, stamp, prefix, usual, same = ARGV[2], ARGV[3], ARGV[4], ARGV[5] ~= '0', ARGV[5] == '2'
  local function refused(added) return type(added) == 'table' and sub(added.err, 1, 9) ~= 'WRONGTYPE' end
  local function cleared(key, added, fields)
    if type(added) == 'table' or call('HLEN', key) ~= fields then
      call('DEL', key)
      return true
    end
  end
"""
)

_FULL = """
  return 1
end
local done = change()
if type(done) ~= 'table' or not string.find(done.err, 'OOM', 1, true) then return done end
local function grows(id, fields)
  local there = redis.pcall('HLEN', ARGV[4] .. id)
  return type(there) == 'table' or there < fields
end
"""

_ALL_THE_SAME = """
redis.call('DEL', KEYS[1] .. ':none')
return change()
"""

# Then pairs: key and JSON of a block; key and nothing to remove it; nothing and the key in front of the next block (or nothing), where it is not the last one.
PUT_CHAIN = Script(
    _BEGIN
    + """
  local before = ''
  for at = 11, #ARGV, 2 do
    local id, text = ARGV[at], ARGV[at + 1]
    if id == '' then
      before = text
    elseif text == '' then
      call('DEL', prefix .. id)
    else
      local key, name = prefix .. id, 'L#' .. sub(text, 8, 15)
      if before == '' then
        local added = pcall('HSET', key, stamp, now, name, text)
        if not (usual and (added == 2 or added == 0)) then
          if refused(added) then return added end
          if cleared(key, added, 2) then call('HSET', key, stamp, now, name, text) end
        end
      else
        local added = 1
        if same then
          added = pcall('HSET', key, stamp, now, name, text)
          if refused(added) then return added end
          if added ~= 0 then call('DEL', key) end
        end
        if added ~= 0 then added = pcall('HSET', key, stamp, now, 'BP#prev_key', before, name, text) end
        if not (usual and (added == 0 or added == 3)) then
          if refused(added) then return added end
          if cleared(key, added, 3) then call('HSET', key, stamp, now, 'BP#prev_key', before, name, text) end
        end
      end
      before = id
    end
  end
"""
    + _FULL
    + """
local before = ''
for at = 11, #ARGV, 2 do
  local id, text = ARGV[at], ARGV[at + 1]
  if id ~= '' and text ~= '' and grows(id, before == '' and 2 or 3) then return done end
  if id == '' then
    before = text
  elseif text ~= '' then
    before = id
  end
end
"""
    + _ALL_THE_SAME
)

# Then per block: its key, the number of further arguments (0: remove it), field names and values.
PUT_FIELDS = Script(
    _BEGIN
    + """
  local at, last = 11, #ARGV
  while at < last do
    local key, n = prefix .. ARGV[at], tonumber(ARGV[at + 1])
    if n == 0 then
      call('DEL', key)
    else
      local added = pcall('HSET', key, stamp, now, unpack(ARGV, at + 2, at + 1 + n))
      if refused(added) then return added end
      if cleared(key, added, n / 2 + 1) then call('HSET', key, stamp, now, unpack(ARGV, at + 2, at + 1 + n)) end
    end
    at = at + 2 + n
  end
"""
    + _FULL
    + """
local at, last = 11, #ARGV
while at < last do
  local n = tonumber(ARGV[at + 1])
  if n > 0 and grows(ARGV[at], n / 2 + 1) then return done end
  at = at + 2 + n
end
"""
    + _ALL_THE_SAME
)
