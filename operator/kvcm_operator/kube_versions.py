"""Under which version of its API an API server has a kind that moved within the releases of Kubernetes that we run on.

The objects are the same in both; only the path and the apiVersion differ. Asked once in a while, because a cluster may be upgraded under a running operator.
"""

from __future__ import annotations

from kvcm.common.clock import Clock
from kvcm.common.errors import NotFound
from kvcm_operator.kube_transport import Transport
from kvcm_operator.subject import mapping
from kvcm_operator.world import Json, KubeForbidden

ASK_AGAIN_US = 600 * 1_000_000
# Kind -> its group, and the versions to use, best first.
_MOVED = {"PodDisruptionBudget": ("policy", ("v1", "v1beta1"))}


class Versions:
    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._known: dict[str, tuple[str, int]] = {}

    async def of(self, kind: str) -> str | None:
        """The apiVersion of a kind that moved, None for all others. Raises what the transport raises, but NotFound and KubeForbidden."""
        if kind not in _MOVED:
            return None
        now = self._clock.monotonic_us()
        known = self._known.get(kind)
        if known is None or now - known[1] > ASK_AGAIN_US:
            group, versions = _MOVED[kind]
            known = self._known[kind] = f"{group}/{_best(await self._served(group), versions)}", now
        return known[0]

    async def _served(self, group: str) -> set[str]:
        try:
            answer: Json = await self._transport.request("GET", f"/apis/{group}")
        except (NotFound, KubeForbidden):
            return set()  # whoever may not ask takes the newest one
        return {str(mapping(item).get("version")) for item in answer.get("versions") or []}


def _best(served: set[str], versions: tuple[str, ...]) -> str:
    return next((version for version in versions if version in served), versions[0])
