"""The short memory of probes: it expires, it is bounded, and a deletion that overlaps the question wins."""

from __future__ import annotations

import pytest

from kvcm.common.clock import FakeClock
from kvcm.data_storage.probe_cache import ProbeCache

pytestmark = pytest.mark.unit


def test_it_remembers_until_the_time_to_live_ends() -> None:
    clock = FakeClock()
    cache = ProbeCache(clock, ttl_us=100)
    assert cache.present(["a"]) == set()
    cache.put(["a", "b"], cache.generation)
    clock.advance_us(99)
    cache.put(["b"], cache.generation)
    assert cache.present(["a", "b", "c"]) == {"a", "b"}
    clock.advance_us(1)
    assert cache.present(["a", "b"]) == {"b"}
    assert len(cache) == 1


def test_the_oldest_make_room() -> None:
    cache = ProbeCache(FakeClock(), capacity=2)
    cache.put(["a", "b", "c"], cache.generation)
    assert cache.present(["a", "b", "c"]) == {"b", "c"}


def test_an_answer_from_before_a_deletion_is_not_kept() -> None:
    cache = ProbeCache(FakeClock())
    asked = cache.generation
    cache.invalidate(["a"])
    cache.put(["a"], asked)
    assert cache.present(["a"]) == set()
    cache.put(["a"], cache.generation)
    cache.invalidate(["a"])
    assert cache.present(["a"]) == set()
