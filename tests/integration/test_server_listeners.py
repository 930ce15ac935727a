"""Listeners over real sockets on the test's own loop, with a tiny service behind them: what a transport may and may not let through."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvcm.common.clock import SystemClock
from kvcm.common.errors import StorageError
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import encode_header
from kvcm.service.errors import PortInUse
from kvcm.service.grpc.health import Health
from kvcm.service.grpc.server import MAX_REQUEST_BYTES, GrpcListener
from kvcm.service.grpc.unread import Unread
from kvcm.service.http import body as body_module
from kvcm.service.http import protocol as protocol_module
from kvcm.service.http.app import build_app
from kvcm.service.http.listener import HttpListener
from kvcm.service.in_flight import InFlight
from kvcm.service.rpc import Call, Dispatcher, Reply, Rpc, Service, table
from kvcm.service.testing_fuzz_grpc import conversation

pytestmark = pytest.mark.integration

NAME = "kv_cache_manager.proto.meta.MetaService"
Script = Callable[["House"], Awaitable[None]]


class Everybody:
    def may_serve(self, now_us: int) -> bool:
        return True

    def lease_holds(self, now_us: int) -> bool:
        return True

    def observe(self, api: str, call: Call, code: int, elapsed_us: int) -> None:
        return


class House:
    """Both listeners with two RPCs: TrimCache answers by instance id, GetCacheMeta waits until it is let go."""

    def __init__(self) -> None:
        self.in_flight = InFlight()
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()
        self.serving = True
        self.answered = 0
        everybody = Everybody()
        self.dispatcher = Dispatcher(SystemClock(), everybody, everybody)
        self.service = self._service()
        self.health = Health([NAME], lambda: self.serving)
        self.grpc = GrpcListener([self.service], self.dispatcher, self.in_flight, [self.health.handler()])
        self.http = HttpListener()

    def _service(self) -> Service:
        async def answer(request: Any, call: Call) -> Reply:
            if request.instance_id == "bad":
                raise StorageError("The store is down.")
            if request.instance_id == "bug":
                raise RuntimeError("secret detail")
            if request.instance_id == "garbage":
                return 1, b"\xff\xff\xff"
            if request.instance_id == "large":
                return 1, encode_header(1, "y" * (1 << 20), call.request_id)
            if request.instance_id == "slow":
                self.answered += 1
                await asyncio.sleep(0.001)
            return 1, encode_header(1, "", call.request_id)

        async def wait(request: Any, call: Call) -> Reply:
            self.entered.set()
            await self.let_go.wait()
            return 1, encode_header(1, "waited", call.request_id)

        return table(
            NAME,
            [Rpc("TrimCache", meta.TrimCacheRequest, meta.CommonResponse, answer), Rpc("GetCacheMeta", meta.GetCacheMetaRequest, meta.CommonResponse, wait)],
        )

    async def __aenter__(self) -> House:
        await self.grpc.start(0, "rpc")
        self.http.bind(0, "http")
        await self.http.start(build_app([self.service], self.dispatcher, self.in_flight), 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go.set()
        self.health.close()
        await asyncio.gather(self.grpc.stop(1), self.http.stop())

    async def post(self, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        def call() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", self.http.port, timeout=10)
            try:
                connection.request(method, path, body)
                response = connection.getresponse()
                return response.status, response.read()
            finally:
                connection.close()

        return await asyncio.to_thread(call)

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc.port}", options=[("grpc.max_send_message_length", -1)])


def with_house(script: Script) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(20), House() as house:
            await script(house)

    asyncio.run(scenario())


def raw(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.unary_unary(f"/{NAME}/{method}", None, None)


def test_grpc_bad_bytes_and_unknown_methods_are_refused_and_the_rest_served() -> None:
    async def script(house: House) -> None:
        async with house.channel() as channel:
            with pytest.raises(grpc.aio.AioRpcError) as garbage:
                await raw(channel, "TrimCache")(b"\xff\xff\xff")
            assert garbage.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "TrimCacheRequest" in (garbage.value.details() or "")
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await raw(channel, "Nope")(b"")
            assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
            with pytest.raises(grpc.aio.AioRpcError) as large:
                await raw(channel, "TrimCache")(b"\x00" * (MAX_REQUEST_BYTES + 1))
            assert large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            reply = meta.CommonResponse.FromString(await raw(channel, "TrimCache")(meta.TrimCacheRequest(trace_id="t").SerializeToString()))
            assert reply.header.status.code == 1
            assert reply.header.request_id.startswith("t_")
        assert house.in_flight.count == 0

    with_house(script)


@pytest.mark.parametrize(("instance", "code"), [("bad", 20), ("bug", 3)])
def test_errors_of_handlers_are_replies_without_internals(instance: str, code: int) -> None:
    async def script(house: House) -> None:
        async with house.channel() as channel:
            request = meta.TrimCacheRequest(instance_id=instance).SerializeToString()
            reply = meta.CommonResponse.FromString(await raw(channel, "TrimCache")(request))
        assert reply.header.status.code == code
        assert "secret" not in reply.header.status.message
        status, body = await house.post("/api/trimCache", b'{"instance_id":"%s"}' % instance.encode())
        assert status == 200
        assert b"secret" not in body

    with_house(script)


def test_a_client_that_hangs_up_leaves_no_call_behind() -> None:
    async def script(house: House) -> None:
        async with house.channel() as channel:
            call = raw(channel, "GetCacheMeta")(b"")
            waiting = asyncio.ensure_future(call)
            await house.entered.wait()
            assert house.in_flight.count == 1
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert await house.in_flight.drained(5)

    with_house(script)


def test_health_follows_the_leader_and_watches_end_when_the_listener_closes() -> None:
    async def script(house: House) -> None:
        async with house.channel() as channel:
            make: Any = health_pb2_grpc.HealthStub
            stub = make(channel)

            async def check(service: str) -> int:
                return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)

            serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
            assert await check("") == serving
            assert await check(NAME) == serving
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=NAME)).__aiter__()
            assert (await anext(watch)).status == serving
            house.serving = False
            assert await check("") == serving
            assert await check(NAME) == not_serving
            assert (await anext(watch)).status == not_serving
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await check("other")
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
            house.health.close()
            assert await check("") == not_serving
            with pytest.raises(StopAsyncIteration):
                await anext(watch)

    with_house(script)


def test_a_running_call_ends_during_the_grace_time_of_a_stop() -> None:
    async def script(house: House) -> None:
        async with house.channel() as channel:
            waiting = asyncio.ensure_future(raw(channel, "GetCacheMeta")(b""))
            await house.entered.wait()
            stopping = asyncio.create_task(house.grpc.stop(10))
            await asyncio.sleep(0)
            house.let_go.set()
            reply = meta.CommonResponse.FromString(await waiting)
            assert reply.header.status.message == "waited"
            await stopping

    with_house(script)


def test_every_call_that_has_begun_gets_its_reply_when_the_listener_stops() -> None:
    async def script(house: House) -> None:
        replies, refusals = 0, set()

        async def load() -> None:
            nonlocal replies
            async with house.channel() as channel:
                while True:
                    try:
                        await raw(channel, "TrimCache")(meta.TrimCacheRequest(instance_id="slow").SerializeToString())
                        replies += 1
                    except grpc.aio.AioRpcError as error:
                        refusals.add(error.code())
                        return

        clients = [asyncio.create_task(load()) for _ in range(8)]
        while replies < 100:  # noqa: ASYNC110  # any number of replies will do
            await asyncio.sleep(0.001)
        await house.grpc.stop(10)
        await asyncio.gather(*clients)
        assert house.answered == replies
        assert refusals <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}

    with_house(script)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nonsense", b'{"instance_id":{}}', b"\xff\xfe", b"[" * 10_000, b'{"a":1} x', b'{"trace_id":1e400}'])
def test_bodies_that_are_not_the_message_are_400(body: bytes) -> None:
    async def script(house: House) -> None:
        assert await house.post("/api/trimCache", body) == (400, b"{}")
        assert (await house.post("/api/trimCache", b"{}"))[0] == 200

    with_house(script)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/trimCache"), ("PUT", "/api/trimCache"), ("DELETE", "/api/trimCache"), ("POST", "/api/nope"), ("GET", "/"), ("POST", "/api/trimCache/")],
)
def test_unknown_paths_and_wrong_methods_are_404(method: str, path: str) -> None:
    async def script(house: House) -> None:
        assert await house.post(path, b"{}", method) == (404, b"404 Not Found")

    with_house(script)


def test_a_reply_that_cannot_be_written_as_json_is_500(caplog: pytest.LogCaptureFixture) -> None:
    async def script(house: House) -> None:
        assert await house.post("/api/trimCache", b'{"instance_id":"garbage"}') == (500, b"{}")

    with_house(script)
    assert "reply_not_serialisable" in caplog.text


def test_bodies_over_the_limit_are_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(body_module, "MAX_DISCARDED_BYTES", 100_000)

    async def script(house: House) -> None:
        assert (await house.post("/api/trimCache", b" " * 998 + b"{}"))[0] == 200
        assert await house.post("/api/trimCache", b" " * 999 + b"{}") == (413, b"{}")
        assert await house.post("/api/trimCache", b" " * 90_000) == (413, b"{}")
        assert (await house.post("/api/trimCache", b"{}"))[0] == 200

    with_house(script)


def test_large_bodies_and_replies_go_through_the_thread() -> None:
    async def script(house: House) -> None:
        long_id = b"x" * (2 << 20)
        status, body = await house.post("/api/trimCache", b'{"trace_id":"%s","instance_id":"large"}' % long_id)
        assert status == 200
        assert len(json.loads(body)["header"]["status"]["message"]) == 1 << 20
        assert await house.post("/api/trimCache", b'{"trace_id":"%s"' % long_id) == (400, b"{}")

    with_house(script)


async def _talk(house: House, text: bytes) -> bytes:
    """Send raw bytes, then read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.http.port)
    try:
        writer.write(text)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def test_a_body_that_does_not_come_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "BODY_DEADLINE_S", 0.05)

    async def script(house: House) -> None:
        answer = await _talk(house, b"POST /api/trimCache HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b"\r\n\r\n{}")
        assert (await house.post("/api/trimCache", b"{}"))[0] == 200

    with_house(script)


@pytest.mark.parametrize("text", [b"", b"POST /api/trimCache HTTP/1.1\r\nhost: x\r\nx-slow: "])
def test_a_head_that_does_not_come_costs_the_connection(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_module, "HEAD_DEADLINE_S", 0.05)

    async def script(house: House) -> None:
        assert await _talk(house, text) == b""

    with_house(script)


def test_a_second_head_on_a_kept_connection_has_a_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_module, "HEAD_DEADLINE_S", 0.2)

    async def script(house: House) -> None:
        answer = await _talk(house, b"POST /api/trimCache HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}POST /api/tr")
        assert answer.startswith(b"HTTP/1.1 200 ")

    with_house(script)


def test_an_endless_header_costs_the_connection() -> None:
    async def script(house: House) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.http.port)
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        try:
            for _ in range(64):
                writer.write(b"y" * 4096)
                await writer.drain()
            assert await reader.read() == b""
        except ConnectionError:
            pass
        finally:
            writer.close()
        assert (await house.post("/api/trimCache", b"{}"))[0] == 200

    with_house(script)


def test_two_listeners_cannot_share_a_port() -> None:
    async def script(house: House) -> None:
        second = HttpListener()
        with pytest.raises(PortInUse, match=r"kvcm\.service\.http_port.*HTTP"):
            second.bind(house.http.port, "kvcm.service.http_port")
        rpc = GrpcListener([house.service], house.dispatcher, house.in_flight)
        with pytest.raises(PortInUse, match=r"kvcm\.service\.rpc_port.*gRPC"):
            await rpc.start(house.grpc.port, "kvcm.service.rpc_port")
        await rpc.stop(0)

    with_house(script)


def test_replies_that_nobody_reads_are_bounded_and_make_room_when_their_client_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unread.__init__, "__defaults__", (3 << 20,))
    request = meta.TrimCacheRequest(instance_id="large").SerializeToString()

    async def script(house: House) -> None:
        path = f"/{NAME}/TrimCache"
        stalled = []
        for _ in range(2):  # a window of 64 KiB, never opened again
            _, writer = await asyncio.open_connection("127.0.0.1", house.grpc.port)
            writer.write(conversation(path, request).replace(b"1S", b"9M"))
            stalled.append(writer)
        async with house.channel() as channel:
            call = channel.unary_unary(path, None, None)

            async def status() -> grpc.StatusCode:
                try:
                    await call(request, timeout=10)
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

            assert await until(status, grpc.StatusCode.UNAVAILABLE)
            assert await call(meta.TrimCacheRequest(instance_id="i").SerializeToString(), timeout=10)  # short ones go on
            for writer in stalled:
                writer.close()
            assert await until(status, grpc.StatusCode.OK)
            for _ in range(10):
                assert await status() is grpc.StatusCode.OK  # those who read leave nothing behind

    async def until(status: Callable[[], Awaitable[grpc.StatusCode]], wanted: grpc.StatusCode) -> bool:
        async with asyncio.timeout(10):
            while await status() is not wanted:  # noqa: ASYNC110  # only the server knows when
                await asyncio.sleep(0.01)
        return True

    with_house(script)


def test_long_replies_that_wait_to_become_json_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module.BodyBudget.__init__, "__defaults__", (1 << 19,))

    async def script(house: House) -> None:
        for _ in range(3):
            assert (await house.post("/api/trimCache", b'{"instance_id":"large"}'))[0] == 503
        assert (await house.post("/api/trimCache", b'{"instance_id":"i"}'))[0] == 200

    with_house(script)
