"""Copies of the instances' indexes in a process that does not lead (design D7): what it knows when it wins.

    every few seconds: read the registry -> begin to follow what is new, forget what is gone or lies elsewhere now
    of each instance:  fill -> follow, for ever -> (lost track, or damaged) -> fill anew
    hand over:         stop everything at once and give the complete copies to the manager, which checks them against the store

The registry is read again only so that copies exist when they are needed. Which instances there are, and where, is decided by the registry that the leader has
recovered: a copy of another store is dropped there, and an instance without a copy is loaded from its store.

Danger: this must never hurt the leader. Few scans run at a time, each pause is bounded from below, and nothing here writes to a store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kvcm.common.clock import Clock
from kvcm.common.errors import KvcmError, StorageError
from kvcm.config.model import MetaBackendConfig
from kvcm.config.persisted import group_from_dict, instance_from_dict
from kvcm.config.store import RegistrySnapshot
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.changes import ChangeStream, LostTrack
from kvcm.meta.key_packing import KeyPacking
from kvcm.meta.warm import WarmIndex

log = logging.getLogger("kvcm.follower")

_FIRST_LOOK_S = 0.5
_LOOK_EVERY_S = 3.0
_LOOK_SHARE = 50
"""Reading a large registry takes at most this part of the time (one fiftieth), unless it takes longer than `_LOOK_AT_LEAST_EVERY_S` allows for."""
_LOOK_AT_LEAST_EVERY_S = 60.0
_WAIT_S = 1.0
_PAUSES_S = (1.0, 2.0, 5.0, 10.0)
_SCAN_PAUSES_S = (1.0, 5.0, 20.0, 60.0)
"""After scans that were in vain one after the other: a follower that is too slow for its leader must not make Redis slow too."""
_STEADY_US = 60_000_000
_FILLS_AT_ONCE = 2
_SLICE = 256

LoadRegistry = Callable[[], Awaitable[RegistrySnapshot]]
OpenFollowed = Callable[[MetaBackendConfig, str], tuple[MetadataBackend, ChangeStream] | None]
"""(configuration, instance id) -> a backend of its own with the stream of its changes; None for stores that nobody can follow. Raises InvalidArgument."""


@dataclass(frozen=True, slots=True)
class FollowerState:
    """`behind`: entries that were not read yet, of all copies. `behind_s`: of the copy that is furthest behind. `resyncs`: copies begun anew, ever."""

    warm: int
    filling: int
    blocks: int
    behind: int
    behind_s: float
    resyncs: int


def _pause_s(took_s: float) -> float:
    """Until the registry is read again, after a read that took `took_s`."""
    return max(_LOOK_EVERY_S, min(took_s * _LOOK_SHARE, _LOOK_AT_LEAST_EVERY_S))


class Follower:
    def __init__(self, load_registry: LoadRegistry, open_followed: OpenFollowed, packing: KeyPacking, clock: Clock) -> None:
        self._load_registry = load_registry
        self._open_followed = open_followed
        self._packing = packing
        self._clock = clock
        self._looker: asyncio.Task[None] | None = None
        self._keepers: dict[str, tuple[MetaBackendConfig, asyncio.Task[None]]] = {}
        self._copies: dict[str, WarmIndex] = {}
        self._fills = asyncio.Semaphore(_FILLS_AT_ONCE)
        self._resyncs = 0
        self._looked = False

    @property
    def is_ready(self) -> bool:
        """This process could serve at once if it led: it has seen the registry, and has a complete copy of every instance that can be followed."""
        return self._looked and all(task.done() or self._is_warm(instance_id) for instance_id, (_, task) in self._keepers.items())

    @property
    def has_looked(self) -> bool:
        """It knows which instances there are."""
        return self._looked

    @property
    def state(self) -> FollowerState:
        warm = [copy for copy in self._copies.values() if copy.is_warm]
        return FollowerState(
            warm=len(warm),
            # What nobody can follow is not on its way to be complete.
            filling=sum(not task.done() and not self._is_warm(instance_id) for instance_id, (_, task) in self._keepers.items()),
            blocks=sum(copy.index.key_count for copy in self._copies.values()),
            behind=sum(copy.behind for copy in warm),
            behind_s=max((copy.behind_s for copy in warm), default=0.0),
            resyncs=self._resyncs,
        )

    def start(self) -> None:
        """This process does not lead. Idempotent."""
        if self._looker is None:
            self._looker = asyncio.get_running_loop().create_task(self._look_forever())

    async def stop(self) -> None:
        """Forget all copies. Idempotent."""
        for copy in (await self.hand_over()).values():
            await copy.close()

    async def hand_over(self) -> dict[str, WarmIndex]:
        """Stop, and give away the copies that are complete, by instance id; the caller closes those that it does not use."""
        looker, self._looker = self._looker, None
        self._looked = False
        tasks = [task for _, task in self._keepers.values()]
        if looker is not None:
            tasks.append(looker)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._keepers.clear()
        copies, self._copies = self._copies, {}
        for copy in [copy for copy in copies.values() if not copy.is_warm]:
            await copy.close()
        return {instance_id: copy for instance_id, copy in copies.items() if copy.is_warm}

    # -- which instances there are -------------------------------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        await asyncio.sleep(_FIRST_LOOK_S)
        known = True
        while True:
            began = self._clock.monotonic_us()
            pause_s = _LOOK_EVERY_S
            try:
                await self._look()
                pause_s = _pause_s((self._clock.monotonic_us() - began) / 1e6)
                if not known:
                    log.info("follower_registry_known_again")
                known = True
            except KvcmError as error:
                if known:
                    log.warning("follower_registry_unknown: %s; what is followed goes on", error.message)
                known = False
            except Exception:
                log.exception("follower_bug: the registry could not be looked at")
            # How long a read took that failed says how long nobody answered, and nothing about the size of the registry.
            await asyncio.sleep(pause_s)

    async def _look(self) -> None:
        wanted = await self._wanted(await self._load_registry())
        for instance_id, (config, task) in list(self._keepers.items()):
            if wanted.get(instance_id) != config:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del self._keepers[instance_id]
                await self._drop(instance_id)
        for instance_id, config in wanted.items():
            if instance_id not in self._keepers:
                task = asyncio.get_running_loop().create_task(self._keep(config, instance_id))
                self._keepers[instance_id] = (config, task)
        self._looked = True

    async def _wanted(self, snapshot: RegistrySnapshot) -> Mapping[str, MetaBackendConfig]:
        configs: dict[str, MetaBackendConfig] = {}
        for record in snapshot.tables.get("instance_group", {}).values():
            try:
                group = group_from_dict(record)
            except KvcmError:
                continue  # the leader reports it
            if group.cache_config.meta_indexer.backend.storage_type not in ("local", "dummy"):
                configs[group.name] = group.cache_config.meta_indexer.backend
        found: dict[str, MetaBackendConfig] = {}
        if not configs:
            return found
        for number, record in enumerate(snapshot.tables.get("instance", {}).values(), 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            try:
                instance = instance_from_dict(record)
            except KvcmError:
                continue
            if instance.instance_group_name in configs:
                found[instance.instance_id] = configs[instance.instance_group_name]
        return found

    # -- one instance --------------------------------------------------------------------------------------------------------------------------

    async def _keep(self, config: MetaBackendConfig, instance_id: str) -> None:
        failures = scans = steady_at_us = 0
        while True:
            pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
            try:
                copy = self._copies.get(instance_id)
                if copy is None:
                    copy = self._open(config, instance_id)
                    if copy is None:
                        return
                    async with self._fills:
                        await copy.fill()
                    log.info("following instance=%s blocks=%d", instance_id, copy.index.key_count)
                    steady_at_us = self._clock.monotonic_us() + _STEADY_US
                while True:
                    await copy.follow(_WAIT_S)
                    failures = 0
                    if scans and self._clock.monotonic_us() >= steady_at_us:
                        scans = 0
            except LostTrack as error:
                if self._has_scanned(instance_id):
                    pause_s = _SCAN_PAUSES_S[min(scans, len(_SCAN_PAUSES_S) - 1)]
                    scans += 1
                    if not self._is_warm(instance_id):
                        log.warning("follower_scan_in_vain instance=%s again_in_s=%.0f: %s", instance_id, pause_s, error.message)
                await self._lost(instance_id, error.message)
            except StorageError as error:
                log.debug("follower_waits instance=%s: %s", instance_id, error.message)
                copy = self._copies.get(instance_id)
                if copy is not None and not copy.is_warm:
                    await self._drop(instance_id)
            except KvcmError as error:
                log.warning("follower_refused instance=%s: %s", instance_id, error.message)
                await self._drop(instance_id)
            except Exception:
                log.exception("follower_bug instance=%s: the copy is made anew", instance_id)
                await self._drop(instance_id)
            await asyncio.sleep(pause_s)
            failures += 1

    def _open(self, config: MetaBackendConfig, instance_id: str) -> WarmIndex | None:
        opened = self._open_followed(config, instance_id)
        if opened is None:
            return None
        backend, changes = opened
        copy = self._copies[instance_id] = WarmIndex(config, instance_id, backend, changes, self._packing, self._clock.monotonic_us)
        return copy

    def _is_warm(self, instance_id: str) -> bool:
        copy = self._copies.get(instance_id)
        return copy is not None and copy.is_warm

    def _has_scanned(self, instance_id: str) -> bool:
        copy = self._copies.get(instance_id)
        return copy is not None and (copy.is_warm or copy.index.key_count > 0)

    async def _lost(self, instance_id: str, why: str) -> None:
        copy = self._copies.get(instance_id)
        if copy is not None and copy.is_warm:
            self._resyncs += 1
            log.warning("follower_resyncs instance=%s: %s", instance_id, why)
        else:
            log.debug("follower_waits instance=%s: %s", instance_id, why)
        await self._drop(instance_id)

    async def _drop(self, instance_id: str) -> None:
        copy = self._copies.pop(instance_id, None)
        if copy is not None:
            await copy.close()
