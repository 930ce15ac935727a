"""Checksum of one block: algorithm `crc32_adler32`, 64 bits, as the signed integer that travels in FinishWrite and MatchLocation.

    low 32 bits   CRC-32 of the block's bytes (zlib polynomial, start value 0)
    high 32 bits  Adler-32 of the block's bytes (zlib, start value 1)
    value         read as a signed 64-bit number; a result of 0 is replaced by 1, because 0 means "no checksum" on the wire

Two *different* functions, because a second CRC of the same polynomial with another start value differs from the first by a constant that
depends on the length only: it would fill 64 bits and detect nothing more. The pieces of a block are folded in order, so the value does not
depend on how the block is cut. Both sides of a comparison must use this algorithm: the manager stores the number without looking into it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_CHECKSUM = 0


def block_checksum(pieces: Iterable[Buffer]) -> int:
    """Signed 64-bit checksum of the pieces as if they were one run of bytes; never 0."""
    crc, adler = 0, 1
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
        adler = zlib.adler32(piece, adler)
    value = adler << 32 | crc
    return (value - (1 << 64) if value >> 63 else value) or 1
