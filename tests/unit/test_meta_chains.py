"""Chains that were loaded in any order are put side by side again, and nothing about the blocks changes."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcm.meta.block_table import BlockTable, Part
from kvcm.meta.chains import join_chains
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block, condemn, promote
from kvcm.meta.testing import SuspendingBackend, written

pytestmark = pytest.mark.unit


def loaded(blocks: dict[int, Block], seed: int) -> BlockTable:
    """A table that got its blocks one by one in a random order, as from a scan."""
    table = BlockTable(tier_capacity=64)
    order = list(blocks)
    random.Random(seed).shuffle(order)
    for key in order:
        table.put(key, blocks[key], ())
    return table


def test_a_chain_is_read_in_pieces_again() -> None:
    keys = [(n * 2_654_435_761) % (1 << 62) - (1 << 61) for n in range(600)]
    blocks: dict[int, Block] = {key: (promote(written(f"{at:x}", previous_key=keys[at - 1] if at else None)),) for at, key in enumerate(keys)}
    table = loaded(blocks, 1)
    before: list[Part] = []
    assert table.serving_run(keys, before) == 600
    assert len(before) == 600
    assert asyncio.run(join_chains(table)) == 600
    after: list[Part] = []
    assert table.serving_run(keys, after) == 600
    assert len(after) <= 4
    assert b"".join(after) == b"".join(before)


KEYS = st.integers(0, 30)


@given(st.dictionaries(KEYS, st.tuples(st.none() | KEYS, st.sampled_from("wsdm"))), st.integers(0, 9))
def test_whatever_the_blocks_are_they_stay_what_they_are(shapes: dict[int, tuple[int | None, str]], seed: int) -> None:
    """Branches, gaps, rings, blocks that name themselves, and blocks that are not plainly served."""
    blocks: dict[int, Block] = {}
    for key, (previous, kind) in shapes.items():
        location = written(f"{key:x}", previous_key=previous)
        made = {"w": (location,), "s": (promote(location),), "d": (condemn(location),), "m": (promote(location), written("m"))}
        blocks[key] = made[kind]
    table = loaded(blocks, seed)
    asyncio.run(join_chains(table))
    assert {key: table.get(key) for page in table.pages(7) for key in page} == blocks
    assert len(table) == len(blocks)


def test_a_ring_that_is_cut_while_it_is_looked_at_is_walked_once() -> None:
    blocks: dict[int, Block] = {key: (promote(written(f"{key:x}", previous_key=(key - 1) % 200)),) for key in range(200)}
    table = loaded(blocks, 3)

    async def story() -> None:
        joining = asyncio.ensure_future(join_chains(table))
        for _ in range(5):
            await asyncio.sleep(0)
        table.put(9, (), table.get(9))
        await asyncio.wait_for(joining, 20)

    asyncio.run(story())
    assert len(table) == 199


def test_an_index_joins_what_it_has_recovered_and_stops_when_it_is_closed() -> None:
    backend = SuspendingBackend()
    backend.store = {key: (promote(written(f"{key:x}", previous_key=key - 1 if key else None)),) for key in range(2000)}
    backend.load_page = 3

    async def story() -> None:
        index = MetaIndex(backend, max_key_count=5000)
        await index.recover()
        index.join_chains()
        assert index._joining is not None
        assert await index._joining == 2000
        parts: list[Part] = []
        assert index.serving_run(list(range(2000)), parts) == 2000
        assert len(parts) <= 16
        await index.close()
        other = MetaIndex(backend, max_key_count=5000)
        await other.recover()
        other.join_chains()
        await other.close()
        assert other._joining is not None
        assert other._joining.cancelled()

    asyncio.run(story())


def test_blocks_that_change_meanwhile_keep_their_newest_state() -> None:
    blocks: dict[int, Block] = {key: (promote(written(f"{key:x}", previous_key=key - 1 if key else None)),) for key in range(300)}
    table = loaded(blocks, 2)

    async def story() -> None:
        joining = asyncio.ensure_future(join_chains(table))
        for key in range(0, 300, 7):
            await asyncio.sleep(0)
            new: Block = (condemn(table.get(key)[0]),) if key % 2 else ()
            table.put(key, new, table.get(key))
            blocks[key] = new
        await joining

    asyncio.run(story())
    assert {key: table.get(key) for page in table.pages(50) for key in page} == {key: block for key, block in blocks.items() if block}
