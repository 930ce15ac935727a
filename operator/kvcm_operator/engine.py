"""One pass over one object, from reading it to writing its status: the only way in for handlers, timers and the queue of dependents.

Danger: a pass works on a copy that may be old when it ends. The status therefore names the generation that was read, and is written only to the
object that was read (by uid): a successor of the same name never inherits an answer. It is written once, and only when something differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol

from kvcm.common.errors import Conflict, NotFound
from kvcm_operator.locks import Locks
from kvcm_operator.passes import event
from kvcm_operator.subject import Subject, Version, mapping
from kvcm_operator.world import Event, Json, Outcome, Ref, World

MAX_PARALLEL = 16
_WORRYING = ("ServerRefused", "RollOutHalted", "HandoverFailed")

Reconcile = Callable[[Json, World], Awaitable[Outcome]]


class Observer(Protocol):
    """Is told about every pass. `seconds` on the monotonic clock; `result` is a reason of the Ready condition, `finished`, or `error`."""

    def passed(self, ref: Ref, result: str, seconds: float, corrections: int) -> None: ...

    def read(self, ref: Ref, version: Version) -> None: ...

    def gone(self, ref: Ref) -> None: ...


class Engine:
    def __init__(self, world: World, reconcilers: Mapping[str, Reconcile], observer: Observer, on_touched: Callable[[Ref], None]) -> None:
        """`on_touched`: the server or the cluster was changed for this object; its dependents should look again."""
        self._world = world
        self._reconcilers = reconcilers
        self._observer = observer
        self._on_touched = on_touched
        self._locks = Locks()
        self._places = asyncio.Semaphore(MAX_PARALLEL)

    async def run(self, ref: Ref, *, let_go: bool = False) -> Outcome | None:
        """The outcome, None when there is nothing to do: the object is gone, or not held by our finalizer yet. Raises KvcmError to be called again.

        let_go: nobody else will take our finalizer off when a deletion is finished.
        """
        async with self._locks.hold(ref), self._places:
            body = await self._world.kube.get(ref)
            if body is None:
                self._observer.gone(ref)
                return None
            subject = Subject(body)
            if not subject.deleting:
                # No watch shows any more how objects go whose kind is being removed.
                self._observer.read(ref, subject.version)
            if not subject.held:
                return None
            outcome = await self._pass(subject)
            if let_go and outcome.finished and subject.deleting:
                await self._world.kube.let_go(body)
                self._observer.gone(ref)
            return outcome

    async def _pass(self, subject: Subject) -> Outcome:
        start = self._world.clock.monotonic_us()
        result, corrections = "error", 0
        try:
            outcome = await self._reconcilers[subject.ref.kind](subject.body, self._world)
            await self._tell(subject, outcome)
            result, corrections = _result(outcome), outcome.corrections
        finally:
            seconds = (self._world.clock.monotonic_us() - start) / 1e6
            self._observer.passed(subject.ref, result, seconds, corrections)
        if outcome.touched:
            self._on_touched(subject.ref)
        return outcome

    async def _tell(self, subject: Subject, outcome: Outcome) -> None:
        """Events before the status: told twice they are one event, but after the status nobody would know that they are missing."""
        for item in outcome.events:
            await self._world.kube.emit(item)
        if outcome.status is None:
            return
        patch = merge_patch(subject.status, outcome.status)
        if not patch:
            return
        news = transition(subject, outcome.status)
        if news is not None:
            await self._world.kube.emit(news)
        try:
            await self._world.kube.patch_status(subject.ref, subject.uid, patch)
        except (Conflict, NotFound):
            return  # the object that was read is gone; whatever bears its name now gets a pass of its own


def merge_patch(old: Json, new: Json) -> Json:
    """RFC 7386: what turns `old` into `new`; {} when they are equal."""
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif value != before:
            patch[name] = value
    return patch


def transition(subject: Subject, status: Json) -> Event | None:
    """The event for a new reason of Ready; None when the reason is the old one."""
    new = Subject({**subject.body, "status": status})
    ready = new.condition("Ready")
    if not ready or ready.get("reason") == subject.condition("Ready").get("reason"):
        return None
    bad = ready["status"] == "Unknown" or new.condition("Stalled").get("status") == "True" or ready["reason"] in _WORRYING
    kind: Literal["Normal", "Warning"] = "Warning" if bad else "Normal"
    return event(subject, kind, str(ready["reason"]), str(ready.get("message") or ""))


def _result(outcome: Outcome) -> str:
    if outcome.finished:
        return "finished"
    ready = Subject({"kind": "", "metadata": {"name": ""}, "status": mapping(outcome.status)}).condition("Ready")
    return str(ready.get("reason") or "unchanged")
