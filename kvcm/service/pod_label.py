"""The leader's pod bears the label `kvcm.io/role=leader`, which the leader Service selects (design section 4). Managers see to it; no operator is needed.

    this node leads:       label on its own pod, with its epoch in an annotation; off every other pod of the same controller with an older epoch
    this node does not:    label off its own pod

Dangers:
- a late request of an old leader: every patch carries the resourceVersion that was read, and whoever takes a label off leaves its own epoch on that pod,
  so that the old leader's patch fails and its next look tells it that it was overtaken;
- a container that crashed leaves its label behind: it goes at the next start, or when another node leads;
- epochs that began anew (the coordinator was set up again): an older pod seems to be ahead for ever. Whoever still has the lease a whole lease after it
  saw that is the leader all the same, since nobody else can have won meanwhile;
- other managers in the namespace: only pods of the controller that owns this pod are touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from kvcm.common.clock import Clock
from kvcm.common.errors import Conflict, KvcmError
from kvcm.service.pod_api import Json, PodApi

ROLE_LABEL: Final = "kvcm.io/role"
EPOCH_ANNOTATION: Final = "kvcm.io/leader-epoch"
LEADER: Final = "leader"
_POLL_S = 0.1
_LOOK_AGAIN_US = 30_000_000
_FIRST_PAUSE_US, _MAX_PAUSE_US = 250_000, 10_000_000
_ATTEMPTS = 3
_STOP_S = 2.0
_log = logging.getLogger("kvcm.service.pod_label")


class PodLabel:
    """`name`: this pod. `leading`: the epoch under which this node serves now, 0 while it does not. `lease_ms`: see the last but one danger."""

    def __init__(self, pods: PodApi, name: str, leading: Callable[[], int], clock: Clock, lease_ms: int) -> None:
        self._pods = pods
        self._name = name
        self._leading = leading
        self._clock = clock
        self._lease_us = lease_ms * 1000
        # What the pods were last made to say; None: not known.
        self._settled: int | None = None
        self._tried: int | None = None
        self._look_at_us = 0
        self._pause_us = _FIRST_PAUSE_US
        self._overtaken_at: tuple[int, int] | None = None
        self._failure = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """After the node has stepped down: wait until the label is off, at most two seconds."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            async with asyncio.timeout(_STOP_S):
                if self._settled != 0:
                    await self.settle(0)
        except (KvcmError, TimeoutError):
            _log.warning("pod_label_left: the label stays on pod %s until another node leads", self._name)
        self._pods.close()

    async def settle(self, epoch: int) -> bool:
        """Make the pods say that this node leads under `epoch`, or does not (0). False: look again soon. Raises KvcmError."""
        for _ in range(_ATTEMPTS):
            try:
                return await (self._claim(epoch) if epoch else self._renounce())
            except Conflict:
                continue
        raise Conflict("The pod kept changing while its label was set.")

    async def _renounce(self) -> bool:
        own = await self._pods.get(self._name)
        if _is_marked(own):
            await self._pods.patch(self._name, _change(own, None, None))
            _log.info("pod_label_off pod=%s", self._name)
        return True

    async def _claim(self, epoch: int) -> bool:
        own = await self._pods.get(self._name)
        if _epoch(own) > epoch and not self._outlasted(_epoch(own)):
            if _is_marked(own):
                await self._pods.patch(self._name, _change(own, None, None))
            return False
        if self._leading() != epoch:
            return False
        if not _is_marked(own) or _epoch(own) != epoch:
            await self._pods.patch(self._name, _change(own, LEADER, epoch))
            _log.info("pod_label_on pod=%s epoch=%d", self._name, epoch)
        return await self._sweep(own, epoch)

    async def _sweep(self, own: Json, epoch: int) -> bool:
        owner = _controller(own)
        if not owner:
            return True
        for pod in await self._pods.labelled(f"{ROLE_LABEL}={LEADER}"):
            name = _meta(pod).get("name")
            if not isinstance(name, str) or name == self._name or _controller(pod) != owner:
                continue
            if _epoch(pod) > epoch and not self._outlasted(_epoch(pod)):
                return False
            if self._leading() != epoch:
                return False
            await self._pods.patch(name, _change(pod, None, epoch))
            _log.info("pod_label_off pod=%s epoch=%d overtaken_by=%d", name, _epoch(pod), epoch)
        return True

    def _outlasted(self, ahead: int) -> bool:
        """Has this node kept its lease for a whole lease since it saw an epoch ahead of its own?"""
        now = self._clock.monotonic_us()
        if self._overtaken_at is None or self._overtaken_at[0] != ahead:
            self._overtaken_at = (ahead, now)
        return now >= self._overtaken_at[1] + self._lease_us

    async def _watch(self) -> None:
        while True:
            await self.turn()
            await asyncio.sleep(_POLL_S)

    async def turn(self) -> None:
        """Look whether something is to be done, and do it. Never raises."""
        epoch, now = self._leading(), self._clock.monotonic_us()
        if epoch == 0:
            self._overtaken_at = None
        if epoch == self._tried and now < self._look_at_us:
            return
        if epoch != self._tried:
            self._tried, self._pause_us = epoch, _FIRST_PAUSE_US
        try:
            done = await self.settle(epoch)
        except KvcmError as error:
            self._note(error.message)
            done = False
        except Exception as error:
            _log.exception("pod_label_failed pod=%s", self._name)
            self._note(type(error).__name__, told=True)
            done = False
        else:
            self._failure = ""
        if done:
            self._settled, self._pause_us = epoch, _FIRST_PAUSE_US
            self._look_at_us = now + _LOOK_AGAIN_US
        else:
            self._settled = None
            self._look_at_us = now + self._pause_us
            self._pause_us = min(2 * self._pause_us, _MAX_PAUSE_US)

    def _note(self, reason: str, *, told: bool = False) -> None:
        if reason != self._failure and not told:
            _log.error("pod_label_failed pod=%s: %s", self._name, reason)
        self._failure = reason


def _meta(pod: Json) -> Json:
    found = pod.get("metadata")
    return found if isinstance(found, dict) else {}


def _texts(pod: Json, field: str) -> dict[str, Any]:
    found = _meta(pod).get(field)
    return found if isinstance(found, dict) else {}


def _is_marked(pod: Json) -> bool:
    return _texts(pod, "labels").get(ROLE_LABEL) == LEADER


def _epoch(pod: Json) -> int:
    text = _texts(pod, "annotations").get(EPOCH_ANNOTATION)
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20 else 0


def _controller(pod: Json) -> str:
    """The uid of the object that made the pod; empty when nothing did."""
    owners = _meta(pod).get("ownerReferences")
    found = [owner for owner in owners if isinstance(owner, dict) and owner.get("controller")] if isinstance(owners, list) else []
    return str(found[0].get("uid", "")) if found else ""


def _change(pod: Json, role: str | None, epoch: int | None) -> Json:
    """A merge patch that holds for this version of the pod alone."""
    change: Json = {"resourceVersion": _meta(pod).get("resourceVersion"), "labels": {ROLE_LABEL: role}}
    if epoch is not None:
        change["annotations"] = {EPOCH_ANNOTATION: str(epoch)}
    return {"metadata": change}
