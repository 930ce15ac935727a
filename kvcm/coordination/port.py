"""The port to what decides who leads (design D6; behaviour 16.1), and the choice of an implementation by URI.

Promises of every implementation:
- at most one node holds the lease at a time; it ends `lease_ms` after the coordinator accepted the last campaign or keep-alive;
- each won campaign gives an epoch greater than every earlier one, also after restarts of nodes and after the holder won again;
- a campaign by the holder itself (same node id, e.g. after an answer was lost) wins;
- `keep_alive` says False only when the lease is certainly not held by this node and epoch; when nothing is known it raises StorageError.
- what a node published about itself is kept for `NODE_INFO_TTL_MS` after it was last put, by the coordinator's own time, and then forgotten: each node
  puts it again every `NODE_INFO_EVERY_MS`. A clock that steps may hide a node until its next put, never longer. At most `MAX_NODES` nodes are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvcm.common.clock import Clock
from kvcm.common.errors import InvalidArgument, Unsupported

NODE_INFO_TTL_MS = 60_000
NODE_INFO_EVERY_MS = 10_000
MAX_NODES = 1024


@dataclass(frozen=True, slots=True)
class Leader:
    node_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """`info` is the text that the node put; nobody has looked at it."""

    node_id: str
    info: str


class Coordinator(Protocol):
    """All methods have deadlines of their own and raise StorageError."""

    async def campaign(self, node_id: str, lease_ms: int) -> int | None:
        """The epoch when won, None while another node holds the lease."""
        ...

    async def keep_alive(self, node_id: str, epoch: int, lease_ms: int) -> bool: ...

    async def resign(self, node_id: str, epoch: int) -> None:
        """Give the lease back; no error when it is not held any more."""
        ...

    async def observe(self) -> Leader | None:
        """Who holds the lease now."""
        ...

    async def put_node_info(self, node_id: str, info: str) -> None:
        """Publish how to reach a node (JSON text of wire contract 5.7), or say that it is still so. Raises StorageError for one node too many."""
        ...

    async def get_node_info(self, node_id: str) -> str | None:
        """What `put_node_info` published for this node; None when nothing did, or too long ago."""
        ...

    async def list_nodes(self) -> tuple[NodeInfo, ...]:
        """What every node published that was not forgotten, sorted by node id; at most `MAX_NODES`, more are left out.

        One look, not one request a node where the coordinator can do so. Entries that cannot be read are left out, they never fail the call. Nodes that
        another implementation of the protocol published are listed too, under the same keys (wire contract 5.7), for as long as they are stored.
        """
        ...

    async def remove_node_info(self, node_id: str) -> None:
        """The node goes: forget what it published. No error when nothing is there."""
        ...

    async def close(self) -> None: ...


def open_coordinator(uri: str, clock: Clock, epoch_floor: int = 0) -> Coordinator:
    """The coordinator behind `kvcm.coordination.uri`. Raises Unsupported or InvalidArgument.

    `epoch_floor` is the highest fence that a durable store of this process remembers: the memory coordinator forgets its epochs at a restart
    and must go on above it, or the store would refuse the new leader.
    """
    from kvcm.coordination.memory import MemoryCoordinator

    scheme, separator, _ = uri.partition("://")
    if not uri or (scheme == "memory" and separator):
        return MemoryCoordinator(clock, epoch_floor)
    if separator and scheme in ("file", "redis", "etcd"):
        raise Unsupported(
            f"Coordination through {scheme} is not part of this version: it comes with the issue on leadership among several managers. "
            "Leave the URI empty to run a single manager."
        )
    raise InvalidArgument("The coordination URI has an unknown scheme: leave it empty, or use memory://, to run a single manager.")
