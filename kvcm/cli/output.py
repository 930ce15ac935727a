"""What commands print: aligned columns, JSON, YAML; errors as sentences on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from kvcm.common.one_line import one_line, quiet_json


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns with two spaces between them, as kubectl prints them; empty cells show `-`."""
    lines = [[str(cell) for cell in header], *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_json(document: Any) -> None:
    print(quiet_json(json.dumps(document, indent=2, ensure_ascii=False)))


def print_yaml(document: Any) -> None:
    import yaml

    print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120), end="")


def say(sentence: str) -> None:
    """A line for people, on standard error, so that standard output stays machine-readable."""
    print(one_line(sentence), file=sys.stderr)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = "" if value is None else str(value)
    # Names come from other people: control characters must not reach a terminal.
    return "".join(char if char.isprintable() else "?" for char in text) or "-"
