"""A log file that turns itself over when it is full: `name`, `name.1` (the youngest before it), ... `name.<kept>`.

Used by the one thread of a LineWriter. Bounded: at most `kept + 1` files of `max_bytes` (and one line). A file that cannot be written is tried again after
a pause; what comes meanwhile is lost, and the next line that can be written tells how much. What a full disk takes is in `lost`, too, and said to
`complain` once until the file can be written again: nobody looks for lines that were never there.

Danger: a write only fills a buffer, and a full disk is noticed later, at a flush. Lines count as written from then on only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kvcm.service.logger_config import FileTarget

RETRY_S = 5.0


class LogFile:
    """`write` and `flush` never raise. `monotonic`: seconds. `lost`: lines so far that are not in the file and never will be; any thread may read it."""

    def __init__(self, target: FileTarget, monotonic: Callable[[], float] = time.monotonic, complain: Callable[[str], None] | None = None) -> None:
        self.lost = 0
        self._complain = complain
        self._complained = False
        self._target = target
        self._path = Path(target.path)
        self._monotonic = monotonic
        self._file: BinaryIO | None = None
        self._size = 0
        self._retry_at = 0.0
        self._buffered = 0  # lines, since the last flush
        self._told = self._said = 0  # how much of `lost` the file says: with its buffer, and for sure

    def open(self) -> str:
        """Make the folder and open the file at its end. Returns why that failed, empty when it did not."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
            self._size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            self._fail(error)
            return error.strerror or "it cannot be opened"
        return ""

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        lines = text.count("\n")
        if self._file is None and (self._monotonic() < self._retry_at or self.open()):
            self.lost += lines
            return
        self._buffered += lines
        try:
            if self._size and self._size + len(data) > self._target.max_bytes:
                self._turn_over()
                self._buffered = lines
            assert self._file is not None
            if self.lost > self._told:
                note = f"level=warn logger=kvcm.log lines_lost={self.lost - self._told}\n".encode()
                self._file.write(note)
                self._size += len(note)
                self._told = self.lost
            self._file.write(data)
            self._size += len(data)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._fail(error)
            else:
                self._buffered, self._said, self._complained = 0, self._told, False

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _fail(self, error: OSError) -> None:
        lines, self._buffered, self._told = self._buffered, 0, self._said
        self.lost += lines
        self.close()
        self._retry_at = self._monotonic() + RETRY_S
        if lines and self._complain is not None and not self._complained:
            self._complained = True
            self._complain(f"log_file_failed path={self._target.path} reason={error.strerror!r}: its lines are lost until it can be written again")

    def _turn_over(self) -> None:
        if self._file is not None:
            self._file.flush()
        self.close()
        for number in range(self._target.kept, 0, -1):
            older = self._numbered(number)
            younger = self._numbered(number - 1) if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                younger.replace(older)
        self._file = self._path.open("ab")
        self._size = 0

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
