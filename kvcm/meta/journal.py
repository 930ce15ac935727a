"""An append-only file of JSON lines, the last line of a key counts. Blocking code: it runs in a pool thread, one job at a time.

A change is written with one `write`, then fsync. One that fails half-way is cut off again, at the latest before the next use of the file, so that it can
never damage a later one. A torn last line (power loss in the middle) was never acknowledged: it is cut off when the file is opened. Compaction writes the
live content to a temporary file, fsyncs and renames it, so at every moment one complete file exists; the file written is the file that is then used.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

COMPACT_MIN_BYTES = 16 << 20
# Never the end of a journal's own name: those are quoted, and this is no quoted text. With ".tmp" the instances `a` and `a.tmp` would share a file.
TEMPORARY = "%tmp"
# Encoding and decoding one line holds the interpreter lock; many short lines let the loop run in between.
_KEYS_PER_LINE = 256


class Journal:
    """`highest_fence` is the largest fencing token in the file; a smaller one is refused by `append` (returns False)."""

    def __init__(self, path: Path, *, fsync: bool = True, compact_min_bytes: int = COMPACT_MIN_BYTES) -> None:
        self._path = path
        self._fsync = fsync
        self._compact_min = compact_min_bytes
        self._lock = threading.Lock()
        self._fd = -1
        self._compact_size = 0
        self._cut_at: int | None = None
        self._renamed = False
        self.highest_fence = 0
        self.damaged_lines = 0

    def open(self) -> None:
        with self._lock:
            self._close()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._renamed = True  # the file may be new: its name has to become durable too
            self._mend()
            self._cut_torn_line()
            self._compact()

    def close(self) -> None:
        with self._lock:
            self._close()

    def append(self, changes: dict[str, Any], fence: int, abandoned: threading.Event | None = None) -> bool:
        """Store `key -> record or None`. False: not stored, a newer leader has written already. Raises OSError; then the outcome is unknown.

        `abandoned`: set by a caller that has stopped waiting. A change that has not begun by then is never made, so what the caller reads
        afterwards stays true.
        """
        data = b"".join(_lines_of(changes, fence))
        with self._lock:
            if fence < self.highest_fence or (abandoned is not None and abandoned.is_set()):
                return False
            self._mend()
            size = os.fstat(self._fd).st_size
            if size > max(self._compact_min, 4 * self._compact_size):
                self._compact()
                size = os.fstat(self._fd).st_size
            if self._renamed:
                self._sync_directory()
            self._cut_at = size
            try:
                if os.write(self._fd, data) != len(data):
                    raise OSError("the journal took only part of a change")
                if self._fsync:
                    os.fsync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    self._mend()
                raise
            self._cut_at = None
            self.highest_fence = fence
        return True

    def read(self, keys: set[str] | None = None) -> dict[str, Any]:
        """Live records by key; all of them or only those asked for. Raises OSError."""
        with self._lock:
            self._mend()
            return self._fold(keys)

    def sync(self) -> None:
        """Everything stored so far is durable when this returns. Raises OSError."""
        with self._lock:
            os.fsync(self._fd)

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _mend(self) -> None:
        """Take back a change that failed half-way: what nobody confirmed must not be found later, nor run into the next line."""
        if self._cut_at is not None:
            os.ftruncate(self._fd, self._cut_at)
            self._cut_at = None

    def _fold(self, keys: set[str] | None = None) -> dict[str, Any]:
        live: dict[str, Any] = {}
        for changes in self._lines():
            for key, record in changes.items():
                if keys is not None and key not in keys:
                    continue
                if record is None:
                    live.pop(key, None)
                else:
                    live[key] = record
        return live

    def _lines(self) -> Iterator[dict[str, Any]]:
        self.damaged_lines = 0
        with open(self._path, "rb") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                    changes = entry["c"]
                    if not isinstance(changes, dict):
                        raise ValueError("changes must be an object")
                    self.highest_fence = max(self.highest_fence, int(entry["f"]))
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                    self.damaged_lines += 1
                    continue
                yield changes

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        end = size
        while end > 0:
            chunk = os.pread(self._fd, min(65_536, end), end - min(65_536, end))
            newline = chunk.rfind(b"\n")
            if newline >= 0:
                end = end - len(chunk) + newline + 1
                break
            end -= len(chunk)
        if end != size:
            os.ftruncate(self._fd, end)

    def _compact(self) -> None:
        """Rewrite the file with its live content. A convenience: if there is no room for it, the old file goes on."""
        live = self._fold()
        if self.damaged_lines:
            # Never rewrite what we do not understand; and do not look at it again before the file has grown much more.
            self._compact_size = os.fstat(self._fd).st_size
            return
        temporary = self._path.with_name(self._path.name + TEMPORARY)
        fd = -1
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(fd, "wb", closefd=False) as file:
                file.writelines(_lines_of(live, self.highest_fence))
            os.fsync(fd)
            os.replace(temporary, self._path)
        except OSError:
            if fd >= 0:
                os.close(fd)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._compact_size = os.fstat(self._fd).st_size
            return
        # From here on the name means the new file: nothing may be written to the old one any more.
        self._close()
        self._fd = fd
        self._renamed = True
        self._compact_size = os.fstat(fd).st_size
        self._sync_directory()

    def _sync_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._renamed = False


def _lines_of(changes: dict[str, Any], fence: int) -> Iterator[bytes]:
    """At least one line, so that the fence is kept even when nothing else is."""
    items = iter(changes.items())
    part = dict(islice(items, _KEYS_PER_LINE))
    while True:
        yield json.dumps({"f": fence, "c": part}, separators=(",", ":")).encode() + b"\n"
        part = dict(islice(items, _KEYS_PER_LINE))
        if not part:
            return
