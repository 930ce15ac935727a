"""Waiting in a test for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_S = 0.02


def eventually(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Returns when the question is answered with yes; AssertionError naming `what` when that takes too long. The time is a limit, no measure."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(_POLL_S)
