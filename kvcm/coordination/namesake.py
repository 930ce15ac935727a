"""Another process that runs with this node's id, mostly a configuration that was copied to a second machine.

A coordinator gives a lease back to the node id that holds it, so that a manager which was started again need not wait for its former self. Two processes with
one id would therefore take it from each other for ever. So whoever has had a renewal refused, and then finds the lease held by its own id under a newer epoch,
leaves it there until it is free: it has asked for none since, so that is somebody else.
"""

from __future__ import annotations

from kvcm.coordination.port import Coordinator


class Namesake:
    def __init__(self, coordinator: Coordinator, node_id: str) -> None:
        self._coordinator = coordinator
        self._node_id = node_id
        self._lost = 0
        """The epoch whose renewal was refused, until it is known who leads instead."""

    def refused(self, epoch: int) -> None:
        """A renewal of this epoch was refused. Nothing may be campaigned for until `leads` has said no."""
        self._lost = epoch

    async def leads(self) -> bool:
        """Raises StorageError when the coordinator cannot be asked."""
        if not self._lost:
            return False
        leader = await self._coordinator.observe()
        if leader is not None and leader.node_id == self._node_id and leader.epoch > self._lost:
            return True
        self._lost = 0
        return False
