"""What upstream's own tests assert of ReportEvent (wire contract 8.3: the event filter test and the event-report script), over HTTP and over gRPC.

The script is of an older vintage; what the newest one changed (BLOCK_DELETE needs `spec_names`, codes of single items,
names of the kinds) is asserted in its new form.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from kvcm.service.testing_dropin import DropIn
from kvcm.service.testing_wire import ADMIN, META, GrpcWire, HttpWire, Wire, code

pytestmark = pytest.mark.integration

L1P5, L2 = "ST_EVENT_REPORT_L1P5", "ST_EVENT_REPORT_L2"
STORAGES = {L1P5: "event_report_l1p5_default", L2: "event_report_l2_default"}
SCHEMES = {L1P5: "event_report", L2: "vineyard"}
HEARTBEAT_MS, GRACE_MS, CHECK_MS = 1000, 2000, 200
WAIT_S = 20.0
MODEL = {"model_name": "model", "dtype": "FP8", "use_mla": False, "tp_size": 1, "dp_size": 1, "pp_size": 1}


def group() -> dict[str, Any]:
    return {
        "name": "event_report_group",
        "storage_candidates": ["nfs_01"],
        "global_quota_group_name": "default_quota_group",
        "max_instance_count": 100,
        "quota": {"capacity": 10737418240, "quota_config": [{"storage_type": 4, "capacity": 10737418240}]},
        "cache_config": {
            "reclaim_strategy": {"storage_unique_name": "nfs_01", "reclaim_policy": 1, "trigger_strategy": {"used_size": 1073741824, "used_percentage": 0.8}},
            "data_storage_strategy": 2,
            "meta_indexer_config": {
                "max_key_count": 1000000,
                "mutex_shard_num": 16,
                "batch_key_size": 16,
                "meta_storage_backend_config": {"storage_type": "local", "storage_uri": ""},
                "meta_cache_policy_config": {"type": "LRU", "capacity": 10000},
            },
        },
        "event_report_storage_candidates": list(STORAGES.values()),
        "version": 1,
        "extra_info": "group's own",
    }


def storage(kind: str, **timings: int) -> dict[str, Any]:
    timings = {"heartbeat_timeout_ms": HEARTBEAT_MS, "cleanup_grace_ms": GRACE_MS, "liveness_check_interval_ms": CHECK_MS} | timings
    return {"global_unique_name": STORAGES[kind], "storage_type": kind, "event_report": timings, "check_storage_available_when_open": False}


@pytest.fixture(scope="module")
def drop_in() -> Iterator[DropIn]:
    with DropIn() as manager:
        admin = HttpWire(manager.admin_http_url)
        eventually(lambda: bool(admin.call("CheckHealth", {"trace_id": "health"})["is_leader"]))
        for kind in STORAGES:
            assert code(admin.call("AddStorage", {"trace_id": "add", "storage": storage(kind, heartbeat_timeout_ms=60_000)})) == "OK"
        assert code(admin.call("CreateInstanceGroup", {"trace_id": "group", "instance_group": group()})) == "OK"
        yield manager


class Script:
    """The calls of upstream's script, for one instance of its own."""

    def __init__(self, wire: Wire, instance: str) -> None:
        self.wire = wire
        self.instance = instance
        fields = {"trace_id": "r", "instance_group": "event_report_group", "instance_id": instance, "block_size": 128, "model_deployment": MODEL}
        assert code(wire.call("RegisterInstance", fields | {"location_spec_infos": [{"name": "tp0", "size": 1024}]})) == "OK"

    def report(self, kind: str, host: str, *events: dict[str, Any], ok: bool = True) -> dict[str, Any]:
        request = {"trace_id": "e", "instance_id": self.instance, "host_ip_port": host, "storage_type": kind, "events": list(events)}
        reply = self.wire.call("ReportEvent", request)
        if ok:
            assert (code(reply), reply["item_results"]) == ("OK", []), reply
        return reply

    def batch(self, keys: list[int]) -> list[Any]:
        reply = self.wire.call("GetCacheLocation", {"trace_id": "b", "instance_id": self.instance, "query_type": "QT_BATCH_GET", "block_keys": keys})
        assert code(reply) == "OK"
        return list(reply["locations"])

    def by_backend(self, keys: list[int], kind: Any, **more: Any) -> dict[str, Any]:
        request = {"trace_id": "k", "instance_id": self.instance, "query_type": "QT_BATCH_GET", "block_keys": keys}
        return self.wire.call("GetCacheLocationsByBackend", request | {"backend_selectors": [{"backend_type": kind, "strategy": "LSS_WEIGHTED_RANDOM"}]} | more)

    def specs(self, key: int, kind: str) -> dict[str, str]:
        """Spec name -> URI without its version, of the copies of one kind."""
        reply = self.by_backend([key], kind)
        assert code(reply) == "OK"
        return {spec["name"]: plain(spec["uri"]) for location in reply["key_locations"][0].get("locations", []) for spec in location["location_specs"]}

    def hosts(self, keys: list[int], **more: Any) -> dict[str, int]:
        reply = self.wire.call("GetHostCacheState", {"trace_id": "h", "instance_id": self.instance, "block_cache_keys": keys} | more)
        assert code(reply) == "OK"
        return {host["host_ip_port"]: int(host["local"]) for host in reply["hosts"]}


@pytest.fixture(params=["http", "grpc"])
def script(request: pytest.FixtureRequest, drop_in: DropIn) -> Script:
    wire: Wire = HttpWire(drop_in.http_url) if request.param == "http" else GrpcWire(drop_in.meta_address, META)
    return Script(wire, "".join(char if char.isalnum() else "_" for char in request.node.name))


@pytest.fixture(params=[L1P5, L2])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def uri(kind: str, host: str, medium: str = "mem", **params: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in sorted(params.items()))
    return f"{SCHEMES[kind]}://{host}/{medium}" + (f"?{query}" if query else "")


def plain(text: str) -> str:
    """The host's own URI; its version is one parameter of 32 hex digits behind it."""
    parts = urlsplit(text)
    params = parse_qsl(parts.query, keep_blank_values=True)
    (version,) = [value for name, value in params if name == "s_version"]
    assert (len(version), int(version, 16) >= 0) == (32, True)
    return text.removesuffix(f"s_version={version}")[:-1]


def register(*mediums: str) -> dict[str, Any]:
    return {"event_type": "EVENT_NODE_REGISTER", "node_register": {"mediums": list(mediums)}}


def add(key: int, specs: dict[str, str], medium: str = "mem") -> dict[str, Any]:
    listed = [{"name": name, "uri": place} for name, place in specs.items()]
    return {"event_type": "EVENT_BLOCK_ADD", "block_add": {"block_key": str(key), "medium": medium, "specs": listed}}


def delete(key: int, *names: str, medium: str = "mem") -> dict[str, Any]:
    return {"event_type": "EVENT_BLOCK_DELETE", "block_delete": {"block_key": str(key), "medium": medium, "spec_names": list(names)}}


def snapshot(*keys: int, host: str, kind: str = L2) -> dict[str, Any]:
    blocks = [{"block_key": str(key), "medium": "mem", "specs": [{"name": "tp0", "uri": uri(kind, host)}]} for key in keys]
    return {"event_type": "EVENT_BLOCK_SNAPSHOT", "block_snapshot": {"blocks": blocks}}


HOST_DOWN: dict[str, Any] = {"event_type": "EVENT_HOST_DOWN", "host_down": {}}
HEARTBEAT: dict[str, Any] = {"event_type": "EVENT_HEARTBEAT", "heartbeat": {"system_status": {"version": "er-0.18", "cpu": "45%", "load": "0.5"}}}


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.05)


# -- the event filter test -------------------------------------------------------------------------------------------------------------------------


def test_the_event_filter(script: Script) -> None:
    host = "10.9.0.1:8080"
    script.report(L2, host, *(add(key, {"tp0": f"vineyard://{host}/mem"}) for key in (1, 2)))
    found = script.by_backend([1, 2], L2, location_spec_names=["tp0"])
    assert [[location["type"] for location in entry["locations"]] for entry in found["key_locations"]] == [[L2], [L2]]
    unknown = script.by_backend([1, 2], L2, location_spec_names=["unknown"])
    assert (code(unknown), [entry.get("locations", []) for entry in unknown["key_locations"]]) == ("OK", [[], []])
    for strategy in ("LSS_V6D_PREFIX", "LSS_V6D_COVERAGE"):
        peer = script.by_backend([1, 2, 3], L2, backend_selectors=[{"backend_type": L2, "strategy": strategy}])
        assert [len(entry.get("locations", [])) for entry in peer["key_locations"]] == [1, 1, 0]
    if isinstance(script.wire, HttpWire):
        assert code(script.by_backend([1, 2], 263)) == "INVALID_ARGUMENT"


# -- the script ------------------------------------------------------------------------------------------------------------------------------------


def test_registering_is_idempotent_and_asks_for_a_snapshot(script: Script, kind: str) -> None:
    for mediums in (["mem"], ["mem", "disk", "ssd"]):
        reply = script.report(kind, "10.0.0.1:1", register(*mediums))
        assert (reply["snapshot_required"], reply["committed_snapshot_version"], reply["extra_info"]) == (True, "", "group's own")


def test_batch_get_returns_exactly_what_was_reported(script: Script, kind: str) -> None:
    host = "10.0.0.1:1"
    two = {"s4096": uri(kind, host, obj_id="o1", size=512), "s8192": uri(kind, host, obj_id="o2", size=512)}
    reply = script.report(kind, host, add(5, two))
    assert (len(reply["committed_snapshot_version"]), reply["snapshot_required"]) == (32, True)
    (location,) = script.batch([5])
    assert (location["type"], location["spec_size"]) == (kind, 2)
    assert {spec["name"]: plain(spec["uri"]) for spec in location["location_specs"]} == two


def test_two_mediums_merge_into_one_entry(script: Script, kind: str) -> None:
    host = "10.0.0.1:1"
    script.report(kind, host, add(5, {"m": uri(kind, host)}), add(5, {"d": uri(kind, host, "disk")}, medium="disk"))
    assert script.specs(5, kind) == {"m": uri(kind, host), "d": uri(kind, host, "disk")}
    detail = script.wire.call("GetCacheMetaDetail", {"trace_id": "d", "instance_id": script.instance, "block_keys": [5]})
    name = kind.removeprefix("ST_").lower()
    assert [location["location_id"] for location in detail["items"][0]["locations"]] == [f"kvs#{name}#mem#{host}", f"kvs#{name}#disk#{host}"]


def test_delete_takes_named_specs_and_may_find_nothing(script: Script, kind: str) -> None:
    host = "10.0.0.1:1"
    script.report(kind, host, add(5, {"keep": uri(kind, host, s=1), "drop": uri(kind, host, s=2)}))
    reply = script.report(kind, host, delete(5, "drop"), delete(99999, "any"), delete(5, "keep", medium="none"))
    assert reply["snapshot_required"] is False
    assert script.specs(5, kind) == {"keep": uri(kind, host, s=1)}


def test_host_down_takes_all_mediums_of_its_kind_and_may_be_repeated(script: Script) -> None:
    host = "10.0.0.1:1"
    for kind in (L1P5, L2):
        script.report(kind, host, register("mem", "disk"), add(5, {"tp0": uri(kind, host)}), add(5, {"tp0": uri(kind, host, "disk")}, medium="disk"))
    for _ in range(2):
        reply = script.report(L1P5, host, HOST_DOWN)
        assert (reply["snapshot_required"], reply["committed_snapshot_version"]) == (True, "")
        assert (script.specs(5, L1P5), len(script.specs(5, L2))) == ({}, 1)
    gone = script.report(L1P5, host, HEARTBEAT, ok=False)
    assert (code(gone), gone["item_results"]) == ("NODE_NOT_REGISTERED", ["NODE_NOT_REGISTERED"])


def test_register_add_and_heartbeat_in_one_report(script: Script, kind: str) -> None:
    reply = script.report(kind, "h:1", register("mem"), add(5, {"tp0": uri(kind, "h:1")}), HEARTBEAT)
    assert (len(reply["committed_snapshot_version"]), reply["snapshot_required"]) == (32, True)


def test_no_events_are_no_report(script: Script, kind: str) -> None:
    script.report(kind, "h:1", add(5, {"tp0": uri(kind, "h:1")}))
    reply = script.report(kind, "h:1")
    assert (reply["committed_snapshot_version"], reply["snapshot_required"], reply["retry_after_ms"], reply["extra_info"]) == ("", False, "0", "")


@pytest.mark.parametrize(
    "event",
    [
        {"event_type": "EVENT_BLOCK_ADD"},
        {"event_type": "EVENT_BLOCK_ADD", "block_delete": {"block_key": "1", "medium": "mem", "spec_names": ["a"]}},
        {"event_type": "EVENT_BLOCK_ADD", "block_add": {"block_key": "x", "medium": "mem", "specs": [{"name": "a", "uri": "a://h"}]}},
        {"event_type": "EVENT_BLOCK_ADD", "block_add": {"block_key": "1", "medium": "m#m", "specs": [{"name": "a", "uri": "a://h"}]}},
        {"event_type": "EVENT_BLOCK_ADD", "block_add": {"block_key": "1", "medium": "mem", "specs": [{"name": "a", "uri": "a://h?s_version=1"}]}},
        {"event_type": "EVENT_BLOCK_DELETE", "block_delete": {"block_key": "1", "medium": "mem"}},
        {"event_type": "EVENT_HEARTBEAT"},
        {"event_type": "EVENT_UNSPECIFIED", "heartbeat": {}},
    ],
)
def test_an_event_with_missing_or_wrong_parameters_fails_alone(script: Script, event: dict[str, Any]) -> None:
    reply = script.report(L2, "h:1", event, add(5, {"tp0": uri(L2, "h:1")}), ok=False)
    assert (code(reply), reply["item_results"]) == ("INVALID_ARGUMENT", ["INVALID_ARGUMENT", "OK"])
    assert script.specs(5, L2) == {"tp0": uri(L2, "h:1")}


def test_events_that_do_not_go_together_are_refused_whole(script: Script) -> None:
    script.report(L2, "h:1", add(5, {"tp0": uri(L2, "h:1")}))
    shot = snapshot(6, host="h:1")
    for events in ([HOST_DOWN, HEARTBEAT], [shot, shot], [shot, add(7, {"tp0": uri(L2, "h:1")})], [HOST_DOWN, shot]):
        assert code(script.report(L2, "h:1", *events, ok=False)) == "INVALID_ARGUMENT"
    assert script.hosts([5, 6]) == {"h:1": 1}


def test_a_snapshot_replaces_all_and_the_next_one_has_to_wait(script: Script) -> None:
    host = "10.0.0.1:1"
    first = script.report(L2, host, add(5, {"tp0": uri(L2, host)}), add(6, {"tp0": uri(L2, host)}))
    second = script.report(L2, host, HEARTBEAT, snapshot(6, 7, host=host))
    assert second["snapshot_required"] is False
    assert second["committed_snapshot_version"] not in ("", first["committed_snapshot_version"])
    assert [bool(script.specs(key, L2)) for key in (5, 6, 7)] == [False, True, True]
    third = script.report(L2, host, snapshot(8, host=host), ok=False)
    assert (code(third), third["item_results"]) == ("SNAPSHOT_RATE_LIMITED", ["SNAPSHOT_RATE_LIMITED"])
    assert 0 < int(third["retry_after_ms"]) <= 30_000
    assert third["committed_snapshot_version"] == second["committed_snapshot_version"]


def test_kinds_coexist_and_do_not_touch_each_other(script: Script) -> None:
    host = "10.0.0.1:1"
    for kind in (L1P5, L2):
        script.report(kind, host, add(5, {"s" + kind: uri(kind, host, of=kind)}))
    script.report(L1P5, host, delete(5, "s" + L1P5))
    assert (script.specs(5, L1P5), script.specs(5, L2)) == ({}, {"s" + L2: uri(L2, host, of=L2)})


def test_host_cache_state_counts_by_host_and_not_by_kind(script: Script) -> None:
    holdings: dict[str, dict[str, list[int]]] = {
        "10.0.0.1:8080": {L1P5: [10, 11], L2: [10, 13]},
        "10.0.0.2:8080": {L1P5: [10, 12], L2: [10, 11, 13]},
        "10.0.0.3:8080": {L2: [10]},
    }
    for host, kinds in holdings.items():
        for kind, keys in kinds.items():
            script.report(kind, host, register("mem"), *(add(key, {"tp0": uri(kind, host)}) for key in keys))
    assert script.hosts([10, 11, 12, 13]) == {"10.0.0.1:8080": 2, "10.0.0.2:8080": 4, "10.0.0.3:8080": 1}
    assert script.hosts([10, 11], medium=["disk"]) == {}
    request = {"instance_id": script.instance, "block_cache_keys": [10, 11, 12, 13], "query_type": "QT_PREFIX_MATCH", "p2p_host_count": 1}
    reply = script.wire.call("GetHostCacheState", request)
    assert [(int(host["p2p_1_fetch"]), int(host["p2p_1_total_match"])) for host in reply["hosts"]] == [(0, 2), (0, 4), (0, 1)]


def test_min_replica_count_counts_a_reported_replica(script: Script) -> None:
    script.report(L2, "h:1", add(5, {"s4096": uri(L2, "h:1")}))
    start = {"trace_id": "s", "instance_id": script.instance, "block_keys": [5], "write_timeout_seconds": 30, "min_replica_count": 2}
    first = script.wire.call("StartWriteCache", start)
    assert (bool(first["write_session_id"]), len(first["locations"])) == (True, 1)
    end = {"trace_id": "f", "instance_id": script.instance, "write_session_id": first["write_session_id"], "success_blocks": {"bool_masks": {"values": [True]}}}
    assert code(script.wire.call("FinishWriteCache", end)) == "OK"
    assert script.wire.call("StartWriteCache", start)["locations"] == []


def test_the_storages_are_listed_and_stored_with_their_names(drop_in: DropIn) -> None:
    for wire in (HttpWire(drop_in.admin_http_url), GrpcWire(drop_in.admin_address, ADMIN)):
        listed = {found["global_unique_name"]: found for found in wire.call("ListStorage", {"trace_id": "l"})["storage"]}
        for kind, name in STORAGES.items():
            assert listed[name]["storage_type"] == kind
            assert listed[name]["event_report"]["snapshot_min_interval_ms"] == "30000"


def test_numbers_of_heartbeats_are_metrics(drop_in: DropIn) -> None:
    script = Script(HttpWire(drop_in.http_url), "numbers")
    script.report(L2, "h:1", HEARTBEAT)
    with urllib.request.urlopen(f"{drop_in.admin_http_url}/metrics", timeout=WAIT_S) as answer:
        page = answer.read().decode()
    assert 'event_report_load{instance_id="numbers",host="h:1"} 0.5' in page
    assert 'event_reporters_count{instance_group="event_report_group",instance_id="numbers",state="alive"} 1' in page
    assert "event_report_cpu" not in page


def test_silence_hides_and_the_end_of_grace_removes(drop_in: DropIn) -> None:
    """Last: it makes all hosts of this file short-lived."""
    admin, script = HttpWire(drop_in.admin_http_url), Script(HttpWire(drop_in.http_url), "liveness")
    script.report(L2, "h:1", register("mem"), add(5, {"tp0": uri(L2, "h:1")}))
    assert script.hosts([5]) == {"h:1": 1}
    assert code(admin.call("UpdateStorage", {"trace_id": "u", "storage": storage(L2), "force_update": True})) == "OK"
    eventually(lambda: script.hosts([5]) == {})
    eventually(lambda: code(script.report(L2, "h:1", add(6, {"tp0": uri(L2, "h:1")}), ok=False)) == "NODE_NOT_REGISTERED")
    assert script.batch([5])[0]["type"] == "ST_UNSPECIFIED"
    script.report(L2, "h:1", register("mem"), add(5, {"tp0": uri(L2, "h:1")}))
    assert script.hosts([5]) == {"h:1": 1}
