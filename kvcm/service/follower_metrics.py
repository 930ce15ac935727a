"""How far this node's copies are, read when a scrape asks: all zero on the leader and where nothing can be followed."""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.manager.follower import Follower
from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily


class FollowerSource:
    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def families(self) -> Iterable[AnyFamily]:
        state = self._follower.state
        yield catalogue.COPIES.of([(("warm",), state.warm), (("filling",), state.filling)])
        yield catalogue.COPIED_BLOCKS.only(state.blocks)
        yield catalogue.LAG_ENTRIES.only(state.behind)
        yield catalogue.LAG_SECONDS.only(state.behind_s)
        yield catalogue.RESYNCS.only(state.resyncs)
