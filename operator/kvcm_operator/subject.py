"""One object of ours as the API server has it, before anybody trusts its spec.

Danger: everything here must work for a spec that no model accepts, because such an object still has a past (status) and must still be deletable.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvcm_operator.world import FINALIZER, FORCE_RELEASE, PAUSED, Json, Ref

_YES = ("true", "yes", "1", "")


Version = tuple[str, int]
"""The uid of an object and its generation: a successor of the same name starts at generation 1 as well, and is not the same."""


@dataclass(frozen=True, slots=True)
class Subject:
    body: Json

    @property
    def _meta(self) -> Json:
        return mapping(self.body.get("metadata"))

    @property
    def ref(self) -> Ref:
        return Ref(str(self.body["kind"]), str(self._meta.get("namespace") or "default"), str(self._meta["name"]))

    @property
    def uid(self) -> str:
        return str(self._meta.get("uid") or "")

    @property
    def generation(self) -> int:
        return int(self._meta.get("generation") or 0)

    @property
    def version(self) -> Version:
        return self.uid, self.generation

    @property
    def age(self) -> tuple[str, str]:
        """Sorts older before younger; the uid decides among objects of one second."""
        return str(self._meta.get("creationTimestamp") or ""), self.uid

    @property
    def deleting(self) -> bool:
        return self._meta.get("deletionTimestamp") is not None

    @property
    def held(self) -> bool:
        """Our finalizer is on it: before that nothing may be done that a deletion would have to undo."""
        return FINALIZER in (self._meta.get("finalizers") or [])

    @property
    def paused(self) -> bool:
        return self._flag(PAUSED)

    @property
    def forced(self) -> bool:
        return self._flag(FORCE_RELEASE)

    @property
    def spec(self) -> Json:
        return mapping(self.body.get("spec"))

    @property
    def status(self) -> Json:
        return mapping(self.body.get("status"))

    @property
    def manager_name(self) -> str:
        return str(mapping(self.spec.get("managerRef")).get("name") or "")

    @property
    def server_name(self) -> str:
        """The name on the server, as far as it can be told: what was registered before what is asked for."""
        return str(self.status.get("serverName") or self.spec.get("name") or self.ref.name)

    def condition(self, kind: str) -> Json:
        """The last written condition of a type, {} without one."""
        for item in self.status.get("conditions") or []:
            if isinstance(item, dict) and item.get("type") == kind:
                return item
        return {}

    @property
    def settled(self) -> bool:
        """The last pass brought exactly this spec to the server, so whatever differs now was changed by somebody else."""
        ready = self.condition("Ready")
        return ready.get("status") == "True" and ready.get("observedGeneration") == self.generation == self.status.get("observedGeneration")

    def document(self) -> Json:
        """What a model may judge: the identity and the spec, without the bookkeeping of this and newer API servers."""
        ref = self.ref
        return {
            "apiVersion": self.body.get("apiVersion"),
            "kind": ref.kind,
            "metadata": {"name": ref.name, "namespace": ref.namespace},
            "spec": self.body.get("spec"),
        }

    def _flag(self, name: str) -> bool:
        value = mapping(self._meta.get("annotations")).get(name)
        return value is not None and str(value).lower() in _YES


def mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def timestamp(wall_us: int) -> str:
    return datetime.fromtimestamp(wall_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(then: str, wall_us: int) -> float:
    """Seconds since an RFC 3339 time; 0 for one that is missing, cannot be read or lies ahead (a clock that was wrong must not expire anything)."""
    try:
        start = datetime.fromisoformat(then)
    except ValueError:
        return 0.0
    return max(0.0, wall_us / 1e6 - start.timestamp())
