"""A log file that turns itself over when it is full: `name`, `name.1` (the youngest before it), ... `name.<kept>`.

Used by the one thread of a LineWriter. Bounded: at most `kept + 1` files of `max_bytes` (and one line). A file that cannot be written is tried again after
a pause; what comes meanwhile is lost, and the next line that can be written tells how much.
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
    """`write` and `flush` never raise. `monotonic`: seconds."""

    def __init__(self, target: FileTarget, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._path = Path(target.path)
        self._monotonic = monotonic
        self._file: BinaryIO | None = None
        self._size = 0
        self._retry_at = 0.0
        self._lost = 0

    def open(self) -> str:
        """Make the folder and open the file at its end. Returns why that failed, empty when it did not."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
            self._size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            self._fail()
            return error.strerror or "it cannot be opened"
        return ""

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        if self._file is None and (self._monotonic() < self._retry_at or self.open()):
            self._lost += 1
            return
        try:
            if self._size and self._size + len(data) > self._target.max_bytes:
                self._turn_over()
            assert self._file is not None
            if self._lost:
                note = f"level=warn logger=kvcm.log lines_lost={self._lost}\n".encode()
                self._file.write(note)
                self._size += len(note)
                self._lost = 0
            self._file.write(data)
            self._size += len(data)
        except OSError:
            self._lost += 1
            self._fail()

    def flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError:
                self._fail()

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _fail(self) -> None:
        self.close()
        self._retry_at = self._monotonic() + RETRY_S

    def _turn_over(self) -> None:
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
