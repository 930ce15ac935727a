"""Which pod has to go so that the newest template runs, and what can be said about the pods meanwhile. Pure.

The StatefulSet replaces nothing by itself (OnDelete). Danger: a pod that is deleted before the set's controller has seen the new template comes back
with the old one; so nothing is deleted until the set has observed its own generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcm_operator.children_pods import CONFIG_HASH, CONTAINER
from kvcm_operator.subject import mapping
from kvcm_operator.world import Json


@dataclass(frozen=True, slots=True)
class Pods:
    """`replace`: the pod to delete now. `rolling`: some pod is not of the newest template, or the set has not looked yet."""

    total: int
    ready: int
    rolling: bool
    replace: Json | None
    image: str | None


def judge(stateful_set: Json, pods: Sequence[Json]) -> Pods:
    """`stateful_set` as stored; `pods` with its selector."""
    template = mapping(mapping(mapping(stateful_set.get("spec")).get("template")).get("metadata"))
    newest = mapping(template.get("annotations")).get(CONFIG_HASH)
    observed = mapping(stateful_set.get("status")).get("observedGeneration")
    seen = observed is not None and observed >= mapping(stateful_set.get("metadata")).get("generation", 0)
    living = [pod for pod in pods if not mapping(pod.get("metadata")).get("deletionTimestamp")]
    stale = [pod for pod in living if mapping(mapping(pod.get("metadata")).get("annotations")).get(CONFIG_HASH) != newest]
    leaving = len(living) < len(pods)
    images = {_image(pod) for pod in living}
    return Pods(
        total=len(living),
        ready=sum(_ready(pod) for pod in living),
        rolling=bool(stale) or not seen,
        # One at a time: the next one goes when the last one has gone.
        replace=min(stale, key=lambda pod: str(pod["metadata"]["name"])) if stale and seen and not leaving else None,
        image=images.pop() if len(images) == 1 else None,
    )


def _ready(pod: Json) -> bool:
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in mapping(pod.get("status")).get("conditions") or [])


def _image(pod: Json) -> str | None:
    containers = mapping(pod.get("spec")).get("containers") or []
    return next((str(one.get("image")) for one in containers if one.get("name") == CONTAINER), None)
