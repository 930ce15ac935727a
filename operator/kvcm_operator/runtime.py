"""Everything of a running operator but the framework: the world, the engine, the queue of dependents. Knows no kopf."""

from __future__ import annotations

from random import Random

from kvcm_operator import reconcile_group, reconcile_manager, reconcile_storage
from kvcm_operator.dependencies import Dependencies
from kvcm_operator.engine import Engine
from kvcm_operator.health import Health
from kvcm_operator.subject import Subject
from kvcm_operator.workqueue import WorkQueue
from kvcm_operator.world import GROUP, MANAGER, STORAGE, Json, Outcome, Ref, World

RECONCILERS = {MANAGER: reconcile_manager.reconcile, STORAGE: reconcile_storage.reconcile, GROUP: reconcile_group.reconcile}


class Runtime:
    """Belongs to the loop that makes it. `health` may outlive it: it exists before this process leads."""

    def __init__(self, world: World, drift_s: float, random: Random, dependencies: Dependencies, health: Health) -> None:
        self._dependencies = dependencies
        self._health = health
        self._random = random
        self._drift = drift_s
        self._engine = Engine(world, RECONCILERS, health, self._touched)
        self._queue = WorkQueue(self._look, random)

    def start(self) -> None:
        self._queue.start()
        self._health.started = True

    async def stop(self) -> None:
        self._health.started = False
        await self._queue.stop()

    async def now(self, ref: Ref) -> Outcome | None:
        """A pass for a handler that waits for it; what has to follow later is queued. Raises KvcmError."""
        outcome = await self._engine.run(ref)
        if outcome is not None and outcome.requeue_after is not None:
            self._queue.add(ref, outcome.requeue_after)
        return outcome

    def drift(self, ref: Ref) -> None:
        """The drift timer's turn: compared within a fifth of the period, so that objects spread out over it."""
        self._queue.add(ref, self._random.random() * self._drift * 0.2)

    def saw(self, kind: str, body: Json, *, deleted: bool) -> None:
        """A watch event; whoever depends on the object is queued."""
        known: Json = {**body, "kind": kind}
        if deleted:
            ref = Subject(known).ref
            self._queue.add_all(self._dependencies.gone(known))
            self._queue.forget(ref)
            self._health.gone(ref)
        else:
            self._queue.add_all(self._dependencies.saw(known))

    def _touched(self, ref: Ref) -> None:
        self._queue.add_all(self._dependencies.dependents(ref))

    async def _look(self, ref: Ref) -> float | None:
        outcome = await self._engine.run(ref)
        # A finished deletion is for the handler to see: only the framework may take the finalizer away.
        return outcome.requeue_after if outcome is not None else None
