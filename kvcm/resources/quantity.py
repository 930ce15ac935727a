"""Kubernetes resource quantities ("30G", "10Gi", "1500k", "2e9") as whole bytes.

The arithmetic is exact (fractions, never floats), so that text -> bytes -> text -> bytes is stable. Two differences from Kubernetes, both
refusals: a quantity that is not a whole number of bytes is an error instead of being rounded up ("100m" is a tenth of a byte, and nearly always
meant as "100M"), and a negative one is an error. Texts are short (`MAX_CHARS`) and exponents have two digits, so no input makes a huge number.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 32
MAX_BYTES = 2**63 - 1
# One pattern for Python and for the generated schema (RE2: no look-around). A sign other than '+' never matches.
PATTERN = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"

_SHAPE = re.compile(r"\+?(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?\Z")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(text: str | int) -> int:
    """Bytes of a quantity; raises ValueError with a sentence that says how to write it."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise ValueError('must be a quantity such as "30G" or "10Gi" (put it in quotes)')
    if isinstance(text, int):
        return _bounded(Fraction(text))
    if len(text) > MAX_CHARS:
        raise ValueError(f"a quantity may have at most {MAX_CHARS} characters")
    match = _SHAPE.match(text)
    if match is None or not text.isascii():
        raise ValueError('must be a non-negative quantity such as "30G", "10Gi", "512Mi" or a plain number of bytes')
    value = Fraction(_plain(match["number"])) * _factor(match["suffix"] or "")
    if value.denominator != 1:
        raise ValueError('is not a whole number of bytes ("m" means a thousandth; write "M" or "Mi" for megabytes)')
    return _bounded(value)


def format_quantity(value: int) -> str:
    """The shortest exact text of a number of bytes; of texts of one length the binary one."""
    texts = [f"{value >> shift}{suffix}" for suffix, shift in _BINARY.items() if value and value % (1 << shift) == 0]
    texts += [f"{value // 10**power}{suffix}" for suffix, power in _DECIMAL.items() if value and power > 0 and value % 10**power == 0]
    return min([*texts, str(value)], key=len)


def _plain(number: str) -> str:
    # Fraction() refuses "5." and ".5"; quantities allow both.
    whole, _, part = number.partition(".")
    return f"{whole or '0'}.{part or '0'}"


def _factor(suffix: str) -> Fraction:
    if not suffix:
        return Fraction(1)
    if suffix in _BINARY:
        return Fraction(1 << _BINARY[suffix])
    power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return Fraction(10) ** power


def _bounded(value: Fraction) -> int:
    if value < 0:
        raise ValueError("must not be negative")
    if value > MAX_BYTES:
        raise ValueError(f"must be at most {MAX_BYTES} bytes (just below 8Ei)")
    return int(value)
