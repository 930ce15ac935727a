"""Real managers for tests: one as a process of its own, one on the test's loop. Both on free ports, both stopped for certain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from kvcm.common.errors import NotReady
from kvcm.service.cluster import Endpoint
from kvcm.service.embedded import READY_S, settings_from, wait_ready
from kvcm.service.local_addresses import LOCAL, LocalAddresses
from kvcm.service.server import ManagerServer

_POLL_S = 0.01
_FREE_PORTS = ("kvcm.service.rpc_port", "kvcm.service.http_port", "kvcm.service.admin_rpc_port", "kvcm.service.admin_http_port")


class ManagerProcess(LocalAddresses):
    """`with ManagerProcess({"kvcm.registry_storage.uri": ...}) as manager:` runs `kvcm serve` until the block ends.

    Raises NotReady with the end of the log when it does not serve within `ready_s` seconds or ends before. Ports that are not given are free ones; the
    admin gRPC service then shares the port of the meta service. `stop` and `kill` may be called inside the block. `config`: the text of a configuration
    file, for what must not be among the arguments of a process. `environ`: variables besides the caller's.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        config: str = "",
        python: str = sys.executable,
        ready_s: float = READY_S,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = dict.fromkeys(_FREE_PORTS, "0") | {"kvcm.service.bind_host": LOCAL} | dict(settings or {})
        self._python = python
        self._ready_s = ready_s
        self._environ = dict(environ or {})
        self._folder = tempfile.TemporaryDirectory(prefix="kvcm-process-")
        self._log = Path(self._folder.name, "log")
        self._port_file = Path(self._folder.name, "ports.json")
        self._config_file = Path(self._folder.name, "kvcm.conf")
        self._config_file.write_text(config, encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None
        self.endpoint = Endpoint()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> str:
        """Everything the process has written to stdout and stderr."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def wait(self, timeout_s: float = 20.0) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        return self._running().wait(timeout_s)

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM, then the exit code. Kills and raises subprocess.TimeoutExpired when it does not end. A second call returns the code again."""
        process = self._running()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL: a crash."""
        process = self._running()
        process.kill()
        process.wait(10)

    def start(self) -> None:
        """Also after `stop` or `kill`, with the same settings."""
        self._port_file.unlink(missing_ok=True)
        pairs = [part for key, value in self._settings.items() for part in ("-e", f"{key}={value}")]
        command = [self._python, "-m", "kvcm.cli.main", "serve", "-c", str(self._config_file), "--port-file", str(self._port_file), *pairs]
        # Settings of the caller's environment would win over ours.
        environ = {key: value for key, value in os.environ.items() if not key.lower().startswith("kvcm")} | self._environ
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)
        deadline = time.monotonic() + self._ready_s
        while not self._port_file.exists():
            if self.process.poll() is not None or time.monotonic() >= deadline:
                ended = self.process.poll()
                if ended is None:
                    self.kill()
                why = "did not serve in time" if ended is None else f"ended with code {ended}"
                raise NotReady(f"The manager {why}. The end of its log:\n{self.log[-2000:]}")
            time.sleep(_POLL_S)
        found = json.loads(self._port_file.read_text(encoding="utf-8"))
        self.endpoint = Endpoint(**{key: value for key, value in found.items() if key != "pid"})

    def __enter__(self) -> ManagerProcess:
        try:
            self.start()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.stop()
        finally:
            self._folder.cleanup()

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise NotReady("The manager was not started.")
        return self.process


class InProcessManager:
    """`async with InProcessManager({...}) as server:` is a serving ManagerServer on the running loop."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, ready_s: float = READY_S) -> None:
        self.server = ManagerServer(settings_from(settings))
        self._ready_s = ready_s

    async def __aenter__(self) -> ManagerServer:
        await self.server.start()
        try:
            await wait_ready(self.server, self._ready_s)
        except BaseException:
            await self.server.stop()
            raise
        return self.server

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.server.stop()
