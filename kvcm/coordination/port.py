"""The port to what decides who leads (design D6; behaviour 16.1).

Promises of every implementation, held by `kvcm.coordination.testing_contract`:
- at most one node holds the lease at a time; it ends no earlier than `lease_ms` after the coordinator accepted the last campaign or keep-alive;
- each won campaign gives an epoch greater than every earlier one, also after restarts of nodes and of the store, and when the holder wins again;
- a campaign by the holder itself (same node id, e.g. after an answer was lost) wins, with a new epoch; the old one is void from then on;
- `keep_alive` says False only when the lease is certainly not held by this node and epoch; when nothing is known it raises StorageError;
- what a node published about itself is kept for `NODE_INFO_TTL_MS` after it was last put, by the coordinator's own time, and then forgotten: each node
  puts it again every `NODE_INFO_EVERY_MS`. A clock that steps may hide a node until its next put, never longer. At most `MAX_NODES` nodes are known;
- a request that timed out or was cancelled may still be carried out later; it can only do what it would have done in time.

Danger: two nodes with one node id are one node here. Whoever configures ids must not give one twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from kvcm.common.errors import InvalidArgument

NODE_INFO_TTL_MS: Final = 60_000
NODE_INFO_EVERY_MS: Final = 10_000
MAX_NODES: Final = 1024
MAX_NODE_ID_CHARS: Final = 256
MAX_TEXT_CHARS: Final = 64 << 10
MAX_LEASE_MS: Final = 24 * 3600 * 1000
_SHARED_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Leader:
    """`epoch` 0: a manager that does not count terms holds the lease (upstream's, in a mixed cluster over Redis)."""

    node_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """`info` is the text that the node put; nobody has looked at it."""

    node_id: str
    info: str


class Coordinator(Protocol):
    """All methods have deadlines of their own, well below ten seconds, and raise StorageError; InvalidArgument for what breaks a limit of this module."""

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

        One look, not one request a node where the coordinator can do so. Entries that cannot be read are left out, they never fail the call. Of nodes that
        another implementation of the protocol published under the same keys (wire contract 5.7), the leader is listed; others where that costs no scan.
        """
        ...

    async def remove_node_info(self, node_id: str) -> None:
        """The node goes: forget what it published. No error when nothing is there."""
        ...

    async def put_shared(self, node_id: str, epoch: int, name: str, text: str) -> bool:
        """Keep a small text for all nodes, if this node holds the lease with this epoch at the moment of writing; else False and nothing is written."""
        ...

    async def get_shared(self, name: str) -> str | None: ...

    async def close(self) -> None: ...


def check_node(node_id: str) -> None:
    if not node_id or len(node_id) > MAX_NODE_ID_CHARS:
        raise InvalidArgument(f"A node id has 1 to {MAX_NODE_ID_CHARS} characters.")


def check_campaign(node_id: str, lease_ms: int) -> None:
    check_node(node_id)
    if not 0 < lease_ms <= MAX_LEASE_MS:
        raise InvalidArgument(f"A lease has 1 to {MAX_LEASE_MS} milliseconds.")


def check_text(text: str) -> None:
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidArgument(f"What nodes publish has at most {MAX_TEXT_CHARS} characters.")


def check_shared(name: str, text: str = "") -> None:
    if _SHARED_NAME.fullmatch(name) is None:
        raise InvalidArgument("The name of a shared text has 1 to 64 letters, digits, dots, underscores and hyphens.")
    check_text(text)
