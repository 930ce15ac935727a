"""Replies that were handed to gRPC and that nobody has taken yet.

Danger: a client may ask a thousand times on one connection and read nothing; gRPC keeps every reply until the call ends. Short replies are bounded by the
number of calls under way, long ones have a budget here.
"""

from __future__ import annotations

from typing import Any

SHORT_REPLY_BYTES = 64 << 10
BUDGET_BYTES = 256 << 20


class Unread:
    """Of one listener."""

    def __init__(self, limit: int = BUDGET_BYTES) -> None:
        self.free = limit

    def hold(self, context: Any, size: int) -> bool:
        """Count a long reply of the call until the call has ended, however it ends. False: there is no room for it."""
        if size > self.free:
            return False
        self.free -= size

        def ended(_: Any) -> None:
            self.free += size

        context.add_done_callback(ended)
        return True
