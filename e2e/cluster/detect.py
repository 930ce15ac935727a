"""What this machine can do, in one sentence, without changing it.

The trials run in namespaces that end with the trial.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import clients, debian, kubernetes
from e2e.cluster.cache import Cache
from e2e.cluster.command import run
from e2e.cluster.errors import BedError
from e2e.cluster.settings import LEVELS, Settings
from e2e.cluster.space import cgroup_mounts

_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12, "CAP_MKNOD": 27, "CAP_SYS_CHROOT": 18}
_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
_BUILD_BYTES = 6 * 1024**3
_TRIALS = (
    ("bridges", "ip link add t0 type bridge"),
    ("veth links", "ip link add t1 type veth peer name t2"),
    ("iptables for bridges (br_netfilter)", "test -e /proc/sys/net/bridge/bridge-nf-call-iptables"),
    ("tmpfs mounts", "mount -t tmpfs tmpfs /run"),
)


@dataclass(frozen=True, slots=True)
class Ability:
    """`level` is one of none, control, node; `reason` is a sentence."""

    level: str
    reason: str

    def __str__(self) -> str:
        return f"{self.level}: {self.reason}"

    def allows(self, level: str) -> bool:
        return LEVELS.index(level) <= LEVELS.index(self.level)


def detect(settings: Settings, cache: Cache) -> Ability:
    """The level that `up` would use here."""
    if settings.level == "none":
        return Ability("none", "KVCM_E2E_LEVEL says none.")
    if settings.assets is not None:
        missing = [name for name in ("kube-apiserver", "etcd") if not os.access(settings.assets / name, os.X_OK)]
        if missing:
            return Ability("none", f"KUBEBUILDER_ASSETS names a folder without {' and '.join(missing)}.")
        return Ability("control", "KUBEBUILDER_ASSETS names an API server and an etcd, which make a control plane without nodes.")
    why_not = _why_no_control(cache)
    if why_not:
        return Ability("none", f"a control plane cannot be made here because {why_not}.")
    if settings.level == "control":
        return Ability("control", "KVCM_E2E_LEVEL asks for no more than the control plane.")
    why_not = _why_no_node()
    if why_not:
        return Ability("control", f"the control plane runs here, but no nodes, because {why_not}.")
    return Ability("node", "this machine gives root, namespaces, cgroup v1, overlay mounts and bridges, so nodes can run pods here.")


def _why_no_control(cache: Cache) -> str:
    """ "" if a control plane can run here, else the end of a sentence with `because`."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the programs are for Linux on x86_64 and this is {platform.system()} on {platform.machine()}"
    if not shutil.which("openssl") and os.geteuid() != 0:
        return "openssl is not installed"
    needed = ((kubernetes.NAME, kubernetes.key()), (clients.ETCD_NAME, clients.etcd_key()), (clients.NAME, clients.key()))
    if all(cache.has(name, key) for name, key in needed):
        return ""
    if debian.mirror() is None or not debian.KEYRING.is_file():
        return "Kubernetes is built from Debian's packages and apt knows no Debian source here"
    missing = sorted({package for program, package in kubernetes.TOOLS.items() if not shutil.which(program)})
    if missing and os.geteuid() != 0:
        return f"Kubernetes must be built first, which needs the packages {', '.join(missing)}"
    free = shutil.disk_usage(_first_existing(cache.root)).free
    if free < _BUILD_BYTES:
        return f"the build needs {_BUILD_BYTES // 1024**3} GiB of disk in {cache.root} and {free / 1024**3:.1f} GiB are free"
    return ""


def _first_existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _why_no_node() -> str:
    if os.geteuid() != 0:
        return "nodes need root"
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if lacking:
        return f"root lacks {', '.join(lacking)}"
    mounts = cgroup_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    absent = [name for name in _CONTROLLERS if name not in mounts]
    if absent:
        return f"Kubernetes 1.20 needs cgroup v1 and these controllers are not mounted: {', '.join(absent)}"
    read_only = sorted({str(mounts[name]) for name in _CONTROLLERS if not os.access(mounts[name], os.W_OK)})
    if read_only:
        return f"these cgroup folders cannot be written: {', '.join(read_only)}"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text(encoding="ascii"):
        return "the kernel has no overlay file system"
    if sys.executable.startswith("/run/"):
        return "Python lies below /run, which a node does not see"
    return _failing_trial()


def _failing_trial() -> str:
    inside = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
    script = "\n".join(f"{command} >/dev/null 2>&1 || {{ echo '{name}'; exit 0; }}" for name, command in _TRIALS)
    try:
        said = run([*inside, "/bin/sh", "-c", script], timeout=30).strip()
    except BedError:
        return "new namespaces are not allowed"
    return f"the kernel does not give {said}" if said else ""
