"""Quantities and durations: what is read, what is refused, and the shortest text back."""

from __future__ import annotations

import pytest

from kvcm.resources.duration import format_duration, parse_duration
from kvcm.resources.quantity import MAX_BYTES, format_quantity, parse_quantity

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        (0, 0),
        ("+5", 5),
        (123, 123),
        ("1k", 1000),
        ("1Ki", 1024),
        ("30G", 30_000_000_000),
        ("10Gi", 10 * 2**30),
        ("1.5Gi", 3 * 2**29),
        (".5Ki", 512),
        ("5.", 5),
        ("1E", 10**18),
        ("1E3", 1000),
        ("2e9", 2_000_000_000),
        ("15e-1", None),
        ("20e-1", 2),
        ("1000m", 1),
        ("2000000u", 2),
        ("3000000000n", 3),
        ("7Ei", 7 * 2**60),
        (str(MAX_BYTES), MAX_BYTES),
        (MAX_BYTES, MAX_BYTES),
    ],
)
def test_a_quantity_is_exact_or_refused(text: str | int, value: int | None) -> None:
    if value is None:
        with pytest.raises(ValueError, match="whole number"):
            parse_quantity(text)
    else:
        assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "non-negative quantity"),
        ("10GB", "non-negative quantity"),
        ("1 G", "non-negative quantity"),
        ("-1", "non-negative quantity"),
        (-1, "negative"),
        ("1K", "non-negative quantity"),
        ("0x10", "non-negative quantity"),
        ("1e1000", "non-negative quantity"),
        ("1e+99", "at most 9223372036854775807"),
        ("8Ei", "at most 9223372036854775807"),
        (2**63, "at most 9223372036854775807"),
        ("1m", "thousandth"),
        ("9" * 33, "at most 32 characters"),
        ("١", "non-negative quantity"),
        ("1G\n", "non-negative quantity"),
        (True, "quantity such as"),
        (1.5, "quotes"),
        (None, "quotes"),
    ],
)
def test_a_bad_quantity_says_what_to_write(text: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_quantity(text)  # type: ignore[arg-type]  # the refusal of other types is what is tested


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1"), (1000, "1k"), (1024, "1Ki"), (64 * 2**30, "64Gi"), (30 * 10**9, "30G"), (1536, "1536"), (3 * 2**29, "1536Mi"), (-5, "-5")],
)
def test_bytes_print_in_the_shortest_exact_form(value: int, text: str) -> None:
    assert format_quantity(value) == text


@pytest.mark.parametrize(
    ("text", "value", "canonical"),
    [
        ("0s", 0, "0s"),
        ("500ms", 500, "500ms"),
        ("1s", 1000, "1s"),
        ("90s", 90_000, "1m30s"),
        ("1h1m1s1ms", 3_661_001, "1h1m1s1ms"),
        ("168h", 604_800_000, "168h"),
    ],
)
def test_durations_read_and_print(text: str, value: int, canonical: str) -> None:
    assert parse_duration(text) == value
    assert format_duration(value) == canonical


@pytest.mark.parametrize("text", ["", "1", "s", "1.5s", "-1s", "1d", "1s ", "1s\n", "169h", "1" * 40 + "s", "9999999999s", None, 5])
def test_a_bad_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_duration(text)  # type: ignore[arg-type]  # the refusal of other types is what is tested
