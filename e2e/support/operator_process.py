"""The operator as a process of this machine, with the rights that its manifest gives it and no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.errors import BedError
from kvcm.common.testing_ports import free_port

NAMESPACE = "kvcm-system"
_START_S = 40.0
_STOP_S = 20.0
_POLL_S = 0.02
_TAIL = 4000


class OperatorProcess:
    """`with OperatorProcess(kubeconfig, overrides) as operator:` runs `python -m kvcm_operator` until the block ends.

    Inside the block it may be stopped, killed and started again; with `at_once` False the block begins without it.

    overrides: `namespace/name` -> `host:port` of managers that run as local processes. drift_s: how often everything is compared.
    lease: off where a killed process must not keep its successor waiting; then only one may run.
    image: of the managers' pods. By default one that no node has, so that pods stay as they are at the level without nodes.
    """

    def __init__(
        self,
        kubeconfig: Path,
        overrides: Mapping[str, str],
        *,
        drift_s: float = 2.0,
        grace_s: float = 30.0,
        lease: bool = False,
        image: str = "kvcm:never-pulled",
        at_once: bool = True,
    ) -> None:
        self._at_once = at_once
        self._folder = tempfile.TemporaryDirectory(prefix="kvcm-operator-")
        self._log = Path(self._folder.name, "log")
        self._port = free_port()
        # Settings of the caller's environment would win over ours.
        self._env = {key: value for key, value in os.environ.items() if not key.startswith(("KVCM", "KUBERNETES_"))} | {
            "KUBECONFIG": str(kubeconfig),
            "KVCM_OPERATOR_NAMESPACE": NAMESPACE,
            "KVCM_OPERATOR_LEASE": "on" if lease else "off",
            "KVCM_OPERATOR_DRIFT_SECONDS": str(drift_s),
            "KVCM_OPERATOR_GRACE_SECONDS": str(grace_s),
            "KVCM_OPERATOR_HTTP_PORT": str(self._port),
            "KVCM_OPERATOR_MANAGER_IMAGE": image,
            "KVCM_OPERATOR_ADMIN_OVERRIDE": ",".join(f"{name}={address}" for name, address in overrides.items()),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """Everything that all runs have written."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def start(self, until: str = "/readyz") -> None:
        """Returns when the path answers: /readyz when it works, /healthz when the process has only just begun. BedError."""
        if self._process is not None and self._process.poll() is None:
            raise BedError("the operator runs already")
        with self._log.open("ab") as log:
            argv = [sys.executable, "-m", "kvcm_operator"]
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env)
        deadline = time.monotonic() + _START_S
        while not self._says(until):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise BedError(f"the operator did not start; the end of its log:\n{self.log[-_TAIL:]}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """SIGTERM. BedError when it does not end well. Nothing to do for one that does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BedError(f"the operator did not stop; the end of its log:\n{self.log[-_TAIL:]}") from None
        if code != 0:
            raise BedError(f"the operator ended with code {code}; the end of its log:\n{self.log[-_TAIL:]}")

    def kill(self) -> None:
        """SIGKILL: a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def alive(self) -> bool:
        """What the liveness probe of its Deployment sees."""
        return self._says("/healthz")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that bear these labels."""
        page = self._get("/metrics")
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if sample.labels.items() >= labels.items())

    def __enter__(self) -> OperatorProcess:
        try:
            if self._at_once:
                self.start()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is not None:
                sys.stderr.write(f"--- the end of the operator's log\n{self.log[-_TAIL:]}\n")
            self.stop()
        finally:
            self._folder.cleanup()

    def _says(self, path: str) -> bool:
        try:
            return self._get(path) == "ok"
        except OSError:
            return False

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
