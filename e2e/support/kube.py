"""JSON requests to a cluster's API server, and watches, cheaper than a kubectl process each. Users' own steps go through kubectl all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config

from e2e.cluster.errors import BedError

Json = dict[str, Any]

_TIMEOUT_S = (5.0, 30.0)
_WATCH_S = 1800
_MERGE_PATCH = "application/merge-patch+json"

KVCM = "/apis/kvcm.io/v1alpha1"
FOLDERS = {
    "KVCacheManager": (KVCM, "kvcachemanagers"),
    "Storage": (KVCM, "storages"),
    "InstanceGroup": (KVCM, "instancegroups"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Service": ("/api/v1", "services"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Event": ("/api/v1", "events"),
    "Pod": ("/api/v1", "pods"),
    "Endpoints": ("/api/v1", "endpoints"),
}
"""Kind -> path of its API version, plural."""
OURS = ("KVCacheManager", "Storage", "InstanceGroup")


@dataclass(frozen=True, slots=True)
class Seen:
    """One line of a watch. `type`: ADDED, MODIFIED or DELETED; `body`: the object as it was then."""

    type: str
    body: Json


class Watch:
    """Iterate over it in one thread; `close` from another ends that."""

    def __init__(self, kind: str, response: urllib3.BaseHTTPResponse) -> None:
        self._kind = kind
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[Seen]:
        rest = b""
        try:
            for piece in self._response.stream(None, decode_content=False):
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    news = json.loads(line)
                    if news["type"] == "ERROR":
                        raise BedError(f"the watch of {self._kind} ended: {news['object'].get('message')}")
                    yield Seen(news["type"], {**news["object"], "kind": self._kind})
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            if not self._closed:
                raise
        finally:
            self._response.close()

    def close(self) -> None:
        self._closed = True
        self._response.shutdown()


class Kube:
    """Speaks as the user of a kubeconfig. Safe to use from several threads."""

    def __init__(self, kubeconfig: Path) -> None:
        settings = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]  # the client has few annotations
        settings.retries = urllib3.Retry(0, redirect=0)
        self._api = client.ApiClient(settings)

    def close(self) -> None:
        self._api.close()  # type: ignore[no-untyped-call]  # the client has few annotations

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """The object, or None."""
        return self._json("GET", path(kind, namespace, name))

    def all(self, kind: str, namespace: str) -> list[Json]:
        """All of them, [] also where the API server does not know the kind."""
        items: list[Json] = (self._json("GET", path(kind, namespace)) or {}).get("items") or []
        return items

    def patch(self, kind: str, namespace: str, name: str, body: Json) -> Json:
        """A merge patch of the object itself, not of its status."""
        found = self._json("PATCH", path(kind, namespace, name), body)
        if found is None:
            raise BedError(f"there is no {kind} {namespace}/{name}")
        return found

    def create(self, kind: str, namespace: str, body: Json) -> Json:
        return self._json("POST", path(kind, namespace), body) or {}

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Returns at once; one that is gone is fine."""
        self._json("DELETE", path(kind, namespace, name))

    def release(self, kind: str, namespace: str, name: str) -> None:
        """Take all finalizers off; one that is gone is fine."""
        self._json("PATCH", path(kind, namespace, name), {"metadata": {"finalizers": None}})

    def text(self, where: str) -> str:
        """What the API server says at a path, such as /metrics."""
        return self._call("GET", where, None, {})[1].decode()

    def watch(self, kind: str, namespace: str, version: str) -> Watch:
        """Every change after `version`, as it comes."""
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(_WATCH_S)}
        prepared = self._api.param_serialize("GET", path(kind, namespace), query_params=list(query.items()), auth_settings=["BearerToken"])
        return Watch(kind, self._api.call_api(*prepared, _request_timeout=(5.0, None)).response)

    def version(self, kind: str, namespace: str) -> tuple[str, list[Json]]:
        """Where a watch may begin, and what is there already."""
        found = self._json("GET", path(kind, namespace)) or {"metadata": {"resourceVersion": "0"}}
        return found["metadata"]["resourceVersion"], found.get("items") or []

    def _json(self, method: str, where: str, body: Json | None = None) -> Json | None:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = _MERGE_PATCH if method == "PATCH" else "application/json"
        status, text = self._call(method, where, body, headers)
        if status == 404:
            return None
        if status >= 300:
            raise BedError(f"{method} {where} failed with status {status}: {text.decode(errors='replace')[:2000]}")
        found: Json = json.loads(text)
        return found

    def _call(self, method: str, where: str, body: Json | None, headers: dict[str, str]) -> tuple[int, bytes]:
        prepared = self._api.param_serialize(method, where, header_params=headers, body=body, auth_settings=["BearerToken"])
        try:
            response = self._api.call_api(*prepared, _request_timeout=_TIMEOUT_S)
            text: bytes = response.read()  # type: ignore[no-untyped-call]  # the client has few annotations
            return response.status, text
        except client.ApiException as error:
            return error.status or 503, str(error.body or "").encode()


def path(kind: str, namespace: str, name: str = "") -> str:
    """Of one object, or of all; an empty namespace means all namespaces."""
    version, plural = FOLDERS[kind]
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{version}{place}/{plural}" + (f"/{name}" if name else "")
