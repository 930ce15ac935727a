"""What strangers do to an HTTP port: connections that say nothing, never end, never read, or speak something else. Nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvcm.service.http import body as body_module
from kvcm.service.http import connections as connections_module
from kvcm.service.http import protocol as protocol_module
from kvcm.service.http.protocol import LimitedProtocol
from kvcm.service.testing import InProcessManager, ManagerProcess

pytestmark = pytest.mark.integration
HEAD = b"POST /api/getClusterInfo HTTP/1.1\r\nhost: x\r\n"
GOOD = HEAD + b"content-length: 2\r\n\r\n{}"
LAST = HEAD + b"content-length: 2\r\nconnection: close\r\n\r\n{}"


def with_port(script: Callable[[int], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(30), InProcessManager() as server:
            await script(server.endpoint.meta_http_port)
            # Whatever has happened, the next one is served.
            assert (await talk(server.endpoint.meta_http_port, LAST)).startswith(b"HTTP/1.1 200 ")

    asyncio.run(scenario())


async def talk(port: int, text: bytes, *, half_close: bool = False) -> bytes:
    """Send, then read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        await writer.drain()
        if half_close:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


async def one_reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split()[1]), await reader.readexactly(int(length.partition(b":")[2]))


def test_several_requests_use_one_connection_and_a_close_is_honoured() -> None:
    async def script(port: int) -> None:
        answer = await talk(port, GOOD + GOOD + LAST)
        assert answer.count(b"HTTP/1.1 200 ") == 3
        assert answer.count(b"connection: close") == 1

    with_port(script)


def test_a_chunked_body_is_a_body() -> None:
    async def script(port: int) -> None:
        answer = await talk(port, HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"code":"OK"' in answer

    with_port(script)


def test_an_offer_of_another_protocol_is_ignored_and_the_connection_goes_on() -> None:
    async def script(port: int) -> None:
        offer = HEAD + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\ncontent-length: 2\r\n\r\n{}"
        answer = await talk(port, offer + offer + LAST)
        assert answer.count(b"HTTP/1.1 200 ") == 3
        websocket = b"GET /chat HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n"
        assert (await talk(port, websocket + LAST)).startswith(b"HTTP/1.1 404 ")

    with_port(script)


def test_an_offer_that_comes_byte_by_byte_is_ignored_too() -> None:
    async def script(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at, byte in enumerate(HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\n{}"):
            writer.write(bytes([byte]))
            if at % 10 == 0:
                await writer.drain()
        assert (await one_reply(reader))[0] == 200
        writer.close()

    with_port(script)


def test_a_client_that_has_closed_its_half_gets_its_reply() -> None:
    async def script(port: int) -> None:
        assert (await talk(port, GOOD, half_close=True)).startswith(b"HTTP/1.1 200 ")
        assert await talk(port, HEAD + b"content-length: 20\r\n\r\n{}", half_close=True) == b""

    with_port(script)


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT other:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        HEAD + b"content-length: -2\r\n\r\n{}",
        HEAD + b"content-length: 99999999999999999999999\r\n\r\n{}",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"x: \x00\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"\x00" * 100,
    ],
)
def test_what_is_not_http_is_400_and_the_end_of_the_connection(text: bytes) -> None:
    async def script(port: int) -> None:
        answer = await talk(port, text)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1

    with_port(script)


def test_too_many_requests_sent_ahead_end_the_connection() -> None:
    async def script(port: int) -> None:
        answer = await talk(port, GOOD * 15 + LAST)
        assert answer.count(b"HTTP/1.1 200 ") == 16
        assert b"HTTP/1.1 400 " in await talk(port, GOOD * 1000)

    with_port(script)


def test_a_body_that_nobody_reads_may_not_come_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_module, "BODY_DEADLINE_S", 0.2)

    async def script(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        assert (await one_reply(reader))[0] == 404
        while not reader.at_eof():
            writer.write(b"1\r\nx\r\n")
            try:
                async with asyncio.timeout(0.01):
                    assert await reader.read() == b""
            except TimeoutError:
                continue
            except ConnectionError:
                break  # the reader says this at every call, and never that it is at its end
        writer.close()

    with_port(script)


def test_a_reply_that_nobody_takes_is_dropped_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_module, "REPLY_DEADLINE_S", 0.2)
    gone = asyncio.Event()
    lost = LimitedProtocol.connection_lost

    def connection_lost(self: LimitedProtocol, exc: Exception | None) -> None:
        gone.set()
        lost(self, exc)

    monkeypatch.setattr(LimitedProtocol, "connection_lost", connection_lost)

    async def script(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
        while not gone.is_set():
            writer.write(request)
            await asyncio.sleep(0.001)
        writer.close()

    with_port(script)


def test_the_connection_idle_longest_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "MAX_CONNECTIONS", 20)

    async def script(port: int) -> None:
        used_reader, used_writer = await asyncio.open_connection("127.0.0.1", port)
        idle = []
        for _ in range(200):
            idle.append(await asyncio.open_connection("127.0.0.1", port))
            used_writer.write(GOOD)
            assert (await one_reply(used_reader))[0] == 200
        for reader, writer in idle[:-20]:
            assert await reader.read() == b""
            writer.close()
        _, last = idle[-1]
        last.write(GOOD)
        assert (await one_reply(idle[-1][0]))[0] == 200
        for writer in (used_writer, *(writer for _, writer in idle[-20:])):
            writer.close()

    with_port(script)


def test_thousands_of_idle_connections_leave_room_for_the_next_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3000
    if hard != resource.RLIM_INFINITY and hard < wanted + 500:
        pytest.skip(f"the system allows this process {hard} open files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + 500, hard))
    try:
        with ManagerProcess() as manager:
            address = ("127.0.0.1", manager.endpoint.meta_http_port)
            idle = [socket.create_connection(address) for _ in range(wanted)]
            assert asyncio.run(talk(address[1], LAST)).startswith(b"HTTP/1.1 200 ")
            assert "the connection idle longest has been closed" in manager.log
            assert "Traceback" not in manager.log
            for connection in idle:
                connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_newcomers_wait_for_nothing_while_all_places_are_in_the_middle_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "MAX_CONNECTIONS", 4)

    async def script(port: int) -> None:
        busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for reader, writer in busy:
            writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert await talk(port, LAST) == b""
        for reader, writer in busy:
            writer.write(b"{}")
            assert (await one_reply(reader))[0] == 200
            writer.close()

    with_port(script)


def test_who_asks_before_sending_too_much_is_told_before_sending() -> None:
    async def script(port: int) -> None:
        length = body_module.MAX_BODY_BYTES + 1
        answer = await talk(port, HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % length)
        assert answer.startswith(b"HTTP/1.1 413 ")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await one_reply(reader))[0] == 200
        writer.close()

    with_port(script)


def test_ten_megabytes_are_read_and_two_hundred_refused_without_being_kept() -> None:
    def post(port: int, megabytes: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        chunk = b"x" * (1 << 20)
        connection.putrequest("POST", "/api/getClusterInfo")
        connection.putheader("content-length", str((megabytes << 20) + 15))
        connection.endheaders(b'{"trace_id":"')
        for _ in range(megabytes):
            connection.send(chunk)
        connection.send(b'"}')
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    async def script(port: int) -> None:
        status, text = await asyncio.to_thread(post, port, 10)
        assert (status, json.loads(text)["header"]["status"]["code"]) == (200, "OK")
        assert await asyncio.to_thread(post, port, 200) == (413, b"{}")
        assert (await talk(port, HEAD + b"content-length: 999999999999\r\n\r\n{}")).startswith(b"HTTP/1.1 413 ")

    with_port(script)


def test_large_bodies_share_a_budget_and_small_ones_do_not_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module.BodyBudget.__init__, "__defaults__", (1 << 20,))

    async def script(port: int) -> None:
        start = HEAD + b"content-length: 900000\r\nconnection: close\r\n\r\n" + b" " * 800_000
        whole = start + b" " * 99_998 + b"{}"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        await writer.drain()
        # Only when the first one's bytes have arrived is there nothing left for the second.
        while not (await talk(port, whole)).startswith(b"HTTP/1.1 503 "):
            pass
        assert (await talk(port, LAST)).startswith(b"HTTP/1.1 200 ")
        writer.write(b" " * 99_998 + b"{}")
        assert (await one_reply(reader))[0] == 200
        writer.close()
        assert (await talk(port, whole)).startswith(b"HTTP/1.1 200 ")

    with_port(script)


def test_lines_about_strangers_are_few(caplog: pytest.LogCaptureFixture) -> None:
    async def script(port: int) -> None:
        for _ in range(50):
            await talk(port, b"NONSENSE\r\n\r\n")

    with_port(script)
    said = [record for record in caplog.records if "http_refused" in record.getMessage()]
    assert len(said) == 1


def test_the_quiet_log_counts_what_it_does_not_say(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = connections_module.QuietLog(lambda: now[0])
    for _ in range(5):
        log.warning("bad %s", "thing")
    now[0] = 111.0
    log.warning("bad again")
    assert [record.getMessage() for record in caplog.records] == ["http_refused times=1 last=bad thing", "http_refused times=5 last=bad again"]


def test_content_types_and_encodings_of_requests_are_not_looked_at() -> None:
    async def script(port: int) -> None:
        for header in (b"content-type: text/plain", b"content-type: \xff", b"accept: image/png", b"content-encoding: gzip", b"x: y"):
            answer = await talk(port, HEAD + header + b"\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"content-type: application/json\r\n" in answer

    with_port(script)


def test_only_replies_that_are_json_say_so() -> None:
    async def script(port: int) -> None:
        refused: Any = await talk(port, HEAD + b"content-length: 1\r\nconnection: close\r\n\r\n{")
        head, _, text = refused.partition(b"\r\n\r\n")
        assert (head.split()[1], text) == (b"400", b"{}")
        assert b"content-type" not in head.lower()
        empty = await talk(port, HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n")
        assert empty.split()[1] == b"400"

    with_port(script)
