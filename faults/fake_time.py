"""A wall clock that can be stepped for one process: Debian's libfaketime, told by a file that the process reads at each look. Other
clocks go on as they are."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_PLACES = (f"/usr/lib/{platform.machine()}-linux-gnu/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
_NAME = "libfaketimeMT.so.1"


def library() -> str | None:
    """Where libfaketime is; None when this machine has none."""
    return next((f"{place}/{_NAME}" for place in _PLACES if Path(place, _NAME).exists()), None)


class SteppedClock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    def step(self, seconds: int) -> None:
        """The process's wall clock is so far from the machine's from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n", encoding="ascii")
        os.replace(new, self._file)

    @property
    def environ(self) -> dict[str, str]:
        found = library()
        assert found is not None, "libfaketime is not installed"
        return {"LD_PRELOAD": found, "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
