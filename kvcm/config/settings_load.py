"""From texts to `Settings`: defaults < configuration file < --env < process environment (wire contract 1.3), once, at start-up.

Pure but for its arguments: nothing is read, printed or logged here. What has to be said is returned as warnings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvcm.config.errors import SettingsError
from kvcm.config.settings import Settings, setting_keys
from kvcm.config.settings_checks import check_settings
from kvcm.config.settings_security import visible_secrets
from kvcm.config.settings_source import parse_bool, parse_int, read_environ, read_file, read_pairs

_LOG_LEVELS = {"FATAL": 1, "ERROR": 2, "WARN": 3, "INFO": 4, "DEBUG": 5}


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """`warnings` are sentences for the start-up log, in a stable order; nothing has been printed."""

    settings: Settings
    warnings: tuple[str, ...]


_FORGETFUL = (
    "'kvcm.registry_storage.uri' is empty although managers elect a leader: storages, groups and instances are in this process's memory only, "
    "and whichever manager leads next knows none of them."
)


def load_settings(config_text: str | None, env_pairs: Sequence[str], environ: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> LoadedSettings:
    """Merge the sources and check the result.

    `config_text` is the content of the configuration file (None without one), `env_pairs` the `--env` arguments in order, `defaults` what a command wants
    to be different from the table when no source says anything. Raises SettingsError with one sentence for the first problem of form, or with all broken
    constraints at once.
    """
    known = setting_keys()
    file_pairs, warnings = read_file(config_text) if config_text is not None else ({}, [])
    argument_pairs = read_pairs(env_pairs)
    for source, pairs in (("the configuration file", file_pairs), ("--env", argument_pairs)):
        warnings += [f"Unknown key {key!r} in {source} is ignored." for key in pairs if key not in known]
    warnings += visible_secrets(argument_pairs)
    given = dict(defaults or {}) | file_pairs | argument_pairs | read_environ(known, environ)

    values: dict[str, Any] = {}
    for item in fields(Settings):
        key = item.metadata.get("key")
        if key is None or key not in given:
            continue
        value = _parse(key, given[key], item.default, warnings)
        values[item.name] = value
        if item.metadata["pending"] and value != item.metadata["inert"]:
            warnings.append(f"{key!r} is accepted but not acted on: {item.metadata['pending']}.")
    _resolve_coordination(values, warnings)
    _extra_environment(values, environ, warnings)

    settings = Settings(**values)
    if settings.coordination_uri not in ("", "memory://") and not settings.registry_storage_uri:
        warnings.append(_FORGETFUL)
    problems = check_settings(settings, warnings)
    if problems:
        raise SettingsError(" ".join(problems))
    return LoadedSettings(settings, tuple(warnings))


def _parse(key: str, text: str, default: object, warnings: list[str]) -> object:
    if isinstance(default, bool):
        return parse_bool(key, text, warnings)
    if isinstance(default, int):
        return parse_int(key, text, warnings)
    return text


def _resolve_coordination(values: dict[str, Any], warnings: list[str]) -> None:
    """The legacy alias counts only while the new key is empty."""
    legacy = values.get("distributed_lock_uri", "")
    if not legacy:
        return
    if values.get("coordination_uri"):
        warnings.append("'kvcm.distributed_lock.uri' is ignored because 'kvcm.coordination.uri' is set.")
        return
    values["coordination_uri"] = legacy
    warnings.append("'kvcm.distributed_lock.uri' is an old name; use 'kvcm.coordination.uri' instead.")


def _extra_environment(values: dict[str, Any], environ: Mapping[str, str], warnings: list[str]) -> None:
    level = environ.get("KVCM_LOG_LEVEL", "")
    if level.upper() in _LOG_LEVELS:
        values["logger_log_level"] = _LOG_LEVELS[level.upper()]
    elif level:
        warnings.append("KVCM_LOG_LEVEL must be DEBUG, INFO, WARN or ERROR; it is ignored.")
    values["log_to_console"] = environ.get("KVCM_LOG_TO_CONSOLE", "") in ("1", "true")
    payload = environ.get("KVCM_ACCESS_LOG_WITH_PAYLOAD", "").lower()
    if payload in ("1", "true", "0", "false"):
        values["access_log_with_payload"] = payload in ("1", "true")
    elif payload:
        warnings.append("KVCM_ACCESS_LOG_WITH_PAYLOAD must be true or false; it is ignored.")
