"""Block keys from tokens (wire contract 4.3): a running 64-bit hash, emitted after each full block; the tail is dropped.

The shift right is arithmetic because the running value is signed: clients and engines compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

_MASK = (1 << 64) - 1
_SIGN = 1 << 63
_GOLDEN = 0x9E3779B97F4A7C15


def token_keys(tokens: Iterable[int], block_size: int) -> list[int]:
    """Keys of all full blocks of `block_size` (> 0) tokens, as signed 64-bit integers."""
    keys: list[int] = []
    state = 0  # signed
    filled = 0
    for token in tokens:
        mixed = (token + _GOLDEN + (state << 12) + (state >> 32)) & _MASK
        state = (state ^ mixed) & _MASK
        if state & _SIGN:
            state -= 1 << 64
        filled += 1
        if filled == block_size:
            keys.append(state)
            filled = 0
    return keys
