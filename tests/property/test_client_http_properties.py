"""Whatever a server sends, the HTTP client answers with a reply or with an error of its own, and sends a change once."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcm.client.errors import ClientError
from kvcm.client.http_client import KvCacheManagerClient
from kvcm.client.http_testing import reply

pytestmark = pytest.mark.property

_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["OK", "SERVER_NOT_LEADER", "IO_ERROR"])
_JSON = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6)
_REPLIES = (
    st.fixed_dictionaries({"header": st.fixed_dictionaries({"status": st.fixed_dictionaries({"code": _LEAVES, "message": _JSON}) | _JSON}) | _JSON}) | _JSON
)


class _Scripted:
    """In place of the transport: one answer for every request."""

    def __init__(self, status: int, body: bytes) -> None:
        self.answer = status, body
        self.sent: list[str] = []

    def post(self, origin: Any, path: str, body: bytes, headers: Any, timeout_s: float) -> tuple[int, bytes]:
        self.sent.append(path)
        return self.answer

    def close(self) -> None:
        return None


@settings(deadline=None, max_examples=200)
@given(_REPLIES, st.sampled_from([200, 200, 200, 204, 302, 400, 401, 404, 429, 500, 503]), st.booleans())
@example(reply("SERVER_NOT_LEADER")[1], 200, True)
def test_any_document_is_a_reply_or_an_error_of_ours(document: Any, status: int, check: bool) -> None:
    client = KvCacheManagerClient("http://127.0.0.1:1")
    scripted = _Scripted(status, json.dumps(document).encode())
    client._transport = scripted  # type: ignore[assignment]
    try:
        found = client.start_write_cache({}, check_response=check)
    except ClientError:
        pass
    else:
        assert found == document
        assert not check or (status == 200 and document["header"]["status"]["code"] == "OK")
    assert scripted.sent == ["/api/startWriteCache"]


@settings(deadline=None, max_examples=200)
@given(
    _JSON | st.fixed_dictionaries({"header": st.just(reply()[1]["header"]), "leader_endpoint": st.fixed_dictionaries({"host": _JSON, "meta_http_port": _JSON})})
)
def test_any_hint_leaves_a_client_that_has_a_target(document: Any) -> None:
    client = KvCacheManagerClient("http://127.0.0.1:1")
    client._transport = _Scripted(200, json.dumps(document).encode())  # type: ignore[assignment]
    client._route._follow()
    assert client.base_url.startswith("http://")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, list[bytes]]]:
    """Sends the last bytes of the list after a request began to arrive, and hangs up."""
    script: list[bytes] = [b""]

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    connection.sendall(script[-1])
                except OSError:
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], script
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


_GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60) | st.builds(lambda cut, junk: _GOOD[:cut] + junk, st.integers(0, len(_GOOD)), st.binary(max_size=20)))
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
@example(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}")
@example(b"HTTP/1.1 100 Continue\r\n\r\n" * 3)
@example(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200)
def test_any_bytes_are_a_reply_or_an_error_of_ours(server: tuple[int, list[bytes]], content: bytes) -> None:
    port, script = server
    script.append(content)
    with KvCacheManagerClient(f"http://127.0.0.1:{port}", request_timeout_seconds=10) as client:
        try:
            found = client.get_cache_location({}, check_response=False)
        except ClientError:
            return
    assert isinstance(found, dict)
