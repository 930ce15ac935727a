"""Finding and following the leader, on a scripted transport: no socket, no clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from kvcm.client import meta_ops, meta_ops_detail
from kvcm.client.errors import AccessDenied, ConnectFailed, RpcFailed, RpcOutcomeUnknown, ServiceError, ServiceInstanceUnknown, ServiceNotLeader
from kvcm.client.meta_core import MetaCore
from kvcm.client.meta_testing import Cluster
from kvcm.client.security import ClientSecurity
from kvcm.client.types import QueryType
from kvcm.protocol import meta_service_pb2 as pb

pytestmark = pytest.mark.unit
T = TypeVar("T")


def _remove() -> meta_ops.Operation[None]:
    return meta_ops.remove_cache("i", [1], (), "")


def test_INV_C6_start_walks_past_dead_nodes_and_followers_and_keeps_only_the_leader_open() -> None:
    cluster = Cluster(leader="c:3")
    cluster.down = {"a:1"}
    core = cluster.core("a:1", "b:2", "c:3")
    cluster.run(core.connect())
    assert core.address == "c:3"
    assert core.registration.storage_configs == "[c:3]"
    assert cluster.open == ["c:3"]
    assert [address for address, _ in cluster.log] == ["a:1", "b:2", "c:3"]
    cluster.run(core.close())
    cluster.run(core.close())
    assert cluster.open == []
    with pytest.raises(ConnectFailed):
        cluster.run(core.call(_remove()))


def test_start_fails_at_once_on_any_other_refusal() -> None:
    cluster = Cluster(leader="b:2")
    cluster.register_code = 8
    core = cluster.core("a:1", "b:2")
    with pytest.raises(ServiceInstanceUnknown, match="no such group"):
        cluster.run(core.connect())
    assert cluster.log == [("a:1", "RegisterInstance")]
    assert cluster.open == []


def test_start_asks_followers_who_leads_when_no_address_does() -> None:
    cluster = Cluster(leader="x:9")
    core = cluster.core("a:1", "b:2")
    cluster.run(core.connect())
    assert core.address == "x:9"
    cluster.hint = None
    cluster.leader = "nobody:1"
    with pytest.raises(ServiceNotLeader):
        cluster.run(cluster.core("a:1").connect())
    cluster.down = {"a:1", "b:2"}
    with pytest.raises(ConnectFailed, match="a:1"):
        cluster.run(cluster.core("a:1", "b:2").connect())
    assert cluster.open == ["x:9"]


@pytest.mark.parametrize("first", ["follower", "hung"])
def test_nodes_that_hang_do_not_hide_the_leader_behind_them_from_a_start(first: str) -> None:
    cluster = Cluster(leader="d:4")
    cluster.hung = {"b:2", "c:3"} | ({"a:1"} if first == "hung" else set())
    core = cluster.core("a:1", "b:2", "c:3", "d:4", call_timeout=2000, connection_timeout=1000)
    cluster.run(core.connect())
    assert core.address == "d:4"
    assert cluster.open == ["d:4"]
    assert len(cluster.surveys) == 1


def test_a_start_waits_for_an_election_although_the_first_nodes_hang() -> None:
    cluster = Cluster(leader="nobody:1")
    cluster.hint = None
    cluster.hung = {"a:1", "b:2"}
    core = cluster.core("a:1", "b:2", "c:3", call_timeout=2000, connection_timeout=1000, failover_timeout=20_000)

    def elected() -> None:
        cluster.leader = "c:3"

    cluster.on_pause = elected
    cluster.run(core.connect())
    assert core.address == "c:3"
    # All of them silent: that is no election.
    cluster.hung = {"a:1", "b:2", "c:3"}
    with pytest.raises(ConnectFailed):
        cluster.run(cluster.core("a:1", "b:2", "c:3", call_timeout=2000, connection_timeout=1000, failover_timeout=20_000).connect())


def test_a_node_that_is_promoted_while_a_start_waits_for_a_hung_one_is_found() -> None:
    cluster = Cluster(leader="nobody:1")
    cluster.hung = {"b:2"}
    core = cluster.core("a:1", "b:2")

    def promoted(address: str) -> None:
        if address == "b:2":
            cluster.leader = cluster.hint = "a:1"

    cluster.on_dial = promoted
    cluster.run(core.connect())
    assert core.address == "a:1"


def test_INV_C6_not_leader_moves_to_the_new_leader_and_repeats_once() -> None:
    cluster = Cluster(leader="a:1")
    core = cluster.core("a:1", "b:2")
    cluster.run(core.connect())
    cluster.leader = cluster.hint = "b:2"
    cluster.log.clear()
    cluster.run(core.call(_remove()))
    assert core.address == "b:2"
    assert [entry for entry in cluster.log if entry[1] == "RemoveCache"] == [("a:1", "RemoveCache"), ("b:2", "RemoveCache")]
    # The replaced link stays for calls that are still on it; close ends it.
    assert cluster.open == ["a:1", "b:2"]
    cluster.run(core.close())
    assert cluster.open == []


def test_not_leader_without_a_leader_is_an_error_after_one_bounded_search() -> None:
    cluster = Cluster(leader="a:1")
    core = cluster.core("a:1", "b:2")
    cluster.run(core.connect())
    cluster.leader, cluster.hint = "nobody:1", None
    cluster.log.clear()
    with pytest.raises(ServiceNotLeader):
        cluster.run(core.call(_remove()))
    # It does not lead, so it is not asked the same again: the others are, with pauses, for a second on top of the call's own time.
    assert cluster.log[0] == ("a:1", "RemoveCache")
    assert set(cluster.log[1:]) == {("b:2", "RegisterInstance")}
    assert 3 <= len(cluster.surveys) <= 8
    assert 0.5 < cluster.now <= 1.1
    # Having just waited in vain, the next calls do not wait.
    before = (cluster.now, len(cluster.surveys))
    with pytest.raises(ServiceNotLeader):
        cluster.run(core.call(_remove()))
    assert cluster.now - before[0] <= 0.1
    assert len(cluster.surveys) - before[1] <= 2
    assert cluster.open == ["a:1"]


def test_without_hints_the_seeds_are_tried() -> None:
    cluster = Cluster(leader="a:1")
    core = cluster.core("a:1", "b:2", "c:3")
    cluster.run(core.connect())
    cluster.leader, cluster.hint = "c:3", None
    cluster.run(core.call(_remove()))
    assert core.address == "c:3"


def test_a_mutation_without_an_answer_is_never_repeated_and_says_so() -> None:
    cluster = Cluster(leader="a:1")
    core = cluster.core("a:1")
    cluster.run(core.connect())
    cluster.break_next = "RemoveCache"
    cluster.log.clear()
    with pytest.raises(RpcOutcomeUnknown) as caught:
        cluster.run(core.call(_remove()))
    assert caught.value.unknown_outcome
    assert not caught.value.retryable
    assert cluster.log == [("a:1", "RemoveCache")]
    # A read is: the node is asked again when nobody knows of another leader.
    cluster.break_next = "GetCacheMetaDetail"
    cluster.now += 5
    cluster.log.clear()
    cluster.run(core.call(meta_ops_detail.match_meta_detail("i", [1], (), None, "")))
    assert cluster.log == [("a:1", "GetCacheMetaDetail")] * 2
    cluster.down = {"a:1"}
    with pytest.raises(RpcFailed) as read:
        cluster.run(core.call(meta_ops_detail.match_meta_detail("i", [1], (), None, "")))
    assert not read.value.unknown_outcome
    assert read.value.retryable


def test_after_a_dead_leader_the_next_call_finds_the_new_one() -> None:
    cluster = Cluster(leader="a:1")
    core = cluster.core("a:1", "b:2")
    cluster.run(core.connect())
    cluster.down = {"a:1"}
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(_remove()))
    cluster.now = 5.0
    # Still the old hint: the client stays, asks again a second later at the earliest, and then moves.
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(_remove()))
    cluster.leader = cluster.hint = "b:2"
    cluster.now = 5.5
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(_remove()))
    cluster.now = 6.5
    cluster.run(core.call(_remove()))
    assert core.address == "b:2"


@pytest.mark.parametrize("patience_ms", [0, 1000])
@pytest.mark.parametrize("never_sent", [True, False])
@pytest.mark.parametrize("pause_s", [0.0001, 0.02, 0.049, 0.051, 0.2, 0.999, 1.5])
def test_a_caller_finds_the_new_leader_however_soon_it_repeats_calls_that_failed(pause_s: float, never_sent: bool, patience_ms: int) -> None:
    cluster = Cluster(leader="a:1")
    core = cluster.core("a:1", "b:2", failover_timeout=patience_ms)
    cluster.run(core.connect())
    cluster.down, cluster.never_sent = {"a:1"}, never_sent
    elected = False
    while cluster.now < 10.0:
        if not elected and cluster.now >= 5.0:
            elected, cluster.leader, cluster.hint = True, "b:2", "b:2"
        try:
            cluster.run(core.call(_remove()))
        except (RpcFailed, RpcOutcomeUnknown):
            cluster.now += pause_s
        else:
            break
    assert core.address == "b:2"
    assert cluster.now < 5.0 + 1.1 + 2 * pause_s + patience_ms / 1000
    assert len(cluster.surveys) <= cluster.now / 0.05 + 2, "and it asks the others no more often than is good for them"


def test_replies_that_break_the_contract_are_refused() -> None:
    operation = meta_ops.start_write("i", [1, 2], (), (), 10, 0, "")
    ok = pb.CommonResponseHeader(status=pb.Status(code=pb.OK))
    with pytest.raises(ServiceError, match="does not fit its block mask"):
        meta_ops.result_of(operation, pb.StartWriteCacheResponse(header=ok, block_mask=pb.BlockMask(offset=1)))
    with pytest.raises(ServiceError, match="negative offset"):
        meta_ops.result_of(operation, pb.StartWriteCacheResponse(header=ok, block_mask=pb.BlockMask(offset=-1)))
    with pytest.raises(ServiceError, match="service code 0"):
        meta_ops.result_of(operation, pb.StartWriteCacheResponse())
    match = meta_ops.match_location("i", QueryType.BATCH_GET, [1], (), None, 0, (), True, "")
    with pytest.raises(ServiceError, match="number of checksums"):
        meta_ops.result_of(match, pb.GetCacheLocationResponse(header=ok, checksums=[1, 2]))
    found = meta_ops.result_of(match, pb.GetCacheLocationResponse(header=ok, locations=[pb.CacheLocation()]))
    assert found.checksums == (0,)


def test_a_refused_token_ends_the_start_and_is_not_taken_for_a_dead_node() -> None:
    cluster = Cluster(leader="b:2")
    cluster.denied = {"a:1"}
    with pytest.raises(AccessDenied):
        cluster.run(cluster.core("a:1", "b:2").connect())
    assert cluster.log == [("a:1", "RegisterInstance")]
    assert cluster.open == []


def test_a_token_refused_later_is_told_as_such_and_starts_no_search() -> None:
    cluster = Cluster(leader="a:1")
    core = cluster.core("a:1", "b:2")
    cluster.run(core.connect())
    cluster.denied = {"a:1"}
    for _ in range(2):
        cluster.now += 5
        with pytest.raises(AccessDenied) as caught:
            cluster.run(core.call(_remove()))
        assert not caught.value.unknown_outcome
    assert [method for _, method in cluster.log] == ["RegisterInstance", "RemoveCache", "RemoveCache"]
    cluster.denied.clear()
    cluster.run(core.call(_remove()))


def test_after_a_rotation_of_certificates_the_same_leader_is_connected_to_anew(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("one")
    cluster = Cluster(leader="a:1")
    core = cluster.core("a:1", security=ClientSecurity.of(ca_file=str(ca)))
    cluster.run(core.connect())

    def fail_then_call() -> None:
        cluster.break_next = "RemoveCache"
        with pytest.raises(RpcOutcomeUnknown):
            cluster.run(core.call(_remove()))
        cluster.now += 5
        cluster.log.clear()
        cluster.run(core.call(_remove()))

    fail_then_call()
    assert cluster.log == [("a:1", "RemoveCache")]
    ca.write_text("another")
    fail_then_call()
    assert cluster.log == [("a:1", "RegisterInstance"), ("a:1", "RemoveCache")]
    fail_then_call()
    assert cluster.log == [("a:1", "RemoveCache")]


def _started(*addresses: str) -> tuple[Cluster, MetaCore]:
    cluster = Cluster(leader=addresses[0])
    core = cluster.core(*addresses)
    cluster.run(core.connect())
    cluster.log.clear()
    return cluster, core


def test_a_change_that_was_never_sent_goes_to_the_new_leader_in_the_same_call() -> None:
    cluster, core = _started("a:1", "b:2")
    cluster.down, cluster.never_sent = {"a:1"}, True
    # Nobody has won yet; the others still name the dead one.

    def elect() -> None:
        if cluster.now > 0.3:
            cluster.leader = cluster.hint = "b:2"

    cluster.on_pause = elect
    cluster.run(core.call(_remove()))
    assert core.address == "b:2"
    assert [entry for entry in cluster.log if entry == ("b:2", "RemoveCache")] == [("b:2", "RemoveCache")]


def test_a_read_that_was_too_slow_is_not_sent_twice_to_a_node_that_leads_but_goes_to_another_one() -> None:
    cluster, core = _started("a:1", "b:2")
    read = meta_ops_detail.match_meta_detail("i", [1], (), None, "")
    cluster.break_with = "DEADLINE_EXCEEDED"
    cluster.break_next = "GetCacheMetaDetail"
    with pytest.raises(RpcFailed):
        cluster.run(core.call(read))
    assert cluster.log == [("a:1", "GetCacheMetaDetail")]
    cluster.now += 5
    cluster.leader = cluster.hint = "b:2"
    cluster.break_next = "GetCacheMetaDetail"
    cluster.down = {"a:1"}
    cluster.run(core.call(read))
    assert core.address == "b:2"


def test_an_answer_that_says_anything_else_is_not_repeated() -> None:
    cluster, core = _started("a:1", "b:2")
    cluster.break_with, cluster.break_next = "UNIMPLEMENTED", "GetCacheMetaDetail"
    with pytest.raises(RpcFailed):
        cluster.run(core.call(meta_ops_detail.match_meta_detail("i", [1], (), None, "")))
    assert cluster.log == [("a:1", "GetCacheMetaDetail")]


def test_the_newest_leadership_is_tried_first_and_an_old_leader_that_is_late_is_not_believed() -> None:
    cluster, core = _started("a:1", "b:2", "c:3")
    cluster.epochs = {"b:2": 6, "a:1": 5, "c:3": 7}
    cluster.leader = "b:2"
    cluster.hints = {"a:1": "a:1", "b:2": "b:2", "c:3": "a:1"}
    cluster.run(core.call(_remove()))
    assert (core.address, core.epoch) == ("b:2", 6)
    # a still names itself; c has won.
    cluster.leader = "c:3"
    cluster.hints = {"a:1": "a:1", "b:2": "a:1", "c:3": "c:3"}
    cluster.log.clear()
    cluster.now += 5
    cluster.run(core.call(_remove()))
    assert (core.address, core.epoch) == ("c:3", 7)
    assert ("a:1", "RegisterInstance") not in cluster.log
    # Epochs that began anew: the old number is in nobody's way, for the node that accepts the registration leads.
    cluster.leader, cluster.epochs = "a:1", {"a:1": 1}
    cluster.hints = dict.fromkeys(("a:1", "b:2", "c:3"), "a:1")
    cluster.now += 5
    cluster.run(core.call(_remove()))
    assert (core.address, core.epoch) == ("a:1", 1)


def _finish(success: bool = True) -> meta_ops.Operation[None]:
    return meta_ops.finish_write("i", "w", meta_ops.as_mask([success]), (), "")


def _writing(*addresses: str) -> tuple[Cluster, MetaCore]:
    cluster, core = _started(*addresses)
    cluster.run(core.call(meta_ops.start_write("i", [1], (), (), 10, 0, "")))
    cluster.break_next = "FinishWriteCache"
    cluster.log.clear()
    return cluster, core


def test_a_finish_without_an_answer_that_happened_is_found_out_and_not_sent_again() -> None:
    cluster, core = _writing("a:1", "b:2")
    looks = iter([(2, "file://s/k1_nonce"), (2, "file://s/k1_nonce"), (3, "file://s/k1_nonce")])
    cluster.blocks = lambda address: next(looks)
    cluster.run(core.call(_finish()))
    methods = [method for _, method in cluster.log]
    assert methods.count("FinishWriteCache") == 1
    assert methods.count("GetCacheMetaDetail") == 3
    # The session is forgotten: the same question again has no answer.
    cluster.break_next = "FinishWriteCache"
    cluster.now += 5
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(_finish()))


def test_a_finish_that_the_new_leader_shows_not_to_have_happened_is_no_riddle() -> None:
    cluster, core = _writing("a:1", "b:2")
    cluster.leader = cluster.hint = "b:2"
    cluster.blocks = lambda address: (2, "file://s/k1_nonce")
    with pytest.raises(RpcFailed, match="had not carried it out") as caught:
        cluster.run(core.call(_finish()))
    assert not caught.value.unknown_outcome
    assert not caught.value.may_have_run
    assert [entry for entry in cluster.log if entry[1] == "FinishWriteCache"] == [("a:1", "FinishWriteCache")]


@pytest.mark.parametrize("state", [(3, "file://s/somebody_elses"), (0, ""), (4, "file://s/k1_nonce")])
def test_a_finish_of_which_the_blocks_tell_nothing_stays_unknown(state: tuple[int, str]) -> None:
    cluster, core = _writing("a:1", "b:2")
    cluster.leader = cluster.hint = "b:2"
    cluster.blocks = lambda address: state
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(_finish()))
    assert [method for _, method in cluster.log].count("FinishWriteCache") == 1


def test_a_finish_without_a_block_or_a_session_that_is_known_asks_nothing() -> None:
    cluster, core = _writing("a:1")
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(_finish(success=False)))
    cluster.break_next = "FinishWriteCache"
    cluster.now += 5
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(meta_ops.finish_write("i", "another", meta_ops.as_mask([True]), (), "")))
    assert {method for _, method in cluster.log} == {"FinishWriteCache"}


def test_a_start_while_nobody_leads_waits_a_little() -> None:
    cluster = Cluster(leader="nobody:1")
    cluster.hint = None
    core = cluster.core("a:1", "b:2")
    cluster.on_pause = lambda: setattr(cluster, "leader", "b:2") if cluster.now > 0.2 else None
    cluster.run(core.connect())
    assert core.address == "b:2"


def test_looking_for_the_outcome_of_a_finish_ends_however_patient_the_client_is() -> None:
    cluster, core = _writing("a:1", "b:2")
    core._config = replace(core._config, meta_channel=replace(core._config.meta_channel, failover_s=600.0))
    cluster.blocks = lambda address: (2, "file://s/k1_nonce")
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(_finish()))
    assert [method for _, method in cluster.log].count("GetCacheMetaDetail") == 8
    assert cluster.now < 10
    # Another node leads and shows nothing: that will not change.
    cluster, core = _writing("a:1", "b:2")
    core._config = replace(core._config, meta_channel=replace(core._config.meta_channel, failover_s=600.0))
    cluster.leader = cluster.hint = "b:2"
    with pytest.raises(RpcOutcomeUnknown):
        cluster.run(core.call(_finish()))
    assert [method for _, method in cluster.log].count("GetCacheMetaDetail") == 1
