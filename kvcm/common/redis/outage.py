"""Says once that a Redis cannot be reached, and once that it can again, however many writers it has.

Each of them fails in its own calls and tells its caller; none of those is a place to log, or a Redis that is away would fill the log with every write.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("kvcm.redis")


class Outage:
    """Of one Redis. Times are seconds of the loop's clock."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._since_s: float | None = None

    def failed(self, why: str, now_s: float) -> None:
        """A connection could not be made."""
        if self._since_s is None:
            self._since_s = now_s
            _log.error("redis_away at=%s: %s; what needs it fails until it is back", self._shown, why)

    def connected(self, now_s: float) -> None:
        if self._since_s is not None:
            _log.warning("redis_back at=%s seconds=%.1f", self._shown, now_s - self._since_s)
            self._since_s = None
