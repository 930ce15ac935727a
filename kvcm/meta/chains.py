"""After a recovery: put blocks that follow one another side by side again.

A store gives blocks in an order of its own, so the table keeps each by itself. Prefix reads ask for chains, and a chain that is stored as runs (see `runs`) is
read several times faster. This walks every chain once, in small steps between which everybody else is served. It changes how blocks are kept, never what they
are: each step takes the block as it is at that moment.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Iterator

from kvcm.meta.block_table import BlockTable
from kvcm.meta.location import Status, previous_key_of

_BUCKETS = 4096
_STEP = 64
_PAUSE_S = 0.001
_SERVING = int(Status.SERVING)


async def join_chains(table: BlockTable) -> int:
    """Returns how many blocks were put in order. May be cancelled at any step. Takes about 16 bytes per block while it runs."""
    followers = await _followers(table)
    joined = 0
    for page in table.pages(_STEP):
        for key in page:
            previous = _previous(table, key)
            if previous is _NOT_PLAIN or (previous is not None and previous in table):
                continue  # not the beginning of a chain
            for chain in _walk(table, followers, key):
                table.put_all([(member, block, block) for member in chain if (block := table.get(member))])
                joined += len(chain)
                await asyncio.sleep(_PAUSE_S)
        await asyncio.sleep(0)
    return joined


_NOT_PLAIN = object()


def _previous(table: BlockTable, key: int) -> object:
    """The key in front of a block that is plainly SERVING; None for the first of a chain."""
    block = table.get(key)
    return previous_key_of(block[0]) if len(block) == 1 and block[0].header[0] == _SERVING else _NOT_PLAIN


class _Followers:
    """Key -> the keys that come behind it, sorted in buckets: a dictionary of a million entries would take a hundred megabytes."""

    def __init__(self) -> None:
        self._pairs: list[list[tuple[int, int]] | None] = [None] * _BUCKETS
        self._before: list[array[int]] = []
        self._behind: list[array[int]] = []

    def add(self, before: int, key: int) -> None:
        at = before % _BUCKETS
        bucket = self._pairs[at]
        if bucket is None:
            bucket = self._pairs[at] = []
        bucket.append((before, key))

    async def seal(self) -> None:
        for at, bucket in enumerate(self._pairs):
            ordered = sorted(bucket or ())
            self._pairs[at] = None
            self._before.append(array("q", [before for before, _ in ordered]))
            self._behind.append(array("q", [key for _, key in ordered]))
            await asyncio.sleep(0)

    def of(self, key: int) -> list[int]:
        at = key % _BUCKETS
        before = self._before[at]
        first = last = bisect_left(before, key)
        while last < len(before) and before[last] == key:
            last += 1
        return list(self._behind[at][first:last])


async def _followers(table: BlockTable) -> _Followers:
    found = _Followers()
    for page in table.pages(_STEP):
        for key in page:
            previous = _previous(table, key)
            if isinstance(previous, int) and previous != key:
                found.add(previous, key)
        await asyncio.sleep(0)
    await found.seal()
    return found


def _walk(table: BlockTable, followers: _Followers, first: int) -> Iterator[list[int]]:
    """The chains that begin at a block, in pieces of at most _STEP. Each block has one predecessor, so none is met twice but the first, if it is in a ring that
    somebody has cut meanwhile."""
    heads = [first]
    while heads:
        key = heads.pop()
        piece = [key]
        while behind := [other for other in followers.of(key) if other != first]:
            key, *branches = behind
            heads += branches
            piece.append(key)
            if len(piece) == _STEP:
                yield piece
                piece = []
        if piece:
            yield piece
