"""JSON requests to a Kubernetes API server through the official client, off the event loop.

Dangers: the client blocks, so it runs in a bounded pool of threads, each request with time-outs of its own, and the caller stops waiting a little
later in any case; and its repetitions are switched off, because a repeated write may be a second write.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import urllib3
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from kvcm.common.errors import Conflict, InvalidArgument, NotFound, NotReady
from kvcm_operator.world import KubeForbidden

THREADS = 8
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
# Queueing for a thread counts too: a pool that is stuck must look like a server that is stuck.
CALL_TIMEOUT_S = 60.0
MAX_BUSY_REPEATS = 3
MAX_BUSY_WAIT_S = 10.0
MERGE_PATCH = "application/merge-patch+json"

Json = dict[str, Any]


class Transport(Protocol):
    async def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None) -> Json:
        """The JSON answer. Raises Conflict, NotFound, InvalidArgument, KubeForbidden, NotReady."""
        ...


class ClientTransport:
    """Belongs to one event loop; `close` when done."""

    def __init__(self, settings: client.Configuration, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        # Left alone, the client would repeat by itself, and sleep in a thread for as long as a busy server says.
        settings.retries = urllib3.Retry(0, redirect=0)
        settings.connection_pool_maxsize = THREADS
        self._api = client.ApiClient(settings)
        self._sleep = sleep
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="kvcm-kube")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._api.close()  # type: ignore[no-untyped-call]  # the client has few annotations

    async def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None) -> Json:
        loop = asyncio.get_running_loop()
        for repeat in range(MAX_BUSY_REPEATS + 1):
            call = partial(self._blocking, method, path, dict(query or {}), body)
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    status, wait, text = await loop.run_in_executor(self._pool, call)
            except TimeoutError:
                raise NotReady("the Kubernetes API server did not answer in time") from None
            # Only a refusal for lack of room says that nothing was done; everything else is left to the next pass.
            if status != 429 or repeat == MAX_BUSY_REPEATS:
                break
            await self._sleep(wait)
        return _answer(status, text)

    def _blocking(self, method: str, path: str, query: Json, body: Json | None) -> tuple[int, float, bytes]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else "application/json"
        prepared = self._api.param_serialize(method, path, query_params=list(query.items()), header_params=headers, body=body, auth_settings=["BearerToken"])
        try:
            response = self._api.call_api(*prepared, _request_timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S))
            text: bytes = response.read()  # type: ignore[no-untyped-call]  # the client has few annotations
            return response.status, _wait(response.headers.get("Retry-After")), text
        except client.ApiException as error:
            return error.status or 503, _wait((error.headers or {}).get("Retry-After")), str(error.body or "").encode()
        except urllib3.exceptions.HTTPError:
            raise NotReady("the Kubernetes API server cannot be reached") from None


def load_settings() -> client.Configuration:
    """In a pod its service account, elsewhere the kubeconfig. Raises InvalidArgument. Blocks."""
    settings = client.Configuration()
    try:
        try:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # the client has few annotations
        except ConfigException:
            config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # the client has few annotations
    except (ConfigException, OSError) as error:
        raise InvalidArgument(f"there is neither a service account nor a usable kubeconfig: {error}") from None
    return settings


def _wait(retry_after: str | None) -> float:
    try:
        seconds = float(retry_after) if retry_after else 1.0
    except ValueError:
        seconds = 1.0
    return min(max(seconds, 0.1), MAX_BUSY_WAIT_S)


def _answer(status: int, text: bytes) -> Json:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = {}
    answer: Json = found if isinstance(found, dict) else {}
    if 200 <= status < 300:
        return answer
    message = str(answer.get("message") or f"the Kubernetes API server answered with status {status}")
    if status == 404:
        raise NotFound(message)
    if status == 409:
        raise Conflict(message)
    if status in (400, 413, 415, 422):
        raise InvalidArgument(message)
    if status in (401, 403):
        raise KubeForbidden(message)
    raise NotReady(message)
