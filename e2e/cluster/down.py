"""Undo what the journal says: end processes by pid, then remove links, cgroups, folders and files.

It may run at any time and any number of times: after a finished `up`, after one that was killed half-way, or with nothing there. State of a
cluster is worth nothing, so processes get no time to say good-bye. Danger: nothing is removed by a name that only looks like ours;
what is not in the journal stays.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import BedError
from e2e.cluster.journal import STATE, Identity, Journal
from e2e.cluster.settings import LINK

_WAIT_S = 30.0
_MAKER_WAIT_S = 90.0
_POLL_S = 0.05
_KEPT = ("log",)


def down(folder: Path, *, purge: bool) -> list[str]:
    """What was still there and has gone. Logs stay for a look unless `purge`. BedError names what could not be undone; run it again then."""
    if not folder.is_dir():
        return []
    journal = Journal(folder)
    gone: list[str] = []
    left: list[str] = []
    _end_maker(journal, gone)
    _end_processes(journal, gone, left)
    for name in _names(journal, "link"):
        _undo(f"link {name}", partial(_link_exists, name, folder), partial(_remove_link, name), gone, left)
    for path in map(Path, _names(journal, "cgroup")):
        _undo(f"cgroup {path}", path.is_dir, partial(_remove_cgroup, path), gone, left)
    folders = [] if _others_nodes() else [Path(name) for name in reversed(_names(journal, "folder"))]
    for path in folders:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
            gone.append(f"folder {path}")
    if left:
        raise BedError(f"could not be undone yet, run it again: {', '.join(left)} (the record stays in {journal.path})")
    _remove_files(folder, purge=purge)
    return gone


def _names(journal: Journal, kind: str) -> list[str]:
    return list(dict.fromkeys(entry["name"] for entry in journal.entries(kind)))


def _end_maker(journal: Journal, gone: list[str]) -> None:
    """An `up` that is still at work would start more while we end things. Asked to stop, it undoes its own work; it gets time for that."""
    makers = [Identity(entry["pid"], entry["start"], entry["boot"]) for entry in journal.entries("maker")]
    for maker in makers[-1:]:
        if maker.pid == os.getpid() or (journal.run / STATE).exists():
            continue
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _MAKER_WAIT_S
            if maker.alive():
                _kill(maker.pid, number)
                gone.append("starter (an `up` that was at work)")
            while maker.alive() and time.monotonic() < deadline:
                time.sleep(_POLL_S)


def _end_processes(journal: Journal, gone: list[str], left: list[str]) -> None:
    running = [(name, process) for name, process in journal.processes() if process.alive()]
    for _, process in reversed(running):
        if process.alive():  # asked again just before the signal, so that a number given to another process meanwhile is spared
            _kill(process.pid)
    deadline = time.monotonic() + _WAIT_S
    while any(process.alive() for _, process in running) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for name, process in running:
        (left if process.alive() else gone).append(f"process {name}")


def _kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _undo(what: str, present: Callable[[], bool], remove: Callable[[], None], gone: list[str], left: list[str]) -> None:
    """Remove it, and again while the kernel still holds it: it frees namespaces and cgroups some time after their last process."""
    if not present():
        return
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        remove()
        if not present():
            gone.append(what)
            return
        time.sleep(_POLL_S)
    left.append(what)


def _link_exists(name: str, folder: Path) -> bool:
    place = Path("/sys/class/net") / name
    if name != LINK or not place.exists():
        return False
    try:
        alias = (place / "ifalias").read_text(encoding="utf-8").strip()
    except OSError:
        return False
    return alias in ("", str(folder))  # without a name it was not yet finished; with another one it belongs to another cluster


def _others_nodes() -> bool:
    """Do the nodes of another cluster run here? They mount over these folders, and a mount ends in every namespace with the folder below it."""
    return (Path("/sys/class/net") / LINK).exists()


def _remove_link(name: str) -> None:
    try:
        run(["ip", "link", "del", name], timeout=30)
    except BedError:
        pass  # it goes with its namespace at the same time; whether it is gone is asked next


def _remove_cgroup(path: Path) -> None:
    for processes in path.rglob("cgroup.procs"):
        try:
            for pid in processes.read_text(encoding="ascii").split():
                _kill(int(pid))
        except OSError:
            continue
    for folder in sorted((found for found in path.rglob("*") if found.is_dir()), reverse=True):
        _try_rmdir(folder)
    _try_rmdir(path)


def _try_rmdir(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass


def _remove_files(folder: Path, *, purge: bool) -> None:
    """The journal goes last: as long as anything is left, the record of it is left too."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    below = [place for place in mounted if place.startswith(f"{folder}/")]
    if below:
        raise BedError(f"something is mounted in {folder}, so nothing in it is deleted: {', '.join(below)}")
    kept = () if purge else _KEPT
    paths = sorted(folder.iterdir(), key=lambda path: path.name == "journal.jsonl")
    for path in paths:
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
