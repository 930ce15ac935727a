"""KvCacheManagerClient when the leader changes: what goes to the next one by itself, what never does, and whom it believes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kvcm.client.errors import RpcFailed, RpcOutcomeUnknown, ServiceNotLeader
from kvcm.client.http_client import KvCacheManagerClient
from kvcm.client.http_route import Entry
from kvcm.client.http_testing import Answer, HttpNode, reply
from kvcm.common.errors import NotReady

pytestmark = pytest.mark.unit


class Time:
    """`sleep` moves the clock; `then` runs after each sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        self.then()

    def then(self) -> None:
        return


@pytest.fixture
def nodes() -> Iterator[list[HttpNode]]:
    """Three nodes that all know the first as the leader; the last one is the entry."""
    with ExitStack() as stack:
        made = [stack.enter_context(HttpNode()) for _ in range(3)]
        for node in made:
            node.leader = made[0]
        yield made


def _client(nodes: list[HttpNode], time: Time, **options: Any) -> KvCacheManagerClient:
    settings: dict[str, Any] = {"auto_discover_leader": True, "discovery_refresh_interval_seconds": 3600, "min_discover_interval_seconds": 3600}
    return KvCacheManagerClient(nodes[2].url, sleep=time.sleep, now=lambda: time.now, draw=lambda low, high: high, **(settings | options))


def _elect(nodes: list[HttpNode], leader: HttpNode | None) -> None:
    for node in nodes:
        node.leader = leader


def _gone(node: HttpNode) -> None:
    """Nobody listens on its port any more."""
    node._server.shutdown()
    node.hang_up()
    node._server.server_close()


def test_a_read_without_an_answer_goes_to_the_new_leader_and_a_change_never_does(nodes: list[HttpNode]) -> None:
    first, second, _ = nodes
    with _client(nodes, Time()) as client:
        first.answer = lambda api, body: None
        _elect(nodes, second)
        assert client.get_cache_location({"n": 1})["echo"] == {"n": 1}
        assert client.base_url == second.url
        second.answer = lambda api, body: None
        _elect(nodes, first)
        first.answer = first.normal
        with pytest.raises(RpcOutcomeUnknown):
            client.start_write_cache({"n": 2})
    assert (first.seen("startWriteCache"), second.seen("startWriteCache")) == (0, 1)


def test_a_change_for_which_no_connection_could_be_made_goes_to_the_new_leader(nodes: list[HttpNode]) -> None:
    first, second, _ = nodes
    with _client(nodes, Time()) as client:
        _gone(first)
        _elect(nodes, second)
        assert client.finish_write_cache({"n": 1})["echo"] == {"n": 1}
    assert second.seen("finishWriteCache") == 1


def test_a_leader_that_is_slow_gets_no_second_copy_of_a_read(nodes: list[HttpNode]) -> None:
    first = nodes[0]
    answer_now = threading.Event()

    def slow(api: str, body: dict[str, Any]) -> Answer | None:
        answer_now.wait(10)
        return first.normal(api, body)

    with _client(nodes, Time(), leader_retry_count=3, request_timeout_seconds=0.1) as client:
        first.answer = slow
        with pytest.raises(RpcFailed) as caught:
            client.get_instance_info({})
        answer_now.set()
    assert caught.value.grpc_status == "DEADLINE_EXCEEDED"
    assert first.seen("getInstanceInfo") == 1


def test_failover_seconds_bound_the_wait_for_a_leader(nodes: list[HttpNode]) -> None:
    time = Time()
    with _client(nodes, time, failover_seconds=4) as client:
        _elect(nodes, None)
        with pytest.raises(ServiceNotLeader):
            client.start_write_cache({})
        assert 3 < sum(time.slept) < 5
        assert max(time.slept) <= 0.5
        assert nodes[0].seen("startWriteCache") == 1
        time.slept.clear()
        time.then = lambda: _elect(nodes, nodes[1]) if len(time.slept) == 3 else None  # type: ignore[method-assign]
        client.start_write_cache({})
    assert nodes[1].seen("startWriteCache") == 1


def _naming(leader: HttpNode, epoch: int) -> Answer:
    endpoint = {"node_id": "n", "host": "127.0.0.1", "meta_rpc_port": 1, "meta_http_port": leader.port, "custom_info": ""}
    return reply(leader_endpoint=endpoint, leader_epoch=str(epoch))


def test_an_older_leadership_is_not_believed_for_ten_seconds(nodes: list[HttpNode]) -> None:
    first, second, entry = nodes
    time = Time()
    entry.answer = lambda api, body: _naming(second, 7)
    with _client(nodes, time) as client:
        assert client.base_url == second.url
        entry.answer = lambda api, body: _naming(first, 6)
        time.now += 9
        assert client._route.refresh() is False
        assert client.base_url == second.url
        # Epochs began anew: what is told for so long is true.
        time.now += 2
        assert client._route.refresh() is True
        assert client.base_url == first.url
        entry.answer = lambda api, body: _naming(second, 7)
        assert client._route.refresh() is True
        assert client.base_url == second.url


def test_the_members_of_a_name_are_an_entry(nodes: list[HttpNode]) -> None:
    with KvCacheManagerClient(f"dns://localhost:{nodes[2].port}", auto_discover_leader=True) as client:
        assert client.base_url == nodes[0].url
    with pytest.raises(NotReady, match="names no member"):
        KvCacheManagerClient("dns://no-such-name.invalid")
    assert Entry("static://a:1", "https").next().url == "https://a:1"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        both = f"static://127.0.0.1:{closed.getsockname()[1]},127.0.0.1:{nodes[2].port}"
        with KvCacheManagerClient(both, auto_discover_leader=True) as client:
            assert client.base_url == nodes[0].url
