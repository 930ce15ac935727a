"""The bytes of a block, made from its key alone, so that any reader can tell without a copy whether it got the right ones.

Two keys never share bytes in practice (SHAKE-128 of the key), and pages carry their number, so that a block that is shifted, cut or put
together from pieces of others is noticed too.
"""

from __future__ import annotations

import hashlib

PAGE_BYTES = 4096
_NUMBER_BYTES = 8


def block_content(key: int, size: int) -> bytes:
    """`size` bytes (at least 1) for a signed 64-bit key; the same on every machine."""
    seed = key.to_bytes(8, "little", signed=True)
    if size <= PAGE_BYTES:
        return hashlib.shake_128(seed).digest(size)
    pages = -(-size // PAGE_BYTES)
    content = bytearray(hashlib.shake_128(seed).digest(PAGE_BYTES)) * pages
    for number in range(1, pages):
        at = number * PAGE_BYTES
        content[at : at + _NUMBER_BYTES] = number.to_bytes(_NUMBER_BYTES, "little")
    return bytes(memoryview(content)[:size])
