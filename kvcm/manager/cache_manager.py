"""The facade of the manager (behaviour section 3): one object that services ask, one shard per registered instance behind it.

Reads run on the caller. Mutations run in tasks of their own and always to their end: a client that hangs up must not leave memory and store apart. Their
number is bounded. Everything here belongs to one event loop.

Life: `recover()` when leadership is won and the registry is loaded, `cleanup()` when it is lost; then again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

from kvcm.common.block_mask import BlockMask
from kvcm.common.clock import Clock
from kvcm.common.errors import InstanceNotExist, InvalidArgument, KvcmError, NotReady
from kvcm.common.ids import IdSource
from kvcm.config.model import Instance, InstanceGroup, MetaBackendConfig
from kvcm.manager.deleter import Deleter
from kvcm.manager.errors import Overloaded
from kvcm.manager.ports import Leadership, Storages, WireCodec
from kvcm.manager.probing import Probed, Prober, Pruner
from kvcm.manager.searcher import Located, LocateQuery, Searcher
from kvcm.manager.selector import delete_delay_us
from kvcm.manager.shard import InstanceShard
from kvcm.manager.token_keys import token_keys
from kvcm.manager.trimmer import TrimRange, trim_keys
from kvcm.manager.write_sessions import WriteSessions
from kvcm.manager.writer import StartWrite, Writer, WriteStarted
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Status
from kvcm.meta.usage import UsageCounter

log = logging.getLogger("kvcm.manager")
T = TypeVar("T")

MAX_KEYS_PER_CALL = 131_072
_MAX_MUTATIONS = 10_000
_NO_KEY_LIMIT = 1 << 62


class Registrar(Protocol):
    """The part of the Registry that the manager uses."""

    def get_group(self, name: str) -> InstanceGroup | None: ...

    def list_groups(self) -> list[InstanceGroup]: ...

    def list_instances(self, group_name: str) -> list[Instance]: ...

    async def register_instance(self, instance: Instance) -> bool: ...

    async def remove_instance(self, instance_id: str) -> None: ...


OpenMetadata = Callable[[MetaBackendConfig, str], MetadataBackend]
"""(configuration, instance id) -> backend, not opened yet. Raises InvalidArgument or Unsupported."""


@dataclass(frozen=True, slots=True)
class BlockView:
    """What GetCacheMeta shows of one key: framed location bytes and a small JSON text."""

    wire: bytes
    meta_json: str


class CacheManager:
    def __init__(
        self,
        registry: Registrar,
        storages: Storages,
        codec: WireCodec,
        clock: Clock,
        ids: IdSource,
        random: Random,
        leadership: Leadership,
        open_metadata: OpenMetadata,
    ) -> None:
        self._registry = registry
        self._storages = storages
        self._codec = codec
        self._clock = clock
        self._open_metadata = open_metadata
        self._shards: dict[str, InstanceShard] = {}
        self._draining: dict[str, InstanceShard] = {}
        self._broken: dict[str, str] = {}
        self._groups: dict[str, UsageCounter] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.sessions = WriteSessions()
        self.deleter = Deleter(storages, codec, clock, leadership)
        prober = Prober(storages, codec)
        self._pruner = Pruner(self.deleter, leadership)
        self._searcher = Searcher(storages, codec, random, prober, self._on_lost)
        self._writer = Writer(storages, codec, clock, ids, leadership, self.deleter, prober, self._pruner, self.sessions)

    # -- instances -----------------------------------------------------------------------------------------------------------------------------

    async def register(self, instance: Instance) -> bool:
        """Register and make ready; returns whether it is new. Idempotent (I-CM-1). Errors as in Registry.register_instance."""
        return await self._uncut(self._register(instance))

    async def _register(self, instance: Instance) -> bool:
        created = await self._registry.register_instance(instance)
        if instance.instance_id not in self._shards:
            try:
                await self._open_shard(instance)
            except KvcmError:
                if created:
                    await self._registry.remove_instance(instance.instance_id)
                raise
        return created

    async def remove_instance(self, instance_id: str) -> None:
        """Unregister at once; blocks become DELETING before this returns and their bytes go in the background (I-CM-11)."""
        await self._uncut(self._remove_instance(instance_id))

    async def _remove_instance(self, instance_id: str) -> None:
        await self._registry.remove_instance(instance_id)
        self._broken.pop(instance_id, None)
        shard = self._shards.pop(instance_id, None)
        if shard is None:
            return
        shard.closed = True
        self._draining[instance_id] = shard
        await self._writer.abort_all({instance_id: shard}, instance_id)
        try:
            await trim_keys(self.deleter, shard, delete_delay_us(self._registry.get_group(shard.instance.instance_group_name)))
        except KvcmError as error:
            log.warning("instance_drain_incomplete instance=%s: %s; it is continued in the background", instance_id, error.message)

    def shard(self, instance_id: str) -> InstanceShard:
        shard = self._shards.get(instance_id)
        if shard is None:
            if instance_id in self._broken:
                raise NotReady(f"the metadata of instance '{instance_id}' cannot be opened: {self._broken[instance_id]}")
            raise InstanceNotExist(f"instance '{instance_id}' is not registered")
        return shard

    def shards(self) -> list[InstanceShard]:
        return list(self._shards.values())

    def group_usage(self, name: str) -> UsageCounter:
        usage = self._groups.get(name)
        if usage is None:
            usage = self._groups[name] = UsageCounter()
        return usage

    # -- reads ---------------------------------------------------------------------------------------------------------------------------------

    def keys_of(self, shard: InstanceShard, block_keys: Sequence[int], token_ids: Sequence[int]) -> Sequence[int]:
        """Explicit keys win over tokens; at most MAX_KEYS_PER_CALL. Raises InvalidArgument when both are empty."""
        if block_keys:
            keys: Sequence[int] = block_keys[:]
        elif token_ids:
            keys = token_keys(token_ids, shard.instance.block_size)
        else:
            raise InvalidArgument("block_keys and token_ids are both empty; give one of them")
        if len(keys) > MAX_KEYS_PER_CALL:
            raise InvalidArgument(f"a call may name at most {MAX_KEYS_PER_CALL} blocks, not {len(keys)}")
        return keys

    async def locate(self, shard: InstanceShard, query: LocateQuery, now_us: int) -> Located:
        return await self._searcher.locate(shard, self._registry.get_group(shard.instance.instance_group_name), query, now_us)

    def view(self, shard: InstanceShard, keys: Sequence[int]) -> list[BlockView]:
        """One entry per key: its most useful location whatever its state (SERVING before WRITING before DELETING). No touch."""
        return [self._view_one(shard, key) for key in keys]

    def _view_one(self, shard: InstanceShard, key: int) -> BlockView:
        block = shard.index.get(key)
        if not block:
            return BlockView(self._codec.encode(0, ()), '{"status":"CLS_NOT_FOUND"}')
        rank = (Status.SERVING, Status.WRITING, Status.NEW, Status.DELETING)
        location = min(block, key=lambda loc: rank.index(loc.status))
        text = json.dumps({"id": location.location_id, "status": f"CLS_{location.status.name}"}, separators=(",", ":"))
        return BlockView(location.wire, text)

    # -- mutations -----------------------------------------------------------------------------------------------------------------------------

    async def start_write(self, shard: InstanceShard, request: StartWrite) -> WriteStarted:
        group = self._registry.get_group(shard.instance.instance_group_name)
        if group is None:
            raise InstanceNotExist(f"instance group '{shard.instance.instance_group_name}' of instance '{shard.instance_id}' does not exist any more")
        return await self._uncut(self._writer.start(shard, group, self.group_usage(group.name), request))

    async def finish_write(self, shard: InstanceShard, session_id: str, success: BlockMask, checksums: Sequence[int] = ()) -> None:
        await self._uncut(self._writer.finish(shard, session_id, success, checksums))

    async def remove_cache(self, shard: InstanceShard, keys: Sequence[int]) -> int:
        """Whole blocks become DELETING; their bytes go after the group's delay. Unknown keys are fine. Returns the number of locations."""
        return await self._uncut(self.deleter.condemn(shard, keys, self._delay_us(shard)))

    async def trim(self, shard: InstanceShard, wanted: TrimRange | None) -> int:
        """Remove every block, or those that `wanted` names. When it returns, all of them are DELETING."""
        return await self._uncut(trim_keys(self.deleter, shard, self._delay_us(shard), wanted))

    def _delay_us(self, shard: InstanceShard) -> int:
        return delete_delay_us(self._registry.get_group(shard.instance.instance_group_name))

    def _on_lost(self, shard: InstanceShard, lost: list[Probed]) -> None:
        if len(self._tasks) < _MAX_MUTATIONS:  # else the next read finds them again
            self._spawn(self._pruner.prune(shard, lost, self._delay_us(shard)))

    # -- life ----------------------------------------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Make a shard for every registered instance. One whose metadata cannot be read is reported and retried; it never blocks the others."""
        for group in self._registry.list_groups():
            for instance in self._registry.list_instances(group.name):
                if instance.instance_id not in self._shards:
                    await self._try_open(instance)

    async def retry_broken(self) -> None:
        for group in self._registry.list_groups() if self._broken else ():
            for instance in self._registry.list_instances(group.name):
                if instance.instance_id in self._broken:
                    await self._try_open(instance)

    async def cleanup(self) -> None:
        """Leadership ends: abort open sessions, then forget everything in memory (behaviour 3.8). Waits for mutations under way."""
        while self._tasks:
            await asyncio.gather(*list(self._tasks), return_exceptions=True)
        await self._writer.abort_all(self._shards)
        self.deleter.forget()
        shards = [*self._shards.values(), *self._draining.values()]
        self._shards.clear()
        self._draining.clear()
        self._broken.clear()
        self._groups.clear()
        for shard in shards:
            shard.closed = True
            await shard.index.close()

    async def run_due_deletions(self) -> int:
        return await self._uncut(self.deleter.step())

    async def sweep(self) -> None:
        """What has to be looked at about once a second: expired sessions, removed instances, deletions without room, unreadable instances."""
        await self._uncut(self._sweep())

    async def _sweep(self) -> None:
        await self._writer.expire_due(self._shards)
        await self._finish_draining()
        for shard in [*self._shards.values(), *self._draining.values()]:
            if shard.redrive_needed:
                await self.deleter.redrive(shard, 0)
        await self.retry_broken()

    async def _finish_draining(self) -> None:
        """Close removed instances whose last byte is gone; continue those that are not through."""
        for instance_id, shard in list(self._draining.items()):
            if shard.index.key_count == 0:
                shard.index.usage.detach()
                del self._draining[instance_id]
                await shard.index.close()
            elif shard.redrive_needed or self.deleter.pending == 0:
                await trim_keys(self.deleter, shard, 0)
                await self.deleter.redrive(shard, 0)

    # -- inside --------------------------------------------------------------------------------------------------------------------------------

    async def _try_open(self, instance: Instance) -> None:
        try:
            await self._open_shard(instance)
        except KvcmError as error:
            if self._broken.get(instance.instance_id) != error.message:
                log.error("instance_metadata_unavailable instance=%s: %s; it is tried again", instance.instance_id, error.message)
            self._broken[instance.instance_id] = error.message

    async def _open_shard(self, instance: Instance) -> None:
        draining = self._draining.pop(instance.instance_id, None)
        if draining is not None:
            # The id is registered anew while old blocks are still being deleted: they stay DELETING, invisible, and the store has one owner.
            draining.index.usage.detach()
            draining.index.usage.attach(self.group_usage(instance.instance_group_name))
            draining.configure(instance)
            draining.closed = False
            draining.redrive_needed = True
            self._shards[instance.instance_id] = draining
            return
        group = self._registry.get_group(instance.instance_group_name)
        if group is None:
            raise InstanceNotExist(f"instance group '{instance.instance_group_name}' does not exist")
        indexer = group.cache_config.meta_indexer
        backend = self._open_metadata(indexer.backend, instance.instance_id)
        usage = UsageCounter(self.group_usage(group.name))
        shard = InstanceShard(instance, MetaIndex(backend, max_key_count=indexer.max_key_count or _NO_KEY_LIMIT, usage=usage), self._codec)
        try:
            await shard.index.open()
            count = await shard.index.recover()
        except KvcmError:
            usage.detach()
            await shard.index.close()
            raise
        self._broken.pop(instance.instance_id, None)
        self._shards[instance.instance_id] = shard
        if count:
            await self._resume(shard, count)

    async def _resume(self, shard: InstanceShard, count: int) -> None:
        """After a load: WRITING without a session can never be finished, DELETING was interrupted. Both go on to their end."""
        orphans = 0
        for page in shard.index.pages():  # all of them before the first deletion: a packed file must know every block that lives in it
            self._adopt(shard, page)
            await asyncio.sleep(0)
        for page in shard.index.pages():
            orphans += await self.deleter.condemn(shard, page, self._delay_us(shard), lambda _, location: location.header[0] == Status.WRITING)
        deleting = await self.deleter.redrive(shard, self._delay_us(shard))
        log.info("instance_recovered instance=%s blocks=%d orphan_writes=%d deletions_resumed=%d", shard.instance_id, count, orphans, deleting - orphans)

    def _adopt(self, shard: InstanceShard, keys: Sequence[int]) -> None:
        """Tell the storages which places are in use, so that a packed file goes with its last block and never before."""
        places: dict[int, list[str]] = {}
        for key in keys:
            for location in shard.index.get(key):
                places.setdefault(location.storage_slot, []).extend(uri for _, uri in self._codec.decode(location.wire)[1])
        for slot, uris in places.items():
            backend = self._storages.backend(self._storages.name_of(slot))
            if backend is not None:
                backend.adopt(uris)

    async def _uncut(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a mutation to its end even if the caller is cancelled."""
        if len(self._tasks) >= _MAX_MUTATIONS:
            work.close()
            raise Overloaded("too many changes are under way; repeat the call later")
        return await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here: the caller may be gone
