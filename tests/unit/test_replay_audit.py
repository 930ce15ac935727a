"""Reading a manager's state after a replay: states by page, sizes from the addresses, usage from the metrics page."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kvcm.client.errors import RpcFailed
from kvcm.client.replay import AuditFailed, fetch_metrics, take_audit, usage_bytes
from kvcm.client.types import Location, LocationSpec, Metas

pytestmark = pytest.mark.unit

PAGE = """# HELP kvcm_cache_manager_instance_byte_size cache_manager_instance.byte_size
# TYPE kvcm_cache_manager_instance_byte_size gauge
kvcm_cache_manager_instance_byte_size{instance_group="g",instance_id="other"} 7
kvcm_cache_manager_instance_byte_size{instance_group="g",instance_id="i"} 9007199254740993
x_kvcm_cache_manager_instance_byte_size{instance_id="q\\"} 1",instance_group="g"} 1.5e+03
kvcm_cache_manager_instance_byte_size{instance_group="g",instance_id="bad"} NaN
kvcm_cache_manager_instance_key_count{instance_group="g",instance_id="i"} 3
"""


class FakeReader:
    def __init__(self, states: dict[int, str]) -> None:
        self.states = states
        self.pages: list[int] = []

    def match_meta(self, keys: Sequence[int]) -> Metas:
        self.pages.append(len(keys))
        places = tuple(Location((LocationSpec("a", f"file://s/r/{key}?size=10"), LocationSpec("b", f"file://s/r/{key}?size=5"))) for key in keys)
        return Metas(places, tuple(json.dumps({"id": "x", "status": self.states.get(key, "CLS_SERVING")}) for key in keys))


def test_states_are_counted_and_only_served_blocks_have_a_size() -> None:
    reader = FakeReader({3: "CLS_WRITING", 4: "CLS_DELETING", 5: "CLS_NOT_FOUND"})
    audit = take_audit(reader, range(2500))

    assert audit.states == {"CLS_SERVING": 2497, "CLS_WRITING": 1, "CLS_DELETING": 1, "CLS_NOT_FOUND": 1}
    assert audit.unsettled == 2
    assert audit.stored_bytes == 2497 * 15
    assert reader.pages == [1000, 1000, 500]


def test_nothing_is_settled_and_empty() -> None:
    audit = take_audit(FakeReader({}), [])
    assert (audit.states, audit.unsettled, audit.stored_bytes) == ({}, 0, 0)


def test_answers_that_make_no_sense_are_errors() -> None:
    class Short(FakeReader):
        def match_meta(self, keys: Sequence[int]) -> Metas:
            return Metas((), ())

    class Silent(FakeReader):
        def match_meta(self, keys: Sequence[int]) -> Metas:
            raise RpcFailed("GetCacheMeta: the manager did not answer in time")

    class Odd(FakeReader):
        def match_meta(self, keys: Sequence[int]) -> Metas:
            return Metas((Location((LocationSpec("a", "nonsense"),)),), (self.states[0],))

    with pytest.raises(AuditFailed, match="did not answer for every block"):
        take_audit(Short({}), [1])
    with pytest.raises(AuditFailed, match="could not be read: GetCacheMeta"):
        take_audit(Silent({}), [1])
    for text in ("{", "[]", "{}", "7"):
        with pytest.raises(AuditFailed, match="not a state"):
            take_audit(Odd({0: text}), [1])
    with pytest.raises(AuditFailed, match="an address that cannot be read"):
        take_audit(Odd({0: '{"status": "CLS_SERVING"}'}), [1])


def test_usage_is_that_of_the_instance_exactly() -> None:
    assert usage_bytes(PAGE, "g", "i") == 9007199254740993
    assert usage_bytes(PAGE, "g", "other") == 7
    assert usage_bytes(PAGE, "g", 'q"} 1') == 1500
    assert usage_bytes(PAGE, "g", "missing") == 0
    assert usage_bytes(PAGE, "h", "i") == 0
    with pytest.raises(AuditFailed, match="not a number"):
        usage_bytes(PAGE, "g", "bad")


@contextmanager
def page_server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_page_is_fetched_directly_and_failures_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with page_server() as url:
        assert fetch_metrics(f"{url}/metrics") == PAGE
        with pytest.raises(AuditFailed, match="could not be read: status 404"):
            fetch_metrics(f"{url}/other")
    with pytest.raises(AuditFailed, match="could not be read: it cannot be reached"):
        fetch_metrics(f"{url}/metrics")
    with pytest.raises(AuditFailed, match="must start with http"):
        fetch_metrics("file:///etc/hostname")
