"""What this node knows about who leads (wire contract 4.16, 5.7): read by GetClusterInfo, GetManagerClusterInfo and CheckHealth.

`server.py` updates the view when it learns something; services only take snapshots. A snapshot never leaves the process; the list of nodes may ask the
coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kvcm.coordination.elector import Role


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a node. Ports are the real ones, also when the settings say 0 (any free port)."""

    node_id: str = ""
    host: str = ""
    meta_rpc_port: int = 0
    meta_http_port: int = 0
    admin_rpc_port: int = 0
    admin_http_port: int = 0
    custom_info: str = ""


class CopyState(Enum):
    """How ready a follower is to take over. `COLD`: it has not looked yet which instances there are. `WARM`: it could serve at once."""

    COLD = "cold"
    LOADING = "loading"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class CopiesView:
    """The copies of block metadata on a follower: how many are complete and how many are being read, and how far the complete ones are behind."""

    state: CopyState
    warm: int = 0
    filling: int = 0
    behind: int = 0
    behind_ms: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as it described itself. `role` None: not known. `epoch`: of the leadership it has or had last, 0 for none. `copies`: of a follower.

    `told_at_ms`: when it did, by the wall clock of its machine; 0 not known.
    """

    endpoint: Endpoint
    role: Role | None = None
    epoch: int = 0
    copies: CopiesView | None = None
    told_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """`leader_node_id` is empty, `leader_endpoint` blank and `leader_epoch` 0 while no leader is known.

    `self_leader_expiration_us`: wall clock, -1 when this node does not lead. `elector_last_loop_ms`: wall clock of the elector's last turn.
    `is_leader`: this node may answer leader-only requests. `is_health`: the elector runs, a leader is known, and if it is
    this node it is also recovered. `problem`: why `is_health` is not true, a sentence for a person.
    """

    self_node_id: str
    leader_node_id: str = ""
    leader_endpoint: Endpoint = field(default_factory=Endpoint)
    leader_epoch: int = 0
    self_leader_expiration_us: int = -1
    elector_last_loop_ms: int = 0
    is_leader: bool = False
    is_health: bool = False
    problem: str = ""


class ClusterView(Protocol):
    def snapshot(self) -> ClusterSnapshot: ...

    async def nodes(self) -> tuple[NodeView, ...]:
        """This node and every other that described itself lately, sorted by node id. Bounded in time; never raises."""
        ...
