"""The control plane: etcd, the API server, and, where they are there, the controllers and the scheduler.

They are ordinary processes of this user. Alone they listen on 127.0.0.1; with nodes they listen on the host's end of the bed's own link.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.api import Api, http_ok
from e2e.cluster.command import run
from e2e.cluster.errors import BedError
from e2e.cluster.pki import Pki
from e2e.cluster.process import Starter, free_ports
from e2e.cluster.settings import CLUSTER_DOMAIN, SERVICE_NET

_LOOPBACK = "127.0.0.1"
_ETCD_WAIT_S = 60.0
_API_WAIT_S = 180.0
_CONTROLLERS_WAIT_S = 90.0
# before 1.22 the gate that makes the tokens of pods expire is off
_BOUND_TOKENS_SINCE = (1, 22)


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs of the control plane are; None for a part that this cluster goes without."""

    etcd: Path
    api_server: Path
    controller_manager: Path | None
    scheduler: Path | None


@dataclass(frozen=True, slots=True)
class Control:
    """A control plane that answers."""

    server: str
    version: tuple[int, int]


def version_of(api_server: Path) -> tuple[int, int]:
    """As in (1, 20)."""
    said = run([api_server, "--version"], timeout=60)
    found = re.search(r"v(\d+)\.(\d+)", said)
    if not found:
        raise BedError(f"{api_server} does not say its version")
    return int(found[1]), int(found[2])


def etcd_words(program: Path, data: Path, client_port: int, peer_port: int) -> list[str | Path]:
    """How to start an etcd of one member that listens on the loopback alone."""
    clients, peers = f"http://{_LOOPBACK}:{client_port}", f"http://{_LOOPBACK}:{peer_port}"
    argv: list[str | Path] = [program, "--name=bed", f"--data-dir={data}", f"--initial-cluster=bed={peers}"]
    argv += [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"]
    argv += [f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"]
    return [*argv, "--unsafe-no-fsync", "--log-level=warn"]  # nothing in it outlives the cluster


class ControlPlane:
    def __init__(self, starter: Starter, pki: Pki, programs: Programs, *, address: str, with_nodes: bool, after_port: int) -> None:
        self._starter = starter
        self._pki = pki
        self._programs = programs
        self._address = address
        self._with_nodes = with_nodes
        self._version = version_of(programs.api_server)
        (self._api_port,) = free_ports(address, 1, after_port)
        self._etcd_port, self._peer_port, self._manager_port, self._scheduler_port = free_ports(_LOOPBACK, 4, self._api_port)
        self.server = f"https://{address}:{self._api_port}"

    def start(self) -> Control:
        """Returns when the API answers and the controllers work. BedError if they do not in time."""
        pki = self._pki
        pki.make_control([_LOOPBACK] if self._address == _LOOPBACK else [_LOOPBACK, self._address])
        pki.kubeconfig("admin", self.server)
        starter = self._starter
        starter.start("etcd", etcd_words(self._programs.etcd, starter.journal.run / "etcd", self._etcd_port, self._peer_port))
        starter.wait("etcd", _ETCD_WAIT_S, lambda: http_ok(_LOOPBACK, self._etcd_port, "/health"), "etcd is healthy")
        starter.start("kube-apiserver", self._api_server())
        api = Api(self.server, pki.folder)
        starter.wait("kube-apiserver", _API_WAIT_S, lambda: api.ok("/readyz"), "the API server is ready")
        gates = self._gates()
        if self._programs.controller_manager:
            starter.start("kube-controller-manager", self._controllers(self._programs.controller_manager, gates))
        if self._programs.scheduler:
            starter.start("kube-scheduler", self._scheduler(self._programs.scheduler))
        if self._programs.controller_manager:
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            starter.wait("kube-controller-manager", _CONTROLLERS_WAIT_S, lambda: api.ok(account), "the controllers work")
        return Control(self.server, self._version)

    def _gates(self) -> list[str]:
        return ["--feature-gates=BoundServiceAccountTokenVolume=true"] if self._version < _BOUND_TOKENS_SINCE else []

    def _api_server(self) -> list[str | Path]:
        pki = self._pki
        argv: list[str | Path] = [
            self._programs.api_server,
            f"--etcd-servers=http://{_LOOPBACK}:{self._etcd_port}",
            f"--bind-address={self._address}",
            f"--secure-port={self._api_port}",
            f"--advertise-address={self._address}",
            f"--tls-cert-file={pki.crt('apiserver')}",
            f"--tls-private-key-file={pki.key('apiserver')}",
            f"--client-ca-file={pki.crt('ca')}",
            f"--service-cluster-ip-range={SERVICE_NET}",
            f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
            f"--service-account-signing-key-file={pki.key('sa')}",
            f"--service-account-key-file={pki.folder / 'sa.pub'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--requestheader-client-ca-file={pki.crt('front-proxy-ca')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki.crt('front-proxy-client')}",
            f"--proxy-client-key-file={pki.key('front-proxy-client')}",
            "--enable-aggregator-routing=true",
            "--profiling=false",
            "--v=1",
            *self._gates(),
        ]
        if self._with_nodes:
            client = "apiserver-kubelet-client"
            argv += [f"--kubelet-client-certificate={pki.crt(client)}", f"--kubelet-client-key={pki.key(client)}"]
            argv += [f"--kubelet-certificate-authority={pki.crt('ca')}", "--kubelet-preferred-address-types=InternalIP"]
        else:
            argv.append("--endpoint-reconciler-type=none")  # 127.0.0.1 cannot be the endpoint of the Service `kubernetes`
        return argv

    def _controllers(self, program: Path, gates: list[str]) -> list[str | Path]:
        pki = self._pki
        return [
            program,
            f"--kubeconfig={pki.kubeconfig('kube-controller-manager', self.server)}",
            f"--bind-address={_LOOPBACK}",
            f"--secure-port={self._manager_port}",
            *(["--port=0"] if self._version < _BOUND_TOKENS_SINCE else []),
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={pki.key('sa')}",
            f"--root-ca-file={pki.crt('ca')}",
            f"--cluster-signing-cert-file={pki.crt('ca')}",
            f"--cluster-signing-key-file={pki.key('ca')}",
            # with the usual limits the controllers need 6 s to start, with these 2
            "--kube-api-qps=300",
            "--kube-api-burst=500",
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=16s",
            "--profiling=false",
            "--v=1",
            *gates,
        ]

    def _scheduler(self, program: Path) -> list[str | Path]:
        return [
            program,
            f"--kubeconfig={self._pki.kubeconfig('kube-scheduler', self.server)}",
            f"--bind-address={_LOOPBACK}",
            f"--secure-port={self._scheduler_port}",
            *(["--port=0"] if self._version < _BOUND_TOKENS_SINCE else []),
            "--leader-elect=false",
            "--profiling=false",
            "--v=1",
        ]
