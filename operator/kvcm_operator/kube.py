"""KubeApi over HTTP: paths, precondition, paging and Events. What objects mean is not known here."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

from kvcm.common.clock import Clock
from kvcm.common.errors import Conflict, InvalidArgument, KvcmError, NotFound
from kvcm_operator.kube_transport import Transport
from kvcm_operator.kube_versions import Versions
from kvcm_operator.subject import mapping, seconds_since, timestamp
from kvcm_operator.world import FINALIZER, Event, Json, Ref

COMPONENT = "kvcm-operator"
EVENT_WINDOW_S = 300.0
PAGE = 500
MAX_PAGES = 200
_NAME_CHARS = 200
_log = logging.getLogger("kvcm.operator.kube")

KINDS = {
    "KVCacheManager": ("/apis/kvcm.io/v1alpha1", "kvcachemanagers", "kvcm.io/v1alpha1"),
    "Storage": ("/apis/kvcm.io/v1alpha1", "storages", "kvcm.io/v1alpha1"),
    "InstanceGroup": ("/apis/kvcm.io/v1alpha1", "instancegroups", "kvcm.io/v1alpha1"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets", "apps/v1"),
    "Service": ("/api/v1", "services", "v1"),
    "ConfigMap": ("/api/v1", "configmaps", "v1"),
    "ServiceAccount": ("/api/v1", "serviceaccounts", "v1"),
    "Secret": ("/api/v1", "secrets", "v1"),
    "Pod": ("/api/v1", "pods", "v1"),
    "Event": ("/api/v1", "events", "v1"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", "rbac.authorization.k8s.io/v1"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", "policy/v1"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", "coordination.k8s.io/v1"),
}
"""Kind -> path of its API version, plural, apiVersion. For kinds that moved (`kube_versions`) the newest one: callers know no other."""


class HttpKube:
    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._versions = Versions(transport, clock)

    async def get(self, ref: Ref) -> Json | None:
        try:
            return _complete(ref.kind, await self._transport.request("GET", await self._path_of(ref)))
        except NotFound:
            return None

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str] | None = None) -> list[Json]:
        query = {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        folder = await self._folder(kind, namespace)
        found: list[Json] = []
        for _ in range(MAX_PAGES):
            page = await self._transport.request("GET", folder, query)
            # Items of a list carry neither kind nor version.
            found += [_complete(kind, item) for item in page.get("items") or []]
            more = mapping(page.get("metadata")).get("continue")
            if not more:
                break
            query["continue"] = str(more)
        return found

    async def create(self, body: Json) -> None:
        folder = await self._folder(body["kind"], body["metadata"]["namespace"])
        await self._transport.request("POST", folder, body=await self._versioned(body))

    async def replace(self, body: Json) -> None:
        meta = body["metadata"]
        path = await self._path_of(Ref(body["kind"], meta["namespace"], meta["name"]))
        await self._transport.request("PUT", path, body=await self._versioned(body))

    async def patch_status(self, ref: Ref, uid: str, patch: Json) -> None:
        body = {"metadata": {"uid": uid}, "status": patch}
        try:
            await self._transport.request("PATCH", f"{await self._path_of(ref)}/status", body=body)
        except InvalidArgument as error:
            # A server tells another uid as an attempt to change it.
            if "uid" in error.message.lower():
                raise Conflict(f"{ref.kind} {ref.name} is another object of this name") from None
            raise

    async def let_go(self, body: Json) -> None:
        meta = body["metadata"]
        others = [name for name in meta.get("finalizers") or [] if name != FINALIZER]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": others}}
        try:
            await self._transport.request("PATCH", await self._path_of(Ref(body["kind"], meta["namespace"], meta["name"])), body=patch)
        except NotFound:
            return

    async def delete(self, ref: Ref, uid: str) -> None:
        try:
            await self._transport.request("DELETE", await self._path_of(ref), body={"preconditions": {"uid": uid}})
        except NotFound:
            return

    async def emit(self, event: Event) -> None:
        try:
            await self._emit(event)
        except KvcmError as error:
            _log.warning("event not written kind=%s name=%s reason=%s: %s", event.about.kind, event.about.name, event.reason, error.message)

    async def _emit(self, event: Event) -> None:
        """Under a name made of its content, so that one that is told twice is one; an old one is counted up."""
        body = event_body(event, timestamp(self._clock.wall_us()))
        try:
            await self.create(body)
            return
        except Conflict:
            pass
        ref = Ref("Event", event.about.namespace, body["metadata"]["name"])
        old = await self.get(ref)
        if old is None or seconds_since(str(old.get("lastTimestamp") or ""), self._clock.wall_us()) < EVENT_WINDOW_S:
            return
        patch = {"count": int(old.get("count") or 1) + 1, "lastTimestamp": body["lastTimestamp"]}
        await self._transport.request("PATCH", await self._path_of(ref), body=patch)

    async def _path_of(self, ref: Ref) -> str:
        return f"{await self._folder(ref.kind, ref.namespace)}/{ref.name}"

    async def _folder(self, kind: str, namespace: str) -> str:
        prefix, plural, _ = KINDS[kind]
        version = await self._versions.of(kind)
        if version is not None:
            prefix = f"/apis/{version}"
        return f"{prefix}/namespaces/{namespace}/{plural}" if namespace else f"{prefix}/{plural}"

    async def _versioned(self, body: Json) -> Json:
        version = await self._versions.of(body["kind"])
        return body if version is None else {**body, "apiVersion": version}


def event_body(event: Event, now: str) -> Json:
    content = "\0".join((event.uid, event.type, event.reason, event.message))
    name = f"{event.about.name[:_NAME_CHARS].rstrip('.-')}.{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": event.about.namespace},
        "involvedObject": {
            "apiVersion": KINDS[event.about.kind][2],
            "kind": event.about.kind,
            "name": event.about.name,
            "namespace": event.about.namespace,
            "uid": event.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": f"kvcm.io/{COMPONENT}",
        "reportingInstance": COMPONENT,
    }


def _complete(kind: str, body: Json) -> Json:
    return {**body, "kind": kind, "apiVersion": KINDS[kind][2]}
