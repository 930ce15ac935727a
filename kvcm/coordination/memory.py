"""Coordination inside one process: for a single manager, and for several electors of one test.

Danger: epochs are forgotten with the process, while a registry file remembers them. Hence `epoch_floor`.
"""

from __future__ import annotations

from kvcm.common.clock import Clock
from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.coordination.port import Leader

_MAX_NODES = 1024


class MemoryCoordinator:
    """`epoch_floor`: the first epoch given out is one above it."""

    def __init__(self, clock: Clock, epoch_floor: int = 0) -> None:
        self._clock = clock
        self._epoch = epoch_floor
        self._holder: Leader | None = None
        self._expires_us = 0
        self._nodes: dict[str, str] = {}

    async def campaign(self, node_id: str, lease_ms: int) -> int | None:
        if not node_id or lease_ms <= 0:
            raise InvalidArgument("A campaign needs a node id and a positive lease.")
        holder = self._current()
        if holder is not None and holder.node_id != node_id:
            return None
        self._epoch += 1
        self._holder = Leader(node_id, self._epoch)
        self._expires_us = self._clock.monotonic_us() + lease_ms * 1000
        return self._epoch

    async def keep_alive(self, node_id: str, epoch: int, lease_ms: int) -> bool:
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
        if node_id not in self._nodes and len(self._nodes) >= _MAX_NODES:
            raise StorageError(f"At most {_MAX_NODES} nodes can be known.")
        self._nodes[node_id] = info

    async def get_node_info(self, node_id: str) -> str | None:
        return self._nodes.get(node_id)

    async def close(self) -> None:
        return

    def _current(self) -> Leader | None:
        if self._holder is not None and self._clock.monotonic_us() >= self._expires_us:
            self._holder = None
        return self._holder
