"""Runs: the wire bytes of blocks that were written one after the other, in one piece.

Block keys are prefix chains, so a later prefix read asks for exactly such a sequence, or for its beginning. A run keeps its packed keys side by side and its
wire bytes side by side: a read compares the keys of the request with those of the run in one `memcmp` and takes the bytes in one copy, instead of building,
looking up, comparing and copying block by block. A thousand blocks cost a few such steps.

A run never reorders. A member that is no longer plainly SERVING is dead: reads stop in front of it. A run that is half dead is rewritten by its owner.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from kvcm.meta.key_packing import KeyPacking

MAX_RUN = 256


class Run:
    """`key_ends[i]`, `ends[i]`: where member i ends in `keys` and in `wire`. `alive[i]`: 1 while it may be read."""

    __slots__ = ("alive", "dead", "ends", "key_ends", "keys", "wire")

    def __init__(self) -> None:
        self.keys = bytearray()
        self.key_ends: array[int] = array("I")
        self.wire = bytearray()
        self.ends: array[int] = array("I")
        self.alive = bytearray()
        self.dead = 0

    def __len__(self) -> int:
        return len(self.alive)

    def extend(self, keys: Sequence[int], wires: Sequence[bytes], packing: KeyPacking) -> None:
        self.key_ends.extend(_ends(len(self.keys), map(packing.width, keys)))
        self.keys += packing.pack(keys)
        self.ends.extend(_ends(len(self.wire), map(len, wires)))
        self.wire += b"".join(wires)
        self.alive += b"\1" * len(wires)

    def kill(self, slot: int) -> None:
        if self.alive[slot]:
            self.alive[slot] = 0
            self.dead += 1

    def wire_of(self, slot: int) -> bytes:
        return bytes(self.slice(slot, 1))

    def slice(self, slot: int, count: int) -> bytearray:
        """Wire bytes of `count` members from `slot` on."""
        return self.wire[self.ends[slot - 1] if slot else 0 : self.ends[slot + count - 1]]

    def match(self, slot: int, wanted: bytes, at: int, count: int) -> tuple[int, int]:
        """(members from `slot` on that are alive and are the next keys of `wanted`, their packed size).

        `at` is where the next key begins in `wanted`, `count` how many keys are left there. The caller knows that the first one is this member.
        """
        limit = min(len(self.alive) - slot, count)
        if self.dead:
            stop = self.alive.find(0, slot, slot + limit)
            if stop >= 0:
                limit = stop - slot
        keys, ends = self.keys, self.key_ends
        start = ends[slot - 1] if slot else 0
        size = ends[slot + limit - 1] - start
        if keys[start : start + size] == wanted[at : at + size]:
            return limit, size
        # The request leaves this run somewhere: find where by halving.
        same, different = 1, limit
        while different - same > 1:
            middle = (same + different) // 2
            size = ends[slot + middle - 1] - start
            if keys[start : start + size] == wanted[at : at + size]:
                same = middle
            else:
                different = middle
        return same, ends[slot + same - 1] - start


def _ends(start: int, sizes: map[int]) -> list[int]:
    return list(accumulate(sizes, initial=start))[1:]
