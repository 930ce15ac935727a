"""The instances of this manager: which are served, which are being removed, which cannot be opened (behaviour 3.2, 3.3, 3.8).

    registered --open--> served --remove--> draining --last byte proven gone--> forgotten
         |                 ^                    |
         +--> broken ------+ (retried)          +-- registered anew: a new shard over the same index, when every old block is DELETING

Dangers: two calls about one id must not interleave (each opens or closes a metadata store), so they take turns; calls about other ids go on. An id that is
registered anew starts empty (I-CM-11): blocks of the earlier registration that could not be marked DELETING keep it from being served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from kvcm.common.errors import InstanceNotExist, KvcmError, NotReady, StorageError, TakenOver
from kvcm.config.model import Instance, InstanceGroup, MetaBackendConfig, ModelDeployment
from kvcm.manager.adoption import Adopter
from kvcm.manager.deleter import Deleter
from kvcm.manager.keyed_lock import KeyedLock
from kvcm.manager.ports import Leadership, Storages, WireCodec
from kvcm.manager.selector import delete_delay_us
from kvcm.manager.shard import InstanceShard
from kvcm.manager.trimmer import clear_removed
from kvcm.manager.writer import Writer
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.index import PAGE_KEYS, MetaIndex
from kvcm.meta.location import Location, Status
from kvcm.meta.usage import UsageCounter
from kvcm.meta.warm import WarmIndex

log = logging.getLogger("kvcm.instances")

_OPEN_AT_ONCE = 64
"""Connecting and raising fences: all that come that far together look for their blocks together."""
_LOAD_AT_ONCE = 8
_NO_KEY_LIMIT = 1 << 62

OpenMetadata = Callable[[MetaBackendConfig, str], MetadataBackend]
"""(configuration, instance id) -> backend, not opened yet. Raises InvalidArgument or Unsupported."""
ListMetadata = Callable[[MetaBackendConfig, Collection[tuple[MetaBackendConfig, str]]], Awaitable[Collection[str]]]
"""(configuration, stores in use) -> ids of the instances that the metadata store holds blocks of and that are not in use. Raises StorageError."""


class Registrar(Protocol):
    """The part of the Registry that the manager uses."""

    def get_group(self, name: str) -> InstanceGroup | None: ...

    def list_groups(self) -> list[InstanceGroup]: ...

    def get_instance(self, instance_id: str) -> Instance | None: ...

    def list_instances(self, group_name: str) -> list[Instance]: ...

    async def register_instance(self, instance: Instance) -> bool: ...

    async def remove_instance(self, instance_id: str) -> None: ...


def key_limit(group: InstanceGroup) -> int:
    """Blocks that one instance of the group may have; 0 in the configuration means no limit."""
    return group.cache_config.meta_indexer.max_key_count or _NO_KEY_LIMIT


class Instances:
    def __init__(
        self,
        registry: Registrar,
        storages: Storages,
        codec: WireCodec,
        open_metadata: OpenMetadata,
        list_metadata: ListMetadata | None,
        deleter: Deleter,
        writer: Writer,
        leadership: Leadership,
    ) -> None:
        self._registry = registry
        self._codec = codec
        self._open_metadata = open_metadata
        self._list_metadata = list_metadata
        self._deleter = deleter
        self._writer = writer
        self._leadership = leadership
        self._adopter = Adopter(storages, codec, leadership)
        self._turns = KeyedLock()
        self._served: dict[str, InstanceShard] = {}
        self._draining: dict[str, InstanceShard] = {}
        self._stores: dict[str, MetaBackendConfig] = {}
        self._broken: dict[str, str] = {}
        self._unopened: dict[str, Instance] = {}
        self._loading = asyncio.Semaphore(_LOAD_AT_ONCE)
        """Removed while their metadata could not be opened: their blocks are still to be deleted."""
        self._usage: dict[str, UsageCounter] = {}
        self._copies: dict[str, WarmIndex] = {}
        """Of a follower, until they are taken over; empty after the recovery."""

    # -- looking -------------------------------------------------------------------------------------------------------------------------------

    def get(self, instance_id: str) -> InstanceShard:
        """The shard that serves the instance. Raises InstanceNotExist, or NotReady while its metadata cannot be opened."""
        shard = self._served.get(instance_id)
        if shard is None:
            if instance_id in self._broken:
                raise NotReady(f"the metadata of instance '{instance_id}' cannot be opened: {self._broken[instance_id]}")
            raise InstanceNotExist(f"instance '{instance_id}' is not registered")
        return shard

    def serves(self, shard: InstanceShard) -> bool:
        return self._served.get(shard.instance_id) is shard

    def served(self) -> list[InstanceShard]:
        return list(self._served.values())

    def holders(self) -> Mapping[str, InstanceShard]:
        """Who holds the blocks of each id, removed instances included."""
        return self._draining | self._served

    def usage_of_group(self, name: str) -> UsageCounter:
        usage = self._usage.get(name)
        if usage is None:
            usage = self._usage[name] = UsageCounter()
        return usage

    def delay_us(self, shard: InstanceShard) -> int:
        """How long bytes of the shard outlive their location's removal."""
        return delete_delay_us(self._registry.get_group(shard.instance.instance_group_name))

    # -- registering and removing --------------------------------------------------------------------------------------------------------------

    async def register(self, instance: Instance) -> bool:
        """Register and make ready; True when it is new. When it cannot be made ready, a new registration is taken back."""
        async with self._turns.hold(instance.instance_id):
            created = await self._registry.register_instance(instance)
            if instance.instance_id in self._served:
                return created
            # The registered group counts: a repeated registration that names another one changes nothing.
            instance = self._registry.get_instance(instance.instance_id) or instance
            try:
                await self._open(instance)
            except KvcmError as error:
                if created:
                    await self._take_back(instance.instance_id, error)
                raise
            return created

    async def _take_back(self, instance_id: str, reason: KvcmError) -> None:
        try:
            await self._registry.remove_instance(instance_id)
        except KvcmError as error:
            log.error("registration_not_taken_back instance=%s: %s", instance_id, error.message)
            self._broken[instance_id] = reason.message

    async def remove(self, instance_id: str) -> None:
        """Unregister; when this returns no call reaches the instance and its blocks are DELETING (or a warning says that it goes on). Their bytes
        go in the background. Raises InstanceNotExist, StorageError (the registry could not store it: nothing has changed)."""
        async with self._turns.hold(instance_id):
            registered = self._registry.get_instance(instance_id)
            await self._registry.remove_instance(instance_id)
            self._broken.pop(instance_id, None)
            shard = self._served.pop(instance_id, None)
            if shard is None:
                if registered is not None:
                    self._unopened[instance_id] = registered
                return
            shard.closed = shard.condemn_needed = True
            self._draining[instance_id] = shard
            await self._writer.abort_all({instance_id: shard}, instance_id)
            self._writer.sessions.forget(instance_id)
            try:
                await self._condemn_all(shard)
            except KvcmError as error:
                fate = "they stay until the id is registered again" if self._leadership.ending else "it goes on in the background"
                log.warning("instance_drain_incomplete instance=%s: not all blocks are marked, %s: %s", instance_id, fate, error.message)

    async def _condemn_all(self, shard: InstanceShard) -> None:
        await clear_removed(self._deleter, shard, self.delay_us(shard))
        shard.condemn_needed = False

    # -- life ----------------------------------------------------------------------------------------------------------------------------------

    async def recover(self, copies: Mapping[str, WarmIndex] | None = None) -> None:
        """Open every registered instance. One whose metadata cannot be read is reported and retried; it never blocks the others.

        `copies`: of a follower, by instance id; they belong to this object from now on. An instance with a copy needs no scan, if the copy can be trusted.
        """
        self._copies = dict(copies or {})
        await self.open_registered()
        await self._close_copies()
        await self._find_leftovers()

    async def _close_copies(self) -> None:
        while self._copies:
            await self._copies.popitem()[1].close()

    async def open_registered(self) -> None:
        """Open every registered instance that is not served yet; those that cannot be opened are retried."""
        registered = [instance for group in self._registry.list_groups() for instance in self._registry.list_instances(group.name)]
        await self._open_each([instance for instance in registered if instance.instance_id not in self._served])

    async def retry_broken(self) -> None:
        """Try again to open what could not be opened, removed instances included."""
        known = [instance for instance_id in list(self._broken) if (instance := self._registry.get_instance(instance_id)) is not None]
        await self._open_each(known)
        for instance_id in list(self._unopened):
            if not self._turns.is_held(instance_id):
                async with self._turns.hold(instance_id):
                    await self._retry_removed(instance_id)

    async def _retry_removed(self, instance_id: str) -> None:
        if instance_id in self._unopened:
            try:
                await self._open_removed(instance_id)
            except KvcmError as error:
                log.debug("removed_instance_unavailable instance=%s: %s", instance_id, error.message)

    async def tend(self) -> None:
        """Go on with what could not be finished at once: orphans, deletions without room, returned storages, removed instances."""
        for shard in self.holders().values():
            await self._adopter.adopt_returned(shard)
            await self._condemn_orphans(shard)
            if shard.upkeep.redrive_needed:
                await self._deleter.redrive(shard, self.delay_us(shard))
        for instance_id, shard in list(self._draining.items()):
            if not self._turns.is_held(instance_id):
                async with self._turns.hold(instance_id):
                    if self._draining.get(instance_id) is shard:  # not registered again while others were looked at
                        await self._drain(instance_id, shard)

    async def close(self) -> None:
        """Forget everything at once, then close the metadata stores."""
        shards = list(self.holders().values())
        self._served.clear()
        self._draining.clear()
        self._stores.clear()
        self._broken.clear()
        self._unopened.clear()
        self._usage.clear()
        for shard in shards:
            shard.closed = True
        await self._close_copies()
        await asyncio.gather(*(shard.index.close() for shard in shards))

    async def _drain(self, instance_id: str, shard: InstanceShard) -> None:
        if shard.starts:
            return  # it sees that the instance is gone and takes its blocks back
        if shard.condemn_needed:
            try:
                await self._condemn_all(shard)
            except KvcmError as error:
                log.debug("instance_drain_incomplete instance=%s: %s", instance_id, error.message)
        elif shard.index.key_count == 0 or (
            shard.leftover and not shard.upkeep.orphans and not shard.upkeep.redrive_needed and not self._deleter.pending_of(shard)
        ):
            del self._draining[instance_id]
            del self._stores[instance_id]
            shard.index.usage.detach()
            await shard.index.close()
            log.info("instance_drained instance=%s", instance_id)

    async def _find_leftovers(self) -> None:
        """Go on with the deletions of instances that were removed before a restart: nobody else would (behaviour 10.3).

        Only what is DELETING or can never be finished goes. Readable blocks of an id that nobody has registered are left alone: a registry in memory
        forgets ids, and they are served again when the id is registered again.
        """
        if self._list_metadata is None:
            return
        groups = {group.cache_config.meta_indexer.backend: group for group in self._registry.list_groups()}
        registered = {
            (group.cache_config.meta_indexer.backend, instance.instance_id)
            for group in self._registry.list_groups()
            for instance in self._registry.list_instances(group.name)
        }
        for config, group in groups.items():
            try:
                ids = await self._list_metadata(config, {*registered, *((held, instance_id) for instance_id, held in self._stores.items())})
            except KvcmError as error:
                log.warning("leftovers_unknown group=%s: %s", group.name, error.message)
                continue
            for instance_id in ids:
                async with self._turns.hold(instance_id):
                    await self._adopt_leftover(instance_id, group)

    async def _adopt_leftover(self, instance_id: str, group: InstanceGroup) -> None:
        if self._registry.get_instance(instance_id) is not None or instance_id in self._draining:
            return
        stub = Instance(instance_id, group.name, group.global_quota_group_name, 1, (), ModelDeployment("", ""))
        try:
            shard = await self._load(stub, group)
        except KvcmError as error:
            log.warning("leftover_unavailable instance=%s: %s", instance_id, error.message)
            return
        shard.closed = shard.leftover = True
        self._hold_drained(shard, group)
        await self._resume(shard)

    def _hold_drained(self, shard: InstanceShard, group: InstanceGroup) -> None:
        shard.index.usage.attach(self.usage_of_group(group.name))
        self._stores[shard.instance_id] = group.cache_config.meta_indexer.backend
        self._draining[shard.instance_id] = shard

    # -- opening -------------------------------------------------------------------------------------------------------------------------------

    async def _open_each(self, instances: Iterable[Instance]) -> None:
        limit = asyncio.Semaphore(_OPEN_AT_ONCE)
        await asyncio.gather(*(self._try_open(instance, limit) for instance in instances))

    async def _try_open(self, instance: Instance, limit: asyncio.Semaphore) -> None:
        async with limit, self._turns.hold(instance.instance_id):
            if instance.instance_id in self._served or self._registry.get_instance(instance.instance_id) is None:
                return
            try:
                await self._open(instance)
            except KvcmError as error:
                if self._broken.get(instance.instance_id) != error.message:
                    log.error("instance_metadata_unavailable instance=%s: %s; it is tried again", instance.instance_id, error.message)
                self._broken[instance.instance_id] = error.message

    async def _open(self, instance: Instance) -> None:
        """Make a registered instance served. Raises KvcmError; then nothing has changed."""
        instance_id = instance.instance_id
        group = self._registry.get_group(instance.instance_group_name)
        if group is None:
            raise InstanceNotExist(f"instance group '{instance.instance_group_name}' does not exist")
        if instance_id in self._unopened:
            await self._open_removed(instance_id)
        draining = self._draining.get(instance_id)
        if draining is None:
            shard = await self._load(instance, group)
            shard.index.usage.attach(self.usage_of_group(group.name))
            self._stores[instance_id] = group.cache_config.meta_indexer.backend
        else:
            shard = await self._take_over(draining, instance, group)
            del self._draining[instance_id]
        self._broken.pop(instance_id, None)
        self._served[instance_id] = shard
        await self._resume(shard)

    async def _claim(self, shard: InstanceShard) -> None:
        try:
            await shard.index.raise_fence(self._leadership.epoch)
        except TakenOver as error:
            # No change of a client's that another leader would take: whether there is one at all is not known, a store that was put back may say so too.
            raise StorageError(f"the metadata of instance '{shard.instance_id}' cannot be opened: {error.message}") from error

    async def _load(self, instance: Instance, group: InstanceGroup) -> InstanceShard:
        shard = await self._take_copy(instance, group)
        if shard is not None:
            return shard
        indexer = group.cache_config.meta_indexer
        backend = self._open_metadata(indexer.backend, instance.instance_id)
        index = MetaIndex(backend, max_key_count=key_limit(group), usage=UsageCounter(), packing=self._codec.packing)
        shard = InstanceShard(instance, index, self._codec)
        try:
            await shard.index.open()
            await self._claim(shard)
            async with self._loading:
                count = await shard.index.recover()
        except KvcmError:
            await shard.index.close()
            raise
        if count:
            await self._adopter.adopt_loaded(shard)  # all of them before the first deletion
            shard.upkeep.orphans = await self._orphans(shard)
            shard.upkeep.redrive_needed = True
            shard.index.join_chains()
            log.info("instance_loaded instance=%s blocks=%d orphan_writes=%d", instance.instance_id, count, len(shard.upkeep.orphans))
        return shard

    async def _take_copy(self, instance: Instance, group: InstanceGroup) -> InstanceShard | None:
        """The shard over a follower's copy; None when there is none that can be trusted."""
        copy = self._copies.pop(instance.instance_id, None)
        if copy is None:
            return None
        if copy.config != group.cache_config.meta_indexer.backend:
            await copy.close()
            return None
        index = await copy.take_over(self._leadership.epoch)
        if index is None:
            return None
        index.max_key_count = key_limit(group)
        shard = InstanceShard(instance, index, self._codec)
        self._adopter.adopt_later(shard)
        shard.upkeep.unsettled = copy.unsettled
        shard.upkeep.orphans = await self._orphans(shard)
        shard.upkeep.redrive_needed = True
        log.info("instance_taken_over instance=%s blocks=%d orphan_writes=%d", instance.instance_id, index.key_count, len(shard.upkeep.orphans))
        return shard

    async def _take_over(self, draining: InstanceShard, instance: Instance, group: InstanceGroup) -> InstanceShard:
        """A new shard over the index in which the old blocks are being deleted: they stay DELETING, invisible, and the store has one owner."""
        if self._stores[instance.instance_id] != group.cache_config.meta_indexer.backend:
            raise NotReady(
                f"blocks of the removed instance '{instance.instance_id}' are still being deleted from another metadata store; repeat the call later"
            )
        if draining.condemn_needed:
            await self._condemn_all(draining)
        index = draining.index
        index.usage.detach()
        index.usage.attach(self.usage_of_group(group.name))
        return InstanceShard(instance, index, self._codec, draining.upkeep)

    async def _open_removed(self, instance_id: str) -> None:
        """Open the metadata of an instance that was removed while that was impossible, so that its blocks go too. Raises KvcmError."""
        instance = self._unopened[instance_id]
        group = self._registry.get_group(instance.instance_group_name)
        if group is None:
            log.warning("removed_instance_abandoned instance=%s: its group does not exist any more, so nothing tells where its metadata is", instance_id)
            del self._unopened[instance_id]
            return
        shard = await self._load(instance, group)
        shard.closed = shard.condemn_needed = True
        self._hold_drained(shard, group)
        del self._unopened[instance_id]

    async def _resume(self, shard: InstanceShard) -> None:
        """After a load: WRITING without a session can never be finished, DELETING was interrupted. Both go on to their end."""
        await self._condemn_orphans(shard)
        if shard.upkeep.redrive_needed:
            await self._deleter.redrive(shard, self.delay_us(shard))

    @staticmethod
    async def _orphans(shard: InstanceShard) -> list[tuple[int, Location]]:
        """The oldest first."""
        found: list[tuple[int, Location]] = []
        for page in shard.unsettled_pages():
            found.extend((key, loc) for key in page for loc in shard.index.get(key) if loc.header[0] == Status.WRITING)
            await asyncio.sleep(0)
        return sorted(found, key=lambda orphan: orphan[1].create_time_us)

    async def _condemn_orphans(self, shard: InstanceShard) -> None:
        orphans = list(shard.upkeep.orphans)
        done: set[tuple[int, Location]] = set()
        for start in range(0, len(orphans), PAGE_KEYS):
            if self._leadership.ending:
                break
            page = orphans[start : start + PAGE_KEYS]
            try:
                await self._deleter.condemn(shard, [key for key, _ in page], self.delay_us(shard), partial(_is_listed, page))
                done.update(page)
            except KvcmError as error:
                log.debug("orphans_kept instance=%s blocks=%d: %s", shard.instance_id, len(page), error.message)
        # In place and only now: meanwhile the index may have got another shard, which looks at the same list.
        shard.upkeep.orphans[:] = [orphan for orphan in shard.upkeep.orphans if orphan not in done]


def _is_listed(page: Sequence[tuple[int, Location]], position: int, location: Location) -> bool:
    return location == page[position][1]
