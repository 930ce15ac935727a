"""Credentials inside the records of a configuration snapshot: taken out when it is written, put back when it is loaded where they are known.

A snapshot is a text that people mail and keep in version control. So the parts of URIs that are secret are written as `***`; a load takes the value of the
entity of the same name if that looks the same without its secret, and otherwise asks for it by name.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcm.common.errors import InvalidArgument
from kvcm.common.redaction import HIDDEN, redact_uri
from kvcm.config.store import Record

_URI_KEYS = frozenset({"storage_uri", "meta_storage_uri", "metadata_connstring", "service_discovery_url"})


def hide(record: Record) -> Record:
    """A copy without secrets."""
    return _walk(record, None, "", lambda value, known, path: redact_uri(value))


def restore(record: Record, known: Record | None, what: str) -> Record:
    """A copy with the secrets of `known`, the record that this manager has. Raises InvalidArgument naming the field when one is not known."""

    def find(value: str, current: object, path: str) -> str:
        if HIDDEN not in value:
            return value
        if isinstance(current, str) and redact_uri(current) == value:
            return current
        raise InvalidArgument(f"{what}: {path} has {HIDDEN} in place of a secret that this manager does not know. Put the secret back and load again.")

    return _walk(record, known, "", find)


def _walk(record: Record, known: object, path: str, change: Callable[[str, object, str], str]) -> Record:
    result: Record = {}
    for key, value in record.items():
        beside = known.get(key) if isinstance(known, dict) else None
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            result[key] = _walk(value, beside, here, change)
        elif key in _URI_KEYS and isinstance(value, str):
            result[key] = change(value, beside, here)
        else:
            result[key] = value
    return result
