"""AdminService calls that change one node or show everything: accounts, snapshot, metrics, leadership, logger, force."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvcm.common.errors import ErrorCode
from kvcm.metrics.families import Family, Histogram
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service import admin_metrics
from kvcm.service.testing_rpc import SERVED, RpcDesk

pytestmark = pytest.mark.unit

OK, IN_USE, UNKNOWN = ErrorCode.OK, ErrorCode.INTERNAL_ERROR, ErrorCode.INSTANCE_NOT_EXIST


def play(root: Path, story: Callable[[RpcDesk], Awaitable[None]]) -> None:
    async def run() -> None:
        desk = RpcDesk(root)
        await desk.open()
        await story(desk)

    asyncio.run(run())


# -- accounts --------------------------------------------------------------------------------------------------------------------------------------


def test_accounts_are_added_listed_and_deleted_and_no_reply_knows_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(desk: RpcDesk) -> None:
        replies = []
        for name, role in (("ann", admin.ROLE_ADMIN), ("bob", admin.ROLE_USER), ("eve", 7)):
            request = admin.AddAccountRequest(user_name=name, password="canaryPassword", role=role)  # type: ignore[arg-type]
            replies.append(await desk.call("AddAccount", request))
        assert [reply[:2] for reply in replies] == [(OK, "")] * 3
        replies.append(await desk.call("AddAccount", admin.AddAccountRequest(user_name="ann", password="canaryPassword")))
        assert replies[-1][0] == ErrorCode.DUPLICATE_ENTITY
        replies.append(await desk.call("ListAccount", admin.ListAccountRequest()))
        listed = [(account.user_name, account.role) for account in replies[-1][2].accounts]
        assert listed == [("ann", admin.ROLE_ADMIN), ("bob", admin.ROLE_USER), ("eve", admin.ROLE_USER)]
        assert "canaryPassword" not in str(replies)
        assert (await desk.call("DeleteAccount", admin.DeleteAccountRequest(user_name="ann")))[:2] == (OK, "")
        assert (await desk.call("DeleteAccount", admin.DeleteAccountRequest(user_name="ann")))[0] == UNKNOWN
        code, message, _ = await desk.call("AddAccount", admin.AddAccountRequest(user_name="ann"))
        assert code == OK
        assert "nobody can log in" in message

    with caplog.at_level(logging.DEBUG):
        play(tmp_path, story)
    assert "canaryPassword" not in caplog.text


# -- snapshot --------------------------------------------------------------------------------------------------------------------------------------


def test_an_instance_from_a_snapshot_is_served_at_once(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        code, _, reply = await desk.call("GenConfigSnapshot", admin.GenConfigSnapshotRequest())
        assert code == OK
        text = reply.config_snapshot
        before = desk.state()
        assert (await desk.call("LoadConfigSnapshot", admin.LoadConfigSnapshotRequest(config_snapshot=text)))[:2] == (OK, "")
        assert desk.state() == before
        content = json.loads(text)
        content["instances"].append({**content["instances"][0], "instance_id": "fresh"})
        assert (await desk.call("LoadConfigSnapshot", admin.LoadConfigSnapshotRequest(config_snapshot=json.dumps(content))))[:2] == (OK, "")
        assert (await desk.call("GetCacheMeta", admin.GetCacheMetaRequest(instance_id="fresh", block_keys=[1])))[0] == OK
        _, _, reply = await desk.call("GetCacheMeta", admin.GetCacheMetaRequest(instance_id="i", block_keys=SERVED))
        assert ["CLS_SERVING" in text for text in reply.metas] == [True] * len(SERVED)

    play(tmp_path, story)


def test_an_instance_whose_metadata_cannot_be_opened_is_named(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        _, _, reply = await desk.call("GenConfigSnapshot", admin.GenConfigSnapshotRequest())
        content = json.loads(reply.config_snapshot)
        content["instance_groups"].append({**content["instance_groups"][0], "name": "far"})
        content["instance_groups"][-1]["cache_config"] = {**content["instance_groups"][0]["cache_config"]}
        indexer = {**content["instance_groups"][0]["cache_config"]["meta_indexer_config"]}
        indexer["meta_storage_backend_config"] = {"storage_type": "unknown kind", "storage_uri": ""}
        content["instance_groups"][-1]["cache_config"]["meta_indexer_config"] = indexer
        content["instances"].append({**content["instances"][0], "instance_id": "lost", "instance_group_name": "far"})
        request = admin.LoadConfigSnapshotRequest(config_snapshot=json.dumps(content))
        code, message, _ = await desk.call("LoadConfigSnapshot", request)
        assert code == ErrorCode.SERVICE_NOT_READY
        assert "'lost' cannot be opened yet" in message
        assert (await desk.call("LoadConfigSnapshot", request))[0] == OK  # nothing is left to change

    play(tmp_path, story)


# -- metrics ---------------------------------------------------------------------------------------------------------------------------------------


def test_metrics_have_the_kinds_and_tags_of_the_wire(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        desk.metrics.families = [
            Family("service.query_counter", "counter", "", ("api_name", "instance_id"), [(("A", ""), 3), (("A", "i"), 4)]),
            Family("service.query_rt_us", "gauge", "", ("api_name",), [(("A",), 7)]),
            Family("plain", "gauge", "", (), [((), math.inf)]),
            Family("odd", "counter", "", (), [((), math.nan)]),
            Histogram("time", "", (1.0, 2.0), ("api_name",), [(("A",), [1, 2, 3], 4.5)]),
        ]
        code, _, reply = await desk.call("GetMetrics", admin.GetMetricsRequest())
        assert code == OK
        assert reply.timestamp == desk.world.clock.wall_us() // 1000
        seen = [
            (data.metric_name, data.metric_value.WhichOneof("value"), [(tag.tag_key, tag.tag_value) for tag in data.metric_tags], data.metric_value)
            for data in reply.metrics
        ]
        assert [item[:3] for item in seen] == [
            ("service.query_counter", "int_value", [("api_name", "A")]),
            ("service.query_counter", "int_value", [("api_name", "A"), ("instance_id", "i")]),
            ("service.query_rt_us", "float_value", [("api_name", "A")]),
            ("plain", "float_value", []),
            ("odd", "int_value", []),
            ("time.sum", "float_value", [("api_name", "A")]),
            ("time.count", "int_value", [("api_name", "A")]),
        ]
        assert [value.int_value or value.float_value for *_, value in seen] == [3, 4, 7, math.inf, 0, 4.5, 6]
        assert reply.extra_data == ""

    play(tmp_path, story)


def test_metrics_are_bounded_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: RpcDesk) -> None:
        monkeypatch.setattr(admin_metrics, "MAX_SERIES", 300)
        desk.metrics.families = [Family("many", "counter", "", ("n",), [((str(n),), n) for n in range(1000)])]
        _, _, reply = await desk.call("GetMetrics", admin.GetMetricsRequest())
        assert len(reply.metrics) == 300
        assert json.loads(reply.extra_data) == {"dropped_series": 700}

    play(tmp_path, story)


# -- one node --------------------------------------------------------------------------------------------------------------------------------------


def test_the_campaign_delay_takes_any_value(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        for value in (100_000, 0, -1, (1 << 63) - 1, -(1 << 63)):
            assert (await desk.call("UpdateLeaderElectorConfig", admin.UpdateLeaderElectorConfigRequest(campaign_delay_time_ms=value)))[:2] == (OK, "")
            _, _, reply = await desk.call("GetLeaderElectorConfig", admin.GetLeaderElectorConfigRequest())
            assert reply.campaign_delay_time_ms == value

    play(tmp_path, story)


def test_a_node_steps_down_once(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        assert (await desk.call("LeaderDemote", admin.LeaderDemoteRequest()))[:2] == (OK, "")
        code, message, _ = await desk.call("LeaderDemote", admin.LeaderDemoteRequest())
        assert code == ErrorCode.SERVER_NOT_LEADER
        assert "does not lead" in message

    play(tmp_path, story)


def test_log_levels_have_four_names_in_any_case(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        for name in ("DEBUG", "info", "Warn", "eRRor"):
            assert (await desk.call("UpdateLogger", admin.UpdateLoggerRequest(log_level=name, module_name="any")))[:2] == (OK, "")
        assert desk.log_levels == [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]

    play(tmp_path, story)


# -- force -----------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "false", "1", "yes", "truee"])
def test_only_true_forces(value: str, tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        before = desk.state()
        assert (await desk.call("RemoveStorage", admin.RemoveStorageRequest(storage_unique_name="s"), x_kvcm_force=value))[0] == IN_USE
        assert (await desk.call("RemoveInstanceGroup", admin.RemoveInstanceGroupRequest(name="g"), x_kvcm_force=value))[0] == IN_USE
        assert desk.state() == before

    play(tmp_path, story)


@pytest.mark.parametrize("value", ["true", "TRUE", " true "])
def test_what_is_referenced_goes_when_the_call_is_forced(value: str, tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        assert (await desk.call("RemoveInstanceGroup", admin.RemoveInstanceGroupRequest(name="g"), x_kvcm_force=value))[:2] == (OK, "")
        assert (await desk.call("RemoveStorage", admin.RemoveStorageRequest(storage_unique_name="s"), x_kvcm_force=value))[:2] == (OK, "")
        assert desk.world.registry.get_group("g") is None
        assert desk.world.registry.get_storage("s") is None

    play(tmp_path, story)
