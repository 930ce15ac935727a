"""One manager, put together: the only place that knows all parts.

Order (wire contract 1.5): registry store and I/O -> domain -> listeners, which answer SERVER_NOT_LEADER -> election -> recovery -> requests open. `stop`
goes the other way: health says no; leader-only calls get SERVER_NOT_LEADER, so that clients turn to the next leader; running ones end; sessions are
aborted and the lease is given back; then the ports and the stores close.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from functools import partial
from random import Random

from kvcm.common.clock import Clock, SystemClock
from kvcm.common.failpoints import FailPoints
from kvcm.common.ids import IdSource, RandomIds
from kvcm.common.redis.installed import check_installed
from kvcm.common.redis.target import cluster_name
from kvcm.config.model import MetaBackendConfig
from kvcm.config.passwords import PasswordHasher
from kvcm.config.registry import Registry
from kvcm.config.registry_core import RegistryEvent, RegistryEventKind
from kvcm.config.settings import Settings, store_uris
from kvcm.config.startup import read_startup
from kvcm.config.store import open_store
from kvcm.coordination.elector import ElectorSettings
from kvcm.coordination.failing import FailingCoordinator
from kvcm.coordination.open import open_coordinator
from kvcm.coordination.port import Coordinator
from kvcm.coordination.runner import LeaderRunner
from kvcm.data_storage.factory import open_backend as open_storage
from kvcm.data_storage.failing import FailingStorages
from kvcm.data_storage.manager import DataStorageManager
from kvcm.data_storage.model import Storage
from kvcm.data_storage.pool import BlockingPool
from kvcm.data_storage.port import DataStorageBackend
from kvcm.manager.cache_manager import CacheManager
from kvcm.manager.follower import Follower
from kvcm.manager.housekeeper import Housekeeper
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.open_backend import MetadataStores
from kvcm.meta.record import RecordCodec
from kvcm.meta.redis_context import RedisContext
from kvcm.protocol.location_encoder import ProtoLocationEncoder
from kvcm.service.admin_service import build_admin_service
from kvcm.service.cluster import ClusterSnapshot, Endpoint
from kvcm.service.debug_service import build_debug_service
from kvcm.service.errors import NotStarted
from kvcm.service.farewell import farewell
from kvcm.service.follower_metrics import FollowerSource, copies_of
from kvcm.service.host import advertised_host, node_id
from kvcm.service.http.app import admin_routes
from kvcm.service.in_flight import InFlight
from kvcm.service.lifecycle import DRAIN_S, LeaderGate, Lifecycle, Term
from kvcm.service.listeners import Listeners
from kvcm.service.live_cluster import LiveCluster
from kvcm.service.local_metadata import is_meant_to_last, local_metadata_notice
from kvcm.service.logging_setup import set_log_level
from kvcm.service.meta_service import build_meta_service
from kvcm.service.observation import Observation
from kvcm.service.pod_api import InClusterPods, PodIdentity
from kvcm.service.pod_label import PodLabel
from kvcm.service.readiness import Readiness
from kvcm.service.redis_metrics import RedisSource
from kvcm.service.report_metrics import ReportsSource
from kvcm.service.rpc import Dispatcher
from kvcm.service.security import Security, open_security
from kvcm.service.state_metrics import ManagerSource, NodeSource, RegistrySource, lost_log_lines
from kvcm.service.storage_keeper import StorageKeeper

# Enough for a handful of storages that hang while others work; threads start on demand.
_IO_THREADS = 8
_READY_POLL_S = 0.01
_log = logging.getLogger("kvcm.service.server")


class ManagerServer:
    """Belongs to the loop that calls `start`. `own_process`: nothing else lives in this process, so its garbage collector may be tuned.

    After a failed `start` everything is closed again.
    """

    def __init__(self, settings: Settings, *, clock: Clock | None = None, ids: IdSource | None = None, own_process: bool = False) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._ids: IdSource = ids or RandomIds()
        self._own_process = own_process
        self._stack = AsyncExitStack()
        self._cluster: LiveCluster | None = None
        self._manager: CacheManager | None = None
        self._security: Security | None = None

    @property
    def endpoint(self) -> Endpoint:
        """How this node is reached, with the real ports. Raises NotStarted."""
        return self._started().own

    @property
    def manager(self) -> CacheManager:
        """For measuring and tests inside the process; everybody else speaks RPC."""
        if self._manager is None:
            raise NotStarted("the manager has not been started")
        return self._manager

    def snapshot(self) -> ClusterSnapshot:
        return self._started().snapshot()

    async def start(self) -> Endpoint:
        """Open all ports and begin to campaign; see `ready`. Raises SettingsError, PortInUse, StorageError, Unsupported, InvalidArgument."""
        try:
            return await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def ready(self) -> None:
        """Until a leader is known, and if it is this node, until it serves. The caller sets the time-out."""
        while not self.snapshot().is_health:  # noqa: ASYNC110  # health depends on time and on other nodes, no single event tells
            await asyncio.sleep(_READY_POLL_S)

    async def reload_credentials(self) -> None:
        """Look at the files of certificates and tokens now, instead of within `kvcm.service.credentials_reload_ms`."""
        if self._security is not None and self._security.files is not None:
            await self._security.files.check()

    async def stop(self) -> None:
        """Drain and close everything, in bounded time. Idempotent."""
        await self._stack.aclose()

    def _started(self) -> LiveCluster:
        if self._cluster is None:
            raise NotStarted("the manager has not been started")
        return self._cluster

    async def _start(self) -> Endpoint:
        settings, clock, ids, stack = self._settings, self._clock, self._ids, self._stack
        check_installed(store_uris(settings))
        startup = read_startup(settings.startup_config)
        points = FailPoints(settings.debug_fail_points) if settings.debug_fail_points else None

        # What blocks, and what outlives every term.
        pool = BlockingPool(threads=_IO_THREADS, clock=clock)
        stack.callback(pool.close)
        store = open_store(settings.registry_storage_uri, points)
        stack.push_async_callback(store.close)
        await store.open()
        storages = _storages(pool, clock, ids, points)
        stack.push_async_callback(storages.close)
        # Epochs of a coordinator that forgets must go on above the highest one that the store has seen. A registry in memory has seen none, but metadata that
        # outlives the process has.
        floor = (await store.load()).fence if settings.registry_storage_uri else clock.wall_us() // 1_000
        coordinator: Coordinator = open_coordinator(settings.coordination_uri, clock, floor)
        stack.push_async_callback(coordinator.close)
        if points is not None:
            coordinator = FailingCoordinator(coordinator, points)

        # The domain.
        term, in_flight = Term(), InFlight()
        codec = ProtoLocationEncoder()
        hasher = PasswordHasher()
        stack.callback(hasher.close)
        registry = Registry(store, storages, clock, settings.registry_enforce_references, hasher)
        records = RecordCodec(codec, storages.slot_of)

        redis = RedisContext(clock, cluster_name(settings.registry_storage_uri))
        stores = MetadataStores(pool, redis, settings.meta_redis_uri, points)

        def metadata(config: MetaBackendConfig, instance_id: str) -> MetadataBackend:
            return stores.open(config, instance_id, records)

        stored, kept = stores.stored_instances, settings.write_session_keep_after_bad_mask
        manager = self._manager = CacheManager(registry, storages, codec, clock, ids, Random(), term, metadata, stored, kept)
        background = (Housekeeper(manager, clock), StorageKeeper(storages, registry))
        follower = Follower(store.load, lambda config, instance_id: stores.open_followed(config, instance_id, records), codec.packing, clock)
        lifecycle = Lifecycle(term, registry, manager, background, in_flight, startup, self._own_process, follower)

        # What guards the ports, before any of them is open; then leadership.
        security = self._security = await open_security(settings, clock, stack, registry.accounts.verify)
        observation = Observation(settings, registry, storages, clock, ids)
        stack.callback(observation.close)
        listeners = Listeners(settings, security, observation.http)
        stack.push_async_callback(listeners.stop, 0)
        _, admin_http = listeners.bind_http()
        host = advertised_host(settings.service_advertised_host, settings.service_bind_host)
        own = Endpoint(node_id(settings.leader_elector_node_id, host, admin_http), host, custom_info=settings.service_custom_info)
        elector = ElectorSettings(own.node_id, settings.leader_elector_lease_ms, settings.leader_elector_loop_interval_ms)
        runner = LeaderRunner(coordinator, clock, elector, lifecycle.promote, lifecycle.demote, lambda: follower.is_ready)
        gate = LeaderGate(term)
        gate.follow(runner)
        loop_ms, lease_ms = settings.leader_elector_loop_interval_ms, settings.leader_elector_lease_ms
        cluster = LiveCluster(own, runner, gate, coordinator, clock, loop_ms, lease_ms, partial(copies_of, follower))

        # Metrics and services.
        node = NodeSource(cluster, in_flight, runner, clock, lost_log_lines)
        observation.add(
            ManagerSource(manager),
            RedisSource(redis),
            FollowerSource(follower),
            ReportsSource(manager),
            RegistrySource(registry, manager, storages),
            node,
            security,
        )
        registry.on_change(observation.purger())
        if is_meant_to_last(settings):
            registry.on_change(local_metadata_notice(registry))
        registry.on_change(partial(_step_down_if_fenced_out, runner))
        redis.on_fenced = partial(_step_down, runner, "metadata in Redis")
        dispatcher = Dispatcher(clock, gate, observation.metrics.requests)
        dispatcher.taps, dispatcher.why_not_leader = observation.taps, cluster.why_not_leader
        meta = build_meta_service(manager, registry, cluster)
        set_level = set_log_level if self._own_process else _set_own_log_level
        admin = build_admin_service(manager, registry, storages, cluster, runner, observation.metrics, set_level)
        debug = build_debug_service(dispatcher, points) if settings.service_enable_debug_service else None
        readiness = Readiness(cluster, store)
        label = None
        if settings.kubernetes_label_pod:
            identity = PodIdentity.of(os.environ)
            label = PodLabel(InClusterPods(identity), identity.name, lambda: runner.epoch if gate.may_serve() else 0, clock, settings.leader_elector_lease_ms)
        extra = admin_routes([admin], dispatcher, observation.metrics if settings.metrics_enable_prometheus else None)

        # From here on things move.
        observation.start()
        stack.push_async_callback(observation.stop)
        stack.push_async_callback(cluster.stop)
        stack.push_async_callback(readiness.stop)
        if label is not None:
            stack.push_async_callback(label.stop)
        stack.push_async_callback(listeners.stop, DRAIN_S)
        stack.push_async_callback(farewell, cluster, lambda: runner.stats.promotions > 0)
        stack.push_async_callback(follower.stop)
        stack.push_async_callback(runner.stop)
        stack.callback(listeners.close_health)
        stack.callback(readiness.close)
        cluster.publish(await listeners.start(meta, admin, debug, extra, dispatcher, in_flight, gate.may_serve, readiness.ready, own, DRAIN_S))
        self._cluster = cluster
        follower.start()
        await runner.start()
        cluster.start()
        readiness.start()
        if label is not None:
            label.start()
        _log.info("listening node_id=%s meta_rpc=%d admin_http=%d", own.node_id, cluster.own.meta_rpc_port, cluster.own.admin_http_port)
        return cluster.own


def _storages(pool: BlockingPool, clock: Clock, ids: IdSource, points: FailPoints | None) -> DataStorageManager:
    def factory(storage: Storage) -> DataStorageBackend:
        return open_storage(storage, pool, clock, ids)

    return DataStorageManager(factory, clock, ids) if points is None else FailingStorages(factory, clock, ids, points)


def _set_own_log_level(level: int) -> None:
    """The process belongs to somebody else, and so do its other loggers."""
    logging.getLogger("kvcm").setLevel(level)


def _step_down_if_fenced_out(runner: LeaderRunner, event: RegistryEvent) -> None:
    if event.kind is RegistryEventKind.FENCED_OUT:
        _step_down(runner, "registry's store")


def _step_down(runner: LeaderRunner, whose: str) -> None:
    if runner.demote():  # every change that was under way is refused; once is enough to say so
        _log.error("fenced_out: the %s knows a newer leader; stepping down", whose)
