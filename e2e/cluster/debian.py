"""Debian packages, from the mirror that this machine is set up with.

A private apt view (its own lists, its own sources) names one suite only: the machine's sources stay as they are, and other suites in them
cannot slip in a containerd that Kubernetes 1.20 does not talk to. What the bed runs is unpacked into the cache and never installed, so
no service starts and no package of the machine is replaced; only ordinary tools are installed, and only when they are missing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import BedError

BED_SUITE = "bookworm"
UNSTABLE = "sid"
"""Debian's newest: it moves from day to day, and has no security archive beside it."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_APT_TIMEOUT_S = 600.0
_UNPACK_TIMEOUT_S = 300.0


def mirror() -> str | None:
    """Where this machine gets Debian from, or None if apt knows no Debian source."""
    if not shutil.which("apt-get"):
        return None
    listed = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], timeout=60)
    for line in listed.splitlines():
        address = line.strip().rstrip("/")
        if address.endswith("/debian"):
            return address
    return None


def host_suite() -> str:
    """The code name of the Debian that runs here; "" on anything else."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return fields.get("VERSION_CODENAME", "").strip('"') if fields.get("ID") == "debian" else ""


class Debian:
    """One suite of Debian, seen through `folder`, which holds the lists and the downloads."""

    def __init__(self, folder: Path, suite: str = BED_SUITE) -> None:
        address = mirror()
        if address is None or not KEYRING.is_file():
            raise BedError("this machine's apt knows no Debian source (with its keyring), and the test bed is made of Debian packages")
        self._folder = folder
        for name in ("lists/partial", "parts", "cache/archives/partial", "debs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        trust = f"[signed-by={KEYRING}]"
        archives = [(address, suite)] if suite == UNSTABLE else [(address, suite), (f"{address}-security", f"{suite}-security")]
        places = [f"{kind} {trust} {place} {name} main" for place, name in archives for kind in ("deb", "deb-src")]
        (folder / "sources.list").write_text("\n".join(places) + "\n", encoding="utf-8")
        self._apt: list[str] = ["apt-get"]
        for option in (
            f"Dir::Etc::SourceList={folder}/sources.list",
            f"Dir::Etc::SourceParts={folder}/parts",
            f"Dir::State::Lists={folder}/lists",
            f"Dir::Cache={folder}/cache",
            "APT::Sandbox::User=root",
            "Acquire::Retries=3",
        ):
            self._apt += ["-o", option]
        run([*self._apt, "update", "-qq"], timeout=_APT_TIMEOUT_S)

    def fetch(self, packages: Sequence[str]) -> list[Path]:
        """The .deb files of these packages (without what they depend on)."""
        debs = self._folder / "debs"
        run([*self._apt, "download", "-qq", *packages], timeout=_APT_TIMEOUT_S, cwd=debs)
        found: list[Path] = []
        for package in packages:
            match = sorted(debs.glob(f"{package}_*.deb"))
            if not match:
                raise BedError(f"apt said it has fetched {package}, but there is no such file")
            found.append(match[-1])
        return found

    def closure(self, package: str) -> list[str]:
        """The names of this package and all it depends on, as if nothing were installed on this machine. Nothing is installed now either."""
        nothing = self._folder / "nothing-installed"
        nothing.touch()
        said = run([*self._apt, "-o", f"Dir::State::Status={nothing}", "install", "-s", "--no-install-recommends", package], timeout=_APT_TIMEOUT_S)
        return [line.split()[1] for line in said.splitlines() if line.startswith("Inst ")]

    def unpack(self, packages: Sequence[str], into: Path) -> list[str]:
        """Lay the files of these packages under `into`; returns the names of the package files, which carry the versions."""
        debs = self.fetch(packages)
        for deb in debs:
            run(["dpkg-deb", "-x", deb, into], timeout=_UNPACK_TIMEOUT_S)
        return [deb.name for deb in debs]

    def source(self, package: str, into: Path) -> str:
        """Unpack the source of a package, Debian's patches applied, as `into`; returns the name of its description file."""
        folder = self._folder / "debs"
        run([*self._apt, "source", "--download-only", "-qq", package], timeout=_APT_TIMEOUT_S, cwd=folder)
        description = sorted(folder.glob(f"{package}_*.dsc"))[-1]
        # apt has checked the signatures of the lists and the sums of the files; dpkg-source would ask for the maintainer's key
        run(["dpkg-source", "--no-check", "-x", description.name, into], timeout=_UNPACK_TIMEOUT_S, cwd=folder)
        return description.name

    def install(self, packages: Sequence[str]) -> None:
        """Install ordinary tools on the machine. No recommended packages; a service of theirs is not started."""
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        run([*self._apt, "install", "-y", "-qq", "--no-install-recommends", *packages], timeout=_APT_TIMEOUT_S, env=env)


def need_tools(tools: dict[str, str]) -> None:
    """Make sure these programs are here; `tools` maps a program to its package. BedError if one is missing and cannot be installed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = {package for program, package in tools.items() if not shutil.which(program, path=path)}
    if not missing:
        return
    names = ", ".join(sorted(missing))
    if os.geteuid() != 0:
        raise BedError(f"these packages are missing and only root can install them: {names}")
    with tempfile.TemporaryDirectory(prefix="kvcm-e2e-apt-") as folder:
        Debian(Path(folder), host_suite() or BED_SUITE).install(sorted(missing))
