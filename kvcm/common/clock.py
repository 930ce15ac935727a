"""Time as an argument.

Domain code never calls `time.*`: it takes a `Clock`. Durations and deadlines use `monotonic_us` (CLOCK_BOOTTIME, so that a suspended machine
does not stretch a lease or a session); only what is shown or compared across processes (`create_time`, trim ranges) uses `wall_us`.
"""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def monotonic_us(self) -> int:
        """Microseconds since an arbitrary point; never goes back."""
        ...

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch; may jump."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_us(self) -> int:
        return time.clock_gettime_ns(_BOOTTIME) // 1000

    def wall_us(self) -> int:
        return time.time_ns() // 1000


class FakeClock:
    """A clock that moves only when told to. Both clocks advance together; `step_wall` moves the wall clock alone."""

    def __init__(self, wall_us: int = 1_700_000_000_000_000, monotonic_us: int = 1_000_000) -> None:
        self._wall = wall_us
        self._monotonic = monotonic_us

    def monotonic_us(self) -> int:
        return self._monotonic

    def wall_us(self) -> int:
        return self._wall

    def advance_us(self, delta: int) -> None:
        if delta < 0:
            raise ValueError("a monotonic clock cannot go back")
        self._wall += delta
        self._monotonic += delta

    def step_wall(self, delta_us: int) -> None:
        self._wall += delta_us
