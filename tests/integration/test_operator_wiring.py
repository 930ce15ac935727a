"""The operator under its framework, over HTTP, against a small API server in this process: what calls what, finalizers, annotations, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import kopf
import pytest
from kubernetes import client

from kvcm.client.admin_testing import FakeAdmin
from kvcm.common.clock import SystemClock
from kvcm_operator.app import App, configure
from kvcm_operator.dependencies import Dependencies
from kvcm_operator.health import Health
from kvcm_operator.kube import HttpKube
from kvcm_operator.kube_transport import ClientTransport
from kvcm_operator.rounds import in_rounds
from kvcm_operator.runtime import Runtime
from kvcm_operator.sight import Sight
from kvcm_operator.subject import Subject
from kvcm_operator.testing import FakeDirectory, FakeKube
from kvcm_operator.testing_house import applied_manager, group, storage
from kvcm_operator.testing_server import FakeApiServer
from kvcm_operator.world import FINALIZER, GROUP, MANAGER, STORAGE, Json, Pace, Ref, World

pytestmark = pytest.mark.integration

BOSS, FAST, CHAT = Ref(MANAGER, "default", "demo"), Ref(STORAGE, "default", "fast"), Ref(GROUP, "default", "chat")
ALL = (BOSS, FAST, CHAT)
LIMIT_S = 60.0
PATIENCE_S = 2.0


class Bed:
    def __init__(self, url: str, server: FakeApiServer, drift_s: float) -> None:
        self.kube, self.server, self.url, self.drift_s = server.kube, server, url, drift_s
        self.admin = FakeAdmin()
        self.directory = FakeDirectory()
        self.directory.managers["default", "demo"] = self.admin
        self.directory.overrides.add(("default", "demo"))
        self.health: Health | None = None

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        """One operator process, from start to stop."""
        dependencies, clock = Dependencies(), SystemClock()
        health = self.health = Health(clock, dependencies.version)
        blind = asyncio.Event()

        @asynccontextmanager
        async def runtime() -> AsyncIterator[Runtime]:
            dependencies.forget()
            settings = client.Configuration()
            settings.host = self.url
            transport = ClientTransport(settings)
            world = World(HttpKube(transport, clock), self.directory, clock, Pace(retry=0.3, waiting=0.3), "kvcm:test")
            sight = Sight(clock, health, PATIENCE_S)
            running = Runtime(world, self.drift_s, Random(1), dependencies, health, sight=sight, on_blind=blind.set)
            running.start()
            try:
                yield running
            finally:
                await running.stop()
                transport.close()

        async def login(**_: Any) -> kopf.ConnectionInfo:
            return kopf.ConnectionInfo(server=self.url)

        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(login)
        App(runtime, self.drift_s, Random(2)).register(registry)
        settings = kopf.OperatorSettings()
        stop = asyncio.Event()

        async def quick(settings: kopf.OperatorSettings, **_: Any) -> None:
            configure(settings)
            settings.queueing.idle_timeout = 0.2
            settings.queueing.exit_timeout = 0.2
            settings.persistence.consistency_timeout = 0.5

        kopf.on.startup(registry=registry)(quick)

        async def framework(ending: asyncio.Future[None]) -> None:
            await kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=ending)

        task = asyncio.create_task(in_rounds(framework, stop, blind))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait_for(task, LIMIT_S)

    async def until(self, true: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                while not true():  # noqa: ASYNC110  # another task moves it, through sockets
                    await asyncio.sleep(0.02)
        except TimeoutError:
            bodies = {ref: Subject(self.kube.body(ref)).status for ref in ALL if self.kube.has(ref)}
            raise AssertionError(f"not reached: {what}; statuses: {bodies}") from None

    def ready(self, ref: Ref) -> bool:
        if not self.kube.has(ref):
            return False
        subject = Subject(self.kube.body(ref))
        return subject.settled

    async def all_ready(self) -> None:
        await self.until(lambda: all(self.ready(ref) for ref in ALL), "all three are ready")

    def remembered(self, ref: Ref) -> bool:
        """The framework has noted that this change is handled; before that, a restart handles it again, and notes it then."""
        annotations = self.kube.body(ref)["metadata"].get("annotations") or {}
        return "operator.kvcm.io/last-handled" in annotations and "operator.kvcm.io/reconcile" not in annotations


def run(story: Callable[[Bed], Awaitable[None]], drift_s: float = 3600.0) -> None:
    async def told() -> None:
        server = FakeApiServer(FakeKube(SystemClock()))
        server.kube.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default", "namespace": ""}})
        async with server.serve() as url:
            await story(Bed(url, server, drift_s))

    asyncio.run(told())


def apply(bed: Bed, *bodies: Json) -> None:
    for body in bodies:
        bed.kube.put(body, held=False)


def test_apply_restart_delete() -> None:
    async def story(bed: Bed) -> None:
        async with bed.operator():
            # Worst order first: nobody is there whom the others name.
            apply(bed, group(deletionPolicy="Delete"), storage(deletionPolicy="Delete"), applied_manager())
            await bed.all_ready()
            assert bed.admin.calls == ["add_storage fast", "create_group chat"]
            await bed.until(lambda: all(bed.remembered(ref) for ref in ALL), "all changes are noted as handled")
            # The last thing it has to say: how much the others have registered.
            counted = {"storages": 1, "groups": 1, "instances": 0}
            await bed.until(lambda: bed.kube.body(BOSS)["status"].get("counts") == counted, "the manager's status counts them")
            for ref in ALL:
                meta = bed.kube.body(ref)["metadata"]
                assert meta["finalizers"] == [FINALIZER]
                assert all(name.startswith("operator.kvcm.io/") for name in meta.get("annotations") or {}), meta
                assert not {"reconcile", "release", "kopf"} & set(bed.kube.body(ref)["status"])
        writes = len(bed.server.requests)
        async with bed.operator():
            health = bed.health
            assert health is not None
            await bed.until(lambda: b'result="Ready"' in health.page() and health.page().count(b"reconcile_total{") >= 3, "everything was looked at again")
            assert bed.server.requests[writes:] == []  # and nothing was written
            for ref in ALL:
                bed.kube.mark_deleted(ref)
            await bed.until(lambda: not any(bed.kube.has(ref) for ref in ALL), "all are gone")
            assert (bed.admin.storages, bed.admin.groups) == ({}, {})

    run(story)


def test_a_permanent_error_is_tried_again_when_the_world_changes_and_after_a_restart() -> None:
    async def story(bed: Bed) -> None:
        async with bed.operator():
            apply(bed, applied_manager(), storage("old", name="shared"), storage("young", name="shared"))
            young = Ref(STORAGE, "default", "young")
            await bed.until(lambda: Subject(bed.kube.body(young)).condition("Ready").get("reason") == "NameConflict", "the younger is refused")
            bed.kube.mark_deleted(Ref(STORAGE, "default", "old"))
            await bed.until(lambda: bed.ready(young), "the younger takes over")
        del bed.admin.storages["shared"]
        async with bed.operator():
            await bed.until(lambda: "shared" in bed.admin.storages, "the lost entry is back after a restart")

    run(story)


def test_drift_is_found_by_the_timer_alone() -> None:
    async def story(bed: Bed) -> None:
        async with bed.operator():
            apply(bed, applied_manager(), storage(), group())
            await bed.all_ready()
            # The first may be found by a pass that was due anyway; nothing but the timer can find the others.
            for _ in range(3):
                await bed.admin.disable_storage("fast")
                await bed.until(lambda: bed.admin.storages["fast"].enabled, "the storage is enabled again")
                del bed.admin.groups["chat"]
                await bed.until(lambda: "chat" in bed.admin.groups, "the group is back")
            await bed.until(lambda: bed.ready(FAST), "ready")
            reports = [ref for ref in bed.kube.refs("Event") if bed.kube.body(ref)["reason"] == "DriftCorrected"]
            assert len(reports) == 2  # one for each object, however often

    run(story, drift_s=1.0)


def test_a_change_of_the_spec_and_of_an_annotation_reach_a_pass() -> None:
    async def story(bed: Bed) -> None:
        async with bed.operator():
            apply(bed, applied_manager(), storage(), group())
            await bed.all_ready()
            bed.kube.edit(FAST, lambda body: body["spec"].update(enabled=False))
            await bed.until(lambda: not bed.admin.storages["fast"].enabled, "disabled")
            bed.kube.annotate(FAST, "kvcm.io/paused", "true")
            await bed.until(lambda: Subject(bed.kube.body(FAST)).condition("Ready").get("reason") == "Paused", "paused")

    run(story)


def test_no_copy_of_what_users_wrote_is_kept_in_annotations() -> None:
    """All annotations together have a limit: an object with large ones of its own could not be handled any more."""

    async def story(bed: Bed) -> None:
        async with bed.operator():
            apply(bed, applied_manager(), storage(nfs={"rootPath": "/mnt/canary"}))
            bed.kube.annotate(FAST, "users.own", "canary" * 10_000)
            await bed.until(lambda: bed.ready(FAST) and bed.remembered(FAST), "the storage is ready, and that is noted")
            ours = {name: text for name, text in bed.kube.body(FAST)["metadata"]["annotations"].items() if name.startswith("operator.kvcm.io/")}
            assert "canary" not in str(ours)
            assert len(str(ours)) < 1000
            bed.kube.annotate(FAST, "kvcm.io/paused", "true")
            await bed.until(lambda: Subject(bed.kube.body(FAST)).condition("Ready").get("reason") == "Paused", "a change is still a change")

    run(story)


def test_objects_of_a_kind_that_is_being_removed_are_let_go() -> None:
    """The framework leaves such a kind alone, and without us the kind and its objects would wait for each other for ever."""

    async def story(bed: Bed) -> None:
        async with bed.operator():
            apply(bed, applied_manager(), storage(deletionPolicy="Delete"), group(deletionPolicy="Delete"))
            await bed.all_ready()
        bed.server.leaving = {"KVCacheManager", "Storage", "InstanceGroup"}
        for ref in ALL:
            bed.kube.mark_deleted(ref)
        async with bed.operator():
            await bed.until(lambda: not any(bed.kube.has(ref) for ref in ALL), "all are gone")
            assert (bed.admin.storages, bed.admin.groups) == ({}, {})
            assert bed.health is not None
            assert bed.health.watch_lag_s() == 0.0, "a restart would not help"

    run(story, drift_s=1.0)


def test_a_kind_that_the_server_lists_late_is_found_without_a_restart_of_the_process() -> None:
    """The framework reads what is served when a definition changes, and the server may list the kind only after that."""

    async def story(bed: Bed) -> None:
        bed.server.unlisted = {STORAGE}
        async with bed.operator():
            apply(bed, applied_manager(), storage(), group())
            await bed.until(lambda: bed.remembered(CHAT), "the kinds that are listed are looked at")
            bed.server.unlisted = set()
            await bed.all_ready()
            health = bed.health
            assert health is not None
            assert b"kvcm_operator_watch_restarts_total 1.0" in health.page()
            assert health.watch_lag_s() == 0.0

    run(story, drift_s=1.0)


def test_a_deletion_waits_and_goes_on_when_the_server_is_back() -> None:
    async def story(bed: Bed) -> None:
        async with bed.operator():
            apply(bed, applied_manager(), storage(deletionPolicy="Delete"))
            await bed.until(lambda: bed.ready(FAST), "ready")
            bed.directory.down.add(("default", "demo"))
            bed.kube.mark_deleted(FAST)
            await bed.until(lambda: Subject(bed.kube.body(FAST)).condition("Ready").get("reason") == "Deleting", "waiting is visible")
            bed.directory.down.clear()
            await bed.until(lambda: not bed.kube.has(FAST), "released")
            assert bed.admin.storages == {}

    run(story)
