"""containerd, runc, the CNI plugins and busybox from Debian bookworm, unpacked into the cache and not installed.

Kubernetes 1.20 speaks CRI v1alpha2, which containerd 2 no longer has, so the suite matters and the machine's own containerd does not do.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.cluster import debian
from e2e.cluster.cache import key_of

NAME = "runtime"
_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "busybox-static")
_PROGRAMS = ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/sbin/runc", "bin/busybox")

HOST_TOOLS = {"iptables": "iptables", "conntrack": "conntrack", "socat": "socat", "ip": "iproute2", "nsenter": "util-linux"}
"""Program to package: what the kubelet and kube-proxy call. Ordinary tools, installed if they are missing."""


def key() -> str:
    return key_of(debian.BED_SUITE, *_PACKAGES, *_PROGRAMS)


def make(target: Path, work: Path) -> None:
    """Fill `target` with bin/ (programs) and cni/ (plugins)."""
    root = work / "root"
    made_from = debian.Debian(work / "apt").unpack(_PACKAGES, root)
    (target / "bin").mkdir()
    for program in _PROGRAMS:
        shutil.copy2(root / program, target / "bin" / Path(program).name)
    shutil.copytree(root / "usr/lib/cni", target / "cni", symlinks=True)
    (target / "made-from.txt").write_text("\n".join(made_from) + "\n", encoding="utf-8")
