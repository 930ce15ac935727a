"""The Kubernetes client: preconditions, paging, Events, and what answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web
from kubernetes import client

from kvcm.common.clock import FakeClock, SystemClock
from kvcm.common.errors import Conflict, InvalidArgument, KvcmError, NotFound, NotReady
from kvcm_operator.kube import HttpKube, event_body
from kvcm_operator.kube_transport import ClientTransport
from kvcm_operator.testing import FakeKube
from kvcm_operator.testing_house import storage
from kvcm_operator.testing_server import FakeApiServer
from kvcm_operator.world import STORAGE, Event, Json, KubeForbidden, Ref

pytestmark = pytest.mark.unit

FAST = Ref(STORAGE, "default", "fast")
NEWS = Event(FAST, "uid-1", "Normal", "Ready", "registered with the manager")


def transport_to(url: str, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> ClientTransport:
    settings = client.Configuration()
    settings.host = url
    return ClientTransport(settings, sleep)


def with_server(story: Callable[[HttpKube, FakeKube], Awaitable[None]]) -> None:
    async def told() -> None:
        server = FakeApiServer(FakeKube(SystemClock()))
        async with server.serve() as url:
            transport = transport_to(url)
            try:
                await story(HttpKube(transport, SystemClock()), server.kube)
            finally:
                transport.close()

    asyncio.run(told())


def test_objects_are_read_listed_created_replaced_and_deleted() -> None:
    async def story(kube: HttpKube, fake: FakeKube) -> None:
        assert await kube.get(FAST) is None
        await kube.create(storage())
        with pytest.raises(Conflict):
            await kube.create(storage())
        body = await kube.get(FAST)
        assert body is not None
        assert (body["kind"], body["apiVersion"]) == (STORAGE, "kvcm.io/v1alpha1")
        body["spec"]["enabled"] = False
        await kube.replace(body)
        with pytest.raises(Conflict):
            await kube.replace(body)
        fake.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default", "labels": {"a": "b"}}})
        assert len(await kube.list("Pod", "default", {"a": "b"})) == 1
        assert await kube.list("Pod", "default", {"a": "c"}) == []
        with pytest.raises(Conflict):
            await kube.delete(FAST, "another")
        await kube.delete(FAST, body["metadata"]["uid"])
        await kube.delete(FAST, body["metadata"]["uid"])
        assert not fake.has(FAST)

    with_server(story)


def test_our_finalizer_is_taken_off_only_from_what_was_read() -> None:
    async def story(kube: HttpKube, fake: FakeKube) -> None:
        ref = fake.put(storage())
        fake.edit(ref, lambda body: body["metadata"]["finalizers"].append("theirs"))
        old = fake.body(ref)
        fake.annotate(ref, "a", "b")
        with pytest.raises(Conflict):
            await kube.let_go(old)
        await kube.let_go(fake.body(ref))
        assert fake.body(ref)["metadata"]["finalizers"] == ["theirs"]
        fake.edit(ref, lambda body: body["metadata"].update(finalizers=["kvcm.io/operator"]))
        fake.mark_deleted(ref)
        last = fake.body(ref)
        await kube.let_go(last)
        assert not fake.has(ref)
        await kube.let_go(last)

    with_server(story)


def test_a_status_is_merged_for_this_very_object_only() -> None:
    async def story(kube: HttpKube, fake: FakeKube) -> None:
        fake.put(storage())
        uid = fake.body(FAST)["metadata"]["uid"]
        await kube.patch_status(FAST, uid, {"observedGeneration": 1, "registered": True})
        await kube.patch_status(FAST, uid, {"registered": None})
        assert fake.body(FAST)["status"] == {"observedGeneration": 1}
        with pytest.raises(Conflict):
            await kube.patch_status(FAST, "another", {"observedGeneration": 2})

    with_server(story)


def test_an_event_told_twice_is_one() -> None:
    async def story(kube: HttpKube, fake: FakeKube) -> None:
        await kube.emit(NEWS)
        await kube.emit(NEWS)
        (ref,) = fake.refs("Event")
        body = fake.body(ref)
        assert (body["reason"], body["count"], body["involvedObject"]["uid"]) == ("Ready", 1, "uid-1")
        fake.edit(ref, lambda event: event.update(lastTimestamp="2020-01-01T00:00:00Z"))
        await kube.emit(NEWS)
        assert fake.body(ref)["count"] == 2

    with_server(story)


def test_event_names_are_valid_for_long_names() -> None:
    body = event_body(Event(Ref(STORAGE, "default", "x" * 253), "u", "Normal", "Ready", "m"), "now")
    assert len(body["metadata"]["name"]) <= 253


class Scripted:
    """Answers in order; `asked` are paths with their queries."""

    def __init__(self, answers: list[Json | KvcmError]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    async def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None) -> Json:
        self.asked.append((method, path, dict(query or {})))
        answer = self.answers.pop(0)
        if isinstance(answer, KvcmError):
            raise answer
        return answer


def test_lists_are_read_page_by_page() -> None:
    pages: list[Json | KvcmError] = [{"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "more"}}, {"items": [{"metadata": {"name": "b"}}]}]
    scripted = Scripted(pages)
    found = asyncio.run(HttpKube(scripted, FakeClock()).list(STORAGE, "default"))
    assert [body["metadata"]["name"] for body in found] == ["a", "b"]
    assert scripted.asked[1][2]["continue"] == "more"


def test_an_event_that_cannot_be_written_fails_nothing() -> None:
    scripted = Scripted([KubeForbidden("no right to write events")])
    asyncio.run(HttpKube(scripted, FakeClock()).emit(NEWS))
    assert scripted.answers == []


def test_a_status_refused_for_its_uid_is_a_conflict_and_for_its_content_is_not() -> None:
    kube = HttpKube(Scripted([InvalidArgument("metadata.uid: field is immutable"), InvalidArgument("status.x is odd")]), FakeClock())
    with pytest.raises(Conflict):
        asyncio.run(kube.patch_status(FAST, "u", {}))
    with pytest.raises(InvalidArgument, match="odd"):
        asyncio.run(kube.patch_status(FAST, "u", {}))


def answered(responses: list[tuple[int, dict[str, str], Any]]) -> tuple[list[float], Json | KvcmError]:
    """One request against a server that gives these answers in turn: the waits in between, and the end."""
    waits: list[float] = []
    left = list(responses)

    async def told() -> Json | KvcmError:
        async def handle(_: web.Request) -> web.Response:
            status, headers, body = left.pop(0)
            return web.json_response(body, status=status, headers=headers)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        transport = transport_to(f"http://127.0.0.1:{runner.addresses[0][1]}", sleep)
        try:
            return await transport.request("GET", "/x")
        except KvcmError as error:
            return error
        finally:
            transport.close()
            await runner.cleanup()

    return waits, asyncio.run(told())


def test_a_busy_server_is_asked_again_when_it_says_and_not_for_ever() -> None:
    busy = (429, {"Retry-After": "3"}, {"message": "busy"})
    assert answered([busy, busy, (200, {}, {"ok": 1})]) == ([3.0, 3.0], {"ok": 1})
    waits, end = answered([busy] * 4)
    assert len(waits) == 3
    assert isinstance(end, NotReady)
    assert answered([(429, {"Retry-After": "99999"}, {}), (200, {}, {})])[0] == [10.0]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFound),
        (409, Conflict),
        (422, InvalidArgument),
        (400, InvalidArgument),
        (403, KubeForbidden),
        (401, KubeForbidden),
        (500, NotReady),
        (503, NotReady),
    ],
)
def test_every_answer_has_a_meaning_and_keeps_the_servers_sentence(status: int, kind: type[KvcmError]) -> None:
    waits, end = answered([(status, {}, {"message": "because"})])
    assert waits == []
    assert type(end) is kind
    assert end.message == "because"


def test_a_server_that_is_not_there_is_not_ready() -> None:
    async def told() -> None:
        transport = transport_to("http://127.0.0.1:9")
        try:
            with pytest.raises(NotReady, match="cannot be reached"):
                await transport.request("GET", "/x")
        finally:
            transport.close()

    asyncio.run(told())
