"""Two managers over a lock in a folder, as the ecosystem's own leader-election test runs them (wire contract 8.3), and what must never happen: both serving.

Every wait is for something that has to happen; times are only compared where the contract gives one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.testing_waiting import eventually
from kvcm.service.testing_dropin import DropIn
from kvcm.service.testing_wire import ADMIN, META, GrpcWire, HttpWire, code

pytestmark = pytest.mark.integration

LEASE_MS = 2000
FIELDS = ("node_id", "host", "meta_rpc_port", "meta_http_port", "custom_info")
ADMIN_FIELDS = (*FIELDS, "admin_rpc_port", "admin_http_port")
INSTANCE = {
    "trace_id": "t",
    "instance_group": "default",
    "instance_id": "i",
    "block_size": 8,
    "model_deployment": {"model_name": "m", "dtype": "FP8", "tp_size": 1},
    "location_spec_infos": [{"name": "tp0", "size": 1024}],
}
READ = {"trace_id": "t", "instance_id": "i", "block_keys": [1], "query_type": "QT_PREFIX_MATCH"}


def admin(worker: DropIn, rpc: str, **request: Any) -> dict[str, Any]:
    return HttpWire(worker.admin_http_url).call(rpc, {"trace_id": "t", **request})


def leads(worker: DropIn) -> bool:
    found: bool = admin(worker, "CheckHealth")["is_leader"]
    return found


def refuses(worker: DropIn) -> bool:
    """Does it send those who want the leader away, on both wires?"""
    codes = {
        code(HttpWire(worker.http_url).call("GetCacheLocation", READ)),
        code(GrpcWire(worker.meta_address, META).call("RegisterInstance", INSTANCE)),
        code(GrpcWire(worker.admin_address, ADMIN).call("ListStorage", {"trace_id": "t"})),
        code(admin(worker, "ListInstanceGroup")),
    }
    return codes == {"SERVER_NOT_LEADER"}


def told_leader(worker: DropIn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Leader id, and its endpoint as the meta and the admin service tell it."""
    meta = HttpWire(worker.http_url).call("GetClusterInfo", {"trace_id": "t"})
    cluster = admin(worker, "GetManagerClusterInfo")
    return cluster["leader_node_id"], meta.get("leader_endpoint", {}), cluster.get("leader_endpoint", {})


def own_endpoint(worker: DropIn) -> dict[str, int]:
    own = worker.endpoint
    return {name: getattr(own, name) for name in ("meta_rpc_port", "meta_http_port", "admin_rpc_port", "admin_http_port")}


class Pair:
    def __init__(self, folder: Path, stack: ExitStack, extra: Mapping[str, str]) -> None:
        folder.mkdir()
        self.workers = [stack.enter_context(DropIn({**self._settings(folder, number), **extra})) for number in range(2)]

    @staticmethod
    def _settings(folder: Path, number: int) -> dict[str, str]:
        return {
            "kvcm.distributed_lock.uri": f"file://{folder}",
            "kvcm.leader_elector.lease_ms": str(LEASE_MS),
            "kvcm.service.advertised_host": "127.0.0.1",
            "kvcm.service.custom_info": f"worker-{number}",
        }

    def leader(self) -> DropIn:
        found: list[DropIn] = []

        def look() -> bool:
            found[:] = [worker for worker in self.workers if leads(worker)]
            assert len(found) <= 1, "two nodes lead"
            return bool(found)

        eventually(look, "a leader")
        return found[0]

    def other(self, worker: DropIn) -> DropIn:
        return self.workers[1 - self.workers.index(worker)]

    def takes_over(self, worker: DropIn) -> None:
        try:
            eventually(lambda: leads(worker), "the other leads")
        except AssertionError:
            print(f"\nwhat it said:\n{worker.log[-8000:]}")
            raise

    def settled(self) -> tuple[DropIn, DropIn]:
        """Leader and follower, when both know who leads and the follower sees how it is reached."""
        leader = self.leader()
        follower = self.other(leader)
        eventually(lambda: told_leader(follower)[2].get("admin_http_port") == leader.endpoint.admin_http_port, "the follower knows the leader's endpoint")
        return leader, follower


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path_factory.mktemp("election") / "lock", stack, {})


def test_leader_and_follower_tell_the_same_leader_and_how_it_is_reached(pair: Pair) -> None:
    leader, follower = pair.settled()
    number = pair.workers.index(leader)
    node_id = admin(leader, "GetManagerClusterInfo")["self_node_id"]
    assert node_id.startswith(f"127.0.0.1:{leader.endpoint.admin_http_port}_")
    for worker in pair.workers:
        told, meta, full = told_leader(worker)
        assert told == node_id
        expected = {"node_id": node_id, "host": "127.0.0.1", "custom_info": f"worker-{number}", **own_endpoint(leader)}
        assert {name: full[name] for name in ADMIN_FIELDS} == expected
        assert {name: meta[name] for name in FIELDS} == {name: expected[name] for name in FIELDS}
        assert not any(name.startswith("admin") for name in meta)
    leading, following = (admin(worker, "GetManagerClusterInfo") for worker in (leader, follower))
    assert int(leading["self_leader_expiration_time"]) > time.time_ns() // 1000
    assert int(following["self_leader_expiration_time"]) == -1
    assert following["self_node_id"] != node_id


def test_a_follower_is_healthy_and_sends_callers_to_the_leader(pair: Pair) -> None:
    leader, follower = pair.settled()
    health = admin(follower, "CheckHealth")
    assert (code(health), health["is_health"], health["is_leader"]) == ("OK", True, False)
    assert refuses(follower)
    assert code(admin(follower, "LeaderDemote")) == "SERVER_NOT_LEADER"
    assert not refuses(leader)


def test_a_leader_that_is_told_to_step_down_does_so_at_once_and_the_other_takes_over(pair: Pair) -> None:
    leader, follower = pair.settled()
    before = admin(leader, "GetManagerClusterInfo")["leader_epoch"]
    assert code(admin(leader, "UpdateLeaderElectorConfig", campaign_delay_time_ms=10_000)) == "OK"
    assert code(admin(leader, "LeaderDemote")) == "OK"
    assert not leads(leader)
    assert refuses(leader)
    pair.takes_over(follower)
    assert not leads(leader)
    assert pair.settled() == (follower, leader)
    assert int(admin(follower, "GetManagerClusterInfo")["leader_epoch"]) > int(before)
    assert admin(leader, "CheckHealth")["is_health"]
    assert code(admin(leader, "UpdateLeaderElectorConfig", campaign_delay_time_ms=0)) == "OK"


def test_after_a_crash_the_other_leads_and_the_one_that_comes_back_follows(pair: Pair) -> None:
    leader, follower = pair.settled()
    leader.kill()
    killed = time.monotonic()
    pair.takes_over(follower)
    print(f"\ntaken over {time.monotonic() - killed:.2f} s after SIGKILL, lease {LEASE_MS} ms")
    told = admin(follower, "GetManagerClusterInfo")
    assert told["leader_node_id"] == told["self_node_id"]
    leader.start()
    assert not leads(leader)
    assert pair.settled() == (follower, leader)
    assert told_leader(leader)[0] == told["self_node_id"]
    assert [leads(worker) for worker in (follower, leader)] == [True, False]
    assert refuses(leader)


class Asking:
    """Somebody who keeps on asking one node, and notes when each question was sent and what came back."""

    def __init__(self, worker: DropIn) -> None:
        self._wire = HttpWire(worker.http_url)
        self._going = True
        self.answers: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while self._going:
            sent = time.monotonic()
            self.answers.append((sent, code(self._wire.call("GetCacheLocation", READ))))

    def heard(self, answer: str) -> bool:
        return answer in {found for _, found in self.answers}

    def stop(self) -> None:
        self._going = False
        self._thread.join()


@pytest.mark.parametrize("turn", range(2))
def test_a_leader_that_was_stopped_beyond_its_lease_answers_nothing_when_it_goes_on(pair: Pair, turn: int) -> None:
    leader, follower = pair.settled()
    steps = leader.log.count("demoting -> follower")
    assert code(HttpWire(leader.http_url).call("RegisterInstance", INSTANCE)) == "OK"
    askers = [Asking(leader)]
    try:
        eventually(lambda: askers[0].heard("OK"), "the leader answers")
        leader.send(signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            # What these ask first waits in the sockets of the stopped process.
            askers += [Asking(leader) for _ in range(4)]
            pair.takes_over(follower)
        finally:
            leader.send(signal.SIGCONT)
        eventually(lambda: all(asking.heard("SERVER_NOT_LEADER") for asking in askers), "everybody is sent to the leader")
    finally:
        for asking in askers:
            asking.stop()
    asked_late = [found for asking in askers for sent, found in asking.answers if sent > stopped]
    assert len(asked_late) >= 4
    assert set(asked_late) == {"SERVER_NOT_LEADER"}
    assert not leads(leader)
    assert leads(follower)
    eventually(lambda: leader.log.count("demoting -> follower") == steps + 1, "it steps down")
    last = [line for line in leader.log.splitlines() if "leader -> demoting" in line][-1]
    assert "level=warn" in last
    assert "this process did not run for " in last or "the lease is not this node's any more" in last
    assert pair.settled() == (follower, leader)
    assert refuses(leader)


def test_sigterm_of_the_leader_hands_over_long_before_the_lease_ends(pair: Pair) -> None:
    leader, follower = pair.settled()
    told = int(admin(leader, "GetManagerClusterInfo")["leader_epoch"])
    assert leader.stop() == 0
    pair.takes_over(follower)
    assert int(admin(follower, "GetManagerClusterInfo")["leader_epoch"]) == told + 1
    assert "demoting -> follower" in leader.log
    leader.start()
    assert pair.settled() == (follower, leader)
