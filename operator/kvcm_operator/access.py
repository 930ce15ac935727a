"""What the operator presents to a manager, and by what it knows it: the token and the authority from the Secrets that the KVCacheManager names.

Read anew for each pass, so that a rotated Secret counts at once. Nothing of a Secret is kept, logged or put into a status.

Danger: a manager whose Secret cannot be read is silent, not gone: nothing may be concluded from it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

import grpc

from kvcm.client.errors import InvalidClientConfig
from kvcm.client.security import PLAIN, BearerToken, ClientSecurity, TlsFiles
from kvcm.resources.manager_security import DEFAULT_KEY
from kvcm_operator import names
from kvcm_operator.admin import Silent
from kvcm_operator.subject import mapping
from kvcm_operator.world import MANAGER, Door, Json, KubeApi, Ref

CA_KEY = "ca.crt"
TLS_KEYS = ("tls.crt", "tls.key", CA_KEY)


@dataclass(frozen=True, slots=True)
class Pinned(ClientSecurity):
    """TLS with an authority from memory instead of a file."""

    ca: bytes = field(default=b"", repr=False)

    def grpc_credentials(self) -> grpc.ChannelCredentials | None:
        return grpc.ssl_channel_credentials(self.ca) if self.ca else None

    def stamp(self) -> object:
        return None


async def access(kube: KubeApi, namespace: str, manager: str) -> ClientSecurity:
    """For one manager, now. Raises Silent when a Secret is not there or not readable, and what `kube` raises."""
    spec = mapping(mapping(await kube.get(Ref(MANAGER, namespace, manager))).get("spec"))
    credential = await _token(kube, namespace, manager, mapping(spec.get("adminToken")))
    return await _secured(kube, namespace, manager, credential, str(mapping(spec.get("tls")).get("secretName") or ""))


async def door_access(kube: KubeApi, namespace: str, manager: str, door: Door) -> ClientSecurity:
    """For one pod, now. Raises as `access`."""
    if not door.token_secret:
        return await _secured(kube, namespace, manager, None, door.tls_secret)
    key = door.token_key
    if not key:
        spec = mapping(mapping(await kube.get(Ref(MANAGER, namespace, manager))).get("spec"))
        given = mapping(mapping(spec.get("adminToken")).get("secret"))
        key = str(given.get("key") or DEFAULT_KEY) if given.get("name") == door.token_secret else DEFAULT_KEY
    credential = await _read_token(kube, namespace, door.token_secret, key)
    return await _secured(kube, namespace, manager, credential, door.tls_secret)


async def _secured(kube: KubeApi, namespace: str, manager: str, credential: BearerToken | None, secret: str) -> ClientSecurity:
    if not secret:
        return ClientSecurity(None, credential) if credential is not None else PLAIN
    ca = entry(await kube.get(Ref("Secret", namespace, secret)), CA_KEY)
    if not ca:
        raise Silent(f"the Secret {secret} with the manager's certificate does not exist, or has no {CA_KEY}")
    # The address ends with a dot and the domain of the cluster; certificates do not.
    return Pinned(TlsFiles(server_name=f"{names.client_service(manager)}.{namespace}.svc"), credential, ca)


def entry(secret: Json | None, key: str) -> bytes:
    """One entry of a Secret; empty when there is no such thing."""
    try:
        return base64.b64decode(str(mapping(mapping(secret).get("data")).get(key) or ""), validate=True)
    except (binascii.Error, ValueError):
        return b""


async def _token(kube: KubeApi, namespace: str, manager: str, wanted: Json) -> BearerToken | None:
    kind = wanted.get("type", "generated")
    if kind == "none":
        return None
    given = mapping(wanted.get("secret"))
    name, key = (str(given.get("name")), str(given.get("key") or DEFAULT_KEY)) if kind == "secret" else (names.admin_token(manager), DEFAULT_KEY)
    return await _read_token(kube, namespace, name, key)


async def _read_token(kube: KubeApi, namespace: str, name: str, key: str) -> BearerToken:
    content = entry(await kube.get(Ref("Secret", namespace, name)), key).decode("utf-8", "replace")
    first = next((item.strip() for item in content.replace("\n", ",").split(",") if item.strip()), "")
    try:
        return BearerToken(first)
    except InvalidClientConfig:
        raise Silent(f"the Secret {name} with the manager's token does not exist, or has no token at {key}") from None
