"""Blocks as bytes: what comes out is what went in, and the fast path sees exactly the plainly SERVING ones."""

from __future__ import annotations

import gc

import pytest

from kvcm.meta.block_table import BlockTable, Part
from kvcm.meta.location import Block, condemn, promote
from kvcm.meta.testing import written

pytestmark = pytest.mark.unit

A, B, C = written("a"), written("b", size=2**40), written("c", previous_key=-7)
SERVING = promote(A, 5)

FORMS: dict[str, Block] = {
    "one writing": (A,),
    "one serving": (SERVING,),
    "one deleting": (condemn(A),),
    "old and new": (condemn(SERVING), B),
    "two serving": (promote(A), promote(B)),
    "three": (A, promote(B), condemn(C)),
}
FAST = {"one serving"}


@pytest.fixture(autouse=True, params=[0, 16_384], ids=["packed", "aside"])
def room_aside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcm.meta.block_table._MAX_ASIDE", request.param)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_block_comes_back(form: str) -> None:
    table = BlockTable()
    table.put(1, FORMS[form], ())
    assert table.get(1) == FORMS[form]
    assert 1 in table
    assert len(table) == 1


@pytest.mark.parametrize("before", FORMS)
@pytest.mark.parametrize("after", [*FORMS, "gone"])
def test_every_form_can_follow_every_other(before: str, after: str) -> None:
    table = BlockTable()
    old, new = FORMS[before], FORMS.get(after, ())
    table.put(1, old, ())
    table.put(1, new, old)
    assert table.get(1) == new
    assert len(table) == (1 if new else 0)
    out: list[Part] = []
    assert table.serving_run([1], out) == (1 if after in FAST else 0)
    assert out == ([new[0].wire] if after in FAST else [])


def test_an_unknown_block_is_empty() -> None:
    table = BlockTable()
    assert table.get(1) == ()
    assert 1 not in table
    table.put(1, (), ())
    assert len(table) == 0


def test_a_location_without_wire_bytes_survives_between_others() -> None:
    table = BlockTable()
    block = (A, A._replace(wire=b""), B)
    table.put(1, block, ())
    assert table.get(1) == block


def test_a_run_stops_at_the_first_block_that_needs_a_choice() -> None:
    table = BlockTable()
    for key in (1, 2, 4):
        table.put(key, (promote(written(f"s{key}")),), ())
    table.put(3, FORMS["two serving"], ())
    out: list[Part] = [b"before"]
    assert table.serving_run([1, 2, 3, 4], out) == 2
    assert out == [b"before", b"wire of s1", b"wire of s2"]


def test_pages_name_every_block_whatever_its_form() -> None:
    table = BlockTable(tier_capacity=2)
    for key, block in enumerate(FORMS.values()):
        table.put(key, block, ())
    assert sorted(key for page in table.pages(2) for key in page) == list(range(len(FORMS)))


def test_the_collector_has_nothing_to_walk() -> None:
    table = BlockTable()
    for key, block in enumerate(FORMS.values()):
        table.put(key, block, ())
    assert not any(gc.is_tracked(value) for tier in table._entries._tiers for value in tier.entries.values())


def test_what_was_set_aside_is_let_go_when_it_serves() -> None:
    table = BlockTable()
    other: Block = (promote(B),)
    table.put(1, (A,), ())
    table.put(1, (SERVING,), (A,))
    table.put(1, other, (SERVING,))
    assert table.get(1) == other
    assert not table._aside


def test_beyond_the_bound_blocks_are_kept_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcm.meta.block_table._MAX_ASIDE", 2)
    table = BlockTable()
    for key, block in enumerate(FORMS.values()):
        table.put(key, block, ())
    assert [table.get(key) for key in range(len(FORMS))] == list(FORMS.values())
    assert len(table._aside) == 2
    for key, block in enumerate(FORMS.values()):
        table.put(key, (), block)
    assert (len(table), len(table._aside)) == (0, 0)


@pytest.mark.parametrize("capacity", [3, 1000])
@pytest.mark.parametrize("form", ["one writing", "one deleting", "old and new"])
def test_many_that_begin_and_are_served_at_once_are_as_if_put(capacity: int, form: str) -> None:
    at_once, put = BlockTable(capacity), BlockTable(capacity)
    chains = [range(5), range(100, 120), range(5, 9), range(120, 123)]  # the last two go on with the first two
    for chain in chains:
        keys = list(chain)
        before = [FORMS[form]] * len(keys)
        after = [promote(written(f"s{key}", previous_key=key - 1)) for key in keys]
        assert at_once.get_all(keys) == [()] * len(keys)
        at_once.begin_all(keys, before)
        assert at_once.get_all(keys) == before
        at_once.serve_all(keys, after)
        put.put_all([(key, (), block) for key, block in zip(keys, before, strict=True)])
        put.put_all([(key, old, (new,)) for key, old, new in zip(keys, before, after, strict=True)])
    every = [key for chain in chains for key in chain]
    assert at_once.get_all(every) == [put.get(key) for key in every] == [at_once.get(key) for key in every]
    assert len(at_once) == len(put) == len(every)
    for chain in chains:
        found: list[list[Part]] = [[], []]
        keys = [*chain, -1]
        assert at_once.serving_run(keys, found[0]) == put.serving_run(keys, found[1]) == len(chain)
        assert b"".join(found[0]) == b"".join(found[1])
    assert at_once.get_all([0, -1, 1]) == [put.get(0), (), put.get(1)]
