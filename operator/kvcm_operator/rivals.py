"""Do other KVCacheManagers elect their leader in the same place? Only where the spec names the place itself; otherwise it bears namespace and name. Pure.

Danger: then all of them are one service with one leader and one registry, whoever their resources say they belong to. That may be meant (a change to
another name, say), so it is told and not refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.resources.errors import ResourceError
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.manager_uris import coordination_place
from kvcm.resources.parse import parse_manager
from kvcm_operator.move import same_place
from kvcm_operator.subject import Subject
from kvcm_operator.world import Json


def names_its_place(resource: KVCacheManagerResource) -> bool:
    where = resource.spec.coordination
    return bool((where.etcd and where.etcd.prefix) or (where.redis and where.redis.cluster_name))


def rivals(resource: KVCacheManagerResource, uid: str, everybody: Iterable[Json]) -> str:
    """A sentence about the first of them, empty when there is none. `uid`: of the resource itself, which may be in `everybody`."""
    mine = coordination_place(resource)
    for subject in sorted(map(Subject, everybody), key=lambda one: (one.ref.namespace, one.ref.name)):
        if subject.uid == uid or subject.deleting:
            continue
        try:
            other = parse_manager(subject.document())
        except ResourceError:
            continue
        if not names_its_place(other) or not same_place(coordination_place(other), mine):
            continue
        alike = ", and as their pods have equal names each takes the other's for its own" if subject.ref.name == resource.metadata.name else ""
        return f"KVCacheManager {subject.ref.namespace}/{subject.ref.name} has its leases in the same place, so both share one leader and one registry{alike}"
    return ""
