"""Base-128 varints, as protobuf writes them."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """A base-128 varint; negative numbers take ten bytes, as protobuf writes them."""
    rest = value & 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
