"""A manager as a process: loop, signals, and the line that says it is ready.

SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 stop it cleanly (exit code 0); a second one ends it at once (exit code 1).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

import uvloop

from kvcm.config.settings import Settings
from kvcm.metrics import gc_tuning
from kvcm.service.cluster import Endpoint
from kvcm.service.grpc.hardened import quieten_strangers
from kvcm.service.malloc_tuning import tune_malloc
from kvcm.service.open_files import raise_limit
from kvcm.service.server import ManagerServer

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
FORCED_EXIT_CODE = 1
LEAVE_S = 10.0
"""From the end of a stop to the end of the process, whatever hangs."""
_log = logging.getLogger("kvcm.service.run")


def run(settings: Settings, on_ready: Callable[[Endpoint], None]) -> None:
    """Serve until a signal comes; `on_ready` is called once, when calls are answered. Raises as ManagerServer.start does, and what `on_ready` raises."""
    tune_malloc()
    raise_limit()
    quieten_strangers()
    gc_tuning.tune()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, on_ready))


async def _serve(settings: Settings, on_ready: Callable[[Endpoint], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, _on_signal, number, stop)
    server = ManagerServer(settings, own_process=True)
    try:
        await server.start()
        ready = asyncio.ensure_future(server.ready())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if ready.done() and not stop.is_set():
            ready.result()
            on_ready(server.endpoint)
        await stopped
    except BaseException:
        await server.stop()
        leave_in_time(FORCED_EXIT_CODE)
        raise
    await server.stop()
    leave_in_time(0)
    _log.info("stopped")


def leave_in_time(code: int, seconds: float = LEAVE_S) -> None:
    """End the process with `code` after `seconds` if it has not ended by itself: the interpreter waits for every thread of a pool, without a limit, and one
    may be in a file system that does not answer."""

    def leave() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=leave, name="kvcm-leave", daemon=True).start()


def _on_signal(number: int, stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(FORCED_EXIT_CODE)
    _log.info("stopping signal=%s", signal.Signals(number).name)
    stop.set()
