"""Lease, epoch and node information in a folder: the blocking part of the `file://` coordinator. Runs in pool threads.

    kvcm_leader.lock     never written; every change is made under flock() of it, so a process that is killed leaves nothing behind
    kvcm_leader.lease    one line of JSON: who holds the lease, since when, on which clock; written in place, not fsynced
    kvcm_leader.epoch    the last epoch that was given out; durable before the lease that has it is written
    kvcm_node_<hash>, kvcm_shared_<name>     replaced as a whole

Time is CLOCK_BOOTTIME, which all processes of one boot share and nobody can set; the record names the clock by the kernel's boot id and the time namespace.
A lease on another clock (before a reboot; another machine over NFS) cannot be compared: it counts until this process has seen it unchanged for as long as it
was given. The same goes for a record that cannot be read or that does not belong to the last epoch, so that nothing is ever free by mistake.

Dangers:
- a process that is stopped inside the few microseconds that it holds the lock: nobody can be elected, or renew, until it goes on or is killed. The error
  names it. Nobody leads twice;
- a folder that is deleted while managers run: the lease is gone with it, and the leader hears of it at its next renewal;
- NFS: as good as the server's locks. With `nolock` or `local_lock=all`, machines do not see each other's locks and several nodes lead.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcm.common.clock import Clock
from kvcm.common.errors import StorageError
from kvcm.coordination.port import MAX_NODES, NODE_INFO_TTL_MS, Leader, NodeInfo

LOCK_WAIT_S = 2.0
_LOCK_POLL_S = 0.002
_MAX_RECORD_BYTES = 512 << 10
_MAX_RECORD_US = 1 << 62


def this_clock() -> str:
    """Names the clock that `CLOCK_BOOTTIME` is on. Empty where the system does not tell: then no process trusts another's times."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class _Lease:
    """`node_id` empty: given back."""

    node_id: str
    epoch: int
    lease_us: int
    since_us: int
    clock: str

    def line(self) -> bytes:
        fields = {"node_id": self.node_id, "epoch": self.epoch, "lease_us": self.lease_us, "since_us": self.since_us, "clock": self.clock}
        return json.dumps(fields).encode() + b"\n"


class LeaseFolder:
    """One node's view. Not thread-safe: the caller runs one method at a time. All raise StorageError."""

    def __init__(self, folder: Path, clock: Clock, epoch_floor: int, clock_id: str) -> None:
        self._folder = folder
        self._clock = clock
        self._clock_id = clock_id
        self._floor = epoch_floor
        # File name -> (content, when this process first saw it), for what is on another clock.
        self._seen: dict[str, tuple[bytes, int]] = {}

    def campaign(self, node_id: str, lease_us: int) -> int | None:
        with self._locked():
            holder = self._holder(lease_us)
            if holder is not None and holder.node_id != node_id:
                return None
            epoch = max(self._last_epoch(), self._floor) + 1
            self._replace("kvcm_leader.epoch", b"%d\n" % epoch, durable=True)
            self._floor = epoch
            # After the fsync, which may have taken long.
            self._write_lease(_Lease(node_id, epoch, lease_us, self._clock.monotonic_us(), self._clock_id))
            return epoch

    def keep_alive(self, node_id: str, epoch: int, lease_us: int) -> bool:
        with self._locked():
            if not self._holds(node_id, epoch):
                return False
            self._write_lease(_Lease(node_id, epoch, lease_us, self._clock.monotonic_us(), self._clock_id))
            return True

    def resign(self, node_id: str, epoch: int) -> None:
        with self._locked():
            if self._holds(node_id, epoch):
                self._write_lease(_Lease("", epoch, 0, 0, self._clock_id))

    def observe(self) -> Leader | None:
        """None also while a lease runs out whose holder cannot be read."""
        with self._locked(fcntl.LOCK_SH):
            holder = self._holder(0)
        if holder is None or not holder.node_id:
            return None
        self._floor = max(self._floor, holder.epoch)
        return Leader(holder.node_id, holder.epoch)

    def put_node(self, node_id: str, info: str) -> None:
        name = _node_file(node_id)
        with self._locked():
            nodes = self._nodes(forget=True)
            if name not in nodes and len(nodes) >= MAX_NODES:
                raise StorageError(f"At most {MAX_NODES} nodes can be known.")
            record = {"node_id": node_id, "info": info, "since_us": self._clock.monotonic_us(), "clock": self._clock_id}
            self._replace(name, json.dumps(record).encode())

    def list_nodes(self) -> tuple[NodeInfo, ...]:
        with self._locked(fcntl.LOCK_SH):
            found = self._nodes(forget=False).values()
        return tuple(sorted(found, key=lambda node: node.node_id))

    def get_node(self, node_id: str) -> str | None:
        name = _node_file(node_id)
        with self._locked(fcntl.LOCK_SH):
            found = self._node(name)
        return found.info if found is not None else None

    def remove_node(self, node_id: str) -> None:
        with self._locked():
            self._remove(_node_file(node_id))

    def put_shared(self, node_id: str, epoch: int, name: str, text: str) -> bool:
        with self._locked():
            if not self._holds(node_id, epoch):
                return False
            self._replace(f"kvcm_shared_{name}", text.encode(), durable=True)
            return True

    def get_shared(self, name: str) -> str | None:
        found = self._read(f"kvcm_shared_{name}")
        return found.decode(errors="replace") if found is not None else None

    # Under the lock.

    def _holds(self, node_id: str, epoch: int) -> bool:
        holder = self._holder(0)
        return holder is not None and (holder.node_id, holder.epoch) == (node_id, epoch)

    def _holder(self, default_us: int) -> _Lease | None:
        """Who holds an unexpired lease. One without a name: somebody may, and `default_us` is how long that is believed."""
        name = "kvcm_leader.lease"
        raw = self._read(name)
        if raw is None:
            return None
        raw = raw.partition(b"\n")[0]
        lease = _read_lease(raw)
        if lease is None or lease.epoch != self._last_epoch():
            unknown = _Lease("", 0, max(default_us, lease.lease_us if lease is not None else 0), 0, "")
            return unknown if self._unchanged_us(name, raw) < unknown.lease_us else None
        if not lease.node_id:
            return None
        now = self._clock.monotonic_us()
        if self._clock_id and lease.clock == self._clock_id and lease.since_us <= now:
            self._seen.pop(name, None)
            return lease if now < lease.since_us + lease.lease_us else None
        return lease if self._unchanged_us(name, raw) < lease.lease_us else None

    def _unchanged_us(self, name: str, raw: bytes) -> int:
        """How long this process has seen a file as it is now."""
        now = self._clock.monotonic_us()
        known = self._seen.get(name)
        if known is None or known[0] != raw:
            known = self._seen[name] = (raw, now)
        return now - known[1]

    def _last_epoch(self) -> int:
        raw = self._read("kvcm_leader.epoch")
        if raw is None:
            return 0
        text = raw.strip()
        if not text.isdigit() or len(text) > 18:
            raise StorageError("The file kvcm_leader.epoch in the coordination folder is damaged. Stop all managers before you remove it.")
        return int(text)

    def _write_lease(self, lease: _Lease) -> None:
        # In place and in one call of less than a page: a killed process leaves the old line or the new one, and what is behind the line break is not read.
        with self._opened("kvcm_leader.lease", os.O_WRONLY | os.O_CREAT) as fd:
            line = lease.line()
            if os.pwrite(fd, line, 0) != len(line):
                raise StorageError("The lease could not be written to the coordination folder.")

    def _nodes(self, forget: bool) -> dict[str, NodeInfo]:
        names = sorted(entry.name for entry in os.scandir(self._folder) if entry.name.startswith("kvcm_node_"))
        found: dict[str, NodeInfo] = {}
        for name in names:
            node = self._node(name)
            if node is not None and len(found) < MAX_NODES:
                found[name] = node
            elif node is None and forget:
                self._remove(name)
        for gone in {name for name in self._seen if name.startswith("kvcm_node_")}.difference(names):
            del self._seen[gone]
        return found

    def _node(self, name: str) -> NodeInfo | None:
        raw = self._read(name)
        if raw is None:
            return None
        try:
            record: dict[str, Any] = json.loads(raw)
            node_id, info, since_us, clock = record["node_id"], record["info"], record["since_us"], record["clock"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if not isinstance(node_id, str) or not isinstance(info, str) or type(since_us) is not int:
            return None
        now = self._clock.monotonic_us()
        same = bool(self._clock_id) and clock == self._clock_id and since_us <= now
        age_us = now - since_us if same else self._unchanged_us(name, raw)
        return NodeInfo(node_id, info) if age_us < NODE_INFO_TTL_MS * 1000 else None

    # Files.

    @contextmanager
    def _locked(self, how: int = fcntl.LOCK_EX) -> Iterator[None]:
        with self._telling(), self._opened("kvcm_leader.lock", os.O_RDWR | os.O_CREAT) as fd:
            for _ in range(int(LOCK_WAIT_S / _LOCK_POLL_S)):
                try:
                    fcntl.flock(fd, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_POLL_S)
            else:
                holder = _flock_holder(os.fstat(fd).st_ino)
                raise StorageError(f"The coordination folder is locked by {holder} for longer than {LOCK_WAIT_S:g} s. If it is stopped, continue or kill it.")
            yield

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"The coordination folder cannot be used: {error.strerror or type(error).__name__}.") from error

    @contextmanager
    def _opened(self, name: str, flags: int) -> Iterator[int]:
        fd = os.open(self._folder / name, flags | os.O_CLOEXEC, 0o644)
        try:
            yield fd
        finally:
            os.close(fd)

    def _read(self, name: str) -> bytes | None:
        try:
            with self._telling(), self._opened(name, os.O_RDONLY) as fd:
                return os.read(fd, _MAX_RECORD_BYTES)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _replace(self, name: str, data: bytes, durable: bool = False) -> None:
        # One name for all: whoever writes has the lock, and what a killed process left there is overwritten.
        temporary = self._folder / "kvcm_leader.new"
        with self._opened(temporary.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            if os.write(fd, data) != len(data):
                raise StorageError("The coordination folder has no room left.")
            if durable:
                os.fsync(fd)
        os.replace(temporary, self._folder / name)
        if durable:
            with self._opened(".", os.O_RDONLY | os.O_DIRECTORY) as fd:
                os.fsync(fd)

    def _remove(self, name: str) -> None:
        self._seen.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            (self._folder / name).unlink()


def _read_lease(raw: bytes) -> _Lease | None:
    try:
        fields: dict[str, Any] = json.loads(raw)
        node_id, clock = fields["node_id"], fields["clock"]
        numbers = [fields[name] for name in ("epoch", "lease_us", "since_us")]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(node_id, str) or not isinstance(clock, str) or not all(type(number) is int and 0 <= number < _MAX_RECORD_US for number in numbers):
        return None
    epoch, lease_us, since_us = numbers
    return _Lease(node_id, epoch, lease_us, since_us, clock)


def _node_file(node_id: str) -> str:
    """A node id may have any characters, and more of them than a file name."""
    return f"kvcm_node_{hashlib.sha256(node_id.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _flock_holder(inode: int) -> str:
    try:
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if "->" not in fields and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                return f"process {fields[4]}"
    except (OSError, ValueError, IndexError):
        pass
    return "another process"
