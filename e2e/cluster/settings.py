"""Where the test bed lives and which names and addresses it uses.

| variable | meaning | default |
| --- | --- | --- |
| KVCM_E2E_CACHE | what is slow to make | `$XDG_CACHE_HOME/kvcm-e2e`, else `~/.cache/kvcm-e2e` |
| KVCM_E2E_RUN | what one running cluster writes | `kvcm-e2e-UID` in the temporary folder |
| KVCM_E2E_LEVEL | the highest level to use: control or node | what the machine can do |
| KVCM_E2E_NODES | kubelets at the node level, 1 to 9 | 2 |
| KVCM_E2E_KUBECONFIG | a cluster that runs already; nothing is built or started | |
| KUBEBUILDER_ASSETS | a folder with kube-apiserver and etcd, for the control level | |
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import BedError

LEVELS = ("none", "control", "node")
"""In rising order: nothing; an API server with its controllers; nodes that run pods."""

LINK = "kvcme2e0"
"""The host's end of the only link that the node level adds to the machine."""
HOST_IP = "10.245.1.1"
BED_IP = "10.245.1.2"
DNS_IP = "10.245.0.2"
NODE_NET = "10.245.0.0/24"
POD_NET = "10.244.0.0/24"
SERVICE_NET = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
CLUSTER_DOMAIN = "cluster.local"

_MAX_NODES = 9


@dataclass(frozen=True, slots=True)
class Settings:
    cache: Path
    run: Path
    nodes: int
    level: str
    kubeconfig: Path | None
    assets: Path | None


def node_ip(number: int) -> str:
    """The address of node 1, 2, ... inside the bed."""
    return f"10.245.0.{10 + number}"


def node_name(number: int) -> str:
    return f"node{number}"


def from_environment(env: Mapping[str, str] | None = None) -> Settings:
    """BedError if a variable has a value that means nothing."""
    found = os.environ if env is None else env
    base = Path(found["XDG_CACHE_HOME"]) if found.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    level = found.get("KVCM_E2E_LEVEL") or "node"
    if level not in LEVELS:
        raise BedError(f"KVCM_E2E_LEVEL is {level!r}; it must be one of {', '.join(LEVELS)}")
    run = found.get("KVCM_E2E_RUN")
    return Settings(
        cache=Path(found.get("KVCM_E2E_CACHE") or base / "kvcm-e2e").absolute(),
        run=Path(run).absolute() if run else Path(tempfile.gettempdir()).absolute() / f"kvcm-e2e-{os.getuid()}",
        nodes=nodes_of(found.get("KVCM_E2E_NODES") or "2"),
        level=level,
        kubeconfig=Path(found["KVCM_E2E_KUBECONFIG"]).absolute() if found.get("KVCM_E2E_KUBECONFIG") else None,
        assets=Path(found["KUBEBUILDER_ASSETS"]).absolute() if found.get("KUBEBUILDER_ASSETS") else None,
    )


def nodes_of(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_NODES:
        raise BedError(f"the number of nodes is {text!r}; it must be from 1 to {_MAX_NODES}")
    return int(text)
