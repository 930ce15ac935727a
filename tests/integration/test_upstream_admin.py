"""AdminService against a manager process over both wires: what the ecosystem's own admin tests rely on (wire contract 8.3), and what is ours."""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_wire import ADMIN, META, GrpcWire, HttpWire, Wire, code, message

pytestmark = pytest.mark.integration

DEADLINE_S = 20.0
MODEL = {"model_name": "m", "dtype": "FP8", "tp_size": 1, "dp_size": 1, "pp_size": 1}
FORCE = {"x-kvcm-force": "true"}


@pytest.fixture(scope="module")
def manager() -> Iterator[ManagerProcess]:
    with ManagerProcess({"kvcm.service.custom_info": "here", "kvcm.service.advertised_host": "127.0.0.1"}) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def wire(manager: ManagerProcess, request: pytest.FixtureRequest) -> Wire:
    return HttpWire(manager.admin_http_url) if request.param == "http" else GrpcWire(manager.admin_address, ADMIN)


def group(name: str, *candidates: str, **changes: Any) -> dict[str, Any]:
    config = {
        "reclaim_strategy": {"storage_unique_name": candidates[0], "reclaim_policy": 1, "trigger_strategy": {"used_percentage": 0.8}},
        "data_storage_strategy": 2,
        "meta_indexer_config": {"max_key_count": 1000, "mutex_shard_num": 16, "meta_storage_backend_config": {"storage_type": "local"}},
    }
    quota = {"capacity": 10_000_000, "quota_config": [{"storage_type": 4, "capacity": 5_000_000}, {"storage_type": 3, "capacity": 5_000_000}]}
    return {
        "name": name,
        "storage_candidates": candidates,
        "global_quota_group_name": "q",
        "max_instance_count": 10,
        "quota": quota,
        "cache_config": config,
        "version": 1,
        **changes,
    }


def instance(instance_id: str, group_name: str = "default", **changes: Any) -> dict[str, Any]:
    specs = [{"name": "tp0", "size": 1024}]
    return {"instance_group": group_name, "instance_id": instance_id, "block_size": 4, "model_deployment": MODEL, "location_spec_infos": specs, **changes}


def ok(reply: dict[str, Any]) -> dict[str, Any]:
    assert code(reply) == "OK", reply
    return reply


def test_storage_is_added_listed_switched_and_removed(wire: Wire, tmp_path: Path) -> None:
    ok(wire.call("AddStorage", {"trace_id": "t", "storage": {"global_unique_name": "fresh", "nfs": {"root_path": f"{tmp_path}/"}}}))
    listed = {item["global_unique_name"]: item for item in ok(wire.call("ListStorage", {}))["storage"]}
    assert listed["fresh"]["nfs"]["root_path"] == f"{tmp_path}/"
    for rpc in ("DisableStorage", "EnableStorage", "RemoveStorage"):
        ok(wire.call(rpc, {"storage_unique_name": "fresh"}))
    assert "fresh" not in {item["global_unique_name"] for item in ok(wire.call("ListStorage", {}))["storage"]}


def test_group_is_created_updated_read_and_removed(wire: Wire) -> None:
    wanted = group("crud", "not_there", "neither")
    ok(wire.call("CreateInstanceGroup", {"instance_group": wanted}))
    assert "crud" in {item["name"] for item in ok(wire.call("ListInstanceGroup", {}))["instance_group"]}
    ok(wire.call("UpdateInstanceGroup", {"instance_group": {**wanted, "user_data": "second", "version": 2}, "current_version": 1}))
    found = ok(wire.call("GetInstanceGroup", {"name": "crud"}))["instance_group"]
    assert (found["user_data"], found["version"]) == ("second", "2")
    assert [item["storage_type"] for item in found["quota"]["quota_config"]] == ["ST_NFS", "ST_TAIRMEMPOOL"]
    ok(wire.call("RemoveInstanceGroup", {"name": "crud"}))
    assert code(wire.call("GetInstanceGroup", {"name": "crud"})) != "OK"


def test_instance_is_registered_read_and_removed_before_its_group(wire: Wire) -> None:
    ok(wire.call("CreateInstanceGroup", {"instance_group": group("home", "nfs_01")}))
    ok(wire.call("RegisterInstance", instance("tenant", "home")))
    info = ok(wire.call("GetInstanceInfo", {"instance_id": "tenant"}))["instance_info"]
    assert (info["instance_group_name"], info["quota_group_name"], info["block_size"]) == ("home", "q", 4)
    assert [item["instance_id"] for item in ok(wire.call("ListInstanceInfo", {"instance_group_name": "home"}))["instance_info"]] == ["tenant"]
    assert ok(wire.call("ListInstanceInfo", {"instance_group_name": "nowhere"}))["instance_info"] == []
    ok(wire.call("RemoveInstance", {"instance_id": "tenant"}))
    ok(wire.call("RemoveInstanceGroup", {"name": "home"}))


def test_accounts_are_added_listed_and_deleted(wire: Wire) -> None:
    ok(wire.call("AddAccount", {"user_name": "ann", "password": "p", "role": "ROLE_ADMIN"}))
    assert code(wire.call("AddAccount", {"user_name": "ann", "password": "p"})) == "DUPLICATE_ENTITY"
    assert {"user_name": "ann", "role": "ROLE_ADMIN"} in ok(wire.call("ListAccount", {}))["accounts"]
    ok(wire.call("DeleteAccount", {"user_name": "ann"}))
    assert ok(wire.call("ListAccount", {}))["accounts"] == []
    assert code(wire.call("DeleteAccount", {"user_name": "ann"})) == "INSTANCE_NOT_EXIST"


def test_metrics_count_the_calls_by_name(wire: Wire, tmp_path: Path) -> None:
    ok(wire.call("AddStorage", {"storage": {"global_unique_name": "counted", "nfs": {"root_path": f"{tmp_path}/"}}}))
    ok(wire.call("ListStorage", {}))
    before_ms = int(time.time() * 1000)
    reply = ok(wire.call("GetMetrics", {}))
    assert abs(int(reply["timestamp"]) - before_ms) < 60_000
    values = {(item["metric_name"], tag["tag_value"]): item["metric_value"] for item in reply["metrics"] for tag in item["metric_tags"]}
    for api in ("AddStorage", "ListStorage"):
        assert int(values["service.query_counter", api]["int_value"]) > 0
        assert values["service.query_rt_us", api]["float_value"] > 1
    ok(wire.call("RemoveStorage", {"storage_unique_name": "counted"}))


def test_health_and_cluster_have_all_their_fields(wire: Wire) -> None:
    health = ok(wire.call("CheckHealth", {}))
    assert (health["is_leader"], health["is_health"]) == (True, True)
    assert int(health["elector_last_loop_time_ms"]) > 0
    info = ok(wire.call("GetManagerClusterInfo", {}))
    assert info["self_node_id"] == info["leader_node_id"] != ""
    assert int(info["self_leader_expiration_time"]) > int(info["info_updated_time"]) == 0
    endpoint = info["leader_endpoint"]
    assert all(endpoint[port] > 0 for port in ("meta_rpc_port", "meta_http_port", "admin_rpc_port", "admin_http_port"))
    assert (endpoint["host"], endpoint["custom_info"], endpoint["node_id"]) == ("127.0.0.1", "here", info["self_node_id"])


def test_elector_config_keeps_what_it_is_given(wire: Wire) -> None:
    assert "campaign_delay_time_ms" in ok(wire.call("GetLeaderElectorConfig", {}))
    for value in (5000, -1, 0):
        ok(wire.call("UpdateLeaderElectorConfig", {"campaign_delay_time_ms": value}))
        assert ok(wire.call("GetLeaderElectorConfig", {}))["campaign_delay_time_ms"] == str(value)


def test_errors_say_what_is_wrong(wire: Wire) -> None:
    for size in (0, -1):
        reply = wire.call("RegisterInstance", instance("bad", block_size=size))
        assert (code(reply), "block_size" in message(reply)) == ("INVALID_ARGUMENT", True)
    reply = wire.call("RegisterInstance", instance("bad", "no_such_group"))
    assert code(reply) != "OK"
    assert "no_such_group" in message(reply)
    ok(wire.call("RegisterInstance", instance("known")))
    for changes, field in (({"model_deployment": {**MODEL, "model_name": "other"}}, "model_deployment"), ({"block_size": 8}, "block_size")):
        reply = wire.call("RegisterInstance", instance("known", **changes))
        assert code(reply) == "DUPLICATE_ENTITY"
        assert "known" in message(reply)
        assert field in message(reply)
    reply = wire.call("RemoveInstance", {"instance_id": "never_was"})
    assert code(reply) not in ("OK", "INTERNAL_ERROR")
    assert "never_was" in message(reply)


def test_references_hold_until_the_call_is_forced(wire: Wire, tmp_path: Path) -> None:
    ok(wire.call("AddStorage", {"storage": {"global_unique_name": "used", "nfs": {"root_path": f"{tmp_path}/"}}}))
    ok(wire.call("CreateInstanceGroup", {"instance_group": group("user", "used")}))
    ok(wire.call("RegisterInstance", instance("last", "user")))
    for rpc, request in (("RemoveStorage", {"storage_unique_name": "used"}), ("RemoveInstanceGroup", {"name": "user"})):
        assert code(wire.call(rpc, request)) == "INTERNAL_ERROR"
        assert code(wire.call(rpc, request, {"x-kvcm-force": "false"})) == "INTERNAL_ERROR"
        ok(wire.call(rpc, request, FORCE))
    ok(wire.call("RemoveInstance", {"instance_id": "last"}))


def test_a_snapshot_goes_to_another_manager_and_comes_back_the_same(manager: ManagerProcess, tmp_path: Path) -> None:
    wire = HttpWire(manager.admin_http_url)
    ok(wire.call("AddStorage", {"storage": {"global_unique_name": "carried", "nfs": {"root_path": f"{tmp_path}/carried/"}}}))
    ok(wire.call("CreateInstanceGroup", {"instance_group": group("carried", "carried")}))
    ok(wire.call("RegisterInstance", instance("carried", "carried")))
    ok(wire.call("AddAccount", {"user_name": "carried", "password": "canaryPassword", "role": "ROLE_ADMIN"}))
    text = ok(wire.call("GenConfigSnapshot", {}))["config_snapshot"]
    ok(wire.call("LoadConfigSnapshot", {"config_snapshot": text}))
    assert ok(wire.call("GenConfigSnapshot", {}))["config_snapshot"] == text
    assert "canaryPassword" not in text + manager.log
    with ManagerProcess({"kvcm.registry_storage.uri": f"local://{tmp_path}/registry.json"}) as other:
        there = GrpcWire(other.admin_address, ADMIN)
        ok(there.call("LoadConfigSnapshot", {"config_snapshot": text}))
        assert ok(there.call("GenConfigSnapshot", {}))["config_snapshot"] == text
        ok(GrpcWire(other.meta_address, META).call("GetCacheLocation", {"instance_id": "carried", "query_type": "QT_PREFIX_MATCH", "block_keys": [1]}))
        other.stop()
        other.start()
        again = GrpcWire(other.admin_address, ADMIN)
        assert ok(again.call("GenConfigSnapshot", {}))["config_snapshot"] == text
    for rpc, request in (
        ("RemoveInstance", {"instance_id": "carried"}),
        ("RemoveInstanceGroup", {"name": "carried"}),
        ("RemoveStorage", {"storage_unique_name": "carried"}),
        ("DeleteAccount", {"user_name": "carried"}),
    ):
        ok(wire.call(rpc, request))


def test_a_snapshot_that_is_none_changes_nothing(wire: Wire) -> None:
    before = ok(wire.call("GenConfigSnapshot", {}))["config_snapshot"]
    for text in ("", "{}", "[]", before[:-5], before.replace('"version":1', '"version":9', 1), json.dumps({"storages": 1})):
        assert code(wire.call("LoadConfigSnapshot", {"config_snapshot": text})) == "INVALID_ARGUMENT"
    assert ok(wire.call("GenConfigSnapshot", {}))["config_snapshot"] == before


def test_the_log_level_changes_while_it_runs(manager: ManagerProcess, wire: Wire) -> None:
    for level in ("debug", "WARN", "Error", "info"):
        ok(wire.call("UpdateLogger", {"trace_id": f"level-{level}", "log_level": level, "module_name": "whatever"}))
    for level in ("LOUD", "", "4"):
        assert code(wire.call("UpdateLogger", {"log_level": level})) == "INVALID_ARGUMENT"
    deadline = time.monotonic() + DEADLINE_S
    while "level-info" not in manager.log and time.monotonic() < deadline:
        time.sleep(0.01)
    told = [line for line in manager.log.splitlines() if "log_level_changed" in line]
    assert [line.split("level=")[1].split()[0] for line in told[-4:]] == ["debug", "warn", "error", "info"]


def test_what_belongs_to_tiered_storage_is_not_served(wire: Wire) -> None:
    for rpc in ("MigrateCache", "ListAsyncCopyQuarantine", "BreakGlassReleaseAsyncCopy"):
        reply = wire.call(rpc, {})
        assert code(reply) == "UNSUPPORTED"
        assert rpc in message(reply)


def test_http_has_no_other_verb(manager: ManagerProcess) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        HttpWire(manager.admin_http_url).call("NoSuchCall", {})


# -- stepping down: last, on a manager of its own ------------------------------------------------------------------------------------------------


def _until(wire: Wire, wanted: bool) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        health = ok(wire.call("CheckHealth", {}))
        if health["is_leader"] is wanted:
            return health
        time.sleep(0.02)
    raise AssertionError(f"is_leader did not become {wanted}")


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_node_that_was_asked_to_step_down_stays_down_for_its_delay_and_leads_again_after_it(kind: str) -> None:
    with ManagerProcess() as alone:
        wire: Wire = HttpWire(alone.admin_http_url) if kind == "http" else GrpcWire(alone.admin_address, ADMIN)
        meta = HttpWire(alone.http_url)
        ok(wire.call("RegisterInstance", instance("kept")))
        ok(wire.call("UpdateLeaderElectorConfig", {"campaign_delay_time_ms": 100_000}))
        ok(wire.call("LeaderDemote", {}))
        first = ok(wire.call("CheckHealth", {}))
        assert first["is_leader"] is False
        assert code(wire.call("LeaderDemote", {})) == "SERVER_NOT_LEADER"
        # Five more rounds of the election, and nothing has come back.
        deadline = time.monotonic() + DEADLINE_S
        while int(ok(wire.call("CheckHealth", {}))["elector_last_loop_time_ms"]) < int(first["elector_last_loop_time_ms"]) + 500:
            assert ok(wire.call("CheckHealth", {}))["is_leader"] is False
            assert time.monotonic() < deadline
        assert int(ok(wire.call("GetManagerClusterInfo", {}))["self_leader_expiration_time"]) == -1
        for rpc in ("ListStorage", "ListAccount", "GenConfigSnapshot"):
            assert code(wire.call(rpc, {})) == "SERVER_NOT_LEADER"
        assert code(meta.call("GetInstanceInfo", {"instance_id": "kept"})) == "SERVER_NOT_LEADER"
        ok(wire.call("GetMetrics", {}))
        assert ok(wire.call("GetLeaderElectorConfig", {}))["campaign_delay_time_ms"] == "100000"
        # Whoever shortens the delay does not wait for the old one; -1 leads again at once.
        ok(wire.call("UpdateLeaderElectorConfig", {"campaign_delay_time_ms": -1}))
        _until(wire, True)
        ok(meta.call("GetInstanceInfo", {"instance_id": "kept"}))
        ok(wire.call("LeaderDemote", {}))
        _until(wire, True)
        ok(wire.call("ListStorage", {}))


def test_without_enforced_references_upstreams_order_of_cleaning_up_works(tmp_path: Path) -> None:
    with ManagerProcess({"kvcm.registry.enforce_references": "false"}) as lax:
        wire = HttpWire(lax.admin_http_url)
        ok(wire.call("AddStorage", {"storage": {"global_unique_name": "used", "nfs": {"root_path": f"{tmp_path}/"}}}))
        ok(wire.call("CreateInstanceGroup", {"instance_group": group("user", "used")}))
        ok(wire.call("RegisterInstance", instance("last", "user")))
        ok(wire.call("RemoveStorage", {"storage_unique_name": "used"}))
        ok(wire.call("RemoveInstanceGroup", {"name": "user"}))
        ok(wire.call("RemoveInstance", {"instance_id": "last"}))
