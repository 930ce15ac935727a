"""KvCacheManagerClient against scripted nodes: call surface, what is repeated and what never is, and how the leader is followed."""

from __future__ import annotations

import inspect
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from kvcm.client import errors
from kvcm.client.errors import (
    AccessDenied,
    InvalidCall,
    InvalidClientConfig,
    NoStatus,
    RpcFailed,
    RpcOutcomeUnknown,
    ServiceDuplicate,
    ServiceError,
    ServiceNotLeader,
)
from kvcm.client.http_client import KvCacheManagerClient
from kvcm.client.http_route import Entry, RefreshRules, Route
from kvcm.client.http_testing import Answer, HttpNode, reply
from kvcm.client.http_transport import NoAnswer, Origin
from kvcm.client.security import BearerToken, ClientSecurity
from kvcm.common.errors import Unsupported

pytestmark = pytest.mark.unit

READS = {
    "register_instance": "registerInstance",
    "get_instance_info": "getInstanceInfo",
    "get_cache_meta": "getCacheMeta",
    "get_cache_meta_detail": "getCacheMetaDetail",
    "get_cache_location": "getCacheLocation",
    "get_cache_location_len": "getCacheLocationLen",
    "get_cache_locations_by_backend": "getCacheLocationsByBackend",
    "get_host_cache_state": "getHostCacheState",
    "get_cluster_info": "getClusterInfo",
}
CHANGES = {
    "start_write_cache": "startWriteCache",
    "finish_write_cache": "finishWriteCache",
    "remove_cache": "removeCache",
    "trim_cache": "trimCache",
    "report_event": "reportEvent",
}
ALL = READS | CHANGES


@pytest.fixture
def nodes() -> Iterator[list[HttpNode]]:
    """Three nodes that all know the first as the leader."""
    with ExitStack() as stack:
        made = [stack.enter_context(HttpNode()) for _ in range(3)]
        for node in made:
            node.leader = made[0]
        yield made


def _follower(url: str, **options: Any) -> KvCacheManagerClient:
    """A client with leader discovery that never refreshes by itself and never sleeps."""
    settings: dict[str, Any] = {"auto_discover_leader": True, "discovery_refresh_interval_seconds": 3600, "sleep": lambda _: None} | options
    return KvCacheManagerClient(url, **settings)


def test_every_method_posts_its_api_and_returns_the_whole_reply(nodes: list[HttpNode]) -> None:
    node = nodes[0]
    node.answer = lambda api, body: reply(api=api, echo=body)
    with KvCacheManagerClient(node.url) as client:
        for method, api in ALL.items():
            answer = getattr(client, method)({"instance_id": "i", "block_keys": [1]})
            assert (answer["api"], answer["echo"]) == (api, {"instance_id": "i", "block_keys": [1]})
    assert [api for api, _ in node.calls] == list(ALL.values())
    assert node.connections == 1
    assert node.headers[0]["content-type"] == node.headers[0]["accept"] == "application/json"
    assert "authorization" not in node.headers[0]


def test_the_constructor_has_upstreams_arguments_and_defaults() -> None:
    parameters = inspect.signature(KvCacheManagerClient.__init__).parameters
    assert {name: parameter.default for name, parameter in list(parameters.items())[2:9]} == {
        "instance_id": "",
        "auto_discover_leader": False,
        "leader_retry_count": 1,
        "leader_retry_base_interval_seconds": 0.005,
        "discovery_refresh_interval_seconds": 30,
        "min_discover_interval_seconds": 1,
        "request_timeout_seconds": 1.0,
    }
    assert list(parameters)[1] == "base_url"
    for method in ALL:
        assert list(inspect.signature(getattr(KvCacheManagerClient, method)).parameters) == ["self", "data", "check_response"]


def test_from_the_settings_of_connectors(nodes: list[HttpNode]) -> None:
    config = {"manager_uri": nodes[1].url, "instance_id": "i", "auto_discover_leader": True, "coordinator_base_port": 1, "instance_group": "g"}
    with KvCacheManagerClient.from_connector_config(config) as client:
        assert client.base_url == nodes[0].url
    assert nodes[1].calls[0][1]["instance_id"] == "i"
    with pytest.raises(InvalidClientConfig, match="manager_uri"):
        KvCacheManagerClient.from_connector_config({})


def test_a_refusal_is_the_error_of_its_code_and_an_assertion(nodes: list[HttpNode]) -> None:
    node = nodes[0]
    with KvCacheManagerClient(node.url) as client:
        node.answer = lambda api, body: reply("DUPLICATE_ENTITY", "it differs in block_size")
        with pytest.raises(AssertionError, match="it differs in block_size") as caught:
            client.register_instance({})
        assert isinstance(caught.value, ServiceDuplicate)
        assert (caught.value.client_code, caught.value.service_code, caught.value.request_id) == (54, 6, "r_1")
        assert client.register_instance({}, check_response=False)["header"]["status"]["code"] == "DUPLICATE_ENTITY"
        node.answer = lambda api, body: reply("SNAPSHOT_RATE_LIMITED", retry_after_ms="5")
        with pytest.raises(ServiceError) as limited:
            client.report_event({})
        assert limited.value.service_code == 13
        strange: list[Answer] = [(200, {}), (200, {"header": {}}), (200, {"header": {"status": {"code": 1}}}), (200, {"header": 3}), (500, {})]
        for answer in strange:
            node.answer = lambda api, body, answer=answer: answer  # type: ignore[misc]
            with pytest.raises(NoStatus):
                client.get_instance_info({})
        node.answer = lambda api, body: (400, {})
        with pytest.raises(errors.ServiceInvalidArgument, match="HTTP status 400"):
            client.get_instance_info({})
        node.answer = lambda api, body: (503, {})
        with pytest.raises(errors.ServiceNotReady):
            client.get_instance_info({})


def test_a_token_goes_along_and_a_refused_one_is_its_own_error(nodes: list[HttpNode]) -> None:
    node = nodes[0]
    with KvCacheManagerClient(node.url, security=ClientSecurity(credential=BearerToken("c4n4ry"))) as client:
        client.get_instance_info({})
        assert node.headers[-1]["authorization"] == "Bearer c4n4ry"
        node.answer = lambda api, body: (401, {"error": "unauthorized"})
        with pytest.raises(AccessDenied) as caught:
            client.start_write_cache({})
        assert not caught.value.unknown_outcome
        assert "c4n4ry" not in f"{caught.value}{client!r}"


@pytest.mark.parametrize("method", ALL)
def test_without_an_answer_nothing_is_sent_again(nodes: list[HttpNode], method: str) -> None:
    node = nodes[0]
    node.answer = lambda api, body: None
    with KvCacheManagerClient(node.url) as client:
        with pytest.raises(RpcFailed) as caught:
            getattr(client, method)({})
        assert isinstance(caught.value, RpcOutcomeUnknown) is (method in CHANGES)
        assert caught.value.may_have_run
    assert len(node.calls) == 1


@pytest.mark.parametrize("method", ["get_cache_location", "start_write_cache"])
def test_what_cannot_have_arrived_is_never_of_unknown_outcome(method: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with KvCacheManagerClient(f"http://127.0.0.1:{closed.getsockname()[1]}") as client:
            with pytest.raises(RpcFailed, match="cannot be reached") as caught:
                getattr(client, method)({})
            assert (caught.value.unknown_outcome, caught.value.may_have_run) == (False, False)
            client.close()
            with pytest.raises(RpcFailed, match="closed"):
                getattr(client, method)({})


def test_a_server_that_drips_cannot_stretch_the_time_out() -> None:
    """One byte at a time, each well within the time-out, for ever."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not stop.wait(0.01):
                    connection.sendall(b" ")
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            with KvCacheManagerClient(f"http://127.0.0.1:{listener.getsockname()[1]}", request_timeout_seconds=0.1) as client:
                with pytest.raises(RpcOutcomeUnknown, match="did not answer in time") as caught:
                    client.remove_cache({})
                assert caught.value.grpc_status == "DEADLINE_EXCEEDED"
        finally:
            stop.set()
            thread.join(10)


@pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b"{", b"[" * 100_000, b"\xff\xfe"])
def test_what_is_not_json_is_no_answer(nodes: list[HttpNode], content: bytes) -> None:
    nodes[0].answer = lambda api, body: (200, content)
    with KvCacheManagerClient(nodes[0].url) as client:
        with pytest.raises(RpcOutcomeUnknown, match="not a JSON object"):
            client.trim_cache({})
        nodes[0].answer = lambda api, body: (404, b"404 Not Found")
        with pytest.raises(RpcFailed, match="is this the meta HTTP port") as caught:
            client.trim_cache({})
        assert not caught.value.unknown_outcome


def test_a_request_that_is_not_json_is_not_sent(nodes: list[HttpNode]) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with KvCacheManagerClient(nodes[0].url) as client:
        for data in ({"a": {1}}, {"a": float("nan")}, loop, {"a": b"bytes"}):
            with pytest.raises(InvalidCall, match="getCacheLocation cannot be written as JSON"):
                client.get_cache_location(data)
    assert nodes[0].calls == []


def test_a_connection_that_the_server_closed_meanwhile_is_not_used(nodes: list[HttpNode]) -> None:
    node = nodes[0]
    with KvCacheManagerClient(node.url) as client:
        client.start_write_cache({})
        node.hang_up()
        client.start_write_cache({})
        client.start_write_cache({})
    assert node.connections == 2


def test_threads_share_a_client(nodes: list[HttpNode]) -> None:
    node = nodes[0]
    with KvCacheManagerClient(node.url, request_timeout_seconds=10) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: client.get_cache_location({"n": number})["echo"]["n"], range(100)))
    assert answers == list(range(100))
    assert node.connections <= 8


# -- the leader ------------------------------------------------------------------------------------------------------------------------------------


def test_the_leader_is_found_at_the_start_and_followed_when_it_moves(nodes: list[HttpNode]) -> None:
    first, second, entry = nodes
    with _follower(entry.url, instance_id="i") as client:
        assert client.base_url == first.url
        client.start_write_cache({"n": 1})
        for node in nodes:
            node.leader = second
        assert client.start_write_cache({"n": 2})["echo"] == {"n": 2}
        assert client.base_url == second.url
    assert [api for api, _ in entry.calls] == ["getClusterInfo", "getClusterInfo"]
    assert (first.seen("startWriteCache"), second.seen("startWriteCache")) == (2, 1)
    assert (first.seen("getClusterInfo"), second.seen("getClusterInfo")) == (0, 0)


def test_a_repeat_waits_longer_each_time_and_ends(nodes: list[HttpNode]) -> None:
    slept: list[float] = []
    nodes[0].leader = None
    for node in nodes:
        node.answer = lambda api, body: (
            reply("SERVER_NOT_LEADER") if api != "getClusterInfo" else reply(leader_endpoint={"host": "127.0.0.1", "meta_http_port": nodes[0].port})
        )
    with _follower(nodes[2].url, leader_retry_count=3, leader_retry_base_interval_seconds=0.5, sleep=slept.append, draw=lambda low, high: high) as client:
        with pytest.raises(ServiceNotLeader):
            client.finish_write_cache({})
        assert client.finish_write_cache({}, check_response=False)["header"]["status"]["code"] == "SERVER_NOT_LEADER"
    assert slept == [1.0, 1.5, 2.0] * 2
    assert nodes[0].seen("finishWriteCache") == 8


def test_without_discovery_nothing_is_repeated(nodes: list[HttpNode]) -> None:
    nodes[0].leader = nodes[1]
    with KvCacheManagerClient(nodes[0].url, leader_retry_count=5) as client, pytest.raises(ServiceNotLeader):
        client.start_write_cache({})
    assert [api for api, _ in nodes[0].calls] == ["startWriteCache"]


def test_no_leader_means_no_second_request(nodes: list[HttpNode]) -> None:
    entry = nodes[2]
    for node in nodes:
        node.leader = None
    with _follower(entry.url, leader_retry_count=2) as client:
        assert client.base_url == entry.url
        with pytest.raises(ServiceNotLeader):
            client.start_write_cache({})
    assert entry.seen("startWriteCache") == 1
    assert entry.seen("getClusterInfo") == 3


def _bad_hint(entry: HttpNode, hint: Answer | None) -> None:
    def answer(api: str, body: dict[str, Any]) -> Answer | None:
        return hint if api == "getClusterInfo" else reply()

    entry.answer = answer


@pytest.mark.parametrize(
    "hint",
    [
        None,
        (500, {}),
        (200, b"nonsense"),
        (200, []),
        reply("INTERNAL_ERROR"),
        reply(),
        reply(leader_endpoint=None),
        reply(leader_endpoint={"host": "", "meta_http_port": 1}),
        reply(leader_endpoint={"host": "a b", "meta_http_port": 1}),
        reply(leader_endpoint={"host": "h\r\nx: y", "meta_http_port": 1}),
        reply(leader_endpoint={"host": "h", "meta_http_port": 0}),
        reply(leader_endpoint={"host": "h", "meta_http_port": "x"}),
        reply(leader_endpoint={"host": "h", "meta_http_port": 65536}),
    ],
)
def test_a_hint_that_cannot_be_used_leaves_the_entry(nodes: list[HttpNode], hint: Answer | None) -> None:
    _bad_hint(nodes[0], hint)
    with _follower(nodes[0].url) as client:
        assert client.base_url == nodes[0].url
        client.get_instance_info({})


def test_a_request_without_an_answer_wakes_the_refresh(nodes: list[HttpNode]) -> None:
    first, second, entry = nodes
    asked = threading.Event()
    with _follower(entry.url, min_discover_interval_seconds=0) as client:
        first.answer = lambda api, body: None

        def moved(api: str, body: dict[str, Any]) -> Answer:
            asked.set()
            return HttpNode.normal(entry, api, body)

        entry.answer = moved
        entry.leader = second.leader = second
        with pytest.raises(RpcOutcomeUnknown):
            client.start_write_cache({})
        assert asked.wait(10)
        # The next refresh that somebody waits for comes after the background one.
        client._route.refresh()
        assert client.base_url == second.url
        client.start_write_cache({})
    assert first.seen("startWriteCache") == 1


def test_a_static_list_survives_a_dead_member(nodes: list[HttpNode]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = closed.getsockname()[1]
        with _follower(f"static://127.0.0.1:{dead},127.0.0.1:{nodes[2].port}") as client:
            assert client.base_url == nodes[0].url
        # Without leader discovery, a call that cannot arrive turns to the next member.
        with KvCacheManagerClient(f"static://127.0.0.1:{dead},127.0.0.1:{nodes[0].port}", min_discover_interval_seconds=0) as plain:
            with pytest.raises(RpcFailed):
                plain.get_instance_info({})
            plain._route.refresh()
            while plain.base_url != nodes[0].url:
                plain._route.refresh()
            plain.get_instance_info({})


class _CountingLock:
    """Tells when so many have come to it, whether or not they are in."""

    def __init__(self, number: int) -> None:
        self.all_here = threading.Event()
        self._lock, self._guard, self._missing = threading.Lock(), threading.Lock(), number

    def __enter__(self) -> None:
        with self._guard:
            self._missing -= 1
            if not self._missing:
                self.all_here.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_callers_that_wait_for_one_refresh_share_it() -> None:
    lock, asked = _CountingLock(8), []

    def ask(seed: Origin, trace_id: str) -> tuple[int, bytes]:
        lock.all_here.wait(10)
        asked.append(trace_id)
        return 200, json.dumps(reply(leader_endpoint={"host": "leader", "meta_http_port": 7})[1]).encode()

    route = Route(Entry("http://entry:1"), RefreshRules(follow_leader=True, refresh_s=3600, min_s=1), ask, lambda: 0.0)
    route._lock = lock  # type: ignore[assignment]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: route.refresh(), range(8)))
    assert len(asked) == 1
    assert route.target.url == "http://leader:7"


def test_background_refreshes_keep_their_distance() -> None:
    """Doubts come all the time; the clock says that 30 s pass between looking at it."""
    clock, pauses, asked = [100.0], [], threading.Event()

    def ask(seed: Origin, trace_id: str) -> tuple[int, bytes]:
        asked.set()
        raise NoAnswer("said nothing")

    route = Route(Entry("http://entry:1"), RefreshRules(follow_leader=True, refresh_s=3600, min_s=5), ask, lambda: clock[0])
    waiting = threading.Event()

    class Closed(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            waiting.set()
            return self.is_set()

    route._closed = Closed()
    route.start()
    asked.clear()
    clock[0] += 2
    route.doubt()
    assert waiting.wait(10)
    assert asked.wait(10)
    route.close()
    assert pauses == [3.0]


def test_closing_ends_the_background_thread(nodes: list[HttpNode]) -> None:
    client = _follower(nodes[0].url)
    names = [thread.name for thread in threading.enumerate()]
    assert "kvcm-route-refresh" in names
    client.close()
    client.close()
    assert "kvcm-route-refresh" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("", InvalidClientConfig),
        ("manager:6382", InvalidClientConfig),
        ("http://", InvalidClientConfig),
        ("http://user:secret@h:1", InvalidClientConfig),
        ("http://h:1?x=1", InvalidClientConfig),
        ("http://h:99999", InvalidClientConfig),
        ("http://a b:1", InvalidClientConfig),
        ("http://ü:1", InvalidClientConfig),
        ("http://[::1", InvalidClientConfig),
        ("static://", InvalidClientConfig),
        (None, InvalidClientConfig),
        ("vipserver://kvcm", Unsupported),
        ("spectrum://kvcm", Unsupported),
    ],
)
def test_addresses_that_cannot_be_used(address: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        KvCacheManagerClient(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"request_timeout_seconds": 0},
        {"request_timeout_seconds": float("nan")},
        {"request_timeout_seconds": True},
        {"request_timeout_seconds": "1"},
        {"leader_retry_count": -1, "auto_discover_leader": True},
        {"leader_retry_count": 1.5, "auto_discover_leader": True},
        {"discovery_refresh_interval_seconds": 0},
        {"min_discover_interval_seconds": -1},
        {"leader_retry_base_interval_seconds": float("inf")},
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidClientConfig):
        KvCacheManagerClient("http://127.0.0.1:1", **options)


def test_a_reply_that_is_cut_off_or_too_long_is_no_answer(nodes: list[HttpNode], monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps(reply()[1]).encode()
    monkeypatch.setattr("kvcm.client.http_transport.MAX_REPLY_BYTES", len(content))
    with KvCacheManagerClient(nodes[0].url) as client:
        nodes[0].answer = lambda api, body: (200, content)
        client.start_write_cache({})
        nodes[0].answer = lambda api, body: (200, content + b" ")
        with pytest.raises(RpcOutcomeUnknown):
            client.start_write_cache({})
