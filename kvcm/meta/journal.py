"""An append-only file of JSON lines, the last line of a key counts. Blocking code: it runs in a pool thread, one job at a time.

A line is written with one `write`, then fsync. A torn last line (power loss in the middle) was never acknowledged: it is cut off when the file is opened.
Compaction writes the live content to a temporary file, fsyncs and renames it, so at every moment one complete file exists.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_COMPACT_MIN_BYTES = 16 << 20


class Journal:
    """`highest_fence` is the largest fencing token in the file; a smaller one is refused by `append` (returns False)."""

    def __init__(self, path: Path, *, fsync: bool = True) -> None:
        self._path = path
        self._fsync = fsync
        self._lock = threading.Lock()
        self._fd = -1
        self._compact_size = 0
        self.highest_fence = 0
        self.damaged_lines = 0

    def open(self) -> None:
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._cut_torn_line()
            self._compact()

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def append(self, changes: dict[str, Any], fence: int) -> bool:
        """Store `key -> record or None`. False: a newer leader has written already. Raises OSError; then the outcome is unknown."""
        line = json.dumps({"f": fence, "c": changes}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if fence < self.highest_fence:
                return False
            if os.fstat(self._fd).st_size > max(_COMPACT_MIN_BYTES, 4 * self._compact_size):
                self._compact()
            if os.write(self._fd, line) != len(line):
                raise OSError("the journal took only part of a line")
            if self._fsync:
                os.fsync(self._fd)
            self.highest_fence = fence
        return True

    def read(self, keys: set[str] | None = None) -> dict[str, Any]:
        """Live records by key; all of them or only those asked for."""
        with self._lock:
            return self._fold(keys)

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
                    self.highest_fence = max(self.highest_fence, int(entry["f"]))
                    if not isinstance(changes, dict):
                        raise ValueError("changes must be an object")
                except (ValueError, KeyError, TypeError, RecursionError):
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
        live = self._fold()
        if self.damaged_lines:
            return  # never rewrite what we do not understand
        temporary = self._path.with_name(self._path.name + ".tmp")
        with open(temporary, "wb") as file:
            batch: dict[str, Any] = {}
            for key, record in live.items():
                batch[key] = record
                if len(batch) >= 256:
                    file.write(json.dumps({"f": self.highest_fence, "c": batch}, separators=(",", ":")).encode() + b"\n")
                    batch = {}
            file.write(json.dumps({"f": self.highest_fence, "c": batch}, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._compact_size = os.fstat(self._fd).st_size
