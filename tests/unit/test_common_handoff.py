"""From a loop to a thread: in order, bounded, never waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from kvcm.common.handoff import Handoff

pytestmark = pytest.mark.unit


class Gate:
    """A delivery that waits until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.got: list[int] = []

    def __call__(self, items: Sequence[int]) -> None:
        self.entered.set()
        assert self.open.wait(10)
        self.got += items


def test_items_arrive_in_order_and_close_waits_for_them() -> None:
    got: list[int] = []
    handoff = Handoff("t", got.extend, 1000)
    assert all(handoff.offer(number) for number in range(500))
    handoff.close()
    assert got == list(range(500))
    assert (handoff.offered, handoff.delivered, handoff.dropped, handoff.queued) == (500, 500, 0, 0)


def test_what_does_not_fit_is_dropped_and_counted_while_the_reader_is_stuck() -> None:
    gate = Gate()
    handoff = Handoff("t", gate, 5)
    assert handoff.offer(0)
    assert gate.entered.wait(10)
    kept = [handoff.offer(number) for number in range(1, 20)]
    assert kept == [True] * 4 + [False] * 15
    assert (handoff.offered, handoff.queued, handoff.dropped) == (20, 5, 15)
    gate.open.set()
    handoff.close()
    assert gate.got == [0, 1, 2, 3, 4]


def test_weight_bounds_what_waits_too() -> None:
    gate = Gate()
    handoff = Handoff("t", gate, 1000, max_weight=10)
    assert handoff.offer(0, weight=6)
    assert not handoff.offer(1, weight=5)
    assert handoff.offer(2, weight=4)
    gate.open.set()
    handoff.close()
    assert gate.got == [0, 2]


def test_a_failing_delivery_is_dropped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def deliver(items: Sequence[int]) -> None:
        raise OSError("disk full")

    handoff = Handoff("t", deliver, 1000)
    for number in range(100):
        handoff.offer(number)
    handoff.close()
    assert (handoff.delivered, handoff.dropped, handoff.queued) == (0, 100, 0)
    assert caplog.text.count("delivery_failed") == 1


def test_nothing_is_taken_after_the_end_and_closing_twice_is_fine() -> None:
    got: list[int] = []
    handoff = Handoff("t", got.extend, 10)
    handoff.close()
    handoff.close()
    assert not handoff.offer(1)
    assert (got, handoff.dropped) == ([], 1)
