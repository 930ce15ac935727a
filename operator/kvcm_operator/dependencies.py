"""Who has to look again when something changes. Fed by watch events, answers with names; knows nothing of handlers and queues.

Danger: every status that we write comes back as an event. So an object counts as changed only when something moved that others look at (its
fingerprint), or two objects would keep each other busy for ever.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kvcm_operator.names import ROLE_LABEL
from kvcm_operator.subject import Subject, Version, mapping
from kvcm_operator.world import GROUP, MANAGER, MANAGER_LABEL, OUR_KINDS, STORAGE, Json, Ref


@dataclass(frozen=True, slots=True)
class _Seen:
    subject: Subject
    fingerprint: Hashable


class Dependencies:
    """All objects of our kinds, and the fingerprints of what belongs to managers. Bounded by what the API server holds."""

    def __init__(self) -> None:
        self._ours: dict[Ref, _Seen] = {}
        self._parts: dict[Ref, Hashable] = {}

    def saw(self, body: Json) -> list[Ref]:
        """An object as a watch shows it. Who has to look again, in the order in which it helps most (storages before groups)."""
        subject = Subject(body)
        ref = subject.ref
        if ref.kind not in OUR_KINDS:
            return self._saw_part(ref, body)
        old, print_ = self._ours.get(ref), _fingerprint(subject)
        self._ours[ref] = _Seen(subject, print_)
        if old is not None and old.fingerprint == print_:
            return []
        return self.dependents(ref)

    def gone(self, body: Json) -> list[Ref]:
        subject = Subject(body)
        if subject.ref.kind not in OUR_KINDS:
            self._parts.pop(subject.ref, None)
            return _manager_of(body)
        found = self.dependents(subject.ref)
        self._ours.pop(subject.ref, None)
        return found

    def version(self, ref: Ref) -> Version | None:
        """The newest that a watch has shown under this name."""
        seen = self._ours.get(ref)
        return seen.subject.version if seen is not None else None

    def forget(self) -> None:
        """Watching begins anew: what the watches of before have shown says nothing about the new ones."""
        self._ours.clear()
        self._parts.clear()

    def dependents(self, ref: Ref) -> list[Ref]:
        seen = self._ours.get(ref)
        if ref.kind == MANAGER:
            return [*self._of(STORAGE, ref), *self._of(GROUP, ref)]
        if seen is None:
            return []
        manager = Ref(MANAGER, ref.namespace, seen.subject.manager_name)
        others = [*self._of(STORAGE, manager), *self._of(GROUP, manager)]
        if ref.kind == STORAGE:
            # Volumes concern the manager, registration the groups, a freed name the other claimants.
            return [manager, *(other for other in others if other != ref and (other.kind == GROUP or self._same_name(other, seen)))]
        # A group that is gone or lets go of a storage frees that storage; a manager on its way out waits for its dependents.
        leaving = [other for other in others if other.kind == STORAGE and self._ours[other].subject.deleting]
        rivals = [other for other in others if other.kind == GROUP and other != ref and self._same_name(other, seen)]
        return [*leaving, *rivals, manager]

    def _of(self, kind: str, manager: Ref) -> list[Ref]:
        return sorted(
            ref for ref, seen in self._ours.items() if ref.kind == kind and ref.namespace == manager.namespace and seen.subject.manager_name == manager.name
        )

    def _same_name(self, other: Ref, seen: _Seen) -> bool:
        return self._ours[other].subject.server_name == seen.subject.server_name

    def _saw_part(self, ref: Ref, body: Json) -> list[Ref]:
        print_ = _part_fingerprint(body)
        if self._parts.get(ref) == print_:
            return []
        self._parts[ref] = print_
        return _manager_of(body)


def _manager_of(body: Json) -> list[Ref]:
    meta = mapping(body.get("metadata"))
    name = mapping(meta.get("labels")).get(MANAGER_LABEL)
    return [Ref(MANAGER, str(meta.get("namespace") or "default"), name)] if name else []


def _fingerprint(subject: Subject) -> Hashable:
    shared = (subject.uid, subject.generation, subject.deleting)
    if subject.ref.kind == MANAGER:
        return (*shared, subject.condition("Available").get("status"), subject.condition("Ready").get("reason"))
    return (*shared, subject.status.get("serverName"), subject.status.get("registered"), "version" in subject.status)


def _part_fingerprint(body: Json) -> Hashable:
    meta, status = mapping(body.get("metadata")), mapping(body.get("status"))
    ready = [item.get("status") for item in status.get("conditions") or [] if item.get("type") == "Ready"]
    return (
        meta.get("uid"),
        meta.get("generation"),
        meta.get("deletionTimestamp") is not None,
        status.get("observedGeneration"),
        status.get("readyReplicas"),
        status.get("phase"),
        tuple(ready),
        # Moves from pod to pod with the leadership.
        mapping(meta.get("labels")).get(ROLE_LABEL),
        # Config maps and services have neither status nor generation; every change of theirs is worth a look.
        meta.get("resourceVersion") if body.get("kind") in ("ConfigMap", "Service", "ServiceAccount") else None,
    )
