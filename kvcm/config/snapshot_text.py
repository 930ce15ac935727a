"""The text of a configuration snapshot: one JSON object, written and read in slices, so that megabytes of it never hold up the loop.

    {"format": "kvcm-config-snapshot", "version": 1, "storages": [...], "instance_groups": [...], "instances": [...], "accounts": [...], "left_out": [...]}

Records are in the persisted dialect (`persisted.py`), one a line, sorted by name: two snapshots can be compared with `diff`. `left_out` names stored records
that are damaged and hence missing; a load ignores it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NoReturn

from kvcm.common.errors import CapacityReached, InvalidArgument

FORMAT: Final = "kvcm-config-snapshot"
VERSION: Final = 1
MAX_CHARS: Final = 16 << 20

Section = Literal["storages", "instance_groups", "instances", "accounts"]
SECTIONS: Final[tuple[Section, ...]] = ("storages", "instance_groups", "instances", "accounts")
LEFT_OUT: Final = "left_out"
_SLICE = 64
_SPACE: Final = re.compile(r"[ \t\r\n]*")


async def write(sections: Mapping[Section, Iterable[Mapping[str, object]]], left_out: Iterable[Mapping[str, object]]) -> str:
    """Raises CapacityReached when there is more than one snapshot can hold."""
    parts = [f'{{"format":"{FORMAT}",\n"version":{VERSION}']
    size = 0
    for name, records in (*sections.items(), (LEFT_OUT, left_out)):
        lines: list[str] = []
        for number, record in enumerate(records):
            line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            size += len(line)
            if size > MAX_CHARS - 4096:
                raise CapacityReached(f"The configuration is too large for a snapshot of at most {MAX_CHARS} characters.")
            lines.append(line)
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        parts.append(f',\n"{name}":[' + (("\n" + ",\n".join(lines) + "\n") if lines else "") + "]")
    return "".join([*parts, "}\n"])


async def read(text: str, limits: Mapping[Section, int]) -> dict[Section, list[object]]:
    """The records of each section, unchecked. Raises InvalidArgument with a sentence. `limits`: how many records a section may have."""
    if len(text) > MAX_CHARS:
        raise InvalidArgument(f"config_snapshot has more than {MAX_CHARS} characters.")
    scanner = _Scanner(text)
    head: dict[str, object] = {}
    found: dict[Section, list[object]] = {name: [] for name in SECTIONS}
    seen: set[str] = set()
    scanner.expect("{")
    while not scanner.accept("}"):
        if seen:
            scanner.expect(",")
        key = scanner.value()
        if not isinstance(key, str):
            scanner.fail()
        if key in seen:
            raise InvalidArgument(f"config_snapshot has {key!r} twice.")
        seen.add(key)
        scanner.expect(":")
        if key in ("format", "version"):
            head[key] = scanner.value()
        elif key == LEFT_OUT:
            scanner.value()
        elif key in SECTIONS:
            found[key] = await _records(scanner, key, limits[key])
        else:
            raise InvalidArgument(f"config_snapshot has an unknown section {key[:64]!r}; known are {', '.join((*SECTIONS, LEFT_OUT))}.")
    scanner.end()
    if head.get("format") != FORMAT:
        raise InvalidArgument(f"config_snapshot is not a snapshot of this service: its 'format' must be {FORMAT!r}.")
    if head.get("version") != VERSION or isinstance(head["version"], bool):
        raise InvalidArgument(f"config_snapshot has a version that this manager cannot read; it reads version {VERSION}.")
    return found


async def _records(scanner: _Scanner, section: str, limit: int) -> list[object]:
    records: list[object] = []
    scanner.expect("[")
    while not scanner.accept("]"):
        if records:
            scanner.expect(",")
        if len(records) >= limit:
            raise InvalidArgument(f"{section} of config_snapshot has more than {limit} entries.")
        records.append(scanner.value())
        if len(records) % _SLICE == 0:
            await asyncio.sleep(0)
    return records


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._decoder: Any = json.JSONDecoder(parse_constant=self._constant)

    def accept(self, char: str) -> bool:
        self._skip()
        if not self._text.startswith(char, self._at):
            return False
        self._at += 1
        return True

    def expect(self, char: str) -> None:
        if not self.accept(char):
            self.fail()

    def value(self) -> object:
        self._skip()
        try:
            value, self._at = self._decoder.raw_decode(self._text, self._at)
        except (ValueError, RecursionError):
            self.fail()
        return value

    def end(self) -> None:
        self._skip()
        if self._at != len(self._text):
            self.fail()

    def fail(self) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise InvalidArgument(f"config_snapshot is not valid JSON of the expected form, at or after line {line}.") from None

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found is not None else self._at

    def _constant(self, name: str) -> NoReturn:
        raise ValueError(name)
