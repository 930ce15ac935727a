"""What `kvcm serve` and `kv_cache_manager_bin` have in common: from options to a manager that serves until a signal stops it (wire contract 1.2, 1.3).

Everything that can be wrong with the configuration is found before the process goes into the background; what is heavy to import comes after.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvcm.common.errors import InvalidArgument, KvcmError

if TYPE_CHECKING:
    from kvcm.config.settings import Settings
    from kvcm.config.settings_load import LoadedSettings
    from kvcm.service.cluster import Endpoint
    from kvcm.service.logger_config import LoggerConfig

ACCESS_LOG_KEY = "kvcm.access_log.enabled"
_STDOUT = 1
_log = logging.getLogger("kvcm.manager")


@dataclass(frozen=True, slots=True)
class Start:
    """`defaults`: settings below every other source. `failed_start_code`: what the foreground of `-d` ends with when the manager ends during its start."""

    program: str
    config_file: str = ""
    log_config_file: str = ""
    env: tuple[str, ...] = ()
    daemon: bool = False
    port_file: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    failed_start_code: int = 1


def run_manager(start: Start) -> int:
    """Serve; the exit code. Raises KvcmError for what is wrong before anything was started, and for a start that fails."""
    logger_config = _logger_config(start)
    loaded = _settings(start, logger_config)
    tell_parent: Callable[[], None] | None = None
    if start.daemon:
        from kvcm.cli.detach import detach

        tell_parent = detach(start.program, start.failed_start_code)

    from kvcm.service.logging_setup import set_up_logging

    settings = loaded.settings
    logs = set_up_logging(settings.logger_log_level, config=logger_config, console=settings.log_to_console)
    for warning in (*loaded.warnings, *(logger_config.warnings if logger_config else ())):
        _log.warning("%s", warning)

    def on_ready(own: Endpoint) -> None:
        addresses = json.dumps(asdict(own) | {"pid": os.getpid()})
        if start.port_file:
            write_in_one_step(Path(start.port_file), addresses)
        with contextlib.suppress(OSError):  # nobody has to read it; without a buffer, so that nothing is left to fail at the end
            os.write(_STDOUT, f"kvcm is ready: {addresses}\n".encode())
        if tell_parent is not None:
            tell_parent()

    # Whoever looks into the log does not see what the command prints.
    aside = start.daemon or (logger_config is not None and bool(logger_config.root.files))
    try:
        # Read when grpc is imported. Its notes about connections of strangers go to stderr past our log, as many as strangers want.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        from kvcm.service.run import run

        run(settings, on_ready)
    except KvcmError as error:
        if aside:
            _log.error("start_failed: %s", error.message)
        raise
    except Exception:
        if aside:
            _log.exception("failed")
        raise
    finally:
        logs.finish()
    return 0


def _settings(start: Start, logger_config: LoggerConfig | None) -> LoadedSettings:
    from kvcm.config.settings_load import load_settings

    text = _read(start.config_file, "configuration file") if start.config_file else None
    defaults = dict(start.defaults)
    access = logger_config.logs.get("access") if logger_config else None
    if access is not None and (access.files or access.console) and (access.level or logging.INFO) <= logging.INFO:
        # A logger file that gives the access log a place wants one; the settings have the last word.
        defaults[ACCESS_LOG_KEY] = "true"
    loaded = load_settings(text, start.env, os.environ, defaults)
    _check_what_settings_name(loaded.settings)
    return loaded


def _check_what_settings_name(settings: Settings) -> None:
    """What a start would refuse, while there is somebody to tell. Nothing is opened, and gRPC not even loaded: `detach` comes after. Raises KvcmError."""
    from kvcm.common.clock import SystemClock
    from kvcm.common.redis.installed import check_installed
    from kvcm.config.settings import store_uris
    from kvcm.config.store import open_store
    from kvcm.coordination.open import open_coordinator
    from kvcm.etcd.uri import parse_etcd_uri

    if settings.startup_config:
        from kvcm.config.startup import read_startup

        read_startup(settings.startup_config)
    for uri, make in ((settings.registry_storage_uri, open_store), (settings.coordination_uri, lambda uri: open_coordinator(uri, SystemClock()))):
        if uri.startswith("etcd://"):
            parse_etcd_uri(uri)
        else:
            make(uri)
    if settings.meta_redis_uri:
        from kvcm.meta.open_backend import parse_metadata_uri

        parse_metadata_uri(settings.meta_redis_uri)
    check_installed(store_uris(settings))


def _logger_config(start: Start) -> LoggerConfig | None:
    if not start.log_config_file:
        return None
    from kvcm.service.logger_config import parse_logger_config
    from kvcm.service.logging_setup import LOGS

    return parse_logger_config(_read(start.log_config_file, "logger configuration"), tuple(LOGS))


def _read(path: str, what: str) -> str:
    from kvcm.config.errors import SettingsError
    from kvcm.config.settings_source import MAX_CONFIG_CHARS

    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MAX_CONFIG_CHARS + 1)
    except OSError as error:
        raise SettingsError(f"the {what} {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        # A path with a zero character, or bytes that are no text.
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "is no path"
        raise SettingsError(f"the {what} {path!r} {reason}") from None


def write_in_one_step(path: Path, text: str) -> None:
    """A reader finds the whole text or no file. Raises InvalidArgument."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InvalidArgument(f"the port file {path} cannot be written: {error.strerror}") from None
