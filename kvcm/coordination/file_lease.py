"""Lease, epoch and node information in a folder: the blocking part of the `file://` coordinator. Runs in pool threads.

    kvcm_leader.lease    one line of JSON: who holds the lease, since when, on which clock; not fsynced
    kvcm_leader.epoch    the last epoch that was given out; durable before the lease that has it is written
    kvcm_node_<hash>, kvcm_shared_<name>

Each file is replaced as a whole, and changed in a turn only (`kvcm.common.file_turn`): a change succeeds only if what its turn has read still holds,
whatever happened to the process in between. Reading needs no turn: the epoch is read before the lease, so that a lease that looks older than its epoch is the
one before a campaign that is under way, or was cut off, and holds no more.

Time is CLOCK_BOOTTIME, which all processes of one boot share and nobody can set; the record names the clock by the kernel's boot id and the time namespace.
A lease on another clock (before a reboot; another machine over NFS) cannot be compared: it counts until this process has seen it unchanged for as long as it
was given. The same goes for a record that cannot be read or that does not belong to the last epoch, so that nothing is ever free by mistake.

Dangers:
- a folder that is deleted while managers run: the lease is gone with it, and the leader hears of it at its next renewal;
- a disk that is full: the leader goes on, but nobody is elected after it until there is room.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcm.common.clock import Clock
from kvcm.common.errors import StorageError
from kvcm.common.file_turn import Turn, Turns, opened
from kvcm.coordination.port import MAX_NODES, NODE_INFO_TTL_MS, Leader, NodeInfo

LOCK_WAIT_S = 2.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
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
        self._turns = Turns(folder, "kvcm_leader", LOCK_WAIT_S)
        self._clock = clock
        self._clock_id = clock_id
        self._floor = epoch_floor
        # File name -> (content, when this process first saw it), for what is on another clock.
        self._seen: dict[str, tuple[bytes, int]] = {}

    def campaign(self, node_id: str, lease_us: int) -> int | None:
        with self._turn() as mine:
            holder = self._holder(lease_us)
            if holder is not None and holder.node_id != node_id:
                return None
            epoch = max(self._last_epoch(), self._lease_epoch(), self._floor) + 1
            _put(mine, "kvcm_leader.epoch", b"%d\n" % epoch, durable=True)
            self._floor = epoch
            # The clock is read after the fsync, which may have taken long.
            _put(mine, "kvcm_leader.lease", self._lease(node_id, epoch, lease_us))
            return epoch

    def keep_alive(self, node_id: str, epoch: int, lease_us: int) -> bool:
        return self._change(node_id, epoch, node_id, lease_us)

    def resign(self, node_id: str, epoch: int) -> None:
        self._change(node_id, epoch, "", 0)

    def observe(self) -> Leader | None:
        """None also while a lease runs out whose holder cannot be read."""
        with self._telling():
            holder = self._holder(0)
        if holder is None or not holder.node_id:
            return None
        self._floor = max(self._floor, holder.epoch)
        return Leader(holder.node_id, holder.epoch)

    def put_node(self, node_id: str, info: str) -> None:
        name = _node_file(node_id)
        with self._turn() as mine:
            nodes, unknown = self._nodes()
            if name not in nodes and len(nodes) >= MAX_NODES:
                raise StorageError(f"At most {MAX_NODES} nodes can be known.")
            for forgotten in unknown - {name}:
                self._seen.pop(forgotten, None)
                mine.remove(forgotten)
            record = {"node_id": node_id, "info": info, "since_us": self._clock.monotonic_us(), "clock": self._clock_id}
            _put(mine, name, json.dumps(record).encode())
            self._turns.sweep(self._clock.wall_us() / 1e6)

    def list_nodes(self) -> tuple[NodeInfo, ...]:
        with self._telling():
            found = self._nodes()[0].values()
        return tuple(sorted(found, key=lambda node: node.node_id))

    def get_node(self, node_id: str) -> str | None:
        with self._telling():
            found = self._node(_node_file(node_id))
        return found.info if found is not None else None

    def remove_node(self, node_id: str) -> None:
        name = _node_file(node_id)
        with self._turn() as mine:
            self._seen.pop(name, None)
            mine.remove(name)

    def put_shared(self, node_id: str, epoch: int, name: str, text: str) -> bool:
        with self._turn() as mine:
            if not self._holds(node_id, epoch):
                return False
            _put(mine, f"kvcm_shared_{name}", text.encode(), durable=True)
            return True

    def get_shared(self, name: str) -> str | None:
        with self._telling():
            found = self._read(f"kvcm_shared_{name}")
        return found.decode(errors="replace") if found is not None else None

    def _change(self, node_id: str, epoch: int, holder: str, lease_us: int) -> bool:
        """Write the lease of this term anew. False: it is not held."""
        try:
            with self._turn() as mine:
                if not self._holds(node_id, epoch):
                    return False
                _put(mine, "kvcm_leader.lease", self._lease(holder, epoch, lease_us))
                return True
        except StorageError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _FULL:
                raise
        # A disk that is full has no room for a turn, and must not cost leadership. In place, then. Done late, by a process that was stopped here and passed
        # over, this leaves a record that is older than the epoch, which frees nothing for a whole lease; so it may end a term, and never begins a second one.
        with self._telling(), self._turns.queue_only():
            if not self._holds(node_id, epoch):
                return False
            with opened(self._folder / "kvcm_leader.lease", os.O_WRONLY) as fd:
                line = self._lease(holder, epoch, lease_us)
                os.pwrite(fd, line.ljust(os.fstat(fd).st_size), 0)
            return True

    # What the files say.

    def _holds(self, node_id: str, epoch: int) -> bool:
        holder = self._holder(0)
        return holder is not None and (holder.node_id, holder.epoch) == (node_id, epoch)

    def _holder(self, default_us: int) -> _Lease | None:
        """Who holds an unexpired lease. One without a name: somebody may, and `default_us` is how long that is believed."""
        name = "kvcm_leader.lease"
        epoch = self._last_epoch()
        raw = self._read(name)
        if raw is None:
            return None
        lease = _read_lease(raw)
        if lease is None or lease.epoch < epoch:
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

    def _lease_epoch(self) -> int:
        """0 when there is no lease, or none that can be read. Beyond `_last_epoch` only when somebody put an old file back."""
        lease = _read_lease(self._read("kvcm_leader.lease") or b"")
        return lease.epoch if lease is not None else 0

    def _lease(self, node_id: str, epoch: int, lease_us: int) -> bytes:
        return _Lease(node_id, epoch, lease_us, self._clock.monotonic_us(), self._clock_id).line()

    def _nodes(self) -> tuple[dict[str, NodeInfo], set[str]]:
        """By file name: the nodes that are known, and the names of the files of others, which were silent for too long or cannot be read."""
        names = sorted(entry.name for entry in os.scandir(self._folder) if entry.name.startswith("kvcm_node_"))
        known: dict[str, NodeInfo] = {}
        unknown: set[str] = set()
        for name in names:
            node = self._node(name)
            if node is None:
                unknown.add(name)
            elif len(known) < MAX_NODES:
                known[name] = node
        for gone in {name for name in self._seen if name.startswith("kvcm_node_")}.difference(names):
            del self._seen[gone]
        return known, unknown

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
    def _turn(self) -> Iterator[Turn]:
        with self._telling(), self._turns.take() as mine:
            yield mine

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"The coordination folder cannot be used: {error.strerror or type(error).__name__}.") from error

    def _read(self, name: str) -> bytes | None:
        try:
            with opened(self._folder / name, os.O_RDONLY) as fd:
                return os.read(fd, _MAX_RECORD_BYTES)
        except FileNotFoundError:
            if not self._folder.is_dir():
                raise
            return None


def _put(mine: Turn, name: str, data: bytes, durable: bool = False) -> None:
    mine.prepare(data, durable)
    mine.commit(name)
    if durable:
        mine.sync()


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
