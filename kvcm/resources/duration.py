"""Durations as Kubernetes writes them ("500ms", "1s", "1m30s", "24h"), in whole milliseconds."""

from __future__ import annotations

import re

MAX_CHARS = 32
# One pattern for Python and for the generated schema.
PATTERN = r"^([0-9]{1,9}(ms|s|m|h))+$"
# The wire carries milliseconds in an int32; a week leaves room below its end.
MAX_MS = 7 * 24 * 3600 * 1000
LONGEST = "168h"
TOO_LONG = f"must be at most 7 days ({LONGEST})"

_WHOLE = re.compile(r"([0-9]{1,9}(ms|s|m|h))+\Z")
_PART = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
_UNITS = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


def parse_duration(text: str) -> int:
    """Milliseconds of a duration; raises ValueError with a sentence that says how to write it."""
    if not isinstance(text, str) or len(text) > MAX_CHARS or not _WHOLE.match(text):
        raise ValueError('must be a duration such as "500ms", "1s" or "1m30s"')
    total = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if total > MAX_MS:
        raise ValueError(TOO_LONG)
    return total


def format_duration(milliseconds: int) -> str:
    """The shortest exact text, largest units first; 0 is "0s"."""
    parts = []
    for unit, size in _UNITS.items():
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
