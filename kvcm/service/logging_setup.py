"""Logging of a server process: one line per event on stderr, written by a thread of its own.

    time=2026-01-31T12:00:00.123Z level=info logger=kvcm.service.server listening node_id=... meta_rpc=6381

Lines that others have made whole (access log, events) come in blocks through `lines_to`: they cost the logging machinery nothing per line.

Dangers: a full pipe behind stderr must not stop the event loop, so lines wait in a bounded queue and are dropped (and counted) when it is full; text from
outside must not break a line in two, so control characters are escaped. Bodies and secrets are never logged.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TextIO

MAX_WAITING_LINES = 10_000
MAX_LINE_CHARS = 16_384
_LEVELS: Final = {0: logging.INFO, 1: logging.CRITICAL, 2: logging.ERROR, 3: logging.WARNING, 4: logging.INFO, 5: logging.DEBUG}
_NAMES: Final = {logging.CRITICAL: "fatal", logging.ERROR: "error", logging.WARNING: "warn", logging.INFO: "info", logging.DEBUG: "debug"}
# Their lines of level info are about their own life, not about ours.
_CHATTY: Final = ("uvicorn", "asyncio", "grpc")
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}


class LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        level = _NAMES.get(record.levelno, record.levelname.lower())
        text = record.getMessage()
        if record.exc_info:
            text = f"{text} exception={self.formatException(record.exc_info)}"
        line = f"time={stamp}.{int(record.msecs):03d}Z level={level} logger={record.name} {text}".translate(_ESCAPES)
        return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} (cut)"


class LineWriter(logging.Handler):
    """Formats on the caller, writes in a thread. `dropped`: lines that found the queue full.

    `bare`: the stream is for one kind of finished lines only (an access log file), which are written as they are.
    """

    def __init__(self, stream: TextIO, *, bare: bool = False) -> None:
        super().__init__()
        self.dropped = 0
        self._bare = bare
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_WAITING_LINES)
        self._thread = threading.Thread(target=self._run, name="kvcm-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1
        except Exception:
            self.handleError(record)

    def write_lines(self, lines: Sequence[str], logger: str) -> None:
        """Write finished lines without line ends, as one block. From any thread; what finds no room is dropped and counted."""
        if not lines:
            return
        text = "\n".join(lines) if self._bare else "\n".join([f"level=info logger={logger} {line}" for line in lines])
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self.dropped += len(lines)

    def finish(self, timeout_s: float = 2.0) -> None:
        """Write what is waiting, for at most `timeout_s` seconds."""
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        reported = 0
        while (line := self._lines.get()) is not None:
            try:
                if self.dropped > reported:
                    reported = self.dropped
                    self._stream.write(f"level=warn logger=kvcm.log lines_dropped={reported}\n")
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                # Nobody reads stderr any more; there is nowhere to say so.
                continue


def set_up_logging(level: int, stream: TextIO | None = None) -> LineWriter:
    """Send everything to `stream` (stderr); `level` as in `kvcm.logger.log_level`. Call `finish` on the result before the process ends."""
    writer = LineWriter(stream or sys.stderr)
    writer.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [writer]
    chosen = _LEVELS.get(level, logging.INFO)
    root.setLevel(chosen)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(chosen, logging.WARNING))
    return writer


def lines_to(name: str) -> Callable[[Sequence[str]], None]:
    """Where the finished lines of logger `name` go: to the handlers that it has when they come, if its level lets `info` pass. For threads of their own."""
    logger = logging.getLogger(name)

    def write(lines: Sequence[str]) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        for handler in _handlers_of(logger):
            if handler.level > logging.INFO:
                continue
            if isinstance(handler, LineWriter):
                handler.write_lines(lines, name)
                continue
            for line in lines:
                handler.handle(logging.LogRecord(name, logging.INFO, "", 0, "%s", (line,), None))

    return write


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    found: list[logging.Handler] = []
    at: logging.Logger | None = logger
    while at is not None:
        found += at.handlers
        at = at.parent if at.propagate else None
    return found
