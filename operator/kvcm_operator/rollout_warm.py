"""Which pods could not take over at once, because they still read block metadata. Pure.

A follower is ready long before its copies are complete (with a million blocks, by seconds); if the leader went meanwhile, the next one would have to read
everything before it serves. Danger: copies that are never complete must not stop a roll-out for ever, so patience ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvcm.client.admin_types import ClusterInfo, CopyState
from kvcm_operator.rollout_fleet import Fleet

PATIENCE_S = 600.0
_NOT_YET = (CopyState.COLD, CopyState.LOADING)


def cold(fleet: Fleet, words: Mapping[str, ClusterInfo]) -> frozenset[str]:
    """Names of pods, by their own words. One that does not tell is not waited for."""
    young = (node.name for node in fleet.living if node.ready and node.ready_for_s < PATIENCE_S and node.name in words)
    return frozenset(name for name in young if _state(words[name]) in _NOT_YET)


def _state(info: ClusterInfo) -> CopyState:
    own = next((node for node in info.nodes if node.endpoint.node_id == info.self_node_id), None)
    return own.copies.state if own is not None and own.copies is not None else CopyState.UNKNOWN
