"""A copy that follows the streams of several buckets: whatever leaders and failed promotions did to some of them, it equals the store or says it may not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, cast

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import StorageError
from kvcm.common.redis.cluster_slot import ClusterSlot
from kvcm.config.errors import FencedOut
from kvcm.config.model import MetaBackendConfig
from kvcm.meta.changes import LostTrack
from kvcm.meta.cluster_changes import ClusterChanges, Told
from kvcm.meta.key_packing import FixedWidth
from kvcm.meta.location import Block
from kvcm.meta.testing import published, written
from kvcm.meta.warm import WarmIndex

pytestmark = pytest.mark.property

BUCKETS = 3
SOME = st.frozensets(st.integers(0, BUCKETS - 1), min_size=1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.frozensets(st.integers(0, 11), min_size=1)),
        st.tuples(st.sampled_from(["promote", "silent", "trim", "lose"]), SOME),
        st.tuples(st.just("elect"), st.just(frozenset())),
        st.tuples(st.just("follow"), st.just(frozenset())),
    ),
    max_size=14,
)


class Bucket:
    """What the scripts of `cluster_scripts` do to one, and the commands that followers send."""

    def __init__(self, ids: Any) -> None:
        self.blocks: dict[int, Block] = {}
        self.entries: list[tuple[bytes, dict[bytes, bytes]]] = []
        self.fence = 0
        self._ids = ids

    def claim(self, fence: int, *, tells: bool = True) -> None:
        if fence < self.fence:
            raise FencedOut("a newer leader", self.fence)
        if fence > self.fence and tells:
            self._add({b"f": b"%d" % fence, b"p": b"%d" % self.fence})
        self.fence = fence

    def put(self, blocks: Mapping[int, Block], fence: int) -> bool:
        if fence != self.fence:
            return False
        self._add({b"f": b"%d" % fence, b"n": b"%d" % next(self._ids), b"k": b"".join(key.to_bytes(8, "little") for key in blocks)})
        self.blocks.update(blocks)
        return True

    def _add(self, fields: dict[bytes, bytes]) -> None:
        self.entries.append((b"%d-0" % next(self._ids), fields))

    async def ask(self, commands: Collection[bytes], timeout_s: float = 0.0) -> list[Any]:
        await asyncio.sleep(0)
        return [self._answer(command) for command in commands]

    def _answer(self, command: bytes) -> Any:
        reader = hiredis.Reader()
        reader.feed(command)
        name, _, *args = reader.gets()
        if name == b"GET":
            return b"%020d.x" % self.fence if self.fence else None
        if name == b"XREVRANGE":
            return _flat(self.entries[-1:])
        assert name == b"XRANGE"
        return _flat([one for one in self.entries if _number(one[0]) >= _number(args[0])][: int(args[3])])


def _number(entry: bytes) -> int:
    return int(entry.partition(b"-")[0])


def _flat(entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> list[Any]:
    return [[entry, [part for pair in fields.items() for part in pair]] for entry, fields in entries]


class Place:
    """Buckets, and one process's way to them. The leader of `fence` writes; `fence` 0: nobody does."""

    def __init__(self) -> None:
        ids = itertools.count(1)
        self.buckets = [Bucket(ids) for _ in range(BUCKETS)]
        self.fence = 0
        self.top = 0
        self.changes = ClusterChanges(self._told, 100, self._blocks)

    @property
    def blocks(self) -> dict[int, Block]:
        return {key: block for bucket in self.buckets for key, block in bucket.blocks.items() if block}

    async def _told(self) -> list[Told]:
        return [Told(cast(ClusterSlot, bucket), b"fence", b"stream") for bucket in self.buckets]

    async def _blocks(self, keys: Collection[int]) -> Mapping[int, Block]:
        await asyncio.sleep(0)
        found = self.blocks
        return {key: found.get(key, ()) for key in keys}

    # MetadataBackend

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def raise_fence(self, fence: int) -> None:
        for bucket in self.buckets:
            bucket.claim(fence)

    async def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        yield list(self.blocks.items())

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        raise AssertionError("nobody writes through a copy here")

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        raise AssertionError("nobody asks a copy for this here")

    async def sync(self, keys: Collection[int]) -> None: ...


async def play(place: Place, steps: list[tuple[str, frozenset[int]]]) -> None:
    numbers = itertools.count()

    def fresh() -> WarmIndex:
        return WarmIndex(MetaBackendConfig("redis", ""), "i", place, place.changes, FixedWidth(), lambda: 0)

    copy = fresh()
    untold = False
    for what, some in [("elect", frozenset[int]()), *steps, ("end", frozenset[int]())]:
        if what == "write":
            for number, bucket in enumerate(place.buckets):
                keys = [key for key in some if key % BUCKETS == number]
                block: Block = (written(f"{next(numbers):x}"),)
                if keys:
                    bucket.put({key: () if key in bucket.blocks and bucket.blocks[key] and key % 2 else block for key in keys}, place.fence)
        elif what in ("promote", "silent"):
            # A candidate that reaches some buckets only; a leader of another make that raises fences and tells nothing of what it changes.
            place.top += 1
            for number in some:
                place.buckets[number].claim(place.top, tells=what == "promote")
                if what == "silent":
                    place.buckets[number].blocks[number] = (written(f"{next(numbers):x}"),)
                    untold = True
            if what == "silent":
                place.fence = place.top
        elif what == "elect":
            place.top += 1
            place.fence = place.top
            await place.raise_fence(place.top)
        elif what == "trim":
            for number in some:
                place.buckets[number].entries = place.buckets[number].entries[-1:]
        elif what == "lose":
            for number in some:
                place.buckets[number].entries = []
        else:
            try:
                if not copy.is_warm:
                    await copy.fill()
                    untold = False
                else:
                    await copy.follow(0.0)
                assert untold or published(copy.index) == place.blocks
            except LostTrack:
                await copy.close()
                copy = fresh()
    index = await copy.take_over(place.top + 1)
    if index is not None:
        assert published(index) == place.blocks
        assert {bucket.fence for bucket in place.buckets} == {place.top + 1}


@given(STEPS)
@settings(deadline=None, max_examples=150)
def test_a_copy_of_buckets_is_the_store_or_says_it_may_not_be(steps: list[tuple[str, frozenset[int]]]) -> None:
    asyncio.run(play(Place(), steps))


def test_promotions_that_failed_half_way_cost_no_scan() -> None:
    async def story() -> None:
        place = Place()
        nobody: frozenset[int] = frozenset()
        steps = [("follow", nobody), ("write", frozenset(range(6))), ("promote", frozenset({1})), ("write", frozenset({0, 1, 2}))]
        steps += [("promote", frozenset({0, 2})), ("follow", nobody), ("elect", nobody), ("write", frozenset(range(9)))]
        copy = WarmIndex(MetaBackendConfig("redis", ""), "i", place, place.changes, FixedWidth(), lambda: 0)
        await place.raise_fence(1)
        place.top = place.fence = 1
        await copy.fill()
        await play(place, steps)
        await copy.follow(0.0)
        assert published(copy.index) == place.blocks

    asyncio.run(story())
