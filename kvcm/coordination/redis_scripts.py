"""The Lua scripts of the `redis://` coordinator. Each is one step that nobody sees half of. For Redis 5 and later, outside of Redis Cluster.

    lock    the node id of the leader, expiring with the lease; name and value are upstream's, so its manager and ours exclude each other
    term    hash of our own: `epoch` last given out, `node` that has it, `run` of the Redis that knew it, `lease` in milliseconds; `seen` and `since`, see below

A Redis that comes back may have forgotten its last seconds or everything, while the leader of that time still believes in its lease. So a Redis whose run id
is not the one in `term` elects nobody until a lease has passed: since it started, if it was never a replica; else since it was first asked. Meanwhile the
leader's own renewal takes the lock back, if its epoch is not below the one that is remembered.

A Redis that is full must go on having a leader, or nothing would ever be removed from it. It refuses a script no memory once it has written something: so the
lock, a few bytes that expire, goes before it is set anew, and before anything else is set a key that is never there.

Times here are the wall clock of Redis. A step of that clock ends leases early or late, as for every key that expires.
"""

from __future__ import annotations

import hashlib
from typing import Final

from kvcm.common.redis.connection import Arg, pack

_COMMON = """
local call, lock, term, node = redis.call, KEYS[1], KEYS[2], ARGV[1]
local holder = call('GET', lock)
local known = call('HMGET', term, 'epoch', 'node', 'run', 'lease', 'seen', 'since')
local last = tonumber(known[1] or 0) or 0
local function info(section) local text = redis.pcall('INFO', section) return type(text) == 'string' and text or '' end
local function now() local at = call('TIME') return at[1] * 1000 + math.floor(at[2] / 1000) end
local server = info('server')
local run = string.match(server, 'run_id:(%w+)') or 'unknown'
local function text(number) return string.format('%.0f', number) end
"""

_CAMPAIGN = (
    _COMMON
    + """
local lease, floor = tonumber(ARGV[2]), tonumber(ARGV[3])
if holder and holder ~= node then return 0 end
if known[3] ~= run then
  local wait = math.max(lease, tonumber(known[4] or 0) or 0)
  local up = tonumber(string.match(server, 'uptime_in_seconds:(%d+)') or 0) * 1000 - 1000
  local never_replica = string.match(info('replication'), 'master_replid2:0+%s') ~= nil
  if not (never_replica and up >= wait) then
    if known[5] ~= run then
      call('DEL', lock .. ':none')
      call('HSET', term, 'seen', run, 'since', text(now()))
      return 0
    end
    if now() - (tonumber(known[6] or 0) or 0) < wait then return 0 end
  end
end
local epoch = math.max(last, floor) + 1
call('DEL', lock)
call('SET', lock, node, 'PX', ARGV[2])
call('HSET', term, 'epoch', text(epoch), 'node', node, 'run', run, 'lease', ARGV[2])
return epoch
"""
)

_KEEP_ALIVE = (
    _COMMON
    + """
local epoch = tonumber(ARGV[2])
local ours = holder == node and known[2] == node and last == epoch
if not ours then
  if holder and holder ~= node or known[3] == run or epoch < last then return 0 end
end
call('DEL', lock)
call('SET', lock, node, 'PX', ARGV[3])
call('HSET', term, 'epoch', ARGV[2], 'node', node, 'run', run, 'lease', ARGV[3])
return 1
"""
)

_RESIGN = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local known = redis.call('HMGET', KEYS[2], 'epoch', 'node')
if known[1] ~= ARGV[2] or known[2] ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

_OBSERVE = """
local holder = redis.call('GET', KEYS[1])
if not holder then return {} end
local known = redis.call('HMGET', KEYS[2], 'epoch', 'node')
return {holder, known[2] == holder and known[1] or '0'}
"""

_PUT_SHARED = """
local known = redis.call('HMGET', KEYS[2], 'epoch', 'node')
if redis.call('GET', KEYS[1]) ~= ARGV[1] or known[1] ~= ARGV[2] or known[2] ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[3], ARGV[3])
return 1
"""

# KEYS: info of the node, index of nodes. ARGV: node id, info, time to live in ms, how many nodes at most.
_PUT_NODE = """
local at = redis.call('TIME')
local now = at[1] * 1000 + math.floor(at[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - ARGV[3]))
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then return 0 end
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""

# KEYS: index of nodes, lock. ARGV: how the names of their infos begin. The holder is told also when it is a manager of upstream, which has no index.
_LIST_NODES = """
local found, seen = {}, {}
local function add(node)
  if seen[node] then return end
  seen[node] = true
  local info = redis.pcall('GET', ARGV[1] .. node)
  if type(info) == 'string' then
    found[#found + 1] = node
    found[#found + 1] = info
  end
end
for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do add(node) end
local holder = redis.call('GET', KEYS[2])
if holder then add(holder) end
return found
"""


class LuaScript:
    def __init__(self, text: str, keys: int) -> None:
        raw = text.encode()
        self._keys = keys
        self.sha: Final = hashlib.sha1(raw, usedforsecurity=False).hexdigest().encode()
        self.load: Final = pack("SCRIPT", "LOAD", raw)

    def call(self, *keys_and_args: Arg) -> bytes:
        return pack("EVALSHA", self.sha, self._keys, *keys_and_args)


CAMPAIGN: Final = LuaScript(_CAMPAIGN, 2)
KEEP_ALIVE: Final = LuaScript(_KEEP_ALIVE, 2)
RESIGN: Final = LuaScript(_RESIGN, 2)
OBSERVE: Final = LuaScript(_OBSERVE, 2)
PUT_SHARED: Final = LuaScript(_PUT_SHARED, 3)
PUT_NODE: Final = LuaScript(_PUT_NODE, 2)
LIST_NODES: Final = LuaScript(_LIST_NODES, 2)
