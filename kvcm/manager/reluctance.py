"""Saying that bytes could not be proven gone, once for many: a storage that is away refuses thousands of batches, and one line for each hides all others.

The first of an instance is said at once, then at most one line a minute for each, which counts what came meanwhile. Pure, on a clock that is given.
"""

from __future__ import annotations

import logging
from collections import Counter

log = logging.getLogger("kvcm.deleter")

_EVERY_US = 60_000_000
_MAX_INSTANCES = 1024


class Reluctance:
    def __init__(self) -> None:
        self._said_us: dict[str, int] = {}
        self._unsaid: Counter[str] = Counter()

    def note(self, instance_id: str, locations: int, retry_us: int, now_us: int) -> None:
        """`locations` of the instance are kept and tried again in `retry_us`."""
        self._unsaid[instance_id] += locations
        said = self._said_us.get(instance_id)
        if said is not None and now_us - said < _EVERY_US:
            return
        if len(self._said_us) >= _MAX_INSTANCES:
            self.forget()
            self._unsaid[instance_id] = locations
        self._said_us[instance_id] = now_us
        log.warning(
            "deletion_not_proven instance=%s locations=%d retry_in_s=%d: the storage cannot confirm that the bytes are gone; records are kept",
            instance_id,
            self._unsaid.pop(instance_id),
            retry_us // 1_000_000,
        )

    def forget(self) -> None:
        """What was said and what was not."""
        self._said_us.clear()
        self._unsaid.clear()
