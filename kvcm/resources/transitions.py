"""What may not change between two versions of one resource: the twin of the transition rules in `rules.py`.

For an API server without CEL, and for whoever wants to know before sending. Both versions are valid by themselves.
"""

from __future__ import annotations

from kvcm.resources.errors import Problem
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.parse import Resource
from kvcm.resources.rules import KIND_FIXED, MANAGER_FIXED, NAME_FIXED
from kvcm.resources.storage import StorageResource


def transition_problems(old: Resource | KVCacheManagerResource, new: Resource | KVCacheManagerResource) -> list[Problem]:
    """Why `new` may not take the place of `old`; empty when it may. Raises ValueError for two different objects."""
    if (old.kind, old.metadata.namespace, old.metadata.name) != (new.kind, new.metadata.namespace, new.metadata.name):
        raise ValueError("only two versions of one object can be compared")
    if isinstance(old, KVCacheManagerResource) or isinstance(new, KVCacheManagerResource):
        return []  # everything about a manager may change: the operator restarts its pods where that is needed
    problems = []
    if old.spec.name != new.spec.name:
        problems.append(Problem(NAME_FIXED, "spec"))
    if old.spec.manager_ref != new.spec.manager_ref:
        problems.append(Problem(MANAGER_FIXED, "spec"))
    if isinstance(old, StorageResource) and isinstance(new, StorageResource) and old.spec.kind != new.spec.kind:
        problems.append(Problem(KIND_FIXED, "spec"))
    return problems
