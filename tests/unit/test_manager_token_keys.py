"""Block keys from tokens: the vectors of the reference (arithmetic shift), and the properties engines rely on."""

from __future__ import annotations

import pytest

from kvcm.manager.token_keys import token_keys

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("tokens", "block_size", "keys"),
    [
        ([1, 2, 3], 1, [-7046029254386353130, -8366447769517741626, 8024479182958521834]),
        ([-5, 7], 1, [-7046029254386353136, -8366447769517782587]),
        ([42], 1, [-7046029254386353089]),
        ([0], 1, [-7046029254386353131]),
        (list(range(1, 11)), 4, [455111481605203084, 6902853672176602142]),
    ],
)
def test_the_reference_vectors(tokens: list[int], block_size: int, keys: list[int]) -> None:
    assert token_keys(tokens, block_size) == keys


def test_the_fourth_key_of_zeros_tells_the_shifts_apart() -> None:
    """A logical shift, as offline tools use, would give 527151278288217237."""
    assert token_keys([0, 0, 0, 0], 1)[3] == 455111276436382864


def test_an_incomplete_block_is_dropped() -> None:
    assert token_keys([1, 2, 3], 4) == []
    assert token_keys([], 4) == []
    assert token_keys(range(1, 11), 4) == token_keys(range(1, 9), 4)


def test_equal_prefixes_give_equal_keys_and_a_difference_changes_all_that_follow() -> None:
    first, second = token_keys(range(32), 4), token_keys([*range(16), 99, *range(17, 32)], 4)
    assert first[:4] == second[:4]
    assert not set(first[4:]) & set(second[4:])


def test_keys_are_signed_64_bit_numbers() -> None:
    keys = token_keys(range(-50, 400), 3)
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert min(keys) < 0 < max(keys)
    assert len(set(keys)) == len(keys)
