"""Is an object as it was made, and if not, how should it be written? Pure.

The API server fills in what nobody said, writes quantities in its own way, and others add labels and annotations; none of that is a difference. Lists
and some maps are ours as a whole: there an entry that we did not make is a difference.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from kvcm_operator.subject import mapping
from kvcm_operator.world import Json

# Maps in which a key that we did not write changes what the object does.
_WHOLE = frozenset({"data", "nodeSelector", "matchLabels", "selector", "requests", "limits", "affinity"})
# The same for places: what is in a template decides what pods are.
_WHOLE_PATHS = frozenset({"spec.template.metadata.labels", "spec.template.metadata.annotations"})
_QUANTITIES = frozenset({"requests", "limits"})
_UNITS = {"m": Decimal("0.001"), "": Decimal(1), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15)}
_UNITS |= {"Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50)}


def differences(desired: Json, actual: Json) -> list[str]:
    """Paths of fields that are not as they were made; empty when nothing has to be written."""
    return sorted(_differences(desired, actual, ""))


def overlay(desired: Json, actual: Json) -> Json:
    """What to write: the object as it is, with our fields as they should be."""
    return {**_overlaid(desired, actual), "metadata": _overlaid(desired["metadata"], actual["metadata"])}


def _differences(desired: Any, actual: Any, path: str) -> list[str]:
    name = path.rpartition(".")[2]
    if _empty(desired) and _empty(actual):
        return []
    if name in _QUANTITIES and isinstance(desired, dict) and isinstance(actual, dict):
        return [] if _amounts(desired) == _amounts(actual) else [path]
    if isinstance(desired, dict) and isinstance(actual, dict):
        extra = [f"{path}.{key}" for key in actual if key not in desired and not _empty(actual[key])] if name in _WHOLE or path in _WHOLE_PATHS else []
        return [*extra, *(one for key, value in desired.items() for one in _differences(value, actual.get(key), f"{path}.{key}" if path else key))]
    if isinstance(desired, list) and isinstance(actual, list):
        if len(desired) != len(actual):
            return [path]
        return [one for index, value in enumerate(desired) for one in _differences(value, actual[index], f"{path}[{index}]")]
    return [] if desired == actual else [path]


def _overlaid(desired: Json, actual: Json) -> Json:
    result = dict(actual)
    for key, value in desired.items():
        if isinstance(value, dict) and key not in _WHOLE and key != "template" and isinstance(actual.get(key), dict) and value:
            result[key] = _overlaid(value, mapping(actual[key]))
        else:
            result[key] = value
    return result


def _empty(value: Any) -> bool:
    return value is None or value in ({}, [])


def _amounts(values: Json) -> dict[str, object]:
    return {name: _amount(value) for name, value in values.items()}


def _amount(value: object) -> object:
    """A quantity as a number; a text that is none stays itself."""
    text = str(value)
    number = text.rstrip("mkMGTPi")
    try:
        return Decimal(number) * _UNITS[text[len(number) :]]
    except (InvalidOperation, KeyError):
        return text
