"""Who leads, from what the pods of a manager say. Pure.

Danger: believing one voice. A pod that was suspended, or has lost its coordinator, says for a while what was true before; so the newest epoch wins, and
silence is not absence: "nobody leads" needs every ready pod's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvcm.client.admin_types import ClusterInfo, NodeRole
from kvcm_operator.rollout_fleet import Fleet
from kvcm_operator.subject import mapping, seconds_since
from kvcm_operator.world import Json

SILENT = "not every pod tells who leads, and none that does names a leader"
CONTESTED = "pods name different leaders of the same epoch"


@dataclass(frozen=True, slots=True)
class Leadership:
    """`known`: it can be told; otherwise `why` not. `pod`: who leads, empty when nobody does. `serves`: it has taken over and answers requests.

    `led_for_s`: since this term was first seen, as far as the status tells.
    """

    known: bool
    pod: str = ""
    epoch: int = 0
    serves: bool = False
    why: str = ""
    led_for_s: float = 0.0


def aged(leader: Leadership, status: Json, wall_us: int) -> Leadership:
    """With what the status of the manager tells about how long this term lasts."""
    told = mapping(status.get("leader"))
    if not leader.pod or (told.get("pod"), told.get("epoch") or 0) != (leader.pod, leader.epoch):
        return leader
    return replace(leader, led_for_s=seconds_since(str(told.get("since") or ""), wall_us))


def leadership(fleet: Fleet, words: Mapping[str, ClusterInfo]) -> Leadership:
    """`words`: pod -> its answer; pods that did not answer are missing."""
    claims = {(info.leader_epoch, info.leader_node_id) for info in words.values() if info.leader_node_id}
    if not claims:
        silent = [node for node in fleet.living if node.ready and node.name not in words]
        return Leadership(known=False, why=SILENT) if silent else Leadership(known=True)
    epoch = max(claim[0] for claim in claims)
    newest = {leader for claimed, leader in claims if claimed == epoch}
    if len(newest) > 1:
        # No place gives an epoch twice: there are two places, because the spec names another one now. The one of the newest template counts.
        up_to_date = [words[node.name] for node in fleet.living if node.name in words and not node.outdated]
        newest = {info.leader_node_id for info in up_to_date if info.leader_node_id and info.leader_epoch == epoch}
    if len(newest) != 1:
        return Leadership(known=False, why=CONTESTED)
    leader = newest.pop()
    return Leadership(known=True, pod=leader, epoch=epoch, serves=_serves(fleet, words, leader, epoch))


def _serves(fleet: Fleet, words: Mapping[str, ClusterInfo], leader: str, epoch: int) -> bool:
    """In its own words, if it is one of ours: what others know of it may be seconds old."""
    ours = fleet.living_node(leader) is not None
    asked = [words[leader]] if leader in words else [] if ours else list(words.values())
    return any(node.role is NodeRole.LEADER and node.epoch == epoch for info in asked for node in info.nodes if node.endpoint.node_id == leader)
