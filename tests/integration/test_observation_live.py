"""A real manager with everything on that looks: access log, events, reporter, metrics; and what is left of an instance that was removed."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvcm.metrics.catalogue import FAMILIES, Spec
from kvcm.metrics.text import sanitise
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.testing import InProcessManager, ManagerProcess

pytestmark = pytest.mark.integration

CANARY = "c4n4ry-word"
OBSERVED = {
    "kvcm.access_log.enabled": "true",
    "kvcm.access_log.with_payload": "true",
    "kvcm.metrics.reporter_type": "logging",
    "kvcm.metrics.report_interval_ms": "100",
    "kvcm.event.event_publishers_configs": '{"log":{"enable":true}}',
}


@pytest.fixture
def startup(tmp_path: Path) -> str:
    """A start-up file whose storage is under the test's folder."""
    from kvcm.config.persisted import group_to_dict, storage_to_dict
    from kvcm.config.startup import default_group, default_storage

    storage: dict[str, Any] = storage_to_dict(default_storage())
    storage["storage_spec"]["root_path"] = f"{tmp_path}/nfs/"
    path = tmp_path / "startup.json"
    path.write_text(json.dumps({"storage_config": storage, "instance_group": group_to_dict(default_group())}))
    return str(path)


def post(url: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/api/{name}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def records(log: str, logger: str) -> Iterator[str]:
    for line in log.splitlines():
        if f"logger={logger} " in line:
            yield line.partition(f"logger={logger} ")[2]


def test_everything_that_looks_sees_the_calls_and_no_secret(startup: str) -> None:
    with ManagerProcess(OBSERVED | {"kvcm.startup_config": startup}) as manager:
        url, admin_url = manager.http_url, manager.admin_http_url
        specs = [{"name": "tp0", "size": 64}]
        register = {
            "instance_group": "default",
            "instance_id": "i",
            "block_size": 16,
            "model_deployment": {"model_name": "m", "dtype": "bf16"},
            "location_spec_infos": specs,
        }
        assert post(url, "registerInstance", register)["header"]["status"]["code"] == "OK"
        started = post(url, "startWriteCache", {"trace_id": "w", "instance_id": "i", "block_keys": ["1", "2"], "write_timeout_seconds": 60})
        finish = {"instance_id": "i", "write_session_id": started["write_session_id"], "success_blocks": {"offset": 2}}
        assert post(url, "finishWriteCache", finish)["header"]["status"]["code"] == "OK"
        read = {"trace_id": "r__kvcm_need_span_tracer", "instance_id": "i", "query_type": "QT_PREFIX_MATCH", "block_keys": ["1", "2", "3"]}
        found = post(url, "getCacheLocation", read)
        assert len(found["locations"]) == 2
        assert "span_time_us" in json.loads(found["header"]["tracer_result"])
        account = {"trace_id": "a", "user_name": "u", "password": CANARY, "role": "ROLE_USER"}
        post(admin_url, "addAccount", account)
        with grpc.insecure_channel(manager.meta_address) as channel:
            untyped: Any = channel  # the stubs insist on serialisers
            call = untyped.unary_unary("/kv_cache_manager.proto.meta.MetaService/GetCacheMeta")
            call(meta.GetCacheMetaRequest(trace_id="g", instance_id="i", block_keys=[1]).SerializeToString(), timeout=10)
        assert manager.stop() == 0
        log = manager.log
    assert CANARY not in log
    lines = [json.loads(line) for line in records(log, "kvcm.access")]
    by_api = {line["api_name"]: line for line in lines}
    assert {"RegisterInstance", "StartWriteCache", "FinishWriteCache", "GetCacheLocation", "AddAccount", "GetCacheMeta"} <= set(by_api)
    assert (by_api["GetCacheLocation"]["blocks"], by_api["GetCacheLocation"]["hit_blocks"], by_api["GetCacheLocation"]["client_ip"]) == (3, 2, "127.0.0.1")
    assert by_api["GetCacheMeta"]["client_ip"] == "127.0.0.1"
    assert by_api["AddAccount"]["request"]["password"] == "***"
    events = [json.loads(line)["type"] for line in records(log, "kvcm.event.log")]
    assert events == ["StartWriteCache", "FinishWriteCache", "GetCacheLocation"]
    assert any("metric=service.query_counter" in line for line in records(log, "kvcm.metrics.report"))


def test_the_page_has_only_families_of_the_catalogue_and_forgets_what_is_gone(startup: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with (
            InProcessManager(OBSERVED | {"kvcm.startup_config": startup}) as server,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.endpoint.meta_rpc_port}") as channel,
        ):

            async def ask(service: str, name: str, request: Any, reply_cls: Any) -> Any:
                package = "meta" if service == "MetaService" else "admin"
                untyped: Any = channel  # the stubs insist on serialisers
                call = untyped.unary_unary(f"/kv_cache_manager.proto.{package}.{service}/{name}")
                reply = reply_cls.FromString(await call(request.SerializeToString(), timeout=10))
                assert reply.header.status.code == 1, reply.header.status.message
                return reply

            async def page() -> str:
                url = f"http://127.0.0.1:{server.endpoint.admin_http_port}/metrics"

                def get() -> bytes:
                    with urllib.request.urlopen(url, timeout=10) as answer:
                        return bytes(answer.read())

                return (await asyncio.to_thread(get)).decode()

            infos = [meta.LocationSpecInfo(name="tp0", size=64)]
            register = meta.RegisterInstanceRequest(
                instance_group="default",
                instance_id="gone-soon",
                block_size=16,
                model_deployment=meta.ModelDeployment(model_name="m", dtype="bf16"),
                location_spec_infos=infos,
            )
            await ask("MetaService", "RegisterInstance", register, meta.RegisterInstanceResponse)
            start = meta.StartWriteCacheRequest(instance_id="gone-soon", block_keys=[1, 2], write_timeout_seconds=600)
            await ask("MetaService", "StartWriteCache", start, meta.StartWriteCacheResponse)
            await ask("AdminService", "ListStorage", admin.ListStorageRequest(), admin.ListStorageResponse)
            before = await page()
            check_families(before)
            assert 'kvcm_service_query_counter{api_name="ListStorage"} 1' in before
            assert 'kvcm_service_query_counter{api_name="StartWriteCache",instance_group="default",instance_id="gone-soon"} 1' in before
            assert 'kvcm_data_storage_create_keys_counter{type="file",unique_name="nfs_01"} 2' in before
            assert re.search(r"^kvcm_coordination_promotion_counter 1$", before, re.MULTILINE)
            assert "kvcm_build_info{" in before
            remove = admin.RemoveInstanceRequest(instance_group="default", instance_id="gone-soon")
            await ask("AdminService", "RemoveInstance", remove, admin.CommonResponse)
            after = await page()
            assert "gone-soon" not in after
            assert re.search(r"^kvcm_write_session_aborted_counter 1$", after, re.MULTILINE)
            assert re.search(r'^kvcm_event_published_counter{publisher="log"} 1$', after, re.MULTILINE)

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())


def check_families(page: str) -> None:
    known = {sanitise("kvcm", spec.name): spec for spec in FAMILIES}
    for family in text_string_to_metric_families(page):
        if not family.name.startswith("kvcm_"):
            continue
        # The parser takes `_total` for a suffix of its own.
        spec = known.get(family.name) or known[f"{family.name}_total"]
        assert family.type == (spec.kind if isinstance(spec, Spec) else "histogram"), family.name
        assert {label for sample in family.samples for label in sample.labels} <= {*spec.labels, "le"}
