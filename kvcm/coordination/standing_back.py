"""A node that could not serve at once leaves a free lease to the others for a moment (design D7: a warm follower takes over, not a cold one).

Two nodes want a lease that has just become free: one has a complete copy of the metadata, the other would have to read all of it first. Whoever asks first
wins, and the difference is a tenth of a second or ten seconds without an answer. So a node that is not ready looks on instead of campaigning, until the lease
has been free for `STAND_BACK_US`; then it wants it after all, because nobody better is there.

A process that was started anew may find the lease held by its own former self. While others are there it gives that lease back: they need not wait until it
ends. Nobody is deprived by it, since a campaign would end that term as well.

Danger: this must never keep a lease free for longer than that moment. A node that knows of no other does not wait at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kvcm.coordination.port import Coordinator

STAND_BACK_US: Final = 1_000_000
_log = logging.getLogger("kvcm.coordination")


class StandingBack:
    """`ready`: this node could serve at once, or no node could serve sooner."""

    def __init__(self, coordinator: Coordinator, node_id: str, ready: Callable[[], bool]) -> None:
        self._coordinator = coordinator
        self._node_id = node_id
        self._ready = ready
        self._free_since_us: int | None = None

    async def may_campaign(self, now_us: int) -> bool:
        """At this moment of the monotonic clock. Raises StorageError when the coordinator cannot be asked."""
        if self._ready():
            self._free_since_us = None
            return True
        leader = await self._coordinator.observe()
        if leader is not None and (leader.node_id != self._node_id or not leader.epoch):
            self._free_since_us = None
            return leader.node_id == self._node_id
        if self._free_since_us is not None and now_us - self._free_since_us >= STAND_BACK_US:
            # Should it win and lose the lease again while it loads, the others come first once more: one may be ready by then.
            self._free_since_us = None
            return True
        if not any(node.node_id != self._node_id for node in await self._coordinator.list_nodes()):
            return True
        if self._free_since_us is None:
            self._free_since_us = now_us
            _log.info("node %s: stands back from a free lease: it has no complete copy of the metadata yet, another node may have one", self._node_id)
        if leader is not None:
            await self._coordinator.resign(self._node_id, leader.epoch)
        return False
