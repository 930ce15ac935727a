"""The three calls to the Kubernetes API that a manager in a pod makes: get, list and patch pods of its own namespace. Standard library only.

A connection a call: there is one every half minute, and then nothing can be stale. Token and authority are read each time, because the kubelet rotates
them. Calls run one after another in a thread of their own with a deadline; while one hangs beyond it, others fail at once.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

from kvcm.common.errors import Conflict, InvalidArgument, NotFound, StorageError

Json = dict[str, Any]

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CALL_S = 5.0
_SOCKET_S = 4.0
_MAX_REPLY_BYTES = 16 << 20
_MAX_LISTED = 500


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Which pod this process runs in, and where the API server is."""

    name: str
    namespace: str
    api_host: str
    api_port: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> PodIdentity:
        """From POD_NAME, POD_NAMESPACE (the downward API) and what Kubernetes sets in every pod. Raises InvalidArgument."""
        names = ("POD_NAME", "POD_NAMESPACE", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
        missing = [name for name in names if not environ.get(name)]
        if missing:
            raise InvalidArgument(f"kvcm.kubernetes.label_pod needs the environment variable {missing[0]}: it is for managers that run in a pod.")
        name, namespace, host, port = (environ[name] for name in names)
        if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
            raise InvalidArgument("The environment variable KUBERNETES_SERVICE_PORT must be a port.")
        return cls(name, namespace, host, int(port))


class PodApi(Protocol):
    """Raises NotFound, Conflict (the pod has changed since its resourceVersion), StorageError (no answer, or another refusal)."""

    async def get(self, name: str) -> Json: ...

    async def labelled(self, selector: str) -> list[Json]:
        """Pods of the namespace that a label selector finds."""
        ...

    async def patch(self, name: str, change: Json) -> Json:
        """A JSON merge patch."""
        ...

    def close(self) -> None: ...


class InClusterPods:
    """`folder`: token and ca.crt of the pod's service account."""

    def __init__(self, identity: PodIdentity, folder: Path = SERVICE_ACCOUNT, *, call_s: float = _CALL_S) -> None:
        self._identity = identity
        self._folder = folder
        self._call_s = call_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvcm-pod-api")
        self._hanging: asyncio.Future[tuple[int, bytes]] | None = None
        self._pods = f"/api/v1/namespaces/{quote(identity.namespace, safe='')}/pods"

    async def get(self, name: str) -> Json:
        return await self._call("GET", f"{self._pods}/{quote(name, safe='')}")

    async def labelled(self, selector: str) -> list[Json]:
        found = await self._call("GET", f"{self._pods}?{urlencode({'labelSelector': selector, 'limit': _MAX_LISTED})}")
        items = found.get("items")
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []

    async def patch(self, name: str, change: Json) -> Json:
        return await self._call("PATCH", f"{self._pods}/{quote(name, safe='')}", change)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        if self._hanging is not None and not self._hanging.done():
            raise StorageError("The Kubernetes API does not answer; an earlier request still waits for it.")
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._request, method, path, body)
        try:
            async with asyncio.timeout(self._call_s):
                status, content = await asyncio.shield(future)
        except TimeoutError:
            self._hanging = future
            future.add_done_callback(_retrieve)
            raise StorageError("The Kubernetes API did not answer in time.") from None
        except asyncio.CancelledError:
            future.add_done_callback(_retrieve)
            raise
        return _answer(method, status, content)

    def _request(self, method: str, path: str, body: Json | None) -> tuple[int, bytes]:
        """In the thread."""
        try:
            token = (self._folder / "token").read_text(encoding="ascii").strip()
            context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        except (OSError, ValueError):
            raise StorageError("The pod has no usable service account token or authority; is automountServiceAccountToken off?") from None
        connection = http.client.HTTPSConnection(self._identity.api_host, self._identity.api_port, timeout=_SOCKET_S, context=context)
        headers = {"authorization": f"Bearer {token}", "accept": "application/json", "content-type": "application/merge-patch+json", "connection": "close"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            reply = connection.getresponse()
            return reply.status, reply.read(_MAX_REPLY_BYTES)
        except ssl.SSLCertVerificationError:
            raise StorageError("The Kubernetes API shows a certificate that the pod's authority did not sign.") from None
        except (OSError, http.client.HTTPException):
            raise StorageError("The Kubernetes API cannot be reached.") from None
        finally:
            connection.close()


def _answer(method: str, status: int, content: bytes) -> Json:
    if status == 404:
        raise NotFound("The Kubernetes API does not know this pod.")
    if status == 409:
        raise Conflict("The pod was changed meanwhile.")
    if status in (401, 403):
        raise StorageError(f"The Kubernetes API does not allow this manager to {method} pods (HTTP {status}); its service account needs get, list and patch.")
    if status != 200:
        raise StorageError(f"The Kubernetes API refused to {method} a pod (HTTP {status}).")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StorageError("The Kubernetes API answered with something that is not a JSON object.")
    return found


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more: its error must not be reported as one that was forgotten."""
    if not future.cancelled():
        future.exception()
