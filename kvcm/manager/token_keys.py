"""Block keys from tokens (wire contract 4.3): a running 64-bit hash, emitted after each full block; the tail is dropped.

The shift right is arithmetic because the running value is signed: clients and engines compute the same numbers.

Danger: a request may carry millions of tokens, and each costs half a microsecond of the loop that serves everybody. Long lists are therefore hashed in
slices (`token_keys_in_slices`), and tokens that can only end in the dropped tail are not hashed at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

SLICE_TOKENS = 4096
"""About two milliseconds of work."""

_MASK = (1 << 64) - 1
_SIGN = 1 << 63
_GOLDEN = 0x9E3779B97F4A7C15


def full_blocks(token_ids: Sequence[int], block_size: int) -> int:
    """How many keys `token_ids` make."""
    return len(token_ids) // block_size


def token_keys(tokens: Sequence[int], block_size: int) -> list[int]:
    """Keys of all full blocks of `block_size` (> 0) tokens, as signed 64-bit integers."""
    hasher = _Hasher(block_size)
    hasher.feed(tokens)
    return hasher.keys


async def token_keys_in_slices(tokens: Sequence[int], block_size: int) -> list[int]:
    """The same, letting others run after every SLICE_TOKENS."""
    hasher = _Hasher(block_size)
    end = full_blocks(tokens, block_size) * block_size
    for start in range(0, end, SLICE_TOKENS):
        if start:
            await asyncio.sleep(0)
        hasher.feed(tokens[start : min(start + SLICE_TOKENS, end)])
    return hasher.keys


class _Hasher:
    """The hash between two slices."""

    def __init__(self, block_size: int) -> None:
        self.keys: list[int] = []
        self._block_size = block_size
        self._state = 0  # signed
        self._filled = 0

    def feed(self, tokens: Iterable[int]) -> None:
        keys, block_size, state, filled = self.keys, self._block_size, self._state, self._filled
        for token in tokens:
            mixed = (token + _GOLDEN + (state << 12) + (state >> 32)) & _MASK
            state = (state ^ mixed) & _MASK
            if state & _SIGN:
                state -= 1 << 64
            filled += 1
            if filled == block_size:
                keys.append(state)
                filled = 0
        self._state, self._filled = state, filled
