"""Desired against actual, in the words of a resource file.

Both sides go through the same translation first, so that what differs only in writing ("1024Mi" and "1Gi", an unset field and the default that
the server wrote, the order of per-type limits, a pack size of 0 and of 1) is not a change. What a spec does not own is never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import Storage
from kvcm.resources.translate import group_spec, storage_spec


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that has to change. `before` or `after` is None when the field is not there on that side. Free of credentials."""

    path: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.path}: {_text(self.before)} -> {_text(self.after)}"


def diff(desired: Storage | InstanceGroup, actual: Storage | InstanceGroup) -> list[FieldChange]:
    """What has to change on the server, sorted by path; empty for equal objects. Both objects are of one class and have one name."""
    if isinstance(desired, Storage) and isinstance(actual, Storage):
        return _compare(storage_spec(desired), storage_spec(actual))
    if isinstance(desired, InstanceGroup) and isinstance(actual, InstanceGroup):
        return _compare(group_spec(desired), group_spec(actual))
    raise TypeError("a storage can only be compared with a storage, a group with a group")


def _compare(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> list[FieldChange]:
    after, before = _flat(desired), _flat(actual)
    return [FieldChange(path, before.get(path), after.get(path)) for path in sorted({*after, *before}) if before.get(path) != after.get(path)]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _text(value: object) -> str:
    if value is None:
        return "(unset)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value) if value != "" else '""'
