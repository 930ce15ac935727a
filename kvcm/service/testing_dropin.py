"""The drop-in as upstream's own test harness runs its server (wire contract 8.2): a shell command with `-d`, ports of its choice, found again with `ps`.

    with DropIn({"kvcm.registry_storage.uri": "local://..."}) as manager: ...

The surface is ManagerProcess's, so that a test can run against either. While the shell runs, this process adopts orphans (Linux), so that the end of the
daemon and its exit code can be waited for; the daemon itself does not notice.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from kvcm.common.errors import NotReady
from kvcm.common.testing_ports import ports_in_a_row
from kvcm.config.settings_checks import DEBUG_PORT_OFFSET
from kvcm.service.cluster import Endpoint
from kvcm.service.local_addresses import LOCAL, LocalAddresses
from kvcm.service.testing_wire import HttpWire

PROGRAM = "kv_cache_manager_bin"
READY_S = 30.0
_SHELL_S = 60.0
_POLL_S = 0.01
_PR_SET_CHILD_SUBREAPER = 36


def script() -> Path:
    """The installed console script. Raises NotReady when the environment was made before it existed."""
    found = Path(sys.executable).with_name(PROGRAM)
    if not found.exists():
        raise NotReady(f"{PROGRAM} is not installed beside {sys.executable}; run scripts/venv.sh dev")
    return found


def command_lines() -> list[tuple[int, str]]:
    """(pid, command line) of every process, from `ps` where there is one."""
    if shutil.which("ps"):
        text = subprocess.run(["ps", "uxww"], capture_output=True, text=True, timeout=_SHELL_S, check=True).stdout
        rows = (line.split(None, 10) for line in text.splitlines()[1:])
        return [(int(row[1]), row[10]) for row in rows if len(row) == 11]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append((int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode(errors="replace")))
        except OSError:
            continue
    return found


class DropIn(LocalAddresses):
    """Raises NotReady with the end of what was written when the shell command fails or the manager does not serve within READY_S.

    `settings` become `--env` arguments after the harness's own, `arguments` come after them as they are. Every start draws new ports, and Meta and Admin
    share one gRPC port, as in the harness. `shell_s` and `serving_s` tell how long the last start took.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        self._arguments = tuple(arguments)
        self._environ = dict(environ or {})
        self._folder = tempfile.TemporaryDirectory(prefix="kvcm-dropin-")
        self._code: int | None = None
        self._pid = 0
        self.endpoint = Endpoint()
        self.shell_s = 0.0
        self.serving_s = 0.0

    @property
    def workdir(self) -> Path:
        """Where the manager runs; also holds `stdout` and `stderr`."""
        return Path(self._folder.name)

    @property
    def pid(self) -> int:
        if not self._pid:
            raise NotReady("The manager was not started.")
        return self._pid

    @property
    def log(self) -> str:
        """Everything that was written to stdout and stderr, of all starts."""
        paths = [self.workdir / name for name in ("stdout", "stderr")]
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths if path.exists())

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 20.0) -> int:
        """The exit code; of a death by a signal, its negative number. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout_s
        while self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(PROGRAM, timeout_s)
            else:
                time.sleep(_POLL_S)
        return self._code

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM, then the exit code. Kills and raises subprocess.TimeoutExpired when it does not end. A second call returns the code again."""
        if self._code is None:
            self.send(signal.SIGTERM)
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL: a crash."""
        if self._code is None:
            self.send(signal.SIGKILL)
        self.wait(10)

    def start(self) -> None:
        """Also after `stop` or `kill`, with the same settings."""
        ports = ports_in_a_row(4, also=DEBUG_PORT_OFFSET)
        self.endpoint = Endpoint(host=LOCAL, meta_rpc_port=ports[0], meta_http_port=ports[1], admin_rpc_port=ports[0], admin_http_port=ports[3])
        began = time.monotonic()
        with _adopting_orphans():
            code = self._run_shell(ports)
        self.shell_s = time.monotonic() - began
        if code != 0:
            raise NotReady(f"The shell command ended with code {code}:\n{self.log[-2000:]}")
        self._code, self._pid = None, self._find(ports[0])
        self._wait_until_serving(began + READY_S)
        self.serving_s = time.monotonic() - began

    def __enter__(self) -> DropIn:
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

    def _run_shell(self, ports: Sequence[int]) -> int:
        base = {
            "kvcm.service.rpc_port": ports[0],
            "kvcm.service.http_port": ports[1],
            "kvcm.service.admin_rpc_port": ports[0],
            "kvcm.service.admin_http_port": ports[3],
            "kvcm.service.enable_debug_service": "true",
            "kvcm.logger.log_level": "5",
        }
        words = [PROGRAM, *_env(base), "-d", *_env(self._settings), *self._arguments]
        folder = script().parent
        line = f'LD_LIBRARY_PATH=/usr/local/lib64:"$LD_LIBRARY_PATH" PATH={shlex.quote(str(folder))}:"$PATH" {shlex.join(words)} >> stdout 2>> stderr'
        environ = {key: value for key, value in os.environ.items() if not key.lower().startswith("kvcm")} | self._environ
        return subprocess.run(line, shell=True, cwd=self.workdir, env=environ, timeout=_SHELL_S, check=False).returncode

    def _find(self, rpc_port: int) -> int:
        for pid, line in command_lines():
            if PROGRAM in line and f"rpc_port={rpc_port}" in line:
                return pid
        raise NotReady(f"No process shows {PROGRAM} and its port:\n{self.log[-2000:]}")

    def _wait_until_serving(self, deadline: float) -> None:
        while not self._serves():
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
                raise NotReady(f"The manager ended during its start:\n{self.log[-2000:]}")
            if time.monotonic() >= deadline:
                self.kill()
                raise NotReady(f"The manager did not serve in time:\n{self.log[-2000:]}")
            time.sleep(_POLL_S)

    def _serves(self) -> bool:
        """Every port takes connections on the host's own address, and a leader is known."""
        host = socket.gethostbyname(socket.gethostname())
        try:
            for port in (self.endpoint.meta_rpc_port, self.endpoint.meta_http_port, self.endpoint.admin_http_port):
                socket.create_connection((host, port), timeout=5).close()
            reply = HttpWire(self.http_url).call("GetClusterInfo", {"trace_id": "ready"})
        except (OSError, urllib.error.URLError):
            return False
        return bool(reply["header"]["status"]["code"] == "OK" and reply["leader_node_id"])


def _env(settings: Mapping[str, object]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--env", f"{key}={value}")]


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    control = ctypes.CDLL(None, use_errno=True).prctl
    control(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        control(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
