"""A manager inside another Python process, on a thread with a loop of its own: for tools that need one for the length of a `with` block.

It serves on free ports of the loopback interface only. Logging and the garbage collector stay as the host process has them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType

import uvloop

from kvcm.common.errors import NotReady
from kvcm.config.settings import Settings
from kvcm.config.settings_load import load_settings
from kvcm.service.cluster import Endpoint
from kvcm.service.local_addresses import LOCAL, LocalAddresses
from kvcm.service.server import ManagerServer

READY_S = 15.0
STOP_S = 40.0


def settings_from(pairs: Mapping[str, str] | None) -> Settings:
    """Settings from dotted keys. Everything else has its default, except that only this machine may connect; port 0 means any free one.

    Raises SettingsError.
    """
    given = {"kvcm.service.bind_host": LOCAL} | dict(pairs or {})
    return load_settings(None, [f"{key}={value}" for key, value in given.items()], {}).settings


class EmbeddedManager(LocalAddresses):
    """`with EmbeddedManager({...}) as manager:` has a serving manager at `manager.meta_address`. Raises what ManagerServer.start raises, and NotReady."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, ready_s: float = READY_S) -> None:
        self._settings = settings_from(settings)
        self._ready_s = ready_s
        self._thread = threading.Thread(target=self._run, name="kvcm-embedded", daemon=True)
        self._up = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.endpoint = Endpoint()

    def __enter__(self) -> EmbeddedManager:
        self._thread.start()
        self._up.wait()
        if self._error is not None:
            self._thread.join(STOP_S)
            raise self._error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._up.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = ManagerServer(self._settings)
        try:
            self.endpoint = await server.start()
            await wait_ready(server, self._ready_s)
            self._up.set()
            await self._stop.wait()
        finally:
            await server.stop()


async def wait_ready(server: ManagerServer, timeout_s: float) -> None:
    """Raises NotReady when the manager does not serve in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await server.ready()
    except TimeoutError:
        raise NotReady(f"The manager did not begin to serve within {timeout_s:g} s; its log says why.") from None
