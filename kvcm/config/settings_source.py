"""Reading `key=value` texts: the configuration file, `--env` pairs and the process environment (wire contract 1.3).

Job: turn texts into (key, text) pairs and texts into values, by upstream's rules, so that an upstream configuration starts us unchanged.
Danger: those rules are looser than they look. `#` starts a comment anywhere, also inside a value; only the literal `true` is true; a number
keeps its leading digits (`8080abc` is 8080). Whatever is accepted in spite of looking wrong is reported as a warning, never silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kvcm.config.errors import SettingsError

MAX_CONFIG_CHARS = 1 << 20
_INT64_MAX = (1 << 63) - 1
_LEADING_INT = re.compile(r"\s*([+-]?[0-9]+)")


def read_file(text: str) -> tuple[dict[str, str], list[str]]:
    """Pairs of a configuration file, the last of a repeated key winning, and warnings. Raises SettingsError for a line without `=`."""
    if len(text) > MAX_CONFIG_CHARS:
        raise SettingsError(f"The configuration file is longer than {MAX_CONFIG_CHARS} characters.")
    pairs: dict[str, str] = {}
    warnings: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        body = line.partition("#")[0].strip()
        if not body:
            continue
        key, equals, value = body.partition("=")
        key = key.strip()
        if not equals or not key:
            raise SettingsError(f"Line {number} of the configuration file is not of the form key=value.")
        if key in pairs:
            warnings.append(f"The configuration file sets {key!r} more than once; line {number} wins.")
        pairs[key] = value.strip()
    return pairs, warnings


def read_pairs(items: Sequence[str]) -> dict[str, str]:
    """`--env key=value` arguments: the first `=` splits, the first of a repeated key wins. Raises SettingsError without `=`."""
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise SettingsError("An --env argument must have the form key=value.")
        pairs.setdefault(key, value.strip())
    return pairs


def read_environ(keys: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Known keys found in the process environment: the dotted name first, then the one with underscores; empty means unset."""
    pairs: dict[str, str] = {}
    for key in keys:
        value = environ.get(key, "") or environ.get(key.replace(".", "_"), "")
        if value:
            pairs[key] = value.strip()
    return pairs


def parse_int(key: str, text: str, warnings: list[str]) -> int:
    """A number as C reads it: blanks, a sign, the leading decimal digits. Raises SettingsError when there is none or it needs > 64 bits."""
    match = _LEADING_INT.match(text)
    # 20 characters hold any 64-bit number; longer digit runs are not even converted.
    if match is None or len(match[1]) > 20 or abs(int(match[1])) > _INT64_MAX:
        raise SettingsError(f"The value of {key!r} must be a whole number.")
    value = int(match[1])
    if text[match.end() :].strip():
        warnings.append(f"The value of {key!r} has text after its number; it is read as {value}.")
    return value


def parse_bool(key: str, text: str, warnings: list[str]) -> bool:
    """Only the literal `true` is true."""
    if text not in ("true", "false"):
        warnings.append(f"The value of {key!r} is neither 'true' nor 'false'; it is read as false.")
    return text == "true"


def parse_buckets(text: str) -> tuple[int, ...]:
    """A comma list of seconds, positive and strictly ascending; empty for an empty text. Raises ValueError (wire contract 1.4)."""
    if not text.strip():
        return ()
    found: list[int] = []
    for item in text.split(","):
        item = item.strip()
        if not item.isascii() or not item.isdigit() or len(item) > 12:
            raise ValueError("must be a comma list of whole seconds")
        value = int(item)
        if value <= (found[-1] if found else 0):
            raise ValueError("must be positive and strictly ascending")
        found.append(value)
    return tuple(found)
