"""`kvcm-operator`: run the operator until a signal stops it or the Lease is lost.

kopf cancels every task that was made after it started, so what must outlive it (health, the Lease) is started before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random

import kopf

from kvcm.common.clock import Clock, SystemClock
from kvcm.common.errors import KvcmError
from kvcm_operator.app import App
from kvcm_operator.dependencies import Dependencies
from kvcm_operator.directory import Directory
from kvcm_operator.health import Health
from kvcm_operator.health_server import serve
from kvcm_operator.kube import HttpKube
from kvcm_operator.kube_transport import ClientTransport, load_settings
from kvcm_operator.lease import Lease
from kvcm_operator.rounds import in_rounds
from kvcm_operator.runtime import Runtime
from kvcm_operator.settings import OperatorSettings, from_environment
from kvcm_operator.world import Pace, Ref, World

LEASE = "kvcm-operator"
_log = logging.getLogger("kvcm.operator")


class Process:
    """One operator process: its health, and the runtime that handlers use while kopf runs."""

    def __init__(self, settings: OperatorSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.random = Random()
        self.dependencies = Dependencies()
        self.health = Health(clock, self.dependencies.version)
        self.blind = asyncio.Event()

    def app(self) -> App:
        return App(self.runtime, self.settings.drift_s, self.random)

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[Runtime]:
        transport = ClientTransport(await asyncio.to_thread(load_settings))
        self.dependencies.forget()
        try:
            settings = self.settings
            kube = HttpKube(transport, self.clock)
            directory = Directory(settings.overrides, settings.cluster_domain, kube)
            world = World(kube, directory, self.clock, Pace(grace=settings.grace_s), settings.image)
            runtime = Runtime(world, settings.drift_s, self.random, self.dependencies, self.health, settings.namespaces, on_blind=self.blind.set)
            runtime.start()
            try:
                yield runtime
            finally:
                await runtime.stop()
        finally:
            transport.close()


def register_default() -> None:
    """For `kopf run -m kvcm_operator`: handlers in kopf's own registry. That way there is no Lease and no health of ours; run one process only."""
    process = Process(from_environment(os.environ), SystemClock())
    process.health.leader = True
    process.app().register(kopf.get_default_registry())


def main() -> None:
    try:
        settings = from_environment(os.environ)
        set_up_logging(settings.log_level)
        sys.exit(asyncio.run(_run(Process(settings, SystemClock()))))
    except KvcmError as error:
        sys.stderr.write(f"kvcm-operator: {error.message}\n")
        sys.exit(2)


def set_up_logging(level: str) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    # Below INFO these write whole objects.
    for name in ("kopf", "kubernetes", "urllib3", "aiohttp"):
        logging.getLogger(name).setLevel(max(logging.getLevelName(level), logging.INFO))
    # It says of every event and every tick that it was handled.
    if level == "INFO":
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)


async def _run(process: Process) -> int:
    """The exit code: 0 after a signal, 1 when the Lease was lost."""
    settings, stop = process.settings, asyncio.Event()

    def stop_on_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)

    stop_on_signals()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serve(process.health, settings.http_port))
        keeping: asyncio.Task[None] | None = None
        if settings.lease:
            transport = ClientTransport(await asyncio.to_thread(load_settings))
            stack.callback(transport.close)
            identity = f"{settings.identity}_{secrets.token_hex(4)}"
            lease = Lease(HttpKube(transport, process.clock), process.clock, Ref("Lease", settings.namespace, LEASE), identity)
            if not await _unless_stopped(lease.acquire(), stop):
                return 0
            keeping = asyncio.create_task(lease.keep(), name="kvcm-lease")
            keeping.add_done_callback(lambda _: stop.set())
            stack.push_async_callback(lease.release)
        process.health.leader = True
        registry = kopf.get_default_registry()
        process.app().register(registry)

        async def keep_signals(**_: object) -> None:
            # kopf has put its own handlers in their place; with those it would wait 5 s for its own task that waits for our flag.
            stop_on_signals()

        kopf.on.startup(registry=registry)(keep_signals)

        async def run_framework(ending: asyncio.Future[None]) -> None:
            await kopf.operator(
                registry=registry,
                settings=_kopf_settings(settings),
                # Or it would ask for the name of the user, and the user of a pod has none.
                identity=settings.identity,  # type: ignore[arg-type]  # a string by another name
                standalone=True,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
                stop_flag=ending,
            )

        await in_rounds(run_framework, stop, process.blind)
        process.health.leader = False
        if keeping is None:
            return 0
        lost = keeping.done()
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        return 1 if lost else 0


def _kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    found = kopf.OperatorSettings()
    # With rights in some namespaces only, the cluster cannot be asked for its resources.
    found.scanning.disabled = bool(settings.namespaces)
    return found


async def _unless_stopped(work: object, stop: asyncio.Event) -> bool:
    """Wait for `work`; False when the stop came first."""
    assert asyncio.iscoroutine(work)
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
        return doing.done() and doing.exception() is None
    finally:
        for task in (doing, stopping):
            task.cancel()
        await asyncio.gather(doing, stopping, return_exceptions=True)
