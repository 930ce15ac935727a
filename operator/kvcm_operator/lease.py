"""One operator at a time, by a Lease object.

Whether another holder is alive is judged by this process's own clock: how long its record has not moved since we first saw it so. Times in the record
are for people; clocks of two nodes never agree. Danger: a holder that cannot renew must stop before another may start, so it gives up after
`renew_deadline`, which is well below `duration`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from kvcm.common.clock import Clock
from kvcm.common.errors import KvcmError
from kvcm_operator.subject import mapping
from kvcm_operator.world import Json, KubeApi, Ref

_log = logging.getLogger("kvcm.operator.lease")


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. duration > renew_deadline > retry."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class Lease:
    """`sleep` ends early when the process is told to stop, by raising CancelledError."""

    def __init__(
        self,
        kube: KubeApi,
        clock: Clock,
        ref: Ref,
        identity: str,
        times: LeaseTimes | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._ref = ref
        self._identity = identity
        self._times = times or LeaseTimes()
        self._sleep = sleep
        self._seen: tuple[object, int] = (None, 0)

    async def acquire(self) -> None:
        """Until this process holds the lease."""
        while not await self._attempt():
            await self._sleep(self._times.retry)
        _log.info("lease acquired name=%s", self._ref.name)

    async def keep(self) -> None:
        """Renew until that fails for too long or somebody else holds it; then return, and the caller must end what it does."""
        renewed = self._clock.monotonic_us()
        while True:
            await self._sleep(self._times.retry)
            started = self._clock.monotonic_us()
            if await self._attempt():
                # Counted from before the request: the record may be as old as that.
                renewed = started
            elif (self._clock.monotonic_us() - renewed) / 1e6 >= self._times.renew_deadline or self._lost():
                _log.error("lease lost name=%s", self._ref.name)
                return

    async def release(self) -> None:
        """Let the next one start at once. Never raises."""
        try:
            body = await self._kube.get(self._ref)
            if body is not None and mapping(body.get("spec")).get("holderIdentity") == self._identity:
                await self._kube.replace({**body, "spec": {**body["spec"], "holderIdentity": ""}})
        except KvcmError as error:
            _log.warning("lease not released: %s", error.message)

    def _lost(self) -> bool:
        holder = self._seen[0]
        return isinstance(holder, tuple) and holder[0] not in ("", self._identity)

    async def _attempt(self) -> bool:
        try:
            async with asyncio.timeout(self._times.renew_deadline):
                return await self._take()
        except (KvcmError, TimeoutError):
            return False

    async def _take(self) -> bool:
        body = await self._kube.get(self._ref)
        now = self._clock.monotonic_us()
        if body is None:
            await self._kube.create(self._record({}, transitions=0))
            return True
        spec = mapping(body.get("spec"))
        holder = str(spec.get("holderIdentity") or "")
        record = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._seen[0]:
            self._seen = (record, now)
        if holder not in ("", self._identity):
            duration = max(float(spec.get("leaseDurationSeconds") or 0), self._times.duration)
            if (now - self._seen[1]) / 1e6 < duration:
                return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self._identity)
        await self._kube.replace(self._record(body, transitions))
        return True

    def _record(self, body: Json, transitions: int) -> Json:
        now = datetime.fromtimestamp(self._clock.wall_us() / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = mapping(body.get("spec"))
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._times.duration),
            "renewTime": now,
            "acquireTime": old.get("acquireTime", now) if old.get("holderIdentity") == self._identity else now,
            "leaseTransitions": transitions,
        }
        metadata = body.get("metadata") or {"name": self._ref.name, "namespace": self._ref.namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
