"""The node level: per node a containerd and a kubelet in mounts of their own, and one kube-proxy and one DNS server for all.

Dangers met, each handled here: without CAP_SYS_RESOURCE no score may fall below our own (oom_score settings); a kubelet needs mounts that it
shares with its containers, and its paths are fixed, so each node has a mount table of its own; kube-proxy must leave the machine's
connection table alone; and a kubelet that may garbage-collect images would remove ours, which no registry can bring back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from e2e.cluster.api import Api
from e2e.cluster.command import run
from e2e.cluster.journal import Journal
from e2e.cluster.pki import Pki
from e2e.cluster.process import Starter, free_ports
from e2e.cluster.settings import BED_IP, CLUSTER_DOMAIN, DNS_IP, POD_NET, node_ip, node_name
from e2e.cluster.space import CGROUP_PREFIX, Space

_FIXED_FOLDERS = {"kubelet": "/var/lib/kubelet", "pod-logs": "/var/log/pods", "containers": "/var/log/containers", "cni": "/var/lib/cni"}
_WAIT_S = 60.0
_READY_WAIT_S = 120.0
_IMPORT_TIMEOUT_S = 300.0

_CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "{folder}/state"
oom_score = 0
disabled_plugins = [{disabled}]
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{run}/cni"
"""
_DISABLED = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in ("btrfs", "zfs", "aufs", "devmapper"))
_CNI = """{{"cniVersion": "0.4.0", "name": "bed", "plugins": [
 {{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {{"type": "host-local", "dataDir": "{run}/cni-state", "ranges": [[{{"subnet": "{pods}"}}]]}}}},
 {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"""
_KUBELET = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {ip}
readOnlyPort: 0
healthzBindAddress: {ip}
healthzPort: 10248
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {ca}}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {crt}
tlsPrivateKeyFile: {key}
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
failSwapOn: false
oomScoreAdj: 0
clusterDNS: [{dns}]
clusterDomain: {domain}
resolvConf: /dev/null
evictionHard: {{memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 1s
syncFrequency: 10s
configMapAndSecretChangeDetectionStrategy: Watch
maxPods: 100
featureGates: {{BoundServiceAccountTokenVolume: true}}
"""


def image_import(journal: Journal, number: int, archive: Path, ctr: Path) -> None:
    """Give an image archive to a running node. BedError if the node does not take it."""
    _images(journal, number, ctr, "import", archive)


def image_tag(journal: Journal, number: int, name: str, other: str, ctr: Path) -> None:
    """Give an image of a running node a second name. Both are full ones (oci.full_name). BedError if the node does not have it."""
    _images(journal, number, ctr, "tag", "--force", name, other)


def _images(journal: Journal, number: int, ctr: Path, *words: str | Path) -> None:
    socket = journal.run / node_name(number) / "c.sock"
    inside = ["nsenter", "-t", str(journal.pid_of(f"mounts{number}")), "-m", "-n", "-p", "--"]
    run([*inside, ctr, "-a", socket, "-n", "k8s.io", "images", *words], timeout=_IMPORT_TIMEOUT_S)


class Nodes:
    def __init__(self, starter: Starter, pki: Pki, space: Space, *, servers: Path, runtime: Path, images: Sequence[Path], server: str) -> None:
        self._starter = starter
        self._pki = pki
        self._space = space
        self._servers = servers
        self._runtime = runtime
        self._images = images
        self._server = server
        self._api = Api(server, pki.folder)
        self._run = starter.journal.run
        self._env = {
            **os.environ,
            "PATH": f"{runtime}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }

    def start(self, count: int) -> None:
        """Returns when every node is Ready. BedError if one is not in time."""
        (self._run / "cni").mkdir(exist_ok=True)
        (self._run / "cni/10-bed.conflist").write_text(_CNI.format(run=self._run, pods=POD_NET), encoding="utf-8")
        numbers = range(1, count + 1)
        self._start_shared()
        for number in numbers:
            self._start_runtime(number)
        with ThreadPoolExecutor(max_workers=count) as pool:
            list(pool.map(self._start_node, numbers))
        for number in numbers:
            name = node_name(number)
            self._starter.wait(f"kubelet{number}", _READY_WAIT_S, partial(self._api.node_ready, name), f"{name} is Ready")

    def _folder(self, number: int) -> Path:
        return self._run / node_name(number)

    def _start_runtime(self, number: int) -> None:
        folder = self._folder(number)
        self._space.make_cgroups(node_name(number))
        script = []
        for name, place in _FIXED_FOLDERS.items():
            inner = folder / name
            inner.mkdir(parents=True, exist_ok=True)
            self._make_on_host(Path(place))
            script.append(f"mount --bind '{inner}' {place}")
        script += [f"touch '{folder}/mounted'", f"exec '{self._servers}/pause'"]
        argv = ["unshare", "--mount", "--propagation", "shared", "/bin/sh", "-ec", "\n".join(script)]
        holder = self._starter.start(f"mounts{number}", argv, inside=self._space.holder)
        self._starter.wait(f"mounts{number}", _WAIT_S, (folder / "mounted").is_file, f"the mounts of {node_name(number)} are there")
        config = folder / "containerd.toml"
        text = _CONTAINERD.format(folder=folder, plugins=self._runtime / "cni", run=self._run, disabled=_DISABLED)
        config.write_text(text, encoding="utf-8")
        self._starter.start(f"containerd{number}", [self._runtime / "bin/containerd", "-c", config], env=self._env, inside=holder)

    def _make_on_host(self, place: Path) -> None:
        """A mount point must be there before the mount; what we make we note, to remove it when it is empty."""
        if not place.exists():
            self._starter.journal.add("folder", str(place))
            place.mkdir(parents=True, exist_ok=True)

    def _start_node(self, number: int) -> None:
        name, folder = node_name(number), self._folder(number)
        journal, ctr = self._starter.journal, self._runtime / "bin/ctr"
        self._starter.wait(f"containerd{number}", _WAIT_S, (folder / "c.sock").is_socket, f"containerd of {name} listens")
        for image in self._images:
            image_import(journal, number, image, ctr)
        pki, user = self._pki, f"kubelet{number}"
        pki.issue(user, f"/O=system:nodes/CN=system:node:{name}", alternatives=[f"IP:{node_ip(number)}", f"DNS:{name}"])
        config = folder / "kubelet.yaml"
        config.write_text(
            _KUBELET.format(
                ip=node_ip(number),
                ca=pki.crt("ca"),
                crt=pki.crt(user),
                key=pki.key(user),
                cgroup=f"{CGROUP_PREFIX}{name}",
                dns=DNS_IP,
                domain=CLUSTER_DOMAIN,
            ),
            encoding="utf-8",
        )
        argv: list[str | Path] = [
            self._servers / "kubelet",
            f"--config={config}",
            f"--kubeconfig={pki.kubeconfig(user, self._server)}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{folder}/c.sock",
            f"--hostname-override={name}",
            f"--node-ip={node_ip(number)}",
            "--volume-plugin-dir=/var/lib/kubelet/volumeplugins",
            "--pod-infra-container-image=docker.io/local/pause:1",
            "--v=1",
        ]
        self._starter.start(user, argv, env=self._env, inside=journal.pid_of(f"mounts{number}"))

    def _start_shared(self) -> None:
        health, metrics = free_ports("127.0.0.1", 2, 21000)
        proxy: list[str | Path] = [
            self._servers / "kube-proxy",
            f"--kubeconfig={self._pki.kubeconfig('kube-proxy', self._server)}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_NET}",
            f"--hostname-override={node_name(1)}",
            f"--bind-address={BED_IP}",
            f"--healthz-bind-address=127.0.0.1:{health}",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--oom-score-adj=0",
            "--v=1",
        ]
        self._starter.start("kube-proxy", proxy, env=self._env, inside=self._space.holder)
        server = Path(__file__).with_name("dns.py")
        argv: list[str | Path] = [sys.executable, "-I", server, DNS_IP, self._server, self._pki.folder]
        self._starter.start("dns", argv, inside=self._space.holder)
