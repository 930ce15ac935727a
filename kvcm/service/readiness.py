"""Is this node ready (design section 4)? What `/readyz` says, and a pod's readiness probe with it.

Ready: the listeners are up (or nobody would hear the answer), a leader is known, which takes a coordinator that answered within the lease, and on a node
that does not lead, the registry can be read; the leader has recovered. Followers are ready.

A leader that serves stays ready while its registry cannot be read: reads need no registry, and sending its callers away would make an outage of one.
Whether it still leads is decided by its lease alone.
"""

from __future__ import annotations

import asyncio
import logging

from kvcm.common.errors import KvcmError
from kvcm.config.store import RegistryStore
from kvcm.service.cluster import ClusterView

_LOOK_EVERY_S = 0.5
_LOOKS_A_PROBE = 10
_PROBE_S = 3.0
_log = logging.getLogger("kvcm.service.readiness")


class Readiness:
    """`start` it when the listeners are up; from `close` on it says no."""

    def __init__(self, cluster: ClusterView, store: RegistryStore) -> None:
        self._cluster = cluster
        self._store = store
        self._registry_problem = "it has not been read yet"
        self._closed = False
        self._said = ""
        self._was_ready = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        """The node is about to go."""
        self._closed = True

    async def stop(self) -> None:
        self.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def ready(self) -> bool:
        return not self.reason()

    def reason(self) -> str:
        """Why it is not ready, a sentence for the log; empty when it is."""
        if self._closed:
            return "it is stopping"
        known = self._cluster.snapshot()
        if not known.leader_node_id:
            return "no leader is known"
        if not known.is_health:
            return "it is taking over" if known.leader_node_id == known.self_node_id else "the election loop does not run"
        return "" if known.is_leader or not self._registry_problem else f"the registry cannot be read: {self._registry_problem}"

    async def probe(self) -> None:
        """Look at the registry once."""
        try:
            async with asyncio.timeout(_PROBE_S):
                await self._store.probe()
            self._registry_problem = ""
        except KvcmError as error:
            self._registry_problem = error.message
        except TimeoutError:
            self._registry_problem = "it did not answer in time"

    async def _watch(self) -> None:
        looks = 0
        while True:
            if looks % _LOOKS_A_PROBE == 0:
                await self.probe()
            looks += 1
            reason = self.reason()
            if reason != self._said and not self._closed:
                self._said = reason
                # Every start begins without a leader.
                level = logging.WARNING if reason and self._was_ready else logging.INFO
                _log.log(level, "not_ready: %s" if reason else "ready%s", reason)
                self._was_ready = self._was_ready or not reason
            await asyncio.sleep(_LOOK_EVERY_S)
