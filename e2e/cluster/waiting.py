"""Wait for what a cluster brings about in its own time, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from e2e.cluster.errors import BedError

_POLL_S = 0.2

T = TypeVar("T")


def eventually(probe: Callable[[], T | None], what: str, *, seconds: float = 30.0) -> T:
    """The first result of `probe` that is true. BedError with `what` and the last error when none is in time.

    `probe` may raise BedError or OSError for "not yet". A pod that is Ready can be a moment ahead of the Service that leads to it.
    """
    deadline = time.monotonic() + seconds
    while True:
        last: object = "it was never true"
        try:
            found = probe()
            if found:
                return found
        except (BedError, OSError) as error:
            last = error
        if time.monotonic() > deadline:
            raise BedError(f"{what}: not seen within {seconds:.0f} s ({last})")
        time.sleep(_POLL_S)
