"""Every method of the HTTP client against a real manager process, and what it makes of a manager that steps down, stops, or wants a token over TLS."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcm.client import AdminClient, ClientSecurity, KvCacheManagerClient
from kvcm.client.errors import AccessDenied, RpcFailed, ServiceDuplicate, ServiceInstanceUnknown, ServiceInvalidArgument, ServiceNotLeader
from kvcm.common.testing_ports import free_port
from kvcm.service.testing import ManagerProcess
from kvcm.service.tls.testing import Authority

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def manager() -> Iterator[ManagerProcess]:
    with ManagerProcess() as process:
        yield process


@pytest.fixture
def client(manager: ManagerProcess) -> Iterator[KvCacheManagerClient]:
    with KvCacheManagerClient(manager.http_url, request_timeout_seconds=10) as found:
        yield found


def _instance(instance_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "trace_id": "http",
        "instance_group": "default",
        "instance_id": instance_id,
        "block_size": 4,
        "location_spec_infos": [{"name": "tp0", "size": 1024}],
        "model_deployment": {"model_name": "m", "dtype": "fp8"},
    } | changes


def _of(instance_id: str, **fields: Any) -> dict[str, Any]:
    return {"trace_id": "http", "instance_id": instance_id, **fields}


def test_a_block_from_its_registration_to_its_end(client: KvCacheManagerClient) -> None:
    assert client.register_instance(_instance("life"))["header"]["status"]["code"] == "OK"
    assert client.get_instance_info(_of("life"))["instance_info"]["block_size"] == 4
    session = client.start_write_cache(_of("life", block_keys=[1, -(1 << 63)], write_timeout_seconds=30))
    assert len(session["locations"]) == 2
    client.finish_write_cache(_of("life", write_session_id=session["write_session_id"], success_blocks={"bool_masks": {"values": [True, True]}}))
    query = _of("life", query_type="QT_PREFIX_MATCH", block_keys=[1, -(1 << 63)])
    assert client.get_cache_location(query)["locations"] == session["locations"]
    assert client.get_cache_location_len(query)["cache_location_len"] == "2"
    assert client.get_cache_meta(_of("life", block_keys=[1]))["locations"] == session["locations"][:1]
    (item,) = client.get_cache_meta_detail(_of("life", block_keys=["-9223372036854775808"]))["items"]
    assert (item["block_key"], item["locations"][0]["status"]) == ("-9223372036854775808", "CLS_SERVING")
    selected = client.get_cache_locations_by_backend(
        _of("life", query_type="QT_BATCH_GET", block_keys=[1, 7], backend_selectors=[{"backend_type": "ST_NFS", "strategy": "LSS_WEIGHTED_RANDOM"}])
    )
    assert selected["key_locations"] == [{"locations": session["locations"][:1]}, {"locations": []}]
    client.remove_cache(_of("life", block_keys=[-(1 << 63)]))
    assert client.get_cache_location_len(query)["cache_location_len"] == "1"
    client.trim_cache(_of("life", strategy="TS_REMOVE_ALL_CACHE"))
    assert client.get_cache_location_len(query)["cache_location_len"] == "0"


def test_reports_of_hosts_need_a_storage_for_them(client: KvCacheManagerClient) -> None:
    client.register_instance(_instance("life"))
    event = {"event_type": "EVENT_HEARTBEAT", "heartbeat": {"system_status": {}}}
    with pytest.raises(ServiceInstanceUnknown, match="event_report_storage_candidates"):
        client.report_event(_of("life", host_ip_port="10.0.0.1:1", storage_type="ST_EVENT_REPORT_L2", events=[event]))
    assert client.get_host_cache_state(_of("life", block_cache_keys=[1]))["hosts"] == []


def test_refusals_are_the_errors_of_their_codes(client: KvCacheManagerClient) -> None:
    client.register_instance(_instance("twice"))
    with pytest.raises(ServiceDuplicate, match="block_size"):
        client.register_instance(_instance("twice", block_size=8))
    refused = client.register_instance(_instance("twice", block_size=8), check_response=False)
    assert refused["header"]["status"]["code"] == "DUPLICATE_ENTITY"
    assert "storage_configs" in refused
    with pytest.raises(ServiceInstanceUnknown):
        client.get_instance_info(_of("nobody"))
    with pytest.raises(ServiceInvalidArgument, match="HTTP status 400"):
        client.get_instance_info({"instance_id": []})


def test_the_leader_is_found_and_waited_for_when_it_steps_down(manager: ManagerProcess) -> None:
    async def step_down() -> None:
        async with AdminClient(manager.admin_address) as admin:
            await admin.leader_demote()

    with KvCacheManagerClient(
        f"static://127.0.0.1:{manager.endpoint.meta_http_port}",
        instance_id="leader",
        auto_discover_leader=True,
        leader_retry_count=100,
        leader_retry_base_interval_seconds=0.001,
        request_timeout_seconds=10,
    ) as client:
        assert client.base_url.endswith(f":{manager.endpoint.meta_http_port}")
        assert client.get_cluster_info(_of("leader"))["leader_endpoint"]["meta_http_port"] == manager.endpoint.meta_http_port
        client.register_instance(_instance("leader"))
        for number in range(3):
            asyncio.run(step_down())
            client.start_write_cache(_of("leader", block_keys=[number], write_timeout_seconds=30))


def test_a_manager_that_does_not_lead_is_an_error_without_discovery() -> None:
    async def stay_out(address: str) -> None:
        async with AdminClient(address) as admin:
            await admin.set_campaign_delay(3_600_000)
            await admin.leader_demote()

    with ManagerProcess() as manager, KvCacheManagerClient(manager.http_url, request_timeout_seconds=10) as client:
        client.register_instance(_instance("x"))
        asyncio.run(stay_out(manager.admin_address))
        with pytest.raises(ServiceNotLeader):
            client.register_instance(_instance("x"))


def test_a_manager_that_was_killed_and_comes_back() -> None:
    with ManagerProcess({"kvcm.service.http_port": str(free_port())}) as manager, KvCacheManagerClient(manager.http_url, request_timeout_seconds=10) as client:
        client.register_instance(_instance("x"))
        manager.kill()
        with pytest.raises(RpcFailed) as caught:
            client.start_write_cache(_of("x", block_keys=[1]))
        # The kernel said that nobody is there any more, before anything was sent or by cutting the connection.
        assert caught.value.grpc_status == "UNAVAILABLE"
        manager.start()
        client.register_instance(_instance("x"))
        assert client.start_write_cache(_of("x", block_keys=[1]))["locations"]


def test_every_public_method_is_here() -> None:
    story = Path(__file__).read_text()
    public = {name for name, value in vars(KvCacheManagerClient).items() if not name.startswith("_") and inspect.isfunction(value)}
    assert {name for name in public - {"close"} if f"client.{name}(" not in story} == set()
    assert len(public) == 15


def test_over_tls_with_a_token(tmp_path: Path) -> None:
    ours = Authority()
    cert, key = ours.issue().write(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(ours.cert)
    token = tmp_path / "token"
    token.write_text("c4n4ry-" + "0" * 40)
    settings = {
        "kvcm.tls.cert_file": cert,
        "kvcm.tls.key_file": key,
        "kvcm.service.meta_auth_token_file": str(token),
    }
    with ManagerProcess(settings) as manager:
        address = manager.http_url.replace("http://", "https://")
        good = ClientSecurity.of(ca_file=str(tmp_path / "ca.pem"), token_file=str(token))
        with KvCacheManagerClient(address, security=good, auto_discover_leader=True, request_timeout_seconds=10) as client:
            assert client.base_url.startswith("https://")
            client.register_instance(_instance("x"))
        known = ClientSecurity.of(ca_file=str(tmp_path / "ca.pem"))
        with KvCacheManagerClient(address, security=known, request_timeout_seconds=10) as nobody, pytest.raises(AccessDenied, match="token"):
            nobody.register_instance(_instance("x"))
        with KvCacheManagerClient(address, request_timeout_seconds=10) as stranger, pytest.raises(RpcFailed, match="certificate that is not accepted"):
            stranger.register_instance(_instance("x"))
        with KvCacheManagerClient(manager.http_url, security=good, request_timeout_seconds=10) as plain, pytest.raises(RpcFailed):
            plain.register_instance(_instance("x"))
        assert "c4n4ry" not in manager.log
