"""Text from strangers on one line of a log or a terminal: nothing in it ends the line, moves the cursor, sets colours or turns the direction of reading."""

from __future__ import annotations

from typing import Final

# Control characters of both halves (U+009B begins the same sequences as ESC [), other ends of lines, and marks of direction.
_SPEAKING: Final = (*range(127, 160), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_JSON: Final = {code: f"\\u{code:04x}" for code in _SPEAKING}
_LINE: Final = (
    {code: f"\\x{code:02x}" if code < 256 else escaped for code, escaped in _JSON.items()}
    | {code: f"\\x{code:02x}" for code in range(32)}
    | {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}
)


def one_line(text: str) -> str:
    """The text with such characters escaped."""
    return text.translate(_LINE)


def quiet_json(text: str) -> str:
    """A JSON text, on as many lines as it has, that means the same and in which only those line ends speak to a terminal."""
    return text.translate(_JSON)
