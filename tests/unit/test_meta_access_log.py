"""Access times: one touch a request, only for blocks that exist, gone with the block."""

from __future__ import annotations

import asyncio

import pytest

from kvcm.meta.access_log import AccessLog
from kvcm.meta.backend_local import LocalBackend
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block
from kvcm.meta.testing import written

pytestmark = pytest.mark.unit


def test_a_prefix_read_touches_its_last_block_only() -> None:
    log = AccessLog({1, 2, 3})
    log.touch_chain(3, 50)
    assert log.snapshot([1, 2, 3]) == [None, None, 50]
    log.touch_chain(3, 60)
    assert (log.own_time_us(3), len(log)) == (60, 1)


def test_other_reads_touch_every_block_they_returned() -> None:
    log = AccessLog({1, 2, 3})
    log.touch_keys(iter([1, 3]), 70)
    assert log.snapshot([1, 2, 3]) == [70, None, 70]


def test_forgetting_ends_the_memory_of_a_block_and_is_harmless_twice() -> None:
    log = AccessLog({1})
    log.touch_chain(1, 5)
    log.forget(1)
    log.forget(1)
    assert (log.own_time_us(1), len(log)) == (None, 0)


def test_touching_a_block_that_is_gone_leaves_nothing_behind() -> None:
    blocks = {1, 2}
    log = AccessLog(blocks)
    blocks.discard(1)
    log.touch_chain(1, 5)
    log.touch_keys([1, 2, 9], 5)
    assert (log.snapshot([1, 2, 9]), len(log)) == ([None, 5, None], 1)


def test_the_log_of_an_index_is_never_longer_than_the_index() -> None:
    async def story() -> None:
        index = MetaIndex(LocalBackend(), max_key_count=100)

        def add(position: int, key: int, block: Block) -> Block:
            return (written(f"{key}"),)

        def remove(position: int, key: int, block: Block) -> Block:
            return ()

        for round_ in range(5):
            keys = list(range(round_ * 10, round_ * 10 + 10))
            await index.mutate(keys, add, 1)
            index.access.touch_keys(keys, round_)
            await index.mutate(keys[:9], remove, 1)
            # A reader that held its answer meanwhile reports its hits late.
            index.access.touch_keys(keys, round_)
            index.access.touch_chain(keys[0], round_)
            assert len(index.access) == index.key_count == round_ + 1

    asyncio.run(story())
