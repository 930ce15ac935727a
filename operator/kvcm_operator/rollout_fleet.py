"""The pods of a manager as one pass sees them. Pure.

Danger: other pods may bear the manager's labels (a copy made for debugging); only those with a name that the StatefulSet gives are its pods. And a pod
that does not become ready fails in words that alternate (ErrImagePull, ImagePullBackOff, ...): they are put into a few sentences that stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvcm.resources.manager_uris import ALONE
from kvcm_operator.children_pods import CONFIG_HASH, CONTAINER, COORDINATION
from kvcm_operator.door import door_of
from kvcm_operator.subject import mapping, seconds_since
from kvcm_operator.world import Door, Json

REVISION_LABEL = "controller-revision-hash"
SLOW_S = 300.0
"""A pod of this age that is not ready is said to be in trouble, whatever the reason."""
OVERDUE_S = 60.0

_IMAGE = "its image cannot be fetched"
_ENDS = "its container keeps ending"
_CONFIG = "its container cannot be made"
_TROUBLES = {
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "ImageInspectError": _IMAGE,
    "RegistryUnavailable": _IMAGE,
    "CrashLoopBackOff": _ENDS,
    "RunContainerError": _ENDS,
    "PostStartHookError": _ENDS,
    "CreateContainerConfigError": _CONFIG,
    "CreateContainerError": _CONFIG,
}


@dataclass(frozen=True, slots=True)
class Node:
    """One pod. `host`: its address, empty before it has one. `outdated`: not of the newest template. `stopping`: it is being deleted.

    `place`: the election that it takes part in; pods of the time before there were several have no word about it.
    `door`: how its admin API is opened.
    `trouble`: why it will not be ready soon, as a part of a sentence; empty when nothing is known to be wrong. `ready_for_s`: infinite when not known.
    """

    name: str
    ordinal: int
    uid: str
    host: str
    image: str
    ready: bool
    outdated: bool
    stopping: bool
    trouble: str
    place: str = ALONE
    ready_for_s: float = 0.0
    door: Door = field(default_factory=Door)


@dataclass(frozen=True, slots=True)
class Fleet:
    """`exists`: there is a StatefulSet. `size`: the pods that it is told to have. `seen`: its controller knows its newest template and size."""

    exists: bool
    size: int
    seen: bool
    nodes: tuple[Node, ...]

    @property
    def living(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if not node.stopping)

    @property
    def ready(self) -> int:
        return sum(node.ready for node in self.living)

    @property
    def updated(self) -> int:
        return sum(not node.outdated for node in self.living)

    @property
    def image(self) -> str | None:
        """Of all pods; None while they differ."""
        images = {node.image for node in self.living}
        return images.pop() or None if len(images) == 1 else None

    def living_node(self, name: str) -> Node | None:
        return next((node for node in self.living if node.name == name), None)


def lingering(nodes: Iterable[Node]) -> str:
    """The end of a sentence about pods that are to stop: the first that does not, if there is one. Pure."""
    late = next((node for node in nodes if node.stopping and node.trouble), None)
    return f"; pod {late.name} does not stop: {late.trouble}" if late is not None else ""


def fleet_of(stateful_set: Json | None, pods: Iterable[Json], wall_us: int) -> Fleet:
    """`stateful_set` as stored, None when there is none; `pods` with its selector."""
    if stateful_set is None:
        return Fleet(exists=False, size=0, seen=False, nodes=())
    meta, spec = mapping(stateful_set.get("metadata")), mapping(stateful_set.get("spec"))
    template = mapping(mapping(spec.get("template")).get("metadata"))
    status = mapping(stateful_set.get("status"))
    observed = status.get("observedGeneration")
    size = spec.get("replicas")
    newest = (mapping(template.get("annotations")).get(CONFIG_HASH), str(status.get("updateRevision") or ""))
    found = (_node(str(meta.get("name") or ""), pod, newest, wall_us) for pod in pods)
    return Fleet(
        exists=True,
        size=size if isinstance(size, int) else 1,
        seen=observed is not None and observed >= meta.get("generation", 0),
        nodes=tuple(sorted((node for node in found if node is not None), key=lambda node: node.ordinal)),
    )


def _node(owner: str, pod: Json, newest: tuple[object, str], wall_us: int) -> Node | None:
    meta, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    name = str(meta.get("name") or "")
    start, _, ordinal = name.rpartition("-")
    if start != owner or not ordinal.isdecimal() or ordinal != str(int(ordinal)):
        return None
    ready = _condition(status, "Ready").get("status") == "True"
    stopping = meta.get("deletionTimestamp") is not None
    return Node(
        name=name,
        ordinal=int(ordinal),
        uid=str(meta.get("uid") or ""),
        host=str(status.get("podIP") or ""),
        image=_image(pod),
        ready=ready,
        outdated=_outdated(meta, *newest),
        stopping=stopping,
        trouble="" if ready and not stopping else _trouble(meta, status, wall_us),
        place=str(mapping(meta.get("annotations")).get(COORDINATION) or ALONE),
        ready_for_s=_ready_for_s(status, wall_us) if ready else 0.0,
        door=door_of(pod),
    )


def _outdated(meta: Json, config_hash: object, revision: str) -> bool:
    """By our hash, and by the revision that the set's controller writes on pods: a pod that was made while somebody had changed the set's template by hand
    has our hash and another content."""
    made_from = str(mapping(meta.get("labels")).get(REVISION_LABEL) or "")
    return mapping(meta.get("annotations")).get(CONFIG_HASH) != config_hash or bool(revision and made_from and made_from != revision)


def _trouble(meta: Json, status: Json, wall_us: int) -> str:
    if meta.get("deletionTimestamp") is not None:
        # The time at which it should have been gone.
        return "its end is overdue; its node may be away" if seconds_since(str(meta["deletionTimestamp"]), wall_us) > OVERDUE_S else ""
    if _condition(status, "PodScheduled").get("reason") == "Unschedulable":
        return "no node can take it"
    if status.get("phase") == "Failed":
        return "it was ended"
    restarted = False
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        found = _TROUBLES.get(str(mapping(mapping(mapping(container).get("state")).get("waiting")).get("reason")))
        if found:
            return found
        restarted = restarted or int(mapping(container).get("restartCount") or 0) > 1
    if restarted:
        # Between two crashes it runs, for a moment.
        return _ENDS
    slow = seconds_since(str(meta.get("creationTimestamp") or ""), wall_us) > SLOW_S
    return "it takes unusually long; its log may tell why" if slow else ""


def _ready_for_s(status: Json, wall_us: int) -> float:
    since = str(_condition(status, "Ready").get("lastTransitionTime") or "")
    return seconds_since(since, wall_us) if since else math.inf


def _condition(status: Json, kind: str) -> Json:
    return next((mapping(item) for item in status.get("conditions") or [] if mapping(item).get("type") == kind), {})


def _image(pod: Json) -> str:
    containers = mapping(pod.get("spec")).get("containers") or []
    return next((str(one.get("image") or "") for one in containers if one.get("name") == CONTAINER), "")
