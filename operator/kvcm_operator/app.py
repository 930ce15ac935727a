"""kopf wiring: which change calls what. Nothing is decided here, and no handler looks at what changed.

Dangers of the framework, and what is done about them: a returned value would be stored in the status, so handlers return None; an error that is
final would count as handled, so every error is temporary; a delete handler that ends releases the finalizer, so it ends only on purpose; the
first tick of a timer comes at once, so it is delayed; a copy of everything that users wrote would be kept in an annotation, which has a limit that
users know nothing of, so only a digest is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, cast

import kopf

from kvcm.common.errors import KvcmError
from kvcm_operator.children import digest
from kvcm_operator.runtime import Runtime
from kvcm_operator.subject import mapping
from kvcm_operator.workqueue import back_off
from kvcm_operator.world import FINALIZER, GROUP, MANAGER, MANAGER_LABEL, STORAGE, Ref

API = ("kvcm.io", "v1alpha1")
ANNOTATIONS = "operator.kvcm.io"
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
WORKERS = 64
IDLE_S = 1.0
DELETE_CAP_S = 30.0
_PLURALS = {MANAGER: "kvcachemanagers", STORAGE: "storages", GROUP: "instancegroups"}
_PARTS = (("apps", "v1", "statefulsets"), ("", "v1", "pods"), ("", "v1", "services"), ("", "v1", "configmaps"))

Open = Callable[[], AbstractAsyncContextManager[Runtime]]


class App:
    """Handlers for one operator process. `open_runtime` is entered when the operator starts and left when it ends."""

    def __init__(self, open_runtime: Open, drift_s: float, random: Random) -> None:
        self._open = open_runtime
        self._drift = drift_s
        self._random = random
        self._context: AbstractAsyncContextManager[Runtime] | None = None
        self._runtime: Runtime | None = None

    def register(self, registry: kopf.OperatorRegistry) -> None:
        kopf.on.startup(registry=registry)(self.startup)
        kopf.on.cleanup(registry=registry)(self.cleanup)
        for kind, plural in _PLURALS.items():
            changed, deleted, tick, seen = self._handlers(kind)
            for on in (kopf.on.create, kopf.on.update, kopf.on.resume):
                on(*API, plural, registry=registry, id="reconcile")(changed)
            kopf.on.delete(*API, plural, registry=registry, id="release")(deleted)
            kopf.timer(*API, plural, registry=registry, id="drift", interval=self._drift * 0.9, initial_delay=self._first_delay)(tick)
            kopf.on.event(*API, plural, registry=registry, id="seen")(seen)
        for group, version, plural in _PARTS:
            kopf.on.event(group, version, plural, labels={MANAGER_LABEL: kopf.PRESENT}, registry=registry, id="part")(self.part)

    async def startup(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        self._context = self._open()
        self._runtime = await self._context.__aenter__()

    async def cleanup(self, **_: Any) -> None:
        context, self._context, self._runtime = self._context, None, None
        if context is not None:
            await context.__aexit__(None, None, None)

    async def part(self, event: Mapping[str, Any], resource: kopf.Resource, **_: Any) -> None:
        self._saw(resource.kind or "", event)

    def _handlers(self, kind: str) -> tuple[Callable[..., Awaitable[None]], ...]:
        async def changed(namespace: str | None, name: str | None, retry: int, **_: Any) -> None:
            await self._pass(Ref(kind, str(namespace), str(name)), retry)

        async def deleted(namespace: str | None, name: str | None, retry: int, **_: Any) -> None:
            finished, wait = await self._pass(Ref(kind, str(namespace), str(name)), retry)
            if not finished:
                # The full back-off would keep an object for minutes after what it waited for has happened.
                raise kopf.TemporaryError("the deletion waits; see the status", delay=min(wait, DELETE_CAP_S))

        async def tick(namespace: str | None, name: str | None, **_: Any) -> None:
            self._now().drift(Ref(kind, str(namespace), str(name)))

        async def seen(event: Mapping[str, Any], **_: Any) -> None:
            self._saw(kind, event)

        return changed, deleted, tick, seen

    async def _pass(self, ref: Ref, retry: int) -> tuple[bool, float]:
        """One pass; is a deletion finished, and how long to wait if not."""
        wait = back_off(retry, self._random)
        try:
            outcome = await self._now().now(ref)
        except KvcmError as error:
            raise kopf.TemporaryError(f"could not finish: {error.message}", delay=wait) from None
        except Exception as error:
            # What it says may hold a whole object; the type is enough to find it.
            raise kopf.TemporaryError(f"could not finish: {type(error).__name__}", delay=wait) from error
        return outcome is None or outcome.finished, wait

    def _saw(self, kind: str, event: Mapping[str, Any]) -> None:
        self._now().saw(kind, dict(event["object"]), deleted=event.get("type") == "DELETED")

    def _now(self) -> Runtime:
        if self._runtime is None:
            raise kopf.TemporaryError("the operator is starting or ending", delay=1.0)
        return self._runtime

    def _first_delay(self, **_: Any) -> float:
        return self._drift * (0.1 + 0.9 * self._random.random())


class Seen(kopf.AnnotationsDiffBaseStorage):
    """What the framework knows an object by: enough to tell that something changed, and nobody asks what."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        whole = dict(super().build(body=body, extra_fields=extra_fields))
        metadata = dict(mapping(whole.get("metadata")))
        # The framework's own notes change while it works; they would look like a user's change.
        metadata["annotations"] = {name: text for name, text in mapping(metadata.get("annotations")).items() if not name.startswith(f"{ANNOTATIONS}/")}
        return cast(kopf.BodyEssence, {"spec": {"digest": digest({**whole, "metadata": metadata})}})


def configure(settings: kopf.OperatorSettings) -> None:
    """What every process of ours sets, however it was started."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=ANNOTATIONS)
    settings.persistence.diffbase_storage = Seen(prefix=ANNOTATIONS, key="last-handled")
    settings.networking.connect_timeout = CONNECT_TIMEOUT_S
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.watching.connect_timeout = CONNECT_TIMEOUT_S
    # Only what belongs to managers is worth the network and the memory of a watch.
    for part in _PARTS:
        settings.watching.label_selectors[part] = MANAGER_LABEL
    settings.execution.default_backoff = 5.0
    settings.queueing.worker_limit = WORKERS
    # A worker keeps its place for so long after its object was handled; with many objects the last would be seen minutes later.
    settings.queueing.idle_timeout = IDLE_S
