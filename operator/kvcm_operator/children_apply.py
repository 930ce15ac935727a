"""Bring one owned object to what it should be, with at most one write, and none when it is so already.

Read, compare, replace with the resourceVersion that was read: works on every API server, and unlike server-side apply says beforehand whether there is
anything to write. Danger: an object of our name that belongs to somebody else is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvcm.common.errors import Conflict, InvalidArgument, KvcmError
from kvcm_operator.children import DESIRED_HASH
from kvcm_operator.children_diff import differences, overlay
from kvcm_operator.subject import mapping
from kvcm_operator.world import Json, KubeApi, KubeForbidden, Ref

MAX_ATTEMPTS = 3


class Applied(Enum):
    UNCHANGED = 0
    WRITTEN = 1
    """It was not there, or another state was wished before."""
    CORRECTED = 2
    """Somebody had removed or changed it."""


class NotOurs(KvcmError):
    """An object of this name exists and has another controller, or none."""


class ChildRefused(KvcmError):
    """The API server does not take the object: its content, or that the operator makes it (a right, a quota, an admission rule)."""


class ChildLeaving(KvcmError):
    """An object of this name is still being deleted, or will be."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Need:
    """What an object needs before anything is written."""

    result: Applied
    body: Json | None = None
    create: bool = False


def need(desired: Json, actual: Json | None, *, expected: bool) -> Need:
    """`expected`: it was there when the last pass ended. Raises NotOurs, ChildLeaving. Pure."""
    if actual is None:
        return Need(Applied.CORRECTED if expected else Applied.WRITTEN, desired, create=True)
    meta = mapping(actual.get("metadata"))
    check_owner(desired["kind"], meta, desired["metadata"]["ownerReferences"][0], "give the manager another name")
    if not differences(desired, actual):
        return Need(Applied.UNCHANGED)
    return Need(Applied.WRITTEN if wished_otherwise(desired, actual) else Applied.CORRECTED, overlay(desired, actual))


def wished_otherwise(desired: Json, actual: Json | None) -> bool:
    """Was it last written for another wish than today's? Pure."""
    if actual is None:
        return False
    return bool(mapping(mapping(actual.get("metadata")).get("annotations")).get(DESIRED_HASH) != desired["metadata"]["annotations"][DESIRED_HASH])


def check_owner(kind: str, meta: Json, owner: Json, otherwise: str) -> None:
    """Raises NotOurs, ChildLeaving. `owner`: our owner reference; `otherwise`: what a person can do instead of removing the object."""
    name = meta.get("name")
    if meta.get("deletionTimestamp") is not None:
        raise ChildLeaving(f"the old {kind} {name} is still being deleted")
    controller = next((mapping(one) for one in meta.get("ownerReferences") or [] if one.get("controller")), {})
    if controller.get("uid") == owner["uid"]:
        return
    if all(controller.get(field) == owner[field] for field in ("apiVersion", "kind", "name")):
        # Of a manager of the same name that was deleted: the cluster takes it away, in its own time.
        raise ChildLeaving(f"the {kind} {name} of the manager that was deleted is still there")
    raise NotOurs(f"a {kind} {name} exists and belongs to somebody else; remove it, or {otherwise}")


async def write(kube: KubeApi, desired: Json, first: Need, *, expected: bool) -> None:
    """Raises NotOurs, ChildLeaving, ChildRefused, and Conflict when others keep being faster."""
    ref = ref_to(desired)
    current = first
    for attempt in range(1, MAX_ATTEMPTS + 1):
        if current.body is None:
            return
        try:
            await (kube.create(current.body) if current.create else kube.replace(current.body))
            return
        except Conflict:
            if attempt == MAX_ATTEMPTS:
                raise
            current = need(desired, await kube.get(ref), expected=expected)
        except (InvalidArgument, KubeForbidden) as error:
            raise _refused(ref, error) from error


async def new(kube: KubeApi, body: Json) -> None:
    """Make an object that is never compared later. Raises ChildRefused, and Conflict when it is there."""
    try:
        await kube.create(body)
    except (InvalidArgument, KubeForbidden) as error:
        raise _refused(ref_to(body), error) from error


def _refused(ref: Ref, error: KvcmError) -> ChildRefused:
    return ChildRefused(f"the API server does not take the {ref.kind} {ref.name}: {error.message}")


def ref_to(body: Json) -> Ref:
    return Ref(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
