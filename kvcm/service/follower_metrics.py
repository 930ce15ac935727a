"""How far this node's copies are, for scrapes and for other nodes: all zero on the leader and where nothing can be followed."""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.manager.follower import Follower
from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily
from kvcm.service.cluster import CopiesView, CopyState


def copies_of(follower: Follower) -> CopiesView:
    """What the other nodes are told."""
    state = follower.state
    word = CopyState.WARM if follower.is_ready else CopyState.LOADING if follower.has_looked else CopyState.COLD
    return CopiesView(word, state.warm, state.filling, state.behind, round(state.behind_s * 1000))


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
