"""A real etcd for tests: one member or three, on free ports of the loopback interface, in a temporary folder, stopped by pid."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import grpc

from kvcm.common.testing_ports import free_ports

PROGRAM: Final = shutil.which("etcd") or ""
_LOCAL: Final = "127.0.0.1"
_READY_S: Final = 20.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Paths. `client_ca`: clients must show a certificate of this authority. The other three: what the test itself shows and trusts."""

    cert: str
    key: str
    client_ca: str
    ca: str
    own_cert: str
    own_key: str


class EtcdMember:
    """One process. `start` waits for nothing; see EtcdServer."""

    def __init__(self, name: str, folder: Path, client_port: int, peer_port: int, cluster: str, options: Sequence[str], tls: ServerTls | None) -> None:
        scheme = "https" if tls else "http"
        client, peer = f"{scheme}://{_LOCAL}:{client_port}", f"http://{_LOCAL}:{peer_port}"
        self.address = f"{_LOCAL}:{client_port}"
        self.port = client_port
        self._tls = tls
        self._health = f"{client}/health"
        self._log = folder / f"{name}.log"
        self._command = [PROGRAM, f"--name={name}", f"--data-dir={folder / name}", f"--initial-cluster={cluster}", "--logger=zap", "--log-level=warn"]
        self._command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        self._command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", "--unsafe-no-fsync", *options]
        if tls:
            self._command += [f"--cert-file={tls.cert}", f"--key-file={tls.key}"]
            if tls.client_ca:
                self._command += ["--client-cert-auth", f"--trusted-ca-file={tls.client_ca}"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Also after `kill`: it finds its data again."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)

    def wait_healthy(self) -> None:
        """Raises RuntimeError with the end of its log."""
        deadline = time.monotonic() + _READY_S
        while not self._healthy():
            if self._running().poll() is not None or time.monotonic() >= deadline:
                raise RuntimeError(f"etcd does not run: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """SIGKILL: a crash."""
        process = self._running()
        process.kill()
        process.wait(10)

    def pause(self) -> None:
        """Its connections stay open and nothing answers; returns when all its threads have stopped."""
        self._running().send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._running().pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self.process.kill()
            self.process.wait(10)

    def _healthy(self) -> bool:
        context = None
        if self._tls:
            context = ssl.create_default_context(cafile=self._tls.ca)
            if self._tls.client_ca:
                context.load_cert_chain(self._tls.own_cert, self._tls.own_key)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        try:
            with opener.open(self._health, timeout=1) as answer:
                return b"true" in answer.read(200)
        except OSError:
            return False

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise RuntimeError("this etcd was not started")
        return self.process


class EtcdServer:
    """`with EtcdServer() as etcd:` has a healthy etcd at `etcd.address`; with `members=3` a cluster at `etcd.addresses`."""

    def __init__(self, *options: str, members: int = 1, tls: ServerTls | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvcm-etcd-", ignore_cleanup_errors=True)
        ports = free_ports(2 * members)
        names = [f"m{number}" for number in range(members)]
        cluster = ",".join(f"{name}=http://{_LOCAL}:{port}" for name, port in zip(names, ports[members:], strict=True))
        folder = Path(self._folder.name)
        self.members = [EtcdMember(names[n], folder, ports[n], ports[members + n], cluster, options, tls) for n in range(members)]

    @property
    def address(self) -> str:
        return self.members[0].address

    @property
    def addresses(self) -> str:
        return ",".join(member.address for member in self.members)

    @property
    def only(self) -> EtcdMember:
        return self.members[0]

    def __enter__(self) -> EtcdServer:
        try:
            for member in self.members:
                member.start()
            for member in self.members:
                member.wait_healthy()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for member in self.members:
            member.stop()
        self._folder.cleanup()


def enable_auth(address: str, users: dict[str, str], tls: ServerTls | None = None) -> None:
    """User -> password; all of them may do everything, and one of them must be `root`. From then on etcd asks who is there."""
    with _channel(address, tls) as channel:

        def call(method: str, *fields: str) -> None:
            body = b"".join(bytes([number << 3 | 2, len(text.encode())]) + text.encode() for number, text in enumerate(fields, 1))
            channel.unary_unary(f"/etcdserverpb.Auth/{method}", bytes, bytes)(body, timeout=5)

        call("RoleAdd", "root")
        for user, password in users.items():
            call("UserAdd", user, password)
            call("UserGrantRole", user, "root")
        call("AuthEnable")


def _channel(address: str, tls: ServerTls | None) -> grpc.Channel:
    options = [("grpc.enable_http_proxy", 0)]
    if tls is None:
        return grpc.insecure_channel(address, options)
    ca, key, cert = (Path(path).read_bytes() for path in (tls.ca, tls.own_key, tls.own_cert))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), options)
