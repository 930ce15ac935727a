"""Reading one persisted JSON object field by field.

Every reader either gives a value of the asked type or raises `PersistedFormatError` that names the field by its full path; a field that is
absent or null gives the default. Nothing is converted silently: a number in quotes is not a number here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import TypeVar

from kvcm.common.errors import InvalidArgument

E = TypeVar("E", bound=IntEnum)


class PersistedFormatError(InvalidArgument):
    """A persisted record cannot be understood; the message names the field and never repeats its value."""


class Fields:
    """A view of one JSON object. `path` is how error messages call it, e.g. `group.quota`."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise PersistedFormatError(f"{path} must be a JSON object")
        self._values = value
        self.path = path

    def text(self, name: str, default: str = "") -> str:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise self.wrong(name, "a text that is not empty")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def int32(self, name: str, default: int = 0) -> int:
        return self._integer(name, default, 31)

    def int64(self, name: str, default: int = 0) -> int:
        return self._integer(name, default, 63)

    def number(self, name: str, default: float = 0.0) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number")
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result):
            raise self.wrong(name, "a finite number")
        return result

    def choice(self, name: str, kind: type[E], default: E) -> E:
        """An enum stored as its integer."""
        value = self.int32(name, default)
        try:
            return kind(value)
        except ValueError:
            raise self.wrong(name, f"one of the numbers {', '.join(str(int(member)) for member in kind)}") from None

    def texts(self, name: str) -> tuple[str, ...]:
        items = self._list(name)
        if not all(isinstance(item, str) for item in items):
            raise self.wrong(name, "a list of texts")
        return tuple(str(item) for item in items)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def child(self, name: str) -> Fields:
        """The object under `name`; an absent one reads as empty, so that every field takes its default."""
        value = self._values.get(name)
        return Fields({} if value is None else value, f"{self.path}.{name}")

    def children(self, name: str) -> list[Fields]:
        return [Fields(item, f"{self.path}.{name}[{index}]") for index, item in enumerate(self._list(name))]

    def raw(self, name: str) -> object:
        return self._values.get(name)

    def wrong(self, name: str, expected: str) -> PersistedFormatError:
        return PersistedFormatError(f"{self.path}.{name} must be {expected}")

    def _integer(self, name: str, default: int, bits: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
            raise self.wrong(name, f"an integer of {bits + 1} bits")
        return value

    def _list(self, name: str) -> list[object]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value
