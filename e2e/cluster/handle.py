"""A cluster that runs, as tests and tools see it: where it is, what it can do, and kubectl and helm on it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.errors import BedError
from e2e.cluster.journal import STATE, Identity, Journal, identity
from e2e.cluster.nodes import image_import, image_tag
from e2e.cluster.oci import full_name

_CEL_SINCE = (1, 25)


@dataclass(frozen=True, slots=True)
class Cluster:
    """`kubeconfig` is the admin's. `version` is as in (1, 20). `run` is None for a cluster that is not ours."""

    level: str
    kubeconfig: Path
    version: tuple[int, int]
    kubectl_path: Path
    helm_path: Path
    controllers: bool
    """False where only an API server runs: no garbage collection, and deleted namespaces stay."""
    nodes: int = 0
    run: Path | None = None
    ctr: Path | None = None
    owner: Identity | None = None
    """The process for whose life the cluster was started; None if it stays until it is taken down."""

    @property
    def cel(self) -> bool:
        """Does the server understand the rules in the CRDs (x-kubernetes-validations)?"""
        return self.version >= _CEL_SINCE

    def environment(self) -> dict[str, str]:
        """For programs that talk to this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": f"{self.kubectl_path.parent}:{os.environ.get('PATH', '')}"}

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60.0, check: bool = True) -> str:
        """Its standard output. BedError with its words if it fails (unless not `check`) or is not done after `timeout` seconds."""
        return self._call(self.kubectl_path, args, input, timeout, check=check)

    def helm(self, *args: str, timeout: float = 120.0, check: bool = True) -> str:
        """As kubectl."""
        return self._call(self.helm_path, args, None, timeout, check=check)

    def load_image(self, archive: Path) -> None:
        """Give an OCI archive (see oci.py) to every node. BedError if this cluster has no nodes of ours."""
        if self.run is None or self.ctr is None or self.nodes == 0:
            raise BedError("an image can be loaded only into nodes that the test bed started itself")
        for number in range(1, self.nodes + 1):
            image_import(Journal(self.run), number, archive, self.ctr)

    def tag_image(self, name: str, other: str) -> None:
        """Give an image that every node has a second name, as a new release of the same content. BedError as for load_image."""
        if self.run is None or self.ctr is None or self.nodes == 0:
            raise BedError("an image can be named only on nodes that the test bed started itself")
        for number in range(1, self.nodes + 1):
            image_tag(Journal(self.run), number, full_name(name), full_name(other), self.ctr)

    def pid_of(self, part: str) -> int:
        """The process of a part, such as kubelet1 or kube-apiserver: for tests that stop one."""
        if self.run is None:
            raise BedError("this cluster was not started by the test bed, so its processes are not known")
        return Journal(self.run).pid_of(part)

    def _call(self, program: Path, args: tuple[str, ...], stdin: str | None, timeout: float, *, check: bool) -> str:
        said = f"{program.name} {' '.join(args)}"
        try:
            done = subprocess.run([str(program), *args], input=stdin, capture_output=True, text=True, timeout=timeout, env=self.environment(), check=False)
        except subprocess.TimeoutExpired as error:
            raise BedError(f"`{said}` was not done after {timeout:.0f} s") from error
        if check and done.returncode != 0:
            raise BedError(f"`{said}` failed with exit code {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def save(self) -> None:
        """Mark the cluster in its run folder as complete. The file appears at once."""
        assert self.run is not None
        facts = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        partial = self.run / f"{STATE}.partial"
        partial.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        partial.replace(self.run / STATE)


def running(run: Path) -> Cluster | None:
    """The complete cluster of this run folder, or None if it is not there, not complete, or no longer alive."""
    try:
        facts = json.loads((run / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    owner = facts["owner"]
    cluster = Cluster(
        level=facts["level"],
        kubeconfig=Path(facts["kubeconfig"]),
        version=(facts["version"][0], facts["version"][1]),
        kubectl_path=Path(facts["kubectl_path"]),
        helm_path=Path(facts["helm_path"]),
        controllers=facts["controllers"],
        nodes=facts["nodes"],
        run=run,
        ctr=Path(facts["ctr"]) if facts["ctr"] else None,
        owner=Identity(owner["pid"], owner["start"], owner["boot"]) if owner else None,
    )
    newest = dict(Journal(run).processes())
    return cluster if all(process.alive() for process in newest.values()) else None


def busy(run: Path) -> str:
    """Why no other cluster may start in this run folder, as a sentence; "" if one may (what is left there is then to be taken down first)."""
    journal = Journal(run)
    if not any(process.alive() for _, process in journal.processes()):
        return ""
    cluster = running(run)
    if cluster is not None:
        if cluster.owner is None:
            return f"a test cluster (level {cluster.level}) is up already in {run}; `python -m e2e.cluster down` ends it"
        return f"a test run (pid {cluster.owner.pid}) uses a test cluster in {run}" if cluster.owner.alive() else ""
    makers = [Identity(entry["pid"], entry["start"], entry["boot"]) for entry in journal.entries("maker")]
    if makers and makers[-1].alive():
        return f"a test cluster is being started in {run} (pid {makers[-1].pid})"
    return ""


def owner_of(pid: int) -> Identity:
    """BedError if there is no such process."""
    found = identity(pid)
    if found is None:
        raise BedError(f"no process has the pid {pid}, so no cluster can be tied to its life")
    return found
