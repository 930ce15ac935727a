"""How often one peer may be wrong: a bucket of failures per address, in a table of bounded size.

A peer starts with `burst` failures to spend and gets `per_minute` back each minute. When the table is full, the peer that failed longest ago is forgotten;
whoever has addresses enough to push others out gains a few attempts, never memory.
"""

from __future__ import annotations

from collections import OrderedDict


class FailureLimiter:
    def __init__(self, burst: int = 10, per_minute: int = 10, max_peers: int = 4096) -> None:
        self._burst = burst
        self._us_each = 60_000_000 // per_minute
        self._max_peers = max_peers
        # peer -> the moment at which its whole burst is back; debt is time, so nothing has to tick.
        self._whole_at: OrderedDict[str, int] = OrderedDict()

    def blocked(self, peer: str, now_us: int) -> bool:
        """Has this peer been wrong too often lately?"""
        return self._whole_at.get(peer, 0) - now_us > (self._burst - 1) * self._us_each

    def failed(self, peer: str, now_us: int) -> None:
        self._whole_at[peer] = max(self._whole_at.pop(peer, 0), now_us) + self._us_each
        while len(self._whole_at) > self._max_peers:
            self._whole_at.popitem(last=False)

    def forgive(self, peer: str) -> None:
        """Take one failure back."""
        whole_at = self._whole_at.get(peer)
        if whole_at is not None:
            self._whole_at[peer] = whole_at - self._us_each

    def __len__(self) -> int:
        return len(self._whole_at)
