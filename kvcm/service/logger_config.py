"""The logger file of `-l`: which log goes where (upstream's dialect, read for what it asks).

    alog.rootLogger=INFO, service                       level and appenders of the service log
    alog.logger.access=INFO, requests                   the same for a log of its own: access, metrics, publisher (events)
    inherit.access=false                                true: its lines go to the service log's appenders too
    alog.appender.service=FileAppender                  or ConsoleAppender: stderr
    alog.appender.service.fileName=logs/kvcm.log        relative to the working directory
    alog.appender.service.max_file_size=512             MiB, then the file is turned over
    alog.appender.service.log_keep_count=20             turned-over files that are kept
    alog.max_msg_len=204800                             characters of a line

Pure: a text in, a plan and warnings out. Nothing in such a file keeps a manager from starting: what is not understood or not acted on is a warning.
Danger: every file is bounded, whatever the text says; `0` (upstream: no limit) means our largest bound.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvcm.config.errors import SettingsError
from kvcm.config.settings_source import MAX_CONFIG_CHARS, parse_bool, parse_int

OFF: Final = logging.CRITICAL + 10
MAX_APPENDERS: Final = 16
MAX_FILE_MIB: Final = 4096
MAX_KEPT_FILES: Final = 200
MAX_LINE_CHARS: Final = 1 << 20
_DEFAULT_FILE_MIB = 100
_DEFAULT_KEPT_FILES = 10
_LEVELS: Final = {
    "DISABLE": OFF,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
} | {f"TRACE{number}": logging.DEBUG for number in ("", 1, 2, 3)}
# Upstream sends everything there under KVCM_LOG_TO_CONSOLE; ours goes to stderr by itself.
_NO_LOG = "console"


@dataclass(frozen=True, slots=True)
class FileTarget:
    """`kept` files of `max_bytes` each stay besides the current one."""

    path: str
    max_bytes: int = _DEFAULT_FILE_MIB << 20
    kept: int = _DEFAULT_KEPT_FILES


@dataclass(frozen=True, slots=True)
class Route:
    """Where one log goes. `level`: of the `logging` module, None when the file does not say. `console`: stderr; `inherit`: the service log as well."""

    level: int | None = None
    files: tuple[FileTarget, ...] = ()
    console: bool = False
    inherit: bool = True


@dataclass(frozen=True, slots=True)
class LoggerConfig:
    """`root` is the service log; `logs` has the others by upstream's name. `max_line_chars` 0: the file does not say."""

    root: Route = field(default_factory=Route)
    logs: Mapping[str, Route] = field(default_factory=dict)
    max_line_chars: int = 0
    warnings: tuple[str, ...] = ()


def parse_logger_config(text: str, known: tuple[str, ...]) -> LoggerConfig:
    """`known`: names of logs that exist besides the service log. Raises SettingsError only for a text that is too long to be such a file."""
    if len(text) > MAX_CONFIG_CHARS:
        raise SettingsError(f"The logger configuration is longer than {MAX_CONFIG_CHARS} characters.")
    return _Reader(known).read(text)


class _Reader:
    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known
        self._warnings: list[str] = []
        self._unused: set[str] = set()
        self._kinds: dict[str, str] = {}
        self._options: dict[str, dict[str, str]] = {}
        self._wanted: dict[str, str] = {}
        self._inherit: dict[str, bool] = {}
        self._line_chars = 0

    def read(self, text: str) -> LoggerConfig:
        for number, line in enumerate(text.splitlines(), start=1):
            body = line.partition("#")[0].strip()
            if not body:
                continue
            key, equals, value = (part.strip() for part in body.partition("="))
            if not equals or not key:
                self._warn(f"line {number} is not of the form key=value and is ignored")
                continue
            self._take(key, value, number)
        if self._unused:
            self._warn(f"{', '.join(sorted(self._unused))}: not acted on; lines have one form and are written as they come")
        root = self._route("", self._wanted.pop("", ""))
        logs = {name: self._route(name, value) for name, value in self._wanted.items()}
        return LoggerConfig(root, logs, self._line_chars, tuple(self._warnings))

    def _take(self, key: str, value: str, number: int) -> None:
        head, _, rest = key.partition(".")
        kind, _, name = rest.partition(".")
        if key == "alog.rootLogger":
            self._wanted[""] = value
        elif key == "alog.max_msg_len":
            self._line_chars = min(max(self._number(key, value), 0), MAX_LINE_CHARS)
        elif head == "inherit" and rest:
            self._inherit[rest] = parse_bool(key, value, self._warnings)
        elif (head, kind) == ("alog", "logger") and name:
            self._logger(name, value)
        elif (head, kind) == ("alog", "appender") and name:
            self._appender(name, value)
        else:
            self._warn(f"line {number}: {key[:80]!r} is not known and is ignored")

    def _logger(self, name: str, value: str) -> None:
        if name in self._known:
            self._wanted[name] = value
        elif name != _NO_LOG:
            self._warn(f"there is no log of the name {name[:80]!r}; its line is ignored")

    def _appender(self, name: str, value: str) -> None:
        name, _, option = name.partition(".")
        if name not in self._options and len(self._options) >= MAX_APPENDERS:
            self._warn(f"more than {MAX_APPENDERS} appenders; {name[:80]!r} is ignored")
            return
        options = self._options.setdefault(name, {})
        if not option:
            self._kinds[name] = value
        elif option in ("fileName", "max_file_size", "log_keep_count"):
            options[option] = value
        else:
            self._unused.add(option[:80])

    def _route(self, log: str, value: str) -> Route:
        level_name, *appenders = (part.strip() for part in value.split(","))
        level = _LEVELS.get(level_name.upper())
        if level_name and level is None:
            self._warn(f"{level_name[:80]!r} is not a level; it is ignored")
        files, console = [], False
        for name in dict.fromkeys(filter(None, appenders)):
            kind = self._kinds.get(name)
            target = self._file(name) if kind == "FileAppender" else None
            if target is not None:
                files.append(target)
            elif kind == "ConsoleAppender":
                console = True
            elif kind != "FileAppender":
                self._warn(f"the appender {name[:80]!r} is neither a FileAppender nor a ConsoleAppender; it is ignored")
        return Route(level, tuple(files), console, self._inherit.get(log, True))

    def _file(self, name: str) -> FileTarget | None:
        options = self._options[name]
        path = options.get("fileName", "")
        if not path or "\0" in path:
            self._warn(f"the appender {name[:80]!r} has no fileName; it is ignored")
            return None
        mib = self._bounded(name, "max_file_size", _DEFAULT_FILE_MIB, MAX_FILE_MIB)
        return FileTarget(path, mib << 20, self._bounded(name, "log_keep_count", _DEFAULT_KEPT_FILES, MAX_KEPT_FILES))

    def _bounded(self, name: str, option: str, default: int, most: int) -> int:
        text = self._options[name].get(option)
        if text is None:
            return default
        value = self._number(f"alog.appender.{name}.{option}", text, default)
        if not 0 < value <= most:
            self._warn(f"{option} of {name[:80]!r} must be from 1 to {most}; {most} is used")
            return most
        return value

    def _number(self, key: str, text: str, default: int = 0) -> int:
        try:
            return parse_int(key[:80], text, self._warnings)
        except SettingsError as error:
            self._warnings.append(f"{error} It is ignored.")
            return default

    def _warn(self, what: str) -> None:
        self._warnings.append(f"Logger configuration: {what}.")
