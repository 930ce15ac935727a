"""What a reconciler may touch: the Kubernetes API, the admin API of managers, the clock. Ports only; nothing here speaks to anybody.

Each call has its own deadline behind the port. Errors are KvcmErrors: `Conflict` (somebody else was faster, or the object is not the one that was
read), `NotFound`, `InvalidArgument` (the API server refused the content), `KubeForbidden` (it refused the operator), `NotReady` (no answer: repeat later).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kvcm.client.admin_client import ClusterInfo, Health
from kvcm.client.admin_types import GroupView, StorageView
from kvcm.common.clock import Clock
from kvcm.common.errors import KvcmError
from kvcm.config.model import Instance, InstanceGroup
from kvcm.data_storage.model import Storage

Json = dict[str, Any]

MANAGER = "KVCacheManager"
STORAGE = "Storage"
GROUP = "InstanceGroup"
OUR_KINDS = (MANAGER, STORAGE, GROUP)

FINALIZER = "kvcm.io/operator"
MANAGER_LABEL = "kvcm.io/manager"
PAUSED = "kvcm.io/paused"
FORCE_RELEASE = "kvcm.io/force-release"


class KubeForbidden(KvcmError):
    """The API server does not let the operator do this: a right is missing, a quota is used up, or somebody's admission rule says no."""

    retryable = True
    fixer = "administrator"


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One object by name."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about one object. Events with the same content within `EVENT_WINDOW_S` are reported once."""

    about: Ref
    uid: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass found.

    `status`: the whole status as it should be, None to leave it. `requeue_after`: seconds until the next pass is worth while, None when only a
    change or the drift timer should bring it. `finished`: nothing keeps the object any more, so its finalizer may go.
    `touched`: the server or the cluster was changed, so whoever depends on this object should look again. `corrections`: things that
    were changed behind the operator's back and put right.
    """

    status: Json | None = None
    requeue_after: float | None = None
    events: tuple[Event, ...] = ()
    finished: bool = False
    touched: bool = False
    corrections: int = 0


class KubeApi(Protocol):
    async def get(self, ref: Ref) -> Json | None: ...

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str] | None = None) -> Sequence[Json]:
        """In one namespace, or in all with an empty one."""
        ...

    async def create(self, body: Json) -> None:
        """Raises Conflict when the object exists."""
        ...

    async def replace(self, body: Json) -> None:
        """Raises Conflict unless `metadata.resourceVersion` is the stored one."""
        ...

    async def patch_status(self, ref: Ref, uid: str, patch: Json) -> None:
        """A JSON merge patch of the status. Raises Conflict when the object has another uid, NotFound when it is gone."""
        ...

    async def let_go(self, body: Json) -> None:
        """Take our finalizer off an object that was read. Raises Conflict when it has changed since; one that is gone is no error."""
        ...

    async def delete(self, ref: Ref, uid: str) -> None:
        """Only this very object; one that is gone already is no error."""
        ...

    async def emit(self, event: Event) -> None:
        """Never raises: an event that cannot be written is not worth a failed pass."""
        ...


class AdminApi(Protocol):
    """The part of `kvcm.client.admin_client.AdminClient` that reconcilers use."""

    async def describe_storages(self) -> list[StorageView]: ...

    async def add_storage(self, storage: Storage) -> None: ...

    async def update_storage(self, storage: Storage) -> None: ...

    async def enable_storage(self, name: str) -> None: ...

    async def disable_storage(self, name: str) -> None: ...

    async def remove_storage(self, name: str) -> None: ...

    async def describe_groups(self) -> list[GroupView]: ...

    async def create_group(self, group: InstanceGroup) -> None: ...

    async def update_group(self, group: InstanceGroup, current_version: int) -> None: ...

    async def remove_group(self, name: str) -> None: ...

    async def list_instances(self, group: str) -> list[Instance]: ...

    async def cluster_info(self) -> ClusterInfo: ...

    async def check_health(self) -> Health: ...

    async def campaign_delay_ms(self) -> int: ...

    async def set_campaign_delay(self, delay_ms: int) -> None: ...

    async def leader_demote(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Door:
    """One node's admin API. Secrets by name, in the manager's namespace; empty: there is no token, no TLS.

    `token_key` empty: its pod is of a release that did not say; then the spec's counts.
    """

    host: str = ""
    port: int = 0
    token_secret: str = ""
    token_key: str = ""
    tls_secret: str = ""


class AdminDirectory(Protocol):
    """Where a manager's admin API is, and a connection to it for the length of one pass."""

    def overridden(self, namespace: str, manager: str) -> bool:
        """Is the manager reached at an address that was given to the operator, and not through its Service?"""
        ...

    def connect(self, namespace: str, manager: str, port: int) -> AbstractAsyncContextManager[AdminApi]:
        """By its Service; calls that concern the configuration find the leader."""
        ...

    def connect_nodes(self, namespace: str, manager: str, doors: Sequence[Door]) -> AbstractAsyncContextManager[Sequence[AdminApi | None]]:
        """Single nodes, in this order, for calls that concern one node. None for one whose Secret is not as it must be."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. `grace`: how long a truth that was seen may be repeated while the server is silent."""

    grace: float = 30.0
    waiting: float = 10.0
    retry: float = 5.0


def random_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class World:
    kube: KubeApi
    admin: AdminDirectory
    clock: Clock
    pace: Pace = field(default_factory=Pace)
    default_image: str = ""
    make_token: Callable[[], str] = random_token
