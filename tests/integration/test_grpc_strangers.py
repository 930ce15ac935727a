"""What strangers do to a gRPC port: paths that are not text, frames out of nowhere, connections that say nothing. Nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.grpc import hardened, unsent
from kvcm.service.grpc import server as server_module
from kvcm.service.testing import InProcessManager, ManagerProcess
from kvcm.service.testing_fuzz_grpc import conversation
from kvcm.service.testing_wire import META, GrpcWire

pytestmark = pytest.mark.integration
PATH = f"/{META}/GetClusterInfo"
GOOD = conversation(PATH, b"")
BAD_PATH = GOOD.replace(b"MetaService", b"Meta\xff\xfe\xfd\xfc\xfb\xfa\xf9")


def with_port(script: Callable[[int], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(30), InProcessManager() as server:
            await script(server.endpoint.meta_rpc_port)

    asyncio.run(scenario())


async def ask(channel: grpc.aio.Channel, *, wait: bool = False) -> int:
    """The code of a plain reply."""
    reply = await channel.unary_unary(PATH, None, None)(b"", timeout=10, wait_for_ready=wait)
    return int(meta.GetClusterInfoResponse.FromString(reply).header.status.code)


async def talk(port: int, text: bytes) -> bytes:
    """Send, then read for as long as something comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        writer.write(text)
        async with asyncio.timeout(0.3):
            while piece := await reader.read(1 << 16):
                received += piece
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return received


def test_the_installed_grpcio_is_one_whose_paths_can_be_looked_at() -> None:
    assert grpc.__version__ in hardened.TRIED_VERSIONS, "try the tests of this file with the new version, then add it to TRIED_VERSIONS"
    assert hardened.path_reader() is not None


def test_a_path_that_is_not_text_stops_nobody() -> None:
    async def script(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await ask(channel) == meta.OK
            assert b"grpc-status" not in await talk(port, BAD_PATH)
            await asyncio.gather(*(talk(port, BAD_PATH) for _ in range(20)))
            assert await ask(channel) == meta.OK

    with_port(script)


def test_text_beyond_ascii_is_an_unknown_method() -> None:
    async def script(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = await talk(port, conversation("/ä.ö/ü", b""))
            assert b"12" in answer
            assert await ask(channel) == meta.OK

    with_port(script)


def test_a_server_that_ends_all_the_same_is_started_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(hardened, "TRIED_VERSIONS", frozenset())
    # Ours is not the only one that hears of the end: grpc.aio leaves a task with the exception behind.
    ended = asyncio.Event()

    async def script(port: int) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: ended.set())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await ask(channel) == meta.OK
            await talk(port, BAD_PATH)
            while "grpc_server_started_again" not in caplog.text:  # noqa: ASYNC110  # a log line is no event
                await asyncio.sleep(0.01)
            assert await ask(channel, wait=True) == meta.OK

    with_port(script)
    assert "is not known to survive malformed paths" in caplog.text


def test_frames_out_of_nowhere_cost_at_most_their_connection() -> None:
    frames = {
        "no preface": b"\x00" * 64,
        "HTTP/1.1": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "data before headers": GOOD[:24] + b"\x00\x00\x04\x00\x00\x00\x00\x00\x01abcd",
        "endless frame": GOOD[:24] + b"\xff\xff\xff\x01\x04\x00\x00\x00\x01" + b"x" * 1000,
        "settings of no size": GOOD[:24] + b"\x00\x00\x05\x04\x00\x00\x00\x00\x00abcde",
        "many settings": GOOD[:24] + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 10_000,
        "resets": GOOD + b"".join(b"\x00\x00\x04\x03\x00" + n.to_bytes(4, "big") + b"\x00\x00\x00\x08" for n in range(1, 2000, 2)),
        "message without end": GOOD[:-5] + b"\x00\xff\xff\xff\xff",
    }

    async def script(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for name, text in frames.items():
                await talk(port, text)
                assert await ask(channel) == meta.OK, name

    with_port(script)


def test_who_connects_and_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = tuple((key, 200 if key == "grpc.server_handshake_timeout_ms" else value) for key, value in server_module._OPTIONS)
    monkeypatch.setattr(server_module, "_OPTIONS", quick)

    async def script(port: int) -> None:
        for text in (b"", b"PRI"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text)
            while await reader.read(100):
                pass
            writer.close()

    with_port(script)


HEADERS_ONLY = GOOD[: GOOD.rindex(b"\x00\x00\x05\x00\x01")].replace(b"\x0cgrpc-timeout\x021S", b"\x0cx-no-timeout\x021S")


async def dangle(port: int, streams: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One connection with that many calls whose requests never come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = HEADERS_ONLY.index(b"\x01\x04\x00\x00\x00\x01") - 3
    opening, headers = HEADERS_ONLY[:start], HEADERS_ONLY[start:]
    writer.write(opening + b"".join(headers[:5] + number.to_bytes(4, "big") + headers[9:] for number in range(1, 2 * streams, 2)))
    await writer.drain()
    return reader, writer


def test_a_request_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent, "REQUEST_DEADLINE_S", 0.1)
    monkeypatch.setattr(unsent, "_SWEEP_S", 0.05)

    async def script(port: int) -> None:
        reader, writer = await dangle(port, 3)
        received = b""
        while received.count(b"the request did not come in time") + received.count(b"the%20request") < 1:
            received += await reader.read(1 << 16)
        writer.close()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await ask(channel) == meta.OK

    with_port(script)


def test_thousands_of_requests_that_do_not_come_leave_room_for_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONCURRENT_RPCS", 200)
    monkeypatch.setattr(unsent, "MAX_UNSENT", 50)

    async def script(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await ask(channel) == meta.OK
            attackers = []
            for _ in range(5):
                attackers.append(await dangle(port, 300))
                reader, _ = attackers[-1]
                # They are there when the first of them is refused.
                await reader.readuntil(b"the request")
                assert await ask(channel) == meta.OK
            for _, writer in attackers:
                writer.close()

    with_port(script)


def test_connections_are_bounded_and_a_place_that_is_free_again_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)

    async def script(port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as first:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as second:
                assert [await ask(first), await ask(second)] == [meta.OK, meta.OK]
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as third:
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await ask(third)
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
                assert await ask(first) == meta.OK
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as fourth:
                assert await ask(fourth, wait=True) == meta.OK

    with_port(script)


def test_bytes_of_strangers_do_not_reach_the_log() -> None:
    async def strangers(port: int) -> None:
        for text in (BAD_PATH, GOOD.replace(b"POST", b"P\nST"), GOOD.replace(b"grpc-timeout", b"grpc\xfftimeout"), GOOD.replace(b"trailers", b"evil\nlog")):
            await talk(port, text)

    with ManagerProcess() as manager:
        asyncio.run(strangers(manager.endpoint.meta_rpc_port))
        reply: dict[str, Any] = GrpcWire(manager.meta_address, META).call("GetClusterInfo", {})
        assert reply["header"]["status"]["code"] == "OK"
        lines = manager.log.splitlines()
        assert [line for line in lines if not line.startswith(("time=", "kvcm is ready"))] == []
        assert "Traceback" not in manager.log
