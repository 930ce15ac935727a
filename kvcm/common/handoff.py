"""From an event loop to one thread, in order, bounded, and never waiting: for what is written about requests beside answering them.

`offer` is on the path of requests: it appends to a deque and looks at two numbers. The thread sleeps while there is nothing to do, and gathers for 50 ms
before it works, so that a busy loop wakes it twenty times a second and not once per item.

Dangers: a reader that is stuck must cost items and not time or memory, so what does not fit is dropped and counted; a thread that works for long holds the
interpreter, so it takes a few items at a time and steps back in between. Only one thread may offer: the counters have one writer each.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

GATHER_S: Final = 0.05
SLICE: Final = 256
_BREATH_S: Final = 0.0005
_log = logging.getLogger("kvcm.handoff")


class Handoff(Generic[T]):
    """`deliver` runs in the thread with at most SLICE items; what it raises is logged once and counts its items as dropped.

    `max_items` and `max_weight` bound what waits; the weight of an item is the caller's measure of its size. At any time
    offered = queued + delivered + dropped.
    """

    def __init__(self, name: str, deliver: Callable[[Sequence[T]], None], max_items: int, max_weight: int = 1 << 62) -> None:
        self._deliver = deliver
        self._max_items = max_items
        self._max_weight = max_weight
        self._items: deque[tuple[T, int]] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._idle = False
        self._complained = False
        # Written by the offering thread only.
        self.offered = 0
        self._refused = 0
        self._weight_in = 0
        # Written by the working thread only.
        self.delivered = 0
        self._failed = 0
        self._weight_out = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Items that found no room, came after the end, or could not be delivered."""
        return self._refused + self._failed

    @property
    def queued(self) -> int:
        """Items that wait or are being delivered."""
        return self.offered - self._refused - self._failed - self.delivered

    def offer(self, item: T, weight: int = 1) -> bool:
        """Hand an item over; False when it was dropped. Never waits, never raises."""
        self.offered += 1
        if self.queued > self._max_items or self._weight_in - self._weight_out + weight > self._max_weight or self._closing.is_set():
            self._refused += 1
            return False
        self._weight_in += weight
        self._items.append((item, weight))
        if self._idle:
            self._wake.set()
        return True

    def close(self, timeout_s: float = 2.0) -> None:
        """Deliver what waits, for at most `timeout_s` seconds; what comes later is dropped. Idempotent."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._idle = True
            if not self._items and not self._closing.is_set():
                self._wake.wait()
            self._idle = False
            self._wake.clear()
            self._closing.wait(GATHER_S)
            # Only what waits now: what comes meanwhile is gathered for the next round, else a busy loop would wake this thread for every item.
            left = len(self._items)
            while left:
                count = min(SLICE, left)
                self._take(count)
                left -= count
                if left and not self._closing.is_set():
                    self._closing.wait(_BREATH_S)
            if self._closing.is_set() and not self._items:
                return

    def _take(self, count: int) -> None:
        taken = [self._items.popleft() for _ in range(count)]
        try:
            self._deliver([item for item, _ in taken])
        except Exception:
            self._failed += count
            if not self._complained:
                self._complained = True
                _log.exception("delivery_failed thread=%s items=%d: they are dropped, as later ones that fail, without another word", self._thread.name, count)
        else:
            self.delivered += count
        self._weight_out += sum(weight for _, weight in taken)
