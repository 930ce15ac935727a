"""Logging of a server process: one line per event, written by threads of their own, to stderr unless a logger file (`logger_config`) says otherwise.

    time=2026-01-31T12:00:00.123Z level=info logger=kvcm.service.server listening node_id=... meta_rpc=6381

Besides this service log there are logs whose lines are records for programs (LOGS): in a file of its own a line is the bare record. Their makers hand over
finished lines in blocks (`lines_to`), which costs the logging machinery nothing per line.

Dangers: a full pipe behind stderr or a slow disk must not stop the event loop, so lines wait in a queue that is bounded in number and in size, and are
dropped (and counted) when it is full; text from outside must neither break a line in two nor speak to a terminal, so all characters that do are escaped.
Secrets are never logged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TextIO

from kvcm.common.one_line import one_line
from kvcm.service.log_file import LogFile
from kvcm.service.logger_config import LoggerConfig, Route

MAX_WAITING_LINES = 10_000
MAX_WAITING_CHARS = 32 << 20
"""Of one writer; one block of lines may go beyond."""
MAX_LINE_CHARS = 16_384
MAX_BARE_CHARS = 1 << 18
_STREAM = ""
LOGS: Final = {"access": "kvcm.access", "metrics": "kvcm.metrics.report", "publisher": "kvcm.event.log"}
"""Upstream's names of the logs with records -> the `logging` name that writes them. Nothing is written to one that nobody switches on."""
_LEVELS: Final = {0: logging.INFO, 1: logging.CRITICAL, 2: logging.ERROR, 3: logging.WARNING, 4: logging.INFO, 5: logging.DEBUG}
_NAMES: Final = {logging.CRITICAL: "fatal", logging.ERROR: "error", logging.WARNING: "warn", logging.INFO: "info", logging.DEBUG: "debug"}
# Their lines of level info are about their own life, not about ours.
_CHATTY: Final = ("uvicorn", "asyncio", "grpc")
_log = logging.getLogger("kvcm.service.logging")


class Sink(Protocol):
    """What a LineWriter writes to; a text stream is one."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class LineFormatter(logging.Formatter):
    """`bare`: the record only, without time, level and logger."""

    def __init__(self, max_chars: int = 0, *, bare: bool = False) -> None:
        super().__init__()
        self._max_chars = max_chars or (MAX_BARE_CHARS if bare else MAX_LINE_CHARS)
        self._bare = bare

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text} exception={self.formatException(record.exc_info)}"
        if not self._bare:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            level = _NAMES.get(record.levelno, record.levelname.lower())
            text = f"time={stamp}.{int(record.msecs):03d}Z level={level} logger={record.name} {text}"
        line = one_line(text)
        return line if len(line) <= self._max_chars else f"{line[: self._max_chars]} (cut)"


class _Waiting(queue.Queue[str | None]):
    """Lines, and blocks of lines, that wait. Full also when they have too many characters together."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._chars = 0

    def _qsize(self) -> int:
        count = super()._qsize()
        return count if self._chars <= MAX_WAITING_CHARS else max(count, self.maxsize)

    def _put(self, item: str | None) -> None:
        self._chars += len(item or "")
        super()._put(item)

    def _get(self) -> str | None:
        item = super()._get()
        self._chars -= len(item or "")
        return item


class LineWriter(logging.Handler):
    """Formats on the caller, writes in a thread. `dropped`: lines that found the queue full; `lost`: with those that could not be written.

    `bare`: the stream is for one kind of finished lines only (an access log file), which are written as they are.
    """

    def __init__(self, stream: Sink, *, bare: bool = False) -> None:
        super().__init__()
        self.dropped = 0
        self._bare = bare
        self._stream = stream
        self._lines = _Waiting(MAX_WAITING_LINES)
        self._thread = threading.Thread(target=self._run, name="kvcm-log", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        return self.dropped + (self._stream.lost if isinstance(self._stream, LogFile) else 0)

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
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
        if isinstance(self._stream, LogFile):
            # Here and not by whoever waits for this thread: closing a file waits for a write that hangs.
            self._stream.close()


class Logs:
    """Every log of the process. Call `finish` before it ends."""

    def __init__(self, writers: Sequence[LineWriter]) -> None:
        self._writers = tuple(writers)

    def finish(self) -> None:
        """Write what waits, for at most a few seconds a writer."""
        for writer in self._writers:
            writer.finish()


def set_up_logging(level: int, stream: TextIO | None = None, config: LoggerConfig | None = None, *, console: bool = False) -> Logs:
    """Open every log that `config` asks for; everything goes to `stream` (stderr) without one.

    `level`: as in `kvcm.logger.log_level`; 0 leaves it to the logger file, else info. `console`: the service log goes to `stream` as well. A file that
    cannot be opened is reported in the service log, and its lines go to `stream`.
    """
    config = config or LoggerConfig()
    opener = _Opener(stream or sys.stderr, config.max_line_chars)
    root = logging.getLogger()
    wanted = config.root
    root.handlers[:] = opener.open(wanted, console=console or not wanted.files, bare=False)
    chosen = _LEVELS.get(level, logging.INFO) if level or wanted.level is None else wanted.level
    set_log_level(chosen)
    for name, logger_name in LOGS.items():
        route = config.logs.get(name, Route())
        logger = logging.getLogger(logger_name)
        logger.handlers[:] = opener.open(route, console=route.console, bare=True)
        logger.propagate = route.inherit or not logger.handlers
        logger.setLevel(logging.NOTSET if route.level is None else route.level)
    for failure in opener.failures:
        _log.error("%s", failure)
    return Logs(opener.writers)


def set_log_level(level: int) -> None:
    """Change the level of the process while it runs; `level` as in module logging. What the logger file says of single logs stands."""
    logging.getLogger().setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


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


def _complain(sentence: str) -> None:
    _log.error("%s", sentence)


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    found: list[logging.Handler] = []
    at: logging.Logger | None = logger
    while at is not None:
        found += at.handlers
        at = at.parent if at.propagate else None
    return found


class _Opener:
    """One writer per file and one for the stream, whatever number of logs share it. Who opens it first decides whether its lines are bare."""

    def __init__(self, stream: TextIO, max_chars: int) -> None:
        self.failures: list[str] = []
        self._stream = stream
        self._max_chars = max_chars
        self._open: dict[str, LineWriter] = {}

    @property
    def writers(self) -> list[LineWriter]:
        return list(self._open.values())

    def open(self, route: Route, *, console: bool, bare: bool) -> list[logging.Handler]:
        found: dict[str, logging.Handler] = {}
        for target in route.files:
            # Two files that turn each other over would lose lines.
            path = os.path.abspath(target.path)
            if path not in self._open:
                file = LogFile(target, complain=_complain)
                if reason := file.open():
                    self.failures.append(f"The log file {target.path!r} cannot be written: {reason}. Its lines go to stderr.")
                    console = True
                    continue
                self._writer(path, file, bare)
            found[path] = self._open[path]
        if console:
            if _STREAM not in self._open:
                # Lines of all logs in one stream: each has to say where it comes from.
                self._writer(_STREAM, self._stream, False)
            found[_STREAM] = self._open[_STREAM]
        return list(found.values())

    def _writer(self, path: str, sink: Sink, bare: bool) -> None:
        writer = self._open[path] = LineWriter(sink, bare=bare)
        writer.setFormatter(LineFormatter(self._max_chars, bare=bare))
