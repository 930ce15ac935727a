"""The index over a real Redis (design D7, I-MB-1, I-MI-4): calls overlap, callers are cancelled, connections are cut at any moment; memory and store end equal.

`test_meta_index_invariants.py` plays the same moves over a double in which every single step can be held; here the steps are those of the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.index import MetaIndex, Outcome
from kvcm.meta.location import Block, Location
from kvcm.meta.testing import Census, published
from kvcm.meta.testing_moves import Dice, IndexWorld, Move
from kvcm.meta.testing_redis import RedisBlocks, loaded
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.property


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    if redis_binary() is None:
        pytest.skip("redis-server is not installed")
    with RedisServer() as server:
        yield server


class OverRedis(IndexWorld):
    """Looks now and then, not after every step, so what it sees between two looks is not a single transition."""

    def over(self, backend: MetadataBackend, blocks: RedisBlocks) -> None:
        self.index = MetaIndex(backend, max_key_count=self.limit, tier_capacity=4)
        self.blocks = blocks

    def fresh(self) -> Location:
        return self.blocks.location(next(self._numbers))

    def _compare(self, old: object, new: object) -> None:
        return


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_I_MB_1_and_I_MI_4_hold_over_a_wire_that_is_cut_at_any_moment(redis: RedisServer, number: int, cuts: bool) -> None:
    redis.call("FLUSHALL")

    async def story() -> None:
        blocks, dice, world = RedisBlocks(ProtoLocationEncoder()), Dice(number, cancels=True), OverRedis()
        async with blocks.opened(redis.port, options="timeout_ms=5000") as backend:
            world.over(backend, blocks)
            callers: list[asyncio.Task[list[Outcome]]] = []
            for steps in dice.calls() + dice.calls():
                callers.append(asyncio.ensure_future(world.call(steps)))
                for _ in range(dice.choose(6)):
                    await asyncio.sleep(0)
                if cuts and not dice.choose(3):
                    redis.call("CLIENT", "KILL", "TYPE", "normal")
                doomed = dice.cancel()
                if doomed is not None:
                    callers[doomed % len(callers)].cancel()
                world.watch()
            ends = await asyncio.gather(*callers, return_exceptions=True)
            assert [end for end in ends if isinstance(end, Exception)] == []
            # Whatever was in doubt is settled by the next change of the block; behind it nothing of a cancelled caller is under way either.
            for key in range(4):
                assert await settle(world, key) == [Outcome(True)]
            world.watch()
            stored = sets(dict(await loaded(backend)))
            assert sets(published(world.index)) == stored
            again = MetaIndex(backend, max_key_count=0)
            await again.recover()
            assert sets(published(again)) == stored
            assert Census.reported_by(again) == Census.of(published(world.index).values())

    asyncio.run(story())


async def settle(world: OverRedis, key: int) -> list[Outcome]:
    """After a cut it takes a moment until the next connection is tried."""
    async with asyncio.timeout(30):
        while True:
            outcomes = await world.call([(key, Move.BEGIN)])
            if outcomes[0].changed:
                return outcomes
            await asyncio.sleep(0.02)


def sets(found: dict[int, Block]) -> dict[int, set[Location]]:
    return {key: set(block) for key, block in found.items()}
