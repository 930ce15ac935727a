"""Start the long-running parts of a cluster.

A part waits at its start line until its pid is in the journal; if this process is killed before that, the part sees its input close and
ends. So there is no moment in which something runs that the journal does not know.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from e2e.cluster.command import tail
from e2e.cluster.errors import BedError
from e2e.cluster.journal import Journal, identity

_POLL_S = 0.05
_FORK_WAIT_S = 10.0
_AT_THE_LINE = 'read -r go && exec "$@" </dev/null'
# below the range from which the kernel takes ports for outgoing connections, and below the node ports of Kubernetes
_PORTS = range(21000, 29000)


class Starter:
    """Starts parts and waits for them; their output goes to log/NAME.log in the run folder."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._run = journal.run
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> Path:
        return self._run / "log" / f"{name}.log"

    def start(self, name: str, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, inside: int | None = None) -> int:
        """The pid of the part. `inside` is a process whose mount, network and pid namespaces the part joins."""
        enter = [] if inside is None else ["nsenter", "-t", str(inside), "-m", "-n", "-p", "--"]
        words = [*enter, "/bin/sh", "-c", _AT_THE_LINE, "sh", *map(str, argv)]
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as sink:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=sink, stderr=sink, env=env, start_new_session=True)
        self._started[name] = process
        self.journal.add_process(f"{name}:door" if inside else name, process.pid)
        pid = process.pid
        if inside is not None:  # nsenter forks, because only a child can be in another pid namespace
            pid = self._child_of(name, process)
            self.journal.add_process(name, pid)
        assert process.stdin is not None
        try:
            process.stdin.write(b"go\n")
            process.stdin.close()
        except BrokenPipeError:
            raise self._died(name) from None
        return pid

    def wait(self, name: str, seconds: float, probe: Callable[[], bool], what: str) -> None:
        """Until `probe` is true. BedError when the part has died, or is not there in time."""
        deadline = time.monotonic() + seconds
        while not probe():
            process = self._started.get(name)
            if process is not None and process.poll() is not None:
                raise self._died(name)
            if time.monotonic() > deadline:
                raise BedError(f"{what}: not seen within {seconds:.0f} s{tail(self.log(name))}")
            time.sleep(_POLL_S)

    def reap(self) -> None:
        """For a caller that lives on after `down`: wait for the parts that were ended, so that no dead ones stay in the process table."""
        for process in self._started.values():
            process.wait(timeout=_FORK_WAIT_S)
        self._started.clear()

    def _child_of(self, name: str, process: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + _FORK_WAIT_S
        while time.monotonic() < deadline and process.poll() is None:
            for child in children(process.pid):
                return child
            time.sleep(_POLL_S / 10)
        raise self._died(name)

    def _died(self, name: str) -> BedError:
        return BedError(f"{name} has ended; its last words:{tail(self.log(name)) or ' none'}")


def children(pid: int) -> list[int]:
    """The direct children of a process that still run."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(pid) and identity(int(path.name)) is not None:
            found.append(int(path.name))
    return sorted(found)


def free_ports(address: str, count: int, after: int) -> list[int]:
    """Ports of `address` that nobody listens on, looked for from `after` on, so that two clusters can look in different places."""
    found: list[int] = []
    for step in range(1, len(_PORTS) + 1):
        port = _PORTS[(after - _PORTS.start + step) % len(_PORTS)]
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise BedError(f"no {count} free ports are left on {address}")
