"""A small API server over HTTP in front of a `FakeKube`: enough for the framework and for our own client, in one process and with no cluster.

It knows discovery, lists, watches, create, replace, merge and JSON patches, the status subresource, deletion with finalizers. It has no schema, no
admission and no history: a watch sees what happens from now on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from kvcm.common.errors import Conflict, NotFound
from kvcm_operator.kube import KINDS
from kvcm_operator.subject import mapping
from kvcm_operator.testing import FakeKube, merge
from kvcm_operator.world import Json, Ref

_LOCAL = "127.0.0.1"
_POLL_S = 0.01
_KIND_OF = {(prefix, plural): kind for kind, (prefix, plural, _) in KINDS.items()}
_EXTRA = {"namespaces": "Namespace"}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class FakeApiServer:
    """`requests`: method and path of every request but reads. `leaving`: kinds whose definitions are being deleted.

    `unlisted`: kinds that are served and that discovery does not tell of yet.
    """

    def __init__(self, kube: FakeKube) -> None:
        self.kube = kube
        self.requests: list[str] = []
        self.leaving: set[str] = set()
        self.unlisted: set[str] = set()
        self.ending = False

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """The base URL, for the length of the block."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, _LOCAL, 0)
        await site.start()
        try:
            yield f"http://{_LOCAL}:{runner.addresses[0][1]}"
        finally:
            self.ending = True
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        found = _discovery(parts, self.leaving, self.unlisted)
        if found is not None:
            return web.json_response(found)
        if request.method != "GET":
            self.requests.append(f"{request.method} {request.path}")
        size = 2 if parts[0] == "api" else 3
        prefix, rest = "/" + "/".join(parts[:size]), parts[size:]
        namespace = ""
        if not rest:
            return _failure(404, "unknown group")
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = _KIND_OF.get((prefix, rest[0])) or _EXTRA.get(rest[0])
        if kind is None:
            return _failure(404, "unknown resource")
        try:
            if len(rest) == 1:
                return await self._collection(request, kind, namespace)
            return await self._object(request, Ref(kind, namespace, rest[1]), status=rest[2:] == ["status"])
        except NotFound as error:
            return _failure(404, error.message)
        except Conflict as error:
            return _failure(409, error.message)

    async def _collection(self, request: web.Request, kind: str, namespace: str) -> web.StreamResponse:
        if request.method == "POST":
            body = await request.json()
            body["metadata"].setdefault("namespace", namespace)
            await self.kube.create(body, held=False)
            return web.json_response(body, status=201)
        if request.query.get("watch") == "true":
            return await self._watch(request, kind, namespace)
        items = self._items(kind, namespace, request.query.get("labelSelector", ""))
        return web.json_response({"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": str(self.kube.version)}, "items": items})

    def _items(self, kind: str, namespace: str, labels: str) -> list[Json]:
        wanted = [item.partition("=") for item in labels.split(",") if item]
        bodies = [self.kube.body(ref) for ref in self.kube.refs(kind) if namespace in ("", ref.namespace)]
        return [body for body in bodies if all(_matches(body, name, value if sign else None) for name, sign, value in wanted)]

    async def _watch(self, request: web.Request, kind: str, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        # What changed between the list and this request is older than nothing: it is sent as if it were new.
        since = int(request.query.get("resourceVersion") or 0)
        labels = request.query.get("labelSelector", "")
        known = {body["metadata"]["uid"]: body for body in self._items(kind, namespace, labels) if int(body["metadata"]["resourceVersion"]) <= since}
        while not self.ending and request.transport is not None and not request.transport.is_closing():
            now = {body["metadata"]["uid"]: body for body in self._items(kind, namespace, labels)}
            for uid, body in now.items():
                if uid not in known or known[uid]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                    await _line(response, "MODIFIED" if uid in known else "ADDED", body)
            for uid in known.keys() - now.keys():
                await _line(response, "DELETED", known[uid])
            known = now
            await asyncio.sleep(_POLL_S)
        return response

    async def _object(self, request: web.Request, ref: Ref, *, status: bool) -> web.StreamResponse:
        if not self.kube.has(ref):
            raise NotFound(f"{ref.kind} {ref.name} does not exist")
        if request.method == "PUT":
            await self.kube.replace(await request.json())
        elif request.method == "DELETE":
            body = await request.json() if request.can_read_body else {}
            uid = mapping(body.get("preconditions")).get("uid") or self.kube.body(ref)["metadata"]["uid"]
            await self.kube.delete(ref, uid)
        elif request.method == "PATCH":
            self._patch(ref, await request.json(), status=status)
        return web.json_response(self.kube.body(ref) if self.kube.has(ref) else {})

    def _patch(self, ref: Ref, patch: Any, *, status: bool) -> None:
        body = self.kube.body(ref)
        if isinstance(patch, dict) and mapping(patch.get("metadata")).get("resourceVersion") not in (None, body["metadata"]["resourceVersion"]):
            raise Conflict(f"{ref.kind} {ref.name} was changed by somebody else")
        new = _json_patched(body, patch) if isinstance(patch, list) else merge(body, patch)
        if new["metadata"]["uid"] != body["metadata"]["uid"]:
            raise Conflict("the uid in the precondition is another")
        if status:
            self.kube.set_status(ref, mapping(new.get("status")))
            return

        def change(stored: Json) -> None:
            stored.update({name: value for name, value in new.items() if name not in ("metadata", "status")})
            for name in ("annotations", "labels", "finalizers"):
                stored["metadata"].pop(name, None)
                if new["metadata"].get(name):
                    stored["metadata"][name] = new["metadata"][name]

        self.kube.edit(ref, change)
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self.kube.release(ref)


def _discovery(parts: list[str], leaving: Collection[str], unlisted: Collection[str]) -> Json | None:
    groups = sorted({prefix for prefix, _, _ in KINDS.values() if prefix != "/api/v1"})
    if parts == ["api"]:
        return {"versions": ["v1"]}
    if parts == ["apis"]:
        found = []
        for prefix in groups:
            group, version = prefix.split("/")[2:]
            found.append({"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}})
        return {"groups": found}
    if len(parts) == 2 and parts[0] == "apis":
        versions = [prefix.split("/")[3] for prefix in groups if prefix.split("/")[2] == parts[1]]
        return {"kind": "APIGroup", "name": parts[1], "versions": [{"version": version} for version in versions]} if versions else None
    prefix = "/" + "/".join(parts)
    if prefix != "/api/v1" and prefix not in groups:
        return None
    resources = []
    for kind, (base, plural, _) in KINDS.items():
        if base == prefix and kind not in unlisted:
            # A real server tells no more of a kind that is going, and lets it be patched all the same.
            verbs = ["delete", "get", "list", "watch"] if kind in leaving else _VERBS
            one = {"name": plural, "kind": kind, "singularName": kind.lower(), "namespaced": True, "verbs": verbs}
            resources += [one, {**one, "name": f"{plural}/status"}]
    if prefix == "/api/v1":
        resources.append({"name": "namespaces", "kind": "Namespace", "singularName": "namespace", "namespaced": False, "verbs": _VERBS})
    return {"kind": "APIResourceList", "resources": resources}


def _json_patched(body: Json, operations: list[Json]) -> Json:
    """Only what the framework sends: tests, and changes of lists in metadata."""
    result: Json = json.loads(json.dumps(body))
    for operation in operations:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].strip("/").split("/")]
        parent: Any = result
        for step in steps[:-1]:
            parent = parent[int(step)] if isinstance(parent, list) else parent.setdefault(step, {})
        last: Any = steps[-1]
        if isinstance(parent, list):
            last = len(parent) if last == "-" else int(last)
        match operation["op"]:
            case "test":
                value = parent[last] if isinstance(parent, list) else parent.get(last)
                if value != operation.get("value"):
                    raise Conflict(f"the test of {operation['path']} failed")
            case "add" if isinstance(parent, list):
                parent.insert(last, operation["value"])
            case "add" | "replace":
                parent[last] = operation["value"]
            case "remove":
                del parent[last]
    return result


def _matches(body: Json, name: str, value: str | None) -> bool:
    labels = mapping(body["metadata"].get("labels"))
    return name in labels if value is None else labels.get(name) == value


def _failure(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "message": message, "code": code}, status=code)


async def _line(response: web.StreamResponse, kind: str, body: Json) -> None:
    await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")
