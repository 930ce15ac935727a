"""The streams of changes of one instance in a Redis Cluster, one for each bucket, as the one ChangeStream that followers read.

A stream lies beside its blocks, so that a change and its entry are one script. Redis waits for several streams only where they lie in one slot, so nothing
waits here: a follower looks again after a moment, sooner while there is something to read. What a follower has not read yet, a promotion reads.

A position is the last entry of each bucket with its mark. Entries have the format of `redis_changes`, and each bucket has its own chain of terms, which is
checked here. What the caller sees as the fence is the lowest of all buckets: it has risen when the last of them has, so that a promotion that raised some of
the fences and then failed is no link of the chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kvcm.common.redis.cluster_slot import ClusterSlot
from kvcm.common.redis.connection import error_word, pack, refused
from kvcm.common.redis.fenced import fence_of
from kvcm.meta.changes import Entry, LostTrack, Page, Position
from kvcm.meta.location import Block
from kvcm.meta.redis_changes import entry_of

_BUSY_S = 0.2


class Told(NamedTuple):
    """One bucket, for readers."""

    slot: ClusterSlot
    fence_key: bytes
    stream: bytes


class _At(NamedTuple):
    """The last entry that was read of one bucket; its mark is `<fence>.<number of the change>`."""

    entry: bytes
    mark: bytes

    @property
    def fence(self) -> int:
        return int(self.mark.partition(b".")[0])

    @property
    def number(self) -> int:
        digits = self.mark.partition(b".")[2]
        return int(digits) if digits.isdigit() else 0


class ClusterChanges:
    def __init__(
        self, told: Callable[[], Awaitable[Sequence[Told] | None]], max_entries: int, read_blocks: Callable[[Collection[int]], Awaitable[Mapping[int, Block]]]
    ) -> None:
        """`told`: the buckets, None while the instance has no layout. `max_entries`: that each stream keeps, 0 for no streams."""
        self._told = told
        self._read_blocks = read_blocks
        self.max_entries = max_entries
        self._hurry = asyncio.Event()
        self._busy = False

    async def end(self) -> Entry:
        positions: list[_At] = []
        for newest, token in await self._ask_all(lambda bucket, at: [_newest(bucket), pack("GET", bucket.fence_key)]):
            if not isinstance(newest, list) or not newest:
                raise LostTrack("nobody has told of changes yet")
            entry = entry_of(newest[0], -1)
            if entry.fence != fence_of(token if isinstance(token, bytes) else None):
                raise LostTrack("the leader does not tell its changes")
            positions.append(_At(entry.position.entry, entry.position.mark))
        return Entry(_together(positions), min(at.fence for at in positions))

    async def changes_after(self, after: Position, limit: int) -> Page:
        """`limit`: of each bucket, so that as many entries or more have come whenever there may be further ones."""
        positions = _apart(after)
        entries: list[Entry] = []
        full: list[int] = []
        answers = await self._ask_all(lambda bucket, at: [pack("XRANGE", bucket.stream, positions[at].entry, "+", "COUNT", limit + 1)], len(positions))
        for number, (found,) in enumerate(answers):
            if not isinstance(found, list) or not found or _at(found[0]) != positions[number]:
                raise LostTrack("the store has dropped changes that were not read yet")
            if len(found) > limit:
                full.append(number)
            for raw in found[1:]:
                entries.append(self._next(positions, number, entry_of(raw, -1)))
        self._busy = bool(entries)
        behind, behind_ms = await self._behind(positions, full) if full else (0, 0)
        return Page(entries, behind, behind_ms)

    async def wait(self, after: Position, seconds: float) -> None:
        try:
            async with asyncio.timeout(min(seconds, _BUSY_S) if self._busy else seconds):
                await self._hurry.wait()
        except TimeoutError:
            return

    async def blocks(self, keys: Collection[int]) -> Mapping[int, Block]:
        return await self._read_blocks(keys)

    def interrupt(self) -> None:
        hurry, self._hurry = self._hurry, asyncio.Event()
        hurry.set()

    # -- inside --------------------------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _next(positions: list[_At], number: int, entry: Entry) -> Entry:
        """The entry as the caller sees it; moves the position of its bucket on. Raises LostTrack for a missing link."""
        last = positions[number].fence
        if entry.fence != last and entry.replaced != last:
            raise LostTrack("a leader in between did not tell its changes")
        before = min(at.fence for at in positions) if entry.fence != last else 0
        positions[number] = _At(entry.position.entry, entry.position.mark)
        lowest = min(at.fence for at in positions)
        return Entry(_together(positions), lowest, entry.keys, before if before and before != lowest else None)

    async def _behind(self, positions: Sequence[_At], full: Collection[int]) -> tuple[int, int]:
        """How many entries there are after these, as far as their writer counts them, and how many milliseconds younger the newest is."""
        behind = late_ms = 0
        for number, (newest,) in enumerate(await self._ask_all(lambda bucket, at: [_newest(bucket)], len(positions))):
            if number not in full or not isinstance(newest, list) or not newest:
                continue
            last, now = positions[number], _at(newest[0])
            behind += max(1, now.number - last.number) if now.fence == last.fence and now != last else int(now != last)
            late_ms = max(late_ms, _ms(now.entry) - _ms(last.entry))
        return behind, late_ms

    async def _ask_all(self, commands: Callable[[Told, int], list[bytes]], wanted: int = 0) -> Sequence[list[Any]]:
        """Replies by bucket. `wanted`: how many buckets there must be. Raises LostTrack, StorageError."""
        told = await self._told()
        if told is None or len(told) != (wanted or len(told)):
            raise LostTrack("nobody has told of changes yet")
        answers = await asyncio.gather(*(bucket.slot.ask(commands(bucket, number)) for number, bucket in enumerate(told)))
        for replies in answers:
            for reply in replies:
                # WRONGTYPE: somebody else's key. Whoever follows finds no entry there.
                if error_word(reply) not in ("", "WRONGTYPE"):
                    raise refused(reply, "to show changes")
        return answers


def _newest(bucket: Told) -> bytes:
    return pack("XREVRANGE", bucket.stream, "+", "-", "COUNT", 1)


def _at(raw: Any) -> _At:
    position = entry_of(raw, -1).position
    return _At(position.entry, position.mark)


def _together(positions: Sequence[_At]) -> Position:
    return Position(b" ".join([b"%b=%b" % at for at in positions]))


def _apart(position: Position) -> list[_At]:
    return [_At(entry, mark) for entry, _, mark in (part.partition(b"=") for part in position.entry.split(b" "))]


def _ms(entry: bytes) -> int:
    head = entry.partition(b"-")[0]
    return int(head) if head.isdigit() else 0
