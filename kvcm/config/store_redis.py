"""A registry in Redis (`redis://...?cluster_name=<name>`), in upstream's layout: hashes `kvcache_registry:<cluster>:<table>` of id -> JSON.

The `instance` hash only lists ids; the record of an instance is in a hash under its own id, as upstream has it (wire contract 1.4).

Dangers: a change is one script, so nobody ever sees half of it; it compares our fence, so an old leader changes nothing (see `kvcm.common.redis.fenced`).
A key that is no hash is put aside under a name of our own when its table is next written, never deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.common.redis.connection import ConnectionLost, RedisConnection, error_word, glob_escaped, pack, refused
from kvcm.common.redis.fenced import FENCED, FencedRedis, Script, Superseded, arg, fence_of
from kvcm.common.redis.target import parse_target
from kvcm.config.errors import FencedOut
from kvcm.config.registry_file import FENCE_KEY, dump, record_of
from kvcm.config.store import OWN_PREFIX, RESERVED_IDS, TABLES, Change, QuarantinedRecord, Record, RegistrySnapshot, Table

DAMAGED_PREFIX = f"{OWN_PREFIX}damaged__"
_SLICE = 64

# ARGV: token, key prefix, name for damaged keys; then (table, id, JSON or empty) for each change. Without a table: only list the instance.
_APPLY = Script(
    FENCED
    + """
local call, prefix, damaged, clean = redis.call, ARGV[2], ARGV[3], {}
local function hash(name)
  local key = prefix .. name
  if not clean[name] then
    local kind = call('TYPE', key).ok
    if kind ~= 'none' and kind ~= 'hash' then call('RENAME', key, damaged .. name) end
    clean[name] = true
  end
  return key
end
for at = 4, #ARGV, 3 do
  local name, id, text = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if name == '' then
    call('HSET', hash('instance'), id, id)
  elseif name == 'instance' then
    if text == '' then
      call('HDEL', hash(name), id)
      call('DEL', prefix .. id)
    else
      call('HSET', hash(id), id, text)
      call('HSET', hash(name), id, id)
    end
  elseif text == '' then
    call('HDEL', hash(name), id)
  else
    call('HSET', hash(name), id, text)
  end
end
return 1
"""
)

# Everything as of one moment. KEYS: the fence's key; ARGV: key prefix, then the tables, `instance` last. A table that is no hash comes as a text.
_LOAD = """
local call, prefix, found = redis.call, ARGV[1], {redis.call('GET', KEYS[1]) or ''}
for at = 2, #ARGV do
  local kind = call('TYPE', prefix .. ARGV[at]).ok
  found[at] = (kind == 'hash' or kind == 'none') and call('HGETALL', prefix .. ARGV[at]) or kind
end
local listed, records = found[#ARGV], {}
if type(listed) == 'table' then
  for at = 1, #listed, 2 do
    local text = redis.pcall('HGET', prefix .. listed[at], listed[at])
    records[#records + 1] = type(text) == 'string' and text or ''
  end
end
found[#found + 1] = records
return found
"""


class RedisStore:
    def __init__(self, uri: str) -> None:
        """Raises InvalidArgument."""
        target = parse_target(uri)
        if not target.cluster_name:
            raise InvalidArgument("The Redis URI of the registry needs cluster_name: managers with the same name share one registry.")
        self._prefix = f"kvcache_registry:{target.cluster_name}:"
        self._fence_key = f"{self._prefix}{FENCE_KEY}"
        self._redis = FencedRedis(target, self._fence_key, "kvcm-registry")
        self._timeout_s = target.timeout_s
        self._unlisted: list[str] = []
        """Instances that have a record but no list that can be read; the next change lists them again."""

    async def open(self) -> None:
        await self._redis.reader()

    async def close(self) -> None:
        await self._redis.close()

    async def probe(self) -> None:
        await self._ask(await self._redis.reader(), [pack("GET", self._fence_key)])

    async def load(self) -> RegistrySnapshot:
        connection = await self._redis.reader()
        (found,) = await self._ask(connection, [pack("EVAL", _LOAD, 1, self._fence_key, self._prefix, *TABLES)])
        token, *found_tables, records = found
        tables: dict[Table, dict[str, Record]] = {table: {} for table in TABLES}
        bad: list[QuarantinedRecord] = []
        listed: list[str] | None = None
        for table, reply in zip(TABLES, found_tables, strict=True):
            if not isinstance(reply, list):
                if table != "instance":
                    bad.append(QuarantinedRecord(table, "", "the whole table cannot be read"))
                continue
            fields = _fields(reply)
            if table == "instance":
                listed = list(fields)
                continue
            for number, (record_id, text) in enumerate(fields.items(), 1):
                _keep(table, record_id, text, tables, bad)
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
        if listed is None:
            bad.append(QuarantinedRecord("instance", "", "the list of instances cannot be read; it is rebuilt from the records"))
            listed = self._unlisted = await self._find_instances(connection)
            records = await self._ask(connection, [pack("HGET", self._prefix + instance_id, instance_id) for instance_id in listed]) if listed else []
        for number, (instance_id, text) in enumerate(zip(listed, records, strict=True), 1):
            _keep("instance", instance_id, text if isinstance(text, bytes) else b"", tables, bad)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        return RegistrySnapshot(tables=tables, quarantined=tuple(bad), fence=fence_of(token))

    async def apply(self, changes: Sequence[Change], fence: int) -> None:
        parts = [arg(self._prefix.encode()), arg(f"{self._prefix}{DAMAGED_PREFIX}".encode())]
        unlisted, blank = self._unlisted, arg(b"")
        for instance_id in unlisted:
            parts += (blank, arg(_raw(instance_id)), blank)
        for number, change in enumerate(changes, 1):
            text = "" if change.record is None else dump(change.record)
            parts += (arg(change.table.encode()), arg(_raw(change.id)), arg(_raw(text)))
            if number % _SLICE == 0:
                await asyncio.sleep(0)  # a snapshot may hold many thousand records
        try:
            if changes:
                await self._redis.run(_APPLY, b"".join(parts), 2 + 3 * (len(unlisted) + len(changes)), fence)
                self._unlisted = []
            else:
                await self._redis.raise_fence(fence)
        except Superseded as error:
            raise FencedOut("The registry in Redis has been taken over by a newer leader.", error.fence) from None

    async def _find_instances(self, connection: RedisConnection) -> list[str]:
        found: set[str] = set()
        cursor = b"0"
        while True:
            ((cursor, keys),) = await self._ask(connection, [pack("SCAN", cursor, "MATCH", f"{glob_escaped(self._prefix)}*", "COUNT", 1000, "TYPE", "hash")])
            for key in keys:
                name = key.decode("utf-8", "surrogateescape").removeprefix(self._prefix)
                if name not in RESERVED_IDS and not name.startswith(OWN_PREFIX):
                    found.add(name)
            if cursor == b"0":
                return sorted(found)

    async def _ask(self, connection: RedisConnection, commands: Sequence[bytes]) -> list[Any]:
        try:
            replies = await connection.send(b"".join(commands), len(commands), self._timeout_s)
        except ConnectionLost as error:
            raise StorageError(f"The registry in Redis could not be read: {error.message}") from error
        for reply in replies:
            if error_word(reply) not in ("", "WRONGTYPE"):
                raise refused(reply, "to show the registry")
        return replies


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _fields(reply: list[bytes]) -> dict[str, bytes]:
    names = [name.decode("utf-8", "surrogateescape") for name in reply[::2]]
    return dict(zip(names, reply[1::2], strict=True))


def _keep(table: Table, record_id: str, text: bytes, tables: dict[Table, dict[str, Record]], bad: list[QuarantinedRecord]) -> None:
    try:
        record = record_of(text.decode())
    except UnicodeDecodeError:
        record = None
    if record is None:
        bad.append(QuarantinedRecord(table, record_id, "its record cannot be read" if text else "its record is missing"))
    else:
        tables[table][record_id] = record
