"""Where the admin API of a manager is: its leader Service, or an address given for it. While nobody bears the leader's label, the pods tell who leads.

`KVCM_OPERATOR_ADMIN_OVERRIDE` is `namespace/name=host:port`, several with commas: for an operator outside the cluster, where Service names and
addresses mean nothing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from kvcm.client.admin_client import AdminClient
from kvcm.client.security import ClientSecurity
from kvcm.common.errors import InvalidArgument
from kvcm_operator.access import access, door_access
from kvcm_operator.admin import Silent
from kvcm_operator.names import client_service, leader_service
from kvcm_operator.world import AdminApi, Door, KubeApi

TIMEOUT_S = 10.0
MAX_OVERRIDES = 1024
_log = logging.getLogger("kvcm.operator.directory")


class Directory:
    def __init__(self, overrides: Mapping[tuple[str, str], str], cluster_domain: str, kube: KubeApi) -> None:
        """`kube`: where the Secrets are that managers are opened with."""
        self._kube = kube
        self._overrides = dict(overrides)
        self._domain = cluster_domain

    def overridden(self, namespace: str, manager: str) -> bool:
        return (namespace, manager) in self._overrides

    def address(self, namespace: str, manager: str, port: int) -> str:
        given = self._overrides.get((namespace, manager))
        return given or self._service(leader_service(manager), namespace, port)

    def addresses(self, namespace: str, manager: str, port: int) -> tuple[str, ...]:
        """The first is tried first; what the leader has to answer finds it from any of them."""
        first = self.address(namespace, manager, port)
        return (first,) if self.overridden(namespace, manager) else (first, self._service(client_service(manager), namespace, port))

    def _service(self, name: str, namespace: str, port: int) -> str:
        # With the dot at the end a resolver asks once instead of trying every search domain.
        return f"{name}.{namespace}.svc.{self._domain}.:{port}"

    def connect(self, namespace: str, manager: str, port: int) -> AbstractAsyncContextManager[AdminApi]:
        return self._connect(namespace, manager, port)

    def connect_nodes(self, namespace: str, manager: str, doors: Sequence[Door]) -> AbstractAsyncContextManager[Sequence[AdminApi | None]]:
        return self._connect_nodes(namespace, manager, doors)

    @asynccontextmanager
    async def _connect_nodes(self, namespace: str, manager: str, doors: Sequence[Door]) -> AsyncIterator[Sequence[AdminApi | None]]:
        # All pods of one template have the same locks, which are read once.
        keys = {(door.token_secret, door.token_key, door.tls_secret): door for door in doors}
        securities = {key: await self._security(namespace, manager, door) for key, door in keys.items()}
        async with AsyncExitStack() as stack:
            clients: list[AdminApi | None] = []
            for door in doors:
                security = securities[door.token_secret, door.token_key, door.tls_secret]
                if security is None:
                    clients.append(None)
                    continue
                address = f"[{door.host}]:{door.port}" if ":" in door.host else f"{door.host}:{door.port}"
                client = AdminClient(address, timeout_s=TIMEOUT_S, trace_id="kvcm-operator", security=security)
                clients.append(await stack.enter_async_context(client))
            yield clients

    async def _security(self, namespace: str, manager: str, door: Door) -> ClientSecurity | None:
        try:
            return await door_access(self._kube, namespace, manager, door)
        except Silent as error:
            _log.warning("pod_not_opened manager=%s/%s pod_address=%s: %s", namespace, manager, door.host, error.message)
            return None

    @asynccontextmanager
    async def _connect(self, namespace: str, manager: str, port: int) -> AsyncIterator[AdminApi]:
        # A connection for each pass: a lasting one would keep the back-off of a manager that was away, and addresses of pods that are gone.
        security = await access(self._kube, namespace, manager)
        async with AdminClient(self.addresses(namespace, manager, port), timeout_s=TIMEOUT_S, trace_id="kvcm-operator", security=security) as client:
            yield client


def parse_overrides(text: str) -> dict[tuple[str, str], str]:
    """Raises InvalidArgument."""
    found: dict[tuple[str, str], str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, address = item.partition("=")
        namespace, slash, manager = name.partition("/")
        host, colon, port = address.rpartition(":")
        if not (equals and slash and colon and namespace and manager and host and port.isdecimal() and 0 < int(port) < 65536):
            raise InvalidArgument("KVCM_OPERATOR_ADMIN_OVERRIDE must look like namespace/name=host:port, several with commas between them")
        found[namespace, manager] = address
    if len(found) > MAX_OVERRIDES:
        raise InvalidArgument(f"KVCM_OPERATOR_ADMIN_OVERRIDE may name at most {MAX_OVERRIDES} managers")
    return found
