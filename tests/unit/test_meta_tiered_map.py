"""The map that never stalls: tiers, thinning out, iteration while it changes. Small tiers, so that everything happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcm.meta.tiered_map import TieredMap

pytestmark = pytest.mark.unit


def filled(count: int, capacity: int) -> TieredMap[int]:
    tiers: TieredMap[int] = TieredMap(capacity)
    for key in range(count):
        tiers.set(key, key * 10)
    return tiers


def test_a_full_tier_is_sealed_and_a_new_one_begun() -> None:
    assert filled(10, 4).tier_sizes() == [2, 4, 4]
    assert filled(4, 4).tier_sizes() == [4]


def test_values_are_found_in_every_tier_and_counted_once() -> None:
    tiers = filled(10, 4)
    assert [tiers.get(key) for key in (0, 5, 9, 10)] == [0, 50, 90, None]
    assert 3 in tiers
    assert 10 not in tiers
    assert len(tiers) == 10


def test_setting_again_replaces_in_place() -> None:
    tiers = filled(10, 4)
    tiers.set(0, 7)
    assert (tiers.get(0), len(tiers), tiers.tier_sizes()) == (7, 10, [2, 4, 4])


def test_a_value_of_zero_or_nothing_is_a_value() -> None:
    tiers: TieredMap[bytes] = TieredMap(2)
    tiers.set(1, b"")
    assert (tiers.get(1), 1 in tiers, len(tiers)) == (b"", True, 1)


def test_discarding_what_is_not_there_changes_nothing() -> None:
    tiers = filled(3, 4)
    tiers.discard(99)
    assert len(tiers) == 3


def test_a_thinned_out_tier_moves_into_the_newest_one_and_goes() -> None:
    tiers = filled(100, 40)  # 40, 40, 20
    for key in range(31):  # the oldest tier falls below a quarter
        tiers.discard(key)
    assert tiers.tier_sizes() == [29, 40]
    assert len(tiers) == 69
    assert [tiers.get(key) for key in range(29, 42)] == [None, None, *(key * 10 for key in range(31, 42))]


def test_thinning_out_moves_only_a_few_entries_at_a_time() -> None:
    tiers = filled(1_000, 400)  # 400, 400, 200
    before = tiers.tier_sizes()
    for key in range(300):
        tiers.discard(key)
    assert tiers.tier_sizes() == [before[0], 400, 100]
    tiers.discard(300)
    assert tiers.tier_sizes() == [before[0] + 16, 400, 83]


def test_an_emptied_tier_goes_at_once() -> None:
    tiers = filled(6, 2)
    tiers.discard(2)
    tiers.discard(3)
    assert tiers.tier_sizes() == [2, 2]


def test_a_newest_tier_that_was_thinned_out_goes_on() -> None:
    tiers = filled(4, 4)
    for key in range(3):
        tiers.discard(key)
    for key in range(10, 13):
        tiers.set(key, key)
    assert tiers.tier_sizes() == [4]
    tiers.set(13, 13)
    assert tiers.tier_sizes() == [1, 4]


def test_tiers_stay_bounded_when_everything_is_replaced_again_and_again() -> None:
    tiers: TieredMap[int] = TieredMap(8)
    for key in range(5_000):
        tiers.set(key, key)
        if key >= 20:
            tiers.discard(key - 20)
    assert len(tiers) == 20
    # Sealed tiers hold at least a quarter each, but for the one that is being emptied.
    assert len(tiers.tier_sizes()) <= 20 // 2 + 2


def test_pages_are_of_the_size_asked_for_and_complete() -> None:
    pages = list(filled(10, 4).pages(3))
    assert [len(page) for page in pages] == [3, 1, 3, 1, 2]
    assert sorted(key for page in pages for key in page) == list(range(10))


def test_pages_of_an_empty_map() -> None:
    assert list(TieredMap[int](4).pages(3)) == []


def test_pages_survive_removal_and_compaction_between_them() -> None:
    tiers = filled(100, 20)
    stays = {key for key in range(100) if key % 5 == 0}
    seen: set[int] = set()
    doomed = iter([key for key in range(99, -1, -1) if key not in stays])
    for page in tiers.pages(4):
        seen.update(page)
        for _ in range(6):
            tiers.discard(next(doomed, -1))
        tiers.set(1_000 + len(seen), 1)
        if len(seen) > 500:
            pytest.fail("the iteration does not end")
    assert stays <= seen


@given(st.lists(st.tuples(st.sampled_from(["set", "add", "discard"]), st.lists(st.integers(0, 30), max_size=9, unique=True)), max_size=12), st.integers(1, 12))
def test_many_at_once_are_as_one_after_the_other(steps: list[tuple[str, list[int]]], capacity: int) -> None:
    tiers: TieredMap[int] = TieredMap(capacity)
    expected: dict[int, int] = {}
    for number, (step, keys) in enumerate(steps):
        if step == "discard":
            for key in keys:
                tiers.discard(key)
                expected.pop(key, None)
            continue
        entries = {key: number for key in keys if step == "set" or key not in expected}
        (tiers.set_all if step == "set" else tiers.add_all)(entries)
        expected |= entries
    assert tiers.get_all(range(-1, 32)) == [expected.get(key) for key in range(-1, 32)]
    assert len(tiers) == len(expected)
    assert sorted(key for page in tiers.pages(4) for key in page) == sorted(expected)
    assert all(size <= capacity for size in tiers.tier_sizes())
