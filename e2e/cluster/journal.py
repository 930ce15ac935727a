"""What a cluster has started and made on this machine, written down before it happens, so that it can always be undone.

The run folder holds one journal of JSON lines. A process is named by its pid, its start time and the boot of the machine: a number that the
kernel has given to someone else since is never mistaken for ours. Danger: the last line can be torn if the writer was killed; then what
it names had not begun, because the line comes first.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.errors import BedError

STATE = "cluster.json"
"""The file in the run folder that says that the cluster is complete."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for all time."""

    pid: int
    start: int
    """Clock ticks after boot."""
    boot: str

    def alive(self) -> bool:
        return identity(self.pid) == self


def identity(pid: int) -> Identity | None:
    """None if there is no such process, or if only its exit code is left (nobody may ever fetch it in a container)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in {"Z", "X"}:
        return None
    return Identity(pid, int(fields[19]), _BOOT_ID.read_text(encoding="ascii").strip())


class Journal:
    """The list of things to undo. `process`, `link`, `cgroup` and `folder` are its kinds."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.path = run / "journal.jsonl"

    def add(self, kind: str, name: str, **facts: Any) -> None:
        line = json.dumps({"kind": kind, "name": name, **facts}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def add_process(self, name: str, pid: int) -> None:
        found = identity(pid)
        if found is not None:
            self.add("process", name, pid=found.pid, start=found.start, boot=found.boot)

    def entries(self, kind: str) -> list[dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        found: list[dict[str, Any]] = []
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("kind") == kind:
                found.append(entry)
        return found

    def processes(self) -> list[tuple[str, Identity]]:
        """In the order they were started, ended ones included."""
        return [(entry["name"], Identity(entry["pid"], entry["start"], entry["boot"])) for entry in self.entries("process")]

    def pid_of(self, name: str) -> int:
        """The process that was started last under this name. BedError if it does not run."""
        for found, process in reversed(self.processes()):
            if found == name and process.alive():
                return process.pid
        raise BedError(f"{name} does not run in this cluster")


def prepare_run_folder(run: Path) -> None:
    """Make it, for this user alone: it will hold the keys of the cluster. BedError if it belongs to someone else."""
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = run.lstat()
    if run.is_symlink() or found.st_uid != os.getuid():
        raise BedError(f"{run} is not a folder of this user; set KVCM_E2E_RUN to another place")
    if len(str(run)) > 60:
        raise BedError(f"{run} is too long a path for the sockets in it; set KVCM_E2E_RUN to a shorter one")
    run.chmod(0o700)
