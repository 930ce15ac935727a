"""Everything of a running operator but the framework: the world, the engine, the queue of dependents. Knows no kopf."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from kvcm.common.errors import KvcmError, NotFound
from kvcm_operator import reconcile_group, reconcile_manager, reconcile_storage
from kvcm_operator.dependencies import Dependencies
from kvcm_operator.engine import Engine
from kvcm_operator.health import Health
from kvcm_operator.sight import Sight
from kvcm_operator.subject import Subject
from kvcm_operator.workqueue import WorkQueue
from kvcm_operator.world import GROUP, MANAGER, STORAGE, Json, Outcome, Ref, World

_log = logging.getLogger("kvcm.operator")
RECONCILERS = {MANAGER: reconcile_manager.reconcile, STORAGE: reconcile_storage.reconcile, GROUP: reconcile_group.reconcile}


class Runtime:
    """Belongs to the loop that makes it. `health` may outlive it: it exists before this process leads."""

    def __init__(
        self,
        world: World,
        drift_s: float,
        random: Random,
        dependencies: Dependencies,
        health: Health,
        namespaces: tuple[str, ...] = (),
        *,
        sight: Sight | None = None,
        on_blind: Callable[[], None] | None = None,
    ) -> None:
        """`namespaces`: where to look; none means everywhere.

        `on_blind`: the framework misses a kind and has to begin anew. With None nobody can do that, and only the liveness probe tells of it.
        """
        self._sight = sight or Sight(world.clock, health)
        self._on_blind = on_blind
        self._world = world
        self._namespaces = namespaces
        self._sweeper: asyncio.Task[None] | None = None
        self._dependencies = dependencies
        self._health = health
        self._random = random
        self._drift = drift_s
        self._engine = Engine(world, RECONCILERS, health, self._touched)
        self._queue = WorkQueue(self._look, random)

    def start(self) -> None:
        self._queue.start()
        self._sweeper = asyncio.create_task(self._sweeping(), name="kvcm-sweep")
        self._health.started = True

    async def stop(self) -> None:
        self._health.started = False
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._queue.stop()

    async def now(self, ref: Ref) -> Outcome | None:
        """A pass for a handler that waits for it; what has to follow later is queued. Raises KvcmError."""
        with self._sight.handling(ref.kind):
            outcome = await self._engine.run(ref)
        if outcome is not None and outcome.requeue_after is not None:
            self._queue.add(ref, outcome.requeue_after)
        return outcome

    def drift(self, ref: Ref) -> None:
        """The drift timer's turn: compared within a fifth of the period, so that objects spread out over it."""
        self._queue.add(ref, self._random.random() * self._drift * 0.2)

    async def sweep(self) -> None:
        """Queue what is being deleted, whether or not a watch has shown it, and note what else the watches should have shown. Never raises.

        The framework can miss a kind whose definition comes while it runs (sight.py). Nobody would look at objects of that kind then; here they are seen, and
        the framework begins anew. Where that does not help, the watches stay behind, and the liveness probe has the process started again.
        """
        for kind in RECONCILERS:
            seen: list[Subject] = []
            whole = True
            for namespace in self._namespaces or ("",):
                try:
                    seen += map(Subject, await self._world.kube.list(kind, namespace))
                except NotFound:
                    pass  # the kind is not served, so no object of it exists
                except KvcmError as error:
                    whole = False
                    _log.warning("sweep left out kind=%s namespace=%s: %s", kind, namespace, error.message)
            self._queue.add_all(subject.ref for subject in seen if subject.deleting and subject.held)
            for subject in seen:
                if not subject.deleting:
                    self._health.read(subject.ref, subject.version)
            if whole:
                self._health.only(kind, {subject.ref for subject in seen})
        blind = self._sight.blind()
        if blind and self._on_blind is not None:
            _log.error("watches show nothing of kinds=%s although objects wait", ",".join(blind))
            self._health.watching_anew()
            self._on_blind()

    async def _sweeping(self) -> None:
        while True:
            # What is missing now may only be late; soon it is not.
            await asyncio.sleep(min(self._drift, self._sight.patience_s) if self._health.missing() else self._drift)
            await self.sweep()

    def saw(self, kind: str, body: Json, *, deleted: bool) -> None:
        """A watch event; whoever depends on the object is queued."""
        self._sight.showed(kind)
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
        # The handler of a deletion may come much later, or never: the framework leaves a kind alone as soon as its definition is being deleted.
        outcome = await self._engine.run(ref, let_go=True)
        return outcome.requeue_after if outcome is not None else None
