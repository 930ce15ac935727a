"""The facade of the manager (behaviour section 3): one object that services ask, one shard per registered instance behind it.

Reads run on the caller. Mutations run in tasks of their own and always to their end: a client that hangs up must not leave memory and store apart. Their
number is bounded. Everything here belongs to one event loop.

Life: `recover()` when leadership is won and the registry is loaded, `cleanup()` when it is lost; then again.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from kvcm.common.block_mask import BlockMask
from kvcm.common.clock import Clock
from kvcm.common.errors import InstanceNotExist, InvalidArgument, KvcmError, NotReady
from kvcm.common.ids import IdSource
from kvcm.common.uncut import Uncut
from kvcm.config.model import Instance
from kvcm.data_storage.model import Storage, StorageType
from kvcm.manager.by_backend import REPORTED, BackendQuery, BackendSearcher
from kvcm.manager.chooser import Chooser
from kvcm.manager.deleter import Deleter
from kvcm.manager.errors import Overloaded
from kvcm.manager.event_report import EventReports, Reported, timings_of
from kvcm.manager.event_report_cleaner import Cleaner
from kvcm.manager.event_report_events import Event
from kvcm.manager.event_report_hosts import HostMatch, HostQuery, HostStates
from kvcm.manager.instances import Instances, ListMetadata, OpenMetadata, Registrar, key_limit
from kvcm.manager.ports import Leadership, Storages, WireCodec
from kvcm.manager.probing import Probed, Prober, Pruner
from kvcm.manager.searcher import Located, LocateQuery, Searcher
from kvcm.manager.shard import InstanceShard
from kvcm.manager.token_keys import SLICE_TOKENS, full_blocks, token_keys, token_keys_in_slices
from kvcm.manager.trimmer import TrimRange, remove_keys, trim_keys
from kvcm.manager.viewer import Viewer
from kvcm.manager.write_sessions import WriteSessions
from kvcm.manager.writer import StartWrite, Writer, WriteStarted
from kvcm.meta.usage import UsageCounter
from kvcm.meta.warm import WarmIndex

T = TypeVar("T")

MAX_KEYS_PER_CALL = 131_072
MAX_PARTS_PER_CALL = 1 << 20
"""Blocks of a call times the parts (location specs) of a block: work and replies grow with both."""
_MAX_MUTATIONS = 10_000
_ABORT_US = 300_000
"""Of the time in which nobody leads."""
_REPORTS_IDLE_MS = 1000
_REPORTS_CLEANING_MS = 50


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
        list_metadata: ListMetadata | None = None,
        keep_after_bad_mask: bool = True,
    ) -> None:
        """`list_metadata`: without it, deletions of instances that were removed before a restart wait until their id is registered again.

        `keep_after_bad_mask`: see Writer.
        """
        self._registry = registry
        self._work = Uncut()
        self._closing = False
        self.sessions = WriteSessions()
        self.deleter = Deleter(storages, codec, clock, leadership, held=self.sessions.holds)
        prober = Prober(storages, codec)
        self._pruner = Pruner(self.deleter, leadership)
        chooser = Chooser(storages, codec, random, prober, self._on_lost)
        self._searcher = Searcher(storages, codec, chooser)
        self._by_backend = BackendSearcher(chooser, codec)
        viewer = Viewer(codec)
        self.view, self.view_in_slices, self.detail = viewer.view, viewer.view_in_slices, viewer.detail
        """What the index holds, whatever its state: see Viewer."""
        self.plain_prefix = self._searcher.plain_prefix
        """The common prefix read without a suspension; None when `locate` has to look closer. Bound here, so that the hot path saves a call."""
        self._writer = Writer(storages, codec, clock, ids, leadership, self.deleter, prober, self._pruner, self.sessions, keep_after_bad_mask)
        self.write_times = self._writer.times
        self._clock = clock
        self._reports = EventReports(storages, codec, clock, ids, leadership)
        self._cleaner = Cleaner(leadership)
        self._hosts = HostStates(storages, codec)
        self._instances = Instances(registry, storages, codec, open_metadata, list_metadata, self.deleter, self._writer, leadership)

    # -- instances -----------------------------------------------------------------------------------------------------------------------------

    async def register(self, instance: Instance) -> bool:
        """Register and make ready; returns whether it is new. Idempotent (I-CM-1). Errors as in Registry.register_instance, and those of opening its
        metadata; a new registration that cannot be made ready is taken back."""
        return await self._uncut(self._instances.register(instance))

    async def remove_instance(self, instance_id: str) -> None:
        """Unregister at once; blocks become DELETING before this returns and their bytes go in the background (I-CM-11)."""
        await self._uncut(self._instances.remove(instance_id))

    def shard(self, instance_id: str) -> InstanceShard:
        """Raises InstanceNotExist, or NotReady while the instance's metadata cannot be opened."""
        return self._instances.get(instance_id)

    def shards(self) -> list[InstanceShard]:
        return self._instances.served()

    def group_usage(self, name: str) -> UsageCounter:
        return self._instances.usage_of_group(name)

    # -- reads ---------------------------------------------------------------------------------------------------------------------------------

    def keys_of(self, shard: InstanceShard, block_keys: Sequence[int], token_ids: Sequence[int]) -> Sequence[int]:
        """Explicit keys win over tokens; at most MAX_KEYS_PER_CALL and MAX_PARTS_PER_CALL. Raises InvalidArgument when both are empty.

        Explicit keys are not copied: a prefix read then never holds a thousand integers at once, which costs more than walking the message.
        """
        if block_keys:
            self._check_count(shard, len(block_keys))
            return block_keys
        if not token_ids:
            raise InvalidArgument("block_keys and token_ids are both empty; give one of them")
        self._check_count(shard, full_blocks(token_ids, shard.instance.block_size))
        return token_keys(token_ids, shard.instance.block_size)

    async def keys_for(self, shard: InstanceShard, block_keys: Sequence[int], token_ids: Sequence[int]) -> Sequence[int]:
        """`keys_of` for requests: others run while a long list of tokens is hashed. Raises InvalidArgument, before any work is done."""
        if block_keys or len(token_ids) <= SLICE_TOKENS:
            return self.keys_of(shard, block_keys, token_ids)
        self._check_count(shard, full_blocks(token_ids, shard.instance.block_size))
        return await token_keys_in_slices(token_ids, shard.instance.block_size)

    @staticmethod
    def _check_count(shard: InstanceShard, count: int) -> None:
        if count > MAX_KEYS_PER_CALL:
            raise InvalidArgument(f"a call may name at most {MAX_KEYS_PER_CALL} blocks, not {count}")
        if count * len(shard.spec_sizes) > MAX_PARTS_PER_CALL:
            most = MAX_PARTS_PER_CALL // len(shard.spec_sizes)
            raise InvalidArgument(f"a call may name at most {most} blocks of an instance with {len(shard.spec_sizes)} location specs, not {count}")

    async def locate(self, shard: InstanceShard, query: LocateQuery, now_us: int) -> Located:
        return await self._searcher.locate(shard, self._registry.get_group(shard.instance.instance_group_name), query, now_us)

    async def locate_by_backend(self, shard: InstanceShard, query: BackendQuery, now_us: int) -> list[list[bytes]]:
        """See BackendSearcher.locate."""
        return await self._by_backend.locate(shard, self._registry.get_group(shard.instance.instance_group_name), query, now_us)

    async def match_hosts(self, shard: InstanceShard, query: HostQuery) -> list[HostMatch]:
        """See HostStates.match; at most MAX_KEYS_PER_CALL keys."""
        self._check_count(shard, len(query.keys))
        return await self._hosts.match(shard, query)

    # -- mutations -----------------------------------------------------------------------------------------------------------------------------

    async def start_write(self, shard: InstanceShard, request: StartWrite) -> WriteStarted:
        group = self._registry.get_group(shard.instance.instance_group_name)
        if group is None:
            raise InstanceNotExist(f"instance group '{shard.instance.instance_group_name}' of instance '{shard.instance_id}' does not exist any more")
        shard.index.max_key_count = key_limit(group)  # the group may have been updated
        return await self._uncut(self._writer.start(shard, group, self.group_usage(group.name), request))

    async def finish_write(self, shard: InstanceShard, session_id: str, success: BlockMask, checksums: Sequence[int] = ()) -> None:
        await self._uncut(self._writer.finish(shard, session_id, success, checksums))

    async def remove_cache(self, shard: InstanceShard, keys: Sequence[int]) -> int:
        """Whole blocks become DELETING; their bytes go after the group's delay. Unknown keys are fine. Returns the number of locations."""
        return await self._uncut(remove_keys(self.deleter, shard, keys, self._delay_us(shard)))

    async def trim(self, shard: InstanceShard, wanted: TrimRange | None) -> int:
        """Remove every block, or those that `wanted` names. When it returns, all of them are DELETING."""
        return await self._uncut(trim_keys(self.deleter, shard, self._delay_us(shard), wanted))

    def report_storage(self, shard: InstanceShard, kind: StorageType) -> Storage:
        """Where hosts of this kind report to. Raises InstanceNotExist."""
        return self._reports.storage_of(self._registry.get_group(shard.instance.instance_group_name), kind)

    async def report_events(self, shard: InstanceShard, storage: Storage, host: str, events: Sequence[Event | KvcmError]) -> Reported:
        """See EventReports.report. Raises Overloaded, NotReady."""
        return await self._uncut(self._reports.report(shard, storage, host, events))

    @property
    def cleaned_reports(self) -> int:
        """Blocks that the clean-up has freed of copies nobody can see."""
        return self._cleaner.taken

    def _delay_us(self, shard: InstanceShard) -> int:
        return self._instances.delay_us(shard)

    def _on_lost(self, shard: InstanceShard, lost: list[Probed]) -> None:
        # A probe suspends: by now the instance may be gone, or the leadership. When too much is under way, the next read finds the same again.
        if self._instances.serves(shard) and not self._closing and len(self._work) < _MAX_MUTATIONS:
            self._work.spawn(self._pruner.prune(shard, lost, self._delay_us(shard)))

    # -- life ----------------------------------------------------------------------------------------------------------------------------------

    async def recover(self, copies: Mapping[str, WarmIndex] | None = None) -> None:
        """Make a shard for every registered instance. One whose metadata cannot be read is reported and retried; it never blocks the others.

        `copies`: what a Follower hands over, by instance id; they are taken or closed.
        """
        await self._instances.recover(copies)

    async def open_registered(self) -> None:
        """Serve what somebody has put into the registry without `register`. What cannot be opened is reported and retried, as at recovery."""
        await self._uncut(self._instances.open_registered())

    async def retry_broken(self) -> None:
        await self._instances.retry_broken()

    async def cleanup(self) -> None:
        """Leadership ends: abort open sessions, then forget everything in memory (behaviour 3.8).

        Waits for mutations under way. When it is cut off, what still runs is cut off too: memory and store may then differ, but memory is forgotten.
        """
        self._closing = True
        try:
            await self._work.ended()
            await self._writer.abort_all(self._instances.holders(), limit_us=_ABORT_US)
        finally:
            self._work.cut()
            self.sessions.forget()
            self.deleter.forget()
            self._writer.strays.forget()
            try:
                await self._instances.close()
            finally:
                self._closing = False

    async def run_due_deletions(self) -> int:
        """Delete what is due; returns the number of batches."""
        return await self._background(self.deleter.step())

    async def expire_sessions(self) -> int:
        """End write sessions whose deadline has passed; returns how many."""
        return await self._background(self._writer.expire_due(self._instances.holders()))

    async def tend_reports(self) -> float:
        """See which reporting hosts still live, and take a step in cleaning up after the others. Returns in how many seconds to come back."""
        return await self._background(self._tend_reports())

    async def _tend_reports(self) -> float:
        wait_ms = _REPORTS_IDLE_MS
        for shard in self._instances.served():
            if shard.reports is not None:
                group = self._registry.get_group(shard.instance.instance_group_name)
                timings = {kind: timings_of(self._reports.find_storage(group, kind)) for kind in REPORTED}
                shard.reports.age(timings.__getitem__, self._clock.monotonic_us())
                wait_ms = min(wait_ms, *(each.liveness_check_interval_ms for each in timings.values()))
        more = await self._cleaner.step(self._instances.served())
        return (_REPORTS_CLEANING_MS if more else max(wait_ms, _REPORTS_CLEANING_MS)) / 1000

    async def sweep(self) -> None:
        """What has to be looked at about once a second: expired sessions, removed instances, deletions without room, unreadable instances."""
        await self._background(self._sweep())

    async def _sweep(self) -> None:
        await self._writer.expire_due(self._instances.holders())
        await self._writer.strays.retry()
        await self._instances.tend()
        await self._instances.retry_broken()

    # -- inside --------------------------------------------------------------------------------------------------------------------------------

    async def _uncut(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a mutation to its end even if the caller is cancelled. Raises Overloaded and NotReady."""
        if len(self._work) >= _MAX_MUTATIONS:
            work.close()
            raise Overloaded("too many changes are under way; repeat the call later")
        return await self._background(work)

    async def _background(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for the manager's own work, which is few and must go on when clients send too much."""
        if self._closing:
            work.close()
            raise NotReady("this manager has ceased to lead; ask the leader")
        return await self._work.run(work)
