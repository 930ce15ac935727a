"""Stand-ins for the world of the reconcilers: an API server and a directory of managers in memory, for tests and for trying things out.

`FakeKube` does what reconcilers rely on: uid, generation and resourceVersion are stamped and move as on a real server, a write with an old
resourceVersion or another uid is a Conflict, the status is a subresource that loses what the CRD does not know, finalizers keep an object that is
being deleted. It has no other schema, no defaults and no garbage collector. `writes` lists every change, `statuses` every status that could be seen, in order.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from kvcm.client.admin_client import ManagerUnreachable
from kvcm.client.admin_testing import FakeAdmin
from kvcm.common.clock import Clock, FakeClock
from kvcm.common.errors import Conflict, NotFound
from kvcm.resources.schema import KINDS, root_schema
from kvcm_operator.subject import mapping, timestamp
from kvcm_operator.world import FINALIZER, OUR_KINDS, AdminApi, Door, Event, Json, Ref

EVENT_WINDOW_S = 300.0
_SCHEMAS: dict[str, Json] = {info.kind: root_schema(info)["properties"]["status"] for info in KINDS}


class FakeKube:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[Ref, Json] = {}
        self._version = 0
        self.writes: list[str] = []
        self.events: list[Event] = []
        self.statuses: list[tuple[Ref, Json]] = []
        self._reported: dict[Event, int] = {}
        self._conflicts: dict[Ref, int] = {}
        self.on_call: Callable[[str], Awaitable[None]] | None = None

    # -- the port ------------------------------------------------------------------------------------------------------------------------------

    async def get(self, ref: Ref) -> Json | None:
        await self._called(f"get {ref.kind}")
        return copy.deepcopy(self._objects.get(ref))

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str] | None = None) -> Sequence[Json]:
        await self._called(f"list {kind}")
        found = [body for ref, body in sorted(self._objects.items()) if ref.kind == kind and namespace in ("", ref.namespace)]
        return copy.deepcopy([body for body in found if _labels(body).items() >= (labels or {}).items()])

    async def create(self, body: Json, *, held: bool = True) -> None:
        ref = ref_of(body)
        await self._called(f"create {ref.kind}")
        if ref in self._objects:
            raise Conflict(f"{ref.kind} {ref.name} exists already")
        self.writes.append(f"create {ref.kind} {ref.name}")
        self.put(body, held=held)

    async def replace(self, body: Json) -> None:
        ref = ref_of(body)
        await self._called(f"replace {ref.kind}")
        self._check_version(ref, body)
        self.writes.append(f"replace {ref.kind} {ref.name}")
        self.edit(ref, lambda stored: _overwrite(stored, body))

    async def patch_status(self, ref: Ref, uid: str, patch: Json) -> None:
        await self._called(f"patch_status {ref.kind}")
        stored = self._objects.get(ref)
        if stored is None:
            raise NotFound(f"{ref.kind} {ref.name} does not exist")
        if stored["metadata"]["uid"] != uid:
            raise Conflict(f"{ref.kind} {ref.name} is another object of this name")
        self.writes.append(f"status {ref.kind} {ref.name}")
        self.set_status(ref, merge(stored.get("status", {}), patch))

    async def let_go(self, body: Json) -> None:
        ref = ref_of(body)
        await self._called(f"let_go {ref.kind}")
        if ref not in self._objects:
            return
        self._check_version(ref, body)
        self.writes.append(f"let_go {ref.kind} {ref.name}")
        self.release(ref)

    async def delete(self, ref: Ref, uid: str) -> None:
        await self._called(f"delete {ref.kind}")
        stored = self._objects.get(ref)
        if stored is None:
            return
        if stored["metadata"]["uid"] != uid:
            raise Conflict(f"{ref.kind} {ref.name} is another object of this name")
        self.writes.append(f"delete {ref.kind} {ref.name}")
        self.mark_deleted(ref)

    async def emit(self, event: Event) -> None:
        await self._called("emit")
        now = self._clock.monotonic_us()
        last = self._reported.get(event)
        if last is None or now - last > EVENT_WINDOW_S * 1e6:
            self._reported[event] = now
            self.events.append(event)

    # -- what users and other controllers do ------------------------------------------------------------------------------------------------------

    def body(self, ref: Ref) -> Json:
        return copy.deepcopy(self._objects[ref])

    def has(self, ref: Ref) -> bool:
        return ref in self._objects

    def now(self) -> str:
        """As controllers write it."""
        return timestamp(self._clock.wall_us())

    @property
    def version(self) -> int:
        """Moves with every change."""
        return self._version

    def refs(self, kind: str) -> Sequence[Ref]:
        return sorted(ref for ref in self._objects if ref.kind == kind)

    def put(self, body: Json, *, held: bool = True) -> Ref:
        """Create an object as a user or a controller would; ours get their finalizer at once unless `held` is False."""
        ref = ref_of(body)
        stored = copy.deepcopy(body)
        self._version += 1
        meta = stored["metadata"]
        meta.setdefault("namespace", ref.namespace)
        meta |= {"uid": f"uid-{self._version:06d}", "generation": 1, "resourceVersion": str(self._version)}
        meta.setdefault("creationTimestamp", timestamp(self._clock.wall_us()))
        if ref.kind in OUR_KINDS:
            stored.setdefault("status", {"observedGeneration": -1})
            if held:
                meta["finalizers"] = [FINALIZER]
        self._objects[ref] = stored
        return ref

    def edit(self, ref: Ref, change: Callable[[Json], None]) -> None:
        """Change spec or metadata; the generation moves with the spec."""
        stored = self._objects[ref]
        before = copy.deepcopy(stored.get("spec"))
        change(stored)
        if stored.get("spec") != before:
            stored["metadata"]["generation"] += 1
        self._stamp(stored)

    def set_status(self, ref: Ref, status: Json) -> None:
        stored = self._objects[ref]
        stored["status"] = copy.deepcopy(pruned(status, _SCHEMAS[ref.kind]) if ref.kind in _SCHEMAS else status)
        self._stamp(stored)
        self.statuses.append((ref, copy.deepcopy(stored)))

    def annotate(self, ref: Ref, name: str, value: str | None) -> None:
        def change(stored: Json) -> None:
            annotations = stored["metadata"].setdefault("annotations", {})
            if value is None:
                annotations.pop(name, None)
            else:
                annotations[name] = value

        self.edit(ref, change)

    def mark_deleted(self, ref: Ref) -> None:
        """As `kubectl delete`: gone at once without finalizers, otherwise terminating with a new generation."""
        stored = self._objects[ref]
        if not stored["metadata"].get("finalizers"):
            self._version += 1
            del self._objects[ref]
        elif "deletionTimestamp" not in stored["metadata"]:
            stored["metadata"] |= {"deletionTimestamp": timestamp(self._clock.wall_us()), "generation": stored["metadata"]["generation"] + 1}
            self._stamp(stored)

    def release(self, ref: Ref) -> None:
        """As the framework does after a finished deletion."""
        self._version += 1
        del self._objects[ref]

    def conflict_next(self, ref: Ref, times: int = 1) -> None:
        """Let the next writes of this object lose against somebody else."""
        self._conflicts[ref] = times

    async def _called(self, what: str) -> None:
        if self.on_call is not None:
            await self.on_call(what)

    def _check_version(self, ref: Ref, body: Json) -> None:
        if self._conflicts.get(ref, 0) > 0:
            self._conflicts[ref] -= 1
            self._stamp(self._objects[ref])
        stored = self._objects.get(ref)
        if stored is None:
            raise NotFound(f"{ref.kind} {ref.name} does not exist")
        if body["metadata"].get("resourceVersion") != stored["metadata"]["resourceVersion"]:
            raise Conflict(f"{ref.kind} {ref.name} was changed by somebody else")

    def _stamp(self, stored: Json) -> None:
        self._version += 1
        stored["metadata"]["resourceVersion"] = str(self._version)


class FakeDirectory:
    """Managers by (namespace, name). One that is not there, or is `down`, cannot be reached. `on_call` runs before each admin call."""

    def __init__(self) -> None:
        self.managers: dict[tuple[str, str], FakeAdmin] = {}
        self.down: set[tuple[str, str]] = set()
        self.overrides: set[tuple[str, str]] = set()
        self.on_call: Callable[[str], Awaitable[None]] | None = None
        # A `testing_nodes.Nodes`, where a manager has several pods.
        self.nodes: Any = None

    def overridden(self, namespace: str, manager: str) -> bool:
        return (namespace, manager) in self.overrides

    def connect(self, namespace: str, manager: str, port: int) -> AbstractAsyncContextManager[AdminApi]:
        return self._connect(namespace, manager)

    def connect_nodes(self, namespace: str, manager: str, doors: Sequence[Door]) -> AbstractAsyncContextManager[Sequence[AdminApi | None]]:
        if self.nodes is None:
            raise ManagerUnreachable("no manager here has several pods")
        found: AbstractAsyncContextManager[Sequence[AdminApi | None]] = self.nodes.connect(doors, self.on_call)
        return found

    @asynccontextmanager
    async def _connect(self, namespace: str, manager: str) -> AsyncIterator[AdminApi]:
        yield _Line(self, (namespace, manager))  # type: ignore[misc]  # it hands every call on


class _Line:
    """A connection that notices when the manager goes away in the middle."""

    def __init__(self, directory: FakeDirectory, key: tuple[str, str]) -> None:
        self._directory = directory
        self._key = key

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            directory = self._directory
            if directory.on_call is not None:
                await directory.on_call(method)
            admin = directory.managers.get(self._key)
            if admin is None or self._key in directory.down:
                raise ManagerUnreachable("no manager can be reached")
            return await getattr(admin, method)(*arguments)

        return call


def ref_of(body: Json) -> Ref:
    meta = body["metadata"]
    return Ref(body["kind"], meta.get("namespace", "default"), meta["name"])


def merge(target: Json, patch: Json) -> Json:
    """RFC 7386 for objects."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = merge(mapping(result.get(name)), value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def pruned(value: Any, schema: Json) -> Any:
    """Without the fields that a structural schema does not know, as an API server stores it."""
    if isinstance(value, dict) and "properties" in schema:
        return {name: pruned(item, schema["properties"][name]) for name, item in value.items() if name in schema["properties"]}
    if isinstance(value, list) and "items" in schema:
        return [pruned(item, schema["items"]) for item in value]
    return value


def fake_clock() -> FakeClock:
    return FakeClock()


def _overwrite(stored: Json, body: Json) -> None:
    meta = {**body["metadata"], **{name: stored["metadata"][name] for name in ("uid", "generation", "resourceVersion", "creationTimestamp")}}
    status = stored.get("status")
    stored.clear()
    stored.update(copy.deepcopy(body))
    stored["metadata"] = copy.deepcopy(meta)
    if status is not None:
        stored["status"] = status


def _labels(body: Json) -> dict[str, str]:
    return mapping(mapping(body.get("metadata")).get("labels"))
