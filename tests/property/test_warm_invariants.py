"""Whatever the leaders, the store and the scheduler do: a copy that is taken over equals a scan of the store, or is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import StorageError
from kvcm.config.model import MetaBackendConfig
from kvcm.meta.changes import LostTrack
from kvcm.meta.key_packing import FixedWidth
from kvcm.meta.location import Block, Status, condemn, promote
from kvcm.meta.testing import Census, Scheduler, published, written
from kvcm.meta.testing_changes import ToldBackend, ToldPlace
from kvcm.meta.warm import WarmIndex

pytestmark = pytest.mark.property

CONFIG = MetaBackendConfig("redis", "redis://127.0.0.1/")


def a_block(seed: int) -> Block:
    """None, one or two locations in all states."""
    one, two = written(f"{seed:08x}"), written(f"{seed + 1:08x}", size=50, storage_slot=1)
    return ((), (one,), (promote(one),), (promote(one), condemn(two)), (two, promote(one)))[seed % 5]


class World:
    """Leaders over one place, and a process that follows it as `Follower` does."""

    def __init__(self) -> None:
        self.place = ToldPlace()
        self.scheduler = Scheduler()
        self.time_us = 0
        self.copy: WarmIndex | None = None
        self.refilled = 0
        self.place.begin(1)

    def make(self) -> WarmIndex:
        backend = ToldBackend(self.place, self.scheduler)
        return WarmIndex(CONFIG, "i", backend, backend, FixedWidth(), lambda: self.time_us)

    async def follow(self) -> None:
        while True:
            self.time_us += 1_000_000  # so that every page of a scan looks at the stream
            try:
                if self.copy is None:
                    self.copy = self.make()
                    await self.copy.fill()
                await self.copy.follow(1.0)
            except LostTrack:
                assert self.copy is not None
                await self.copy.close()
                self.copy = None
                self.refilled += 1
                await self.scheduler.point("pause")
            except StorageError:
                assert self.copy is not None
                if not self.copy.is_warm:
                    await self.copy.close()
                    self.copy = None

    async def promote(self, task: asyncio.Task[None]) -> WarmIndex | None:
        """The follower wins. Returns its copy if it was taken over, and checks it."""
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        copy = self.copy
        fence = self.place.fence + 1
        if copy is None:
            return None
        (index,) = await self.scheduler.run([copy.take_over(fence)])
        if index is None:
            return None
        assert index is copy.index
        assert published(copy.index) == self.place.blocks
        assert Census.reported_by(copy.index) == Census.of(self.place.blocks.values())
        unsettled = {key for key, block in self.place.blocks.items() if any(location.status is not Status.SERVING for location in block)}
        assert set(copy.unsettled or ()) == unsettled
        return copy


KEYS = st.integers(0, 6)
MOVES = st.one_of(
    st.tuples(st.just("put"), st.lists(KEYS, min_size=1, max_size=3), st.integers(0, 40)),
    st.tuples(st.just("step"), st.integers(1, 20), st.integers(0, 3)),
    st.tuples(st.just("trim"), st.integers(0, 4), st.just(0)),
    st.tuples(st.just("term"), st.sampled_from([True, True, False]), st.just(0)),
    st.tuples(st.just("lose"), st.just(0), st.just(0)),
    st.tuples(st.just("fail"), st.integers(1, 2), st.just(0)),
)


def play(world: World, moves: list[tuple[str, object, int]]) -> Callable[[], object]:
    async def story() -> WarmIndex | None:
        task = asyncio.ensure_future(world.follow())
        await world.scheduler.settle()
        for what, how, number in moves:
            if what == "put":
                assert isinstance(how, list)
                world.place.put({key: a_block(number + key) for key in how}, max(world.place.fence, 1))
            elif what == "step":
                assert isinstance(how, int)
                for _ in range(how):
                    await world.scheduler.release(number % len(world.scheduler.pending()))
            elif what == "trim":
                assert isinstance(how, int)
                world.place.trim(how)
            elif what == "term":
                world.place.begin(world.place.fence + 1, tells=bool(how))
            elif what == "lose":
                world.place.lose()
                world.place.fence = 0
            elif world.copy is not None:
                assert isinstance(how, int)
                backend = world.copy.index._backend
                assert isinstance(backend, ToldBackend)
                backend.failing = how
        return await world.promote(task)

    return lambda: asyncio.run(story())


@settings(deadline=None, max_examples=250)
@given(st.booleans(), st.lists(MOVES, max_size=30))
def test_I_MB_5_a_copy_that_is_taken_over_equals_a_scan(warm: bool, moves: list[tuple[str, object, int]]) -> None:
    world = World()
    world.place.put({key: a_block(key) for key in range(3)}, 1)
    play(world, [("step", 30, 0), *moves] if warm else moves)()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.just("put"), st.lists(KEYS, min_size=1, max_size=3), st.integers(0, 40)), max_size=10), st.integers(0, 30))
def test_I_MB_1_while_the_stream_is_whole_every_promotion_is_warm(moves: list[tuple[str, object, int]], steps: int) -> None:
    world = World()
    interleaved: list[tuple[str, object, int]] = []
    for move in moves:
        interleaved += [move, ("step", 1 + steps % 4, 0)]
    assert play(world, [*interleaved, ("step", 60, 0)])() is not None
    assert world.refilled == 0


@settings(deadline=None, max_examples=60)
@given(st.sets(KEYS, min_size=1), st.integers(1, 12))
def test_I_MB_4_what_is_removed_during_the_scan_does_not_come_back(keys: set[int], steps: int) -> None:
    world = World()
    world.place.put({key: a_block(2) for key in range(7)}, 1)
    moves: list[tuple[str, object, int]] = [("step", steps, 0), ("put", sorted(keys), 0), ("step", 60, 0)]
    for key in keys:
        moves.insert(2, ("put", [key], -key % 5))  # a_block(0): nothing
    assert play(world, moves)() is not None
    assert world.copy is not None
    assert set(published(world.copy.index)) == set(range(7)) - keys
