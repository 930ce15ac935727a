"""Coordination inside one process: for a single manager, and for several electors of one test.

Danger: epochs are forgotten with the process, while a registry file remembers them. Hence `epoch_floor`.
"""

from __future__ import annotations

from kvcm.common.clock import Clock
from kvcm.common.errors import StorageError
from kvcm.coordination.port import MAX_NODES, NODE_INFO_TTL_MS, Leader, NodeInfo, check_campaign, check_node, check_shared, check_text

_MAX_SHARED = 256


class MemoryCoordinator:
    """`epoch_floor`: the first epoch given out is one above it."""

    def __init__(self, clock: Clock, epoch_floor: int = 0) -> None:
        self._clock = clock
        self._epoch = epoch_floor
        self._holder: Leader | None = None
        self._expires_us = 0
        # Node id -> (when it is forgotten, what it published).
        self._nodes: dict[str, tuple[int, str]] = {}
        self._shared: dict[str, str] = {}

    async def campaign(self, node_id: str, lease_ms: int) -> int | None:
        check_campaign(node_id, lease_ms)
        holder = self._current()
        if holder is not None and holder.node_id != node_id:
            return None
        self._epoch += 1
        self._holder = Leader(node_id, self._epoch)
        self._expires_us = self._clock.monotonic_us() + lease_ms * 1000
        return self._epoch

    async def keep_alive(self, node_id: str, epoch: int, lease_ms: int) -> bool:
        check_campaign(node_id, lease_ms)
        if self._current() != Leader(node_id, epoch):
            return False
        self._expires_us = self._clock.monotonic_us() + lease_ms * 1000
        return True

    async def resign(self, node_id: str, epoch: int) -> None:
        if self._holder == Leader(node_id, epoch):
            self._holder = None

    async def observe(self) -> Leader | None:
        return self._current()

    async def put_node_info(self, node_id: str, info: str) -> None:
        check_node(node_id)
        check_text(info)
        nodes, now = self._known(), self._clock.monotonic_us()
        if node_id not in nodes and len(nodes) >= MAX_NODES:
            raise StorageError(f"At most {MAX_NODES} nodes can be known.")
        nodes[node_id] = (now + NODE_INFO_TTL_MS * 1000, info)

    async def get_node_info(self, node_id: str) -> str | None:
        found = self._known().get(node_id)
        return found[1] if found else None

    async def list_nodes(self) -> tuple[NodeInfo, ...]:
        return tuple(NodeInfo(node_id, info) for node_id, (_, info) in sorted(self._known().items()))

    async def remove_node_info(self, node_id: str) -> None:
        self._nodes.pop(node_id, None)

    async def put_shared(self, node_id: str, epoch: int, name: str, text: str) -> bool:
        check_shared(name, text)
        if self._current() != Leader(node_id, epoch):
            return False
        if name not in self._shared and len(self._shared) >= _MAX_SHARED:
            raise StorageError(f"At most {_MAX_SHARED} shared texts can be kept.")
        self._shared[name] = text
        return True

    async def get_shared(self, name: str) -> str | None:
        check_shared(name)
        return self._shared.get(name)

    async def close(self) -> None:
        return

    def _current(self) -> Leader | None:
        if self._holder is not None and self._clock.monotonic_us() >= self._expires_us:
            self._holder = None
        return self._holder

    def _known(self) -> dict[str, tuple[int, str]]:
        now = self._clock.monotonic_us()
        self._nodes = {node_id: entry for node_id, entry in self._nodes.items() if now < entry[0]}
        return self._nodes
