"""Which pods could not take over at once, because they still read block metadata. Pure.

A follower is ready long before its copies are complete (with a million blocks, by seconds); if the leader went meanwhile, the next one would have to read
everything before it serves. Danger: copies that are never complete must not stop a roll-out for ever, so patience ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvcm_operator.admin import Copies
from kvcm_operator.rollout_fleet import Fleet

BEGINS_S = 5.0
"""A pod that has just become ready may not have looked yet which instances there are."""
PATIENCE_S = 600.0


def cold(fleet: Fleet, copies: Mapping[str, Copies]) -> frozenset[str]:
    """Names of pods. `copies`: what followers tell; one that does not tell is not waited for."""
    return frozenset(node.name for node in fleet.living if node.ready and node.name in copies and _is_cold(copies[node.name], node.ready_for_s))


def _is_cold(copies: Copies, ready_for_s: float) -> bool:
    if copies.filling:
        return ready_for_s < PATIENCE_S
    return not copies.warm and ready_for_s < BEGINS_S
