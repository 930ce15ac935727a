"""Key sequences as byte strings that can be compared in one step.

A packing writes each key on its own and puts them side by side, so a part of a sequence is a part of the string, and two sequences are equal exactly when their
strings are. Which packing is used is the surroundings' choice: the manager uses the wire's own (a request's keys arrive in it, so they need not be built one by
one), tests the fixed width.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol


class KeyPacking(Protocol):
    def pack(self, keys: Sequence[int]) -> bytes:
        """All keys side by side."""
        ...

    def unpack(self, packed: bytes) -> list[int]:
        """The keys of a string made by `pack`."""
        ...

    def width(self, key: int) -> int:
        """Bytes that `pack` uses for this key, whatever stands around it."""
        ...


class FixedWidth:
    """Eight bytes a key, in the machine's order."""

    def pack(self, keys: Sequence[int]) -> bytes:
        return array("q", keys).tobytes()

    def unpack(self, packed: bytes) -> list[int]:
        keys = array("q")
        keys.frombytes(packed)
        return keys.tolist()

    def width(self, key: int) -> int:
        return 8
