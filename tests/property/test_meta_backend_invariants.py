"""I-MB-1 .. I-MB-8 (behaviour 9.8): write-behind under random changes, barriers and faults; write-through against a model in a real Redis."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcm.common.clock import FakeClock
from kvcm.common.errors import StorageError
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block
from kvcm.meta.redis_context import RedisContext
from kvcm.meta.testing import Census, Fault, SuspendingBackend, published, written
from kvcm.meta.testing_redis import RedisBlocks, loaded
from kvcm.meta.write_behind import BehindSettings, WriteBehind
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.property

KEYS = st.integers(0, 4)
# A change of some blocks (True: write it, False: remove it), or a barrier for some.
STEPS = st.lists(st.one_of(st.dictionaries(KEYS, st.booleans(), min_size=1), st.frozensets(KEYS, min_size=1)), max_size=12)
# How a store may fail and still say the truth when it is asked again.
FAULTS = st.lists(st.sampled_from([None, None, Fault.REFUSE, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LOST_HALF_WAY, Fault.BUG]), max_size=6)
QUICK = BehindSettings(wait_us=1)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    if redis_binary() is None:
        pytest.skip("redis-server is not installed")
    with RedisServer() as server:
        yield server


class Story:
    """Changes through a write-behind queue; `accepted` lists the contents of each key in the order in which they were accepted."""

    def __init__(self, faults: list[Fault | None]) -> None:
        self.store = SuspendingBackend()
        self.store.faults = deque(faults)
        self.context = RedisContext(FakeClock())
        self.behind = WriteBehind(self.store, "i", QUICK, self.context)
        self.accepted: dict[int, list[Block]] = {}
        self._numbers = iter(range(10_000))

    async def play(self, steps: list[dict[int, bool] | frozenset[int]]) -> None:
        await self.behind.open()
        await self.behind.raise_fence(1)
        for step in steps:
            if isinstance(step, frozenset):
                await self.behind.sync(step)
                for key in step:  # I-MB-3
                    assert self.store.store.get(key, ()) == self.latest(key)
                continue
            changes: dict[int, Block] = {key: (written(f"{next(self._numbers):x}"),) if there else () for key, there in step.items()}
            assert await self.behind.apply(changes, 1) == {}
            for key, block in changes.items():
                self.accepted.setdefault(key, []).append(block)
            seen = await self.behind.read(range(5))
            latest = {key: self.latest(key) for key in range(5)}
            assert seen == {key: block for key, block in latest.items() if block}  # I-MB-1
        await self.behind.close()

    def latest(self, key: int) -> Block:
        return self.accepted.get(key, [()])[-1]


@given(STEPS, FAULTS)
@settings(max_examples=40)
def test_I_MB_1_2_3_6_written_behind_in_order_after_the_barrier_and_nothing_is_dropped(
    steps: list[dict[int, bool] | frozenset[int]], faults: list[Fault | None]
) -> None:
    story = Story(faults)
    asyncio.run(story.play(steps))
    for key, blocks in story.accepted.items():
        stored = [change[key] for change in story.store.history if key in change]
        # I-MB-2: what reached the store came in the order in which it was accepted; repeating the same is allowed.
        positions = [blocks.index(block) if block else -1 for block in stored]
        known = [position for position in positions if position >= 0]
        assert known == sorted(known)
        # I-MB-6: the last content is there.
        assert story.store.store.get(key, ()) == blocks[-1]
    assert story.context.stats.dropped == 0


@given(st.sets(KEYS, min_size=1), st.sets(KEYS))
@settings(max_examples=25)
def test_I_MB_7_what_fails_for_one_key_does_not_keep_others_from_being_stored(keys: set[int], failing: set[int]) -> None:
    async def run() -> None:
        store = SuspendingBackend()
        store.failing_keys = set(failing)
        behind = WriteBehind(store, "i", BehindSettings(wait_us=1, sync_timeout_ms=60, drain_ms=5_000), RedisContext(FakeClock()))
        await behind.open()
        await behind.raise_fence(1)
        await behind.apply({key: (written(f"{key:x}"),) for key in keys}, 1)
        if keys & failing:
            with pytest.raises(StorageError):
                await behind.sync(keys)
        else:
            await behind.sync(keys)
        assert set(store.store) == keys - failing
        store.failing_keys.clear()
        await behind.close()
        assert set(store.store) == keys

    asyncio.run(run())


CONTENTS = st.lists(st.integers(0, 5), max_size=3, unique=True)


@given(st.lists(st.dictionaries(KEYS, st.tuples(CONTENTS, st.none() | KEYS), min_size=1), max_size=8), st.booleans(), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_I_MB_4_5_8_redis_holds_exactly_what_was_acknowledged(
    redis: RedisServer, changes: list[dict[int, tuple[list[int], int | None]]], scanned: bool, legacy: bool
) -> None:
    redis.call("FLUSHALL")
    blocks = RedisBlocks(ProtoLocationEncoder())
    model: dict[int, Block] = {}

    async def run() -> None:
        options = "redis_layout=legacy" if legacy else "timeout_ms=5000"
        async with blocks.opened(redis.port, options=options) as backend:
            if scanned:
                assert await loaded(backend) == {}
            for step in changes:
                wanted: dict[int, Block] = {key: tuple(blocks.location(number, before) for number in numbers) for key, (numbers, before) in step.items()}
                await backend.apply(wanted, 1)
                model.update(wanted)
                present = {key: set(block) for key, block in model.items() if block}
                assert {key: set(block) for key, block in (await backend.read(range(5))).items()} == present
            # I-MB-8: every page is whole, every key is there once, and what was removed does not come back (I-MB-4).
            pages = [page async for page in backend.load()]
            assert {key: set(block) for page in pages for key, block in page} == present if changes else not any(pages)
            index = MetaIndex(backend, max_key_count=100)
            await index.recover()
            assert Census.reported_by(index) == Census.of(published(index).values())

    asyncio.run(run())
