"""Is there a manager to talk to? The questions in order, each with a reason of its own.

Danger: absence is certain, silence is not. `gone` answers (no such object, scaled to zero, being deleted) may end a wait for ever; the others may
only postpone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcm.config.model import MetaBackendConfig
from kvcm.resources.conditions import Reason
from kvcm.resources.translate import metadata_type
from kvcm_operator.subject import Subject, mapping
from kvcm_operator.world import MANAGER, Ref, World

DEFAULT_ADMIN_PORT = 6491


@dataclass(frozen=True, slots=True)
class Closed:
    """No talking now. `gone`: and none to be expected for objects that are on their way out."""

    reason: Reason
    message: str
    gone: bool


@dataclass(frozen=True, slots=True)
class Open:
    """Talk to this manager. `leaving`: it is being deleted, so this may be the last chance. `override`: it runs outside the cluster.

    `several`: it has more than one pod. `backend`: where it keeps block metadata of groups that do not say it.
    """

    namespace: str
    manager: str
    port: int
    leaving: bool
    override: bool
    several: bool = False
    backend: MetaBackendConfig = field(default_factory=MetaBackendConfig)


async def look(world: World, namespace: str, manager: str) -> Open | Closed:
    body = await world.kube.get(Ref(MANAGER, namespace, manager))
    # 1. Nobody is there: only a person who applies it can change that.
    if body is None:
        return Closed(Reason.MANAGER_NOT_FOUND, f"there is no KVCacheManager {manager} in this namespace", gone=True)
    subject = Subject(body)
    override = world.admin.overridden(namespace, manager)
    # 2. Nobody is meant to be there.
    if replicas(subject) == 0:
        return Closed(Reason.MANAGER_SCALED_TO_ZERO, f"KVCacheManager {manager} has no replicas", gone=True)
    # 3. It was seen not to serve. A manager on its way out is asked all the same: nobody judges it any more, and this may be the last chance.
    if not subject.deleting and subject.condition("Available").get("status") != "True":
        return Closed(Reason.MANAGER_NOT_READY, f"KVCacheManager {manager} does not serve yet", gone=False)
    return Open(namespace, manager, admin_port(subject), subject.deleting, override, replicas(subject) > 1, metadata_backend(subject))


def replicas(manager: Subject) -> int:
    value = manager.spec.get("replicas", 1)
    return value if isinstance(value, int) else 1


def metadata_backend(manager: Subject) -> MetaBackendConfig:
    """By the spec; in Redis it is the manager's own, so there is no URI."""
    backend = mapping(manager.spec.get("metadataBackend"))
    return MetaBackendConfig(metadata_type(str(backend.get("type") or ""), backend.get("writeMode")) or "local")


def admin_port(manager: Subject) -> int:
    value = mapping(mapping(manager.spec.get("service")).get("ports")).get("adminGrpc", DEFAULT_ADMIN_PORT)
    return value if isinstance(value, int) else DEFAULT_ADMIN_PORT
