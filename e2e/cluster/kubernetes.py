"""Build the Kubernetes servers from Debian's source, with Debian's Go.

Dangers met. The source is from the time of Go 1.15, and two packages it carries break under Go 1.19. reflect2 1.0.1 corrupts memory (the API
server dies on the first custom resource), so Debian's 1.0.2 takes its place. kube-openapi's validation takes an empty string for null, because it
compares the insides of two reflect.Value, so every "" in a custom resource or a default would be refused. The OpenAPI code is not in the
source, so the build must generate it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from e2e.cluster import debian, served
from e2e.cluster.cache import key_of
from e2e.cluster.command import run

SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
NAME = "kubernetes"
_GO = ("golang-1.19-go", "golang-1.19-src")
_REFLECT2 = "golang-github-modern-go-reflect2-dev"
TOOLS = {"make": "make", "rsync": "rsync", "dpkg-source": "dpkg-dev"}
_BUILD_TIMEOUT_S = 40 * 60.0
_PAUSE = Path(__file__).with_name("pause.go")


def key() -> str:
    return key_of(debian.BED_SUITE, Path(__file__), Path(served.__file__), _PAUSE)


def make(target: Path, work: Path) -> None:
    """Fill `target` with the five servers, `pause` and a list of the packages they came from."""
    debian.need_tools(TOOLS)
    packages = debian.Debian(work / "apt")
    root, source = work / "root", work / "source"
    made_from = packages.unpack([*_GO, _REFLECT2], root)
    made_from.append(packages.source("kubernetes", source))
    _mend_for_this_go(source, root / "usr/share/gocode/src")
    served.serve_newer_versions(source)
    env = _go_environment(root, source, work)
    log = work / "build.log"
    what = " ".join(f"cmd/{server}" for server in SERVERS)
    run(["nice", "-n", "10", "make", f"WHAT={what}"], timeout=_BUILD_TIMEOUT_S, cwd=source, env=env, log=log)
    for server in SERVERS:
        shutil.copy2((source / "_output/bin" / server).resolve(), target / server)
    flags = ["-trimpath", "-ldflags", "-s -w"]
    run(["nice", "-n", "10", "go", "build", *flags, "-o", target / "pause", _PAUSE], timeout=300, env={**env, "GO111MODULE": "off"}, log=log)
    (target / "made-from.txt").write_text("\n".join(made_from) + "\n", encoding="utf-8")


def _mend_for_this_go(source: Path, go_packages: Path) -> None:
    reflect2 = "github.com/modern-go/reflect2"
    for old in (source / "vendor" / reflect2).glob("*.go"):
        old.unlink()
    for new in (go_packages / reflect2).glob("*.go"):
        shutil.copy(new, source / "vendor" / reflect2)
    # only the first half ever held for JSON values before Go 1.17; the second is true for "" since
    served.edit_once(
        source,
        "vendor/k8s.io/kube-openapi/pkg/validation/validate/type.go",
        "if data == nil || reflect.DeepEqual(reflect.Zero(reflect.TypeOf(data)), reflect.ValueOf(data)) {",
        "if data == nil {",
    )


def _go_environment(root: Path, source: Path, work: Path) -> dict[str, str]:
    """An environment of its own: the user's Go settings and caches play no part and are not touched."""
    workspace, home = source / ".go", work / "home"
    (workspace / "src/k8s.io").mkdir(parents=True)
    (workspace / "src/k8s.io/kubernetes").symlink_to(Path("../../.."))
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "KUBE", "CGO_"))}
    return {
        **kept,
        "PATH": f"{root}/usr/lib/go-1.19/bin:{kept.get('PATH', '')}:/usr/sbin:/sbin",
        "GOROOT": f"{root}/usr/lib/go-1.19",
        "GOPATH": str(workspace),
        "HOME": str(home),
        "CGO_ENABLED": "0",
        "GOFLAGS": "",
        "GOTOOLCHAIN": "local",
    }
