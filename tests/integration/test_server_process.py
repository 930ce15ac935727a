"""A real manager process: readiness, the same answers over gRPC and HTTP, bad clients, metrics, ports, signals, restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from kvcm.common.testing_ports import free_port
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.admin_service_pb2_grpc import AdminServiceStub
from kvcm.protocol.json_codec import message_to_plain
from kvcm.protocol.meta_service_pb2_grpc import MetaServiceStub
from kvcm.service.embedded import EmbeddedManager
from kvcm.service.testing import InProcessManager, ManagerProcess

pytestmark = pytest.mark.integration

META = "kv_cache_manager.proto.meta.MetaService"
ADMIN = "kv_cache_manager.proto.admin.AdminService"


def startup_file(folder: Path) -> Path:
    """The built-in storage and group, with the root below `folder`."""
    root = folder / "bytes"
    root.mkdir(exist_ok=True)
    path = folder / "startup.json"
    storage = {"type": "file", "global_unique_name": "nfs_01", "storage_spec": {"root_path": f"{root}/", "key_count_per_file": 1}}
    group = {
        "name": "default",
        "storage_candidates": ["nfs_01"],
        "global_quota_group_name": "q",
        "max_instance_count": 100,
        "quota": {"capacity": 1_000_000, "quota_config": [{"storage_type": "file", "capacity": 1_000_000}]},
        "cache_config": {
            "reclaim_strategy": {"storage_unique_name": "nfs_01", "reclaim_policy": 1, "trigger_strategy": {"used_percentage": 0.8}},
            "cache_prefer_strategy": 2,
            "meta_indexer_config": {"max_key_count": 1000, "meta_storage_backend_config": {"storage_type": "local"}},
        },
        "version": 1,
    }
    path.write_text(json.dumps({"storage_config": storage, "instance_group": group}), encoding="utf-8")
    return path


def settings_of(folder: Path, **more: str) -> dict[str, str]:
    return {"kvcm.startup_config": str(startup_file(folder))} | {f"kvcm.{key.replace('__', '.')}": value for key, value in more.items()}


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagerProcess]:
    with ManagerProcess(settings_of(tmp_path_factory.mktemp("manager"))) as process:
        yield process


def post(url: str, body: bytes | Mapping[str, object], method: str = "POST") -> tuple[int, Any, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read(), response.headers.get("content-type", "")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers.get("content-type", "")


def get(url: str) -> tuple[int, bytes, str]:
    return post(url, b"", "GET")


def meta_stub(channel: grpc.Channel) -> Any:
    make: Any = MetaServiceStub
    return make(channel)


def admin_stub(channel: grpc.Channel) -> Any:
    make: Any = AdminServiceStub
    return make(channel)


def register(stub: Any, instance: str) -> Any:
    request = meta.RegisterInstanceRequest(
        trace_id="t",
        instance_group="default",
        instance_id=instance,
        block_size=4,
        model_deployment=meta.ModelDeployment(model_name="m", tp_size=1, dtype="fp16"),
        location_spec_infos=[meta.LocationSpecInfo(name="tp0", size=8)],
    )
    return stub.RegisterInstance(request, timeout=10)


def test_a_block_written_over_one_transport_is_read_equally_over_both(manager: ManagerProcess) -> None:
    with grpc.insecure_channel(manager.meta_address) as channel:
        stub = meta_stub(channel)
        assert register(stub, "both").header.status.code == meta.OK
        started = stub.StartWriteCache(
            meta.StartWriteCacheRequest(trace_id="t", instance_id="both", block_keys=[1, 2, 3], write_timeout_seconds=30), timeout=10
        )
        assert started.header.status.code == meta.OK
        assert len(started.locations) == 3
        status, body, kind = post(
            f"{manager.http_url}/api/finishWriteCache",
            {"trace_id": "t", "instance_id": "both", "write_session_id": started.write_session_id, "success_blocks": {"offset": 3}},
        )
        assert (status, kind) == (200, "application/json")
        assert json.loads(body)["header"]["status"]["code"] == "OK"
        request = meta.GetCacheLocationRequest(trace_id="t", instance_id="both", block_keys=[1, 2, 3, 4], query_type=meta.QT_PREFIX_MATCH)
        over_grpc = message_to_plain(stub.GetCacheLocation(request, timeout=10))
        query = {"trace_id": "t", "instance_id": "both", "block_keys": ["1", "2", 3, 4], "query_type": "QT_PREFIX_MATCH"}
        over_http = json.loads(post(f"{manager.http_url}/api/getCacheLocation", query)[1])
    assert over_grpc["locations"] == over_http["locations"]
    assert len(over_http["locations"]) == 3
    for reply in (over_grpc, over_http):
        reply["header"]["request_id"] = ""  # type: ignore[index]  # it ends with the time of the call
    assert over_grpc == over_http


def test_health_over_http_and_grpc(manager: ManagerProcess) -> None:
    assert get(f"{manager.admin_http_url}/api/healthy") == (200, b'{"status":"OK"}', "application/json")
    with grpc.insecure_channel(manager.meta_address) as channel:
        make: Any = health_pb2_grpc.HealthStub
        for service in ("", META, ADMIN):
            reply = make(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_both_services_share_the_rpc_port_when_the_admin_port_is_zero(manager: ManagerProcess) -> None:
    assert manager.admin_address == manager.meta_address
    with grpc.insecure_channel(manager.admin_address) as channel:
        reply = admin_stub(channel).CheckHealth(admin.CheckHealthRequest(trace_id="t"), timeout=10)
        assert reply.is_leader
        assert reply.is_health
        known = admin_stub(channel).GetManagerClusterInfo(admin.GetManagerClusterInfoRequest(), timeout=10)
    assert known.leader_node_id == manager.endpoint.node_id
    endpoint = known.leader_endpoint
    assert (endpoint.meta_rpc_port, endpoint.admin_http_port) == (manager.endpoint.meta_rpc_port, manager.endpoint.admin_http_port)


def test_metrics_parse_and_forget_removed_instances(manager: ManagerProcess) -> None:
    with grpc.insecure_channel(manager.meta_address) as channel:
        register(meta_stub(channel), "short lived")
        query = meta.GetCacheMetaRequest(instance_id="short lived", block_keys=[1])
        meta_stub(channel).GetCacheMeta(query, timeout=10)
        meta_stub(channel).GetCacheMeta(meta.GetCacheMetaRequest(instance_id="made up", block_keys=[1]), timeout=10)
        status, page, kind = get(f"{manager.admin_http_url}/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        text = page.decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert 'instance_id="short lived"' in text
        assert "made up" not in text
        for name in ("kvcm_loop_lag_max_seconds", "kvcm_gc_pause_seconds", "process_resident_memory_bytes", "kvcm_data_storage_healthy_status"):
            assert families[name].samples, name
        types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
        assert len(types) == len(set(types))
        admin_stub(channel).RemoveInstance(admin.RemoveInstanceRequest(trace_id="t", instance_group="default", instance_id="short lived"), timeout=10)
    assert "short lived" not in get(f"{manager.admin_http_url}/metrics")[1].decode()
    assert get(f"{manager.http_url}/metrics")[0] == 404


def test_bad_clients_do_not_disturb_the_others(manager: ManagerProcess) -> None:
    address = ("127.0.0.1", manager.endpoint.meta_http_port)
    head = b"POST /api/getClusterInfo HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
    slow = [socket.create_connection(address, timeout=10) for _ in range(20)]
    try:
        for number, sock in enumerate(slow):
            sock.sendall((b"", head, head + b'{"trace', b"\x16\x03\x01 not http")[number % 4])
        url = f"{manager.http_url}/api/getClusterInfo"
        assert post(url, b"not json")[:2] == (400, b"{}")
        assert post(url, b"[" * 100_000)[:2] == (400, b"{}")
        assert post(url, b" " * ((16 << 20) + 1))[:2] == (413, b"{}")
        assert get(url)[:2] == (404, b"404 Not Found")
        status, body, _ = post(url, b"{}")
        assert status == 200
        assert json.loads(body)["self_node_id"] == manager.endpoint.node_id
    finally:
        for sock in slow:
            sock.close()
    assert "Traceback" not in manager.log


def test_a_second_manager_on_the_same_port_says_so_and_ends(manager: ManagerProcess, tmp_path: Path) -> None:
    for key, port in (("rpc_port", manager.endpoint.meta_rpc_port), ("http_port", manager.endpoint.meta_http_port)):
        done = serve("-e", f"kvcm.service.{key}={port}", "-e", f"kvcm.startup_config={startup_file(tmp_path)}")
        assert done.returncode == 1
        assert f"Port {port} (kvcm.service.{key}) cannot be opened" in done.stderr
        assert "Traceback" not in done.stderr


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`kvcm serve` with free ports unless told otherwise; for runs that fail."""
    ports = [f"kvcm.service.{name}=0" for name in ("rpc_port", "http_port", "admin_rpc_port", "admin_http_port")]
    environ = {key: value for key, value in os.environ.items() if not key.lower().startswith("kvcm")}
    rest = [part for pair in ports for part in ("-e", pair)]
    command = [sys.executable, "-m", "kvcm.cli.main", "serve", *arguments, *rest]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=environ)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-c", "/nowhere/at/all"], "cannot be read"),
        (["-e", "no equals sign"], "key=value"),
        (["-e", "kvcm.logger.log_level=loud"], "whole number"),
        (["-e", "kvcm.coordination.uri=etcd://h"], "host:port"),
        (["-e", "kvcm.registry_storage.uri=nonsense"], "scheme"),
        (["-e", "kvcm.startup_config=/nowhere/at/all"], "startup configuration"),
        (["--nonsense"], "unrecognized arguments"),
    ],
)
def test_a_start_that_cannot_succeed_ends_with_one_sentence(arguments: list[str], sentence: str) -> None:
    done = serve(*arguments)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_sigterm_during_requests_ends_with_code_zero(tmp_path: Path) -> None:
    with ManagerProcess(settings_of(tmp_path)) as process:
        with grpc.insecure_channel(process.meta_address) as channel:
            register(meta_stub(channel), "busy")
        warm = threading.Event()

        def load(number: int) -> list[object]:
            codes: list[object] = []
            with grpc.insecure_channel(process.meta_address) as own:
                stub = meta_stub(own)
                while True:
                    keys = range(number * 1000, number * 1000 + 50)
                    request = meta.StartWriteCacheRequest(instance_id="busy", block_keys=keys, write_timeout_seconds=5)
                    try:
                        codes.append(stub.StartWriteCache(request, timeout=10).header.status.code)
                    except grpc.RpcError as error:
                        codes.append(error.code())
                        return codes
                    if len(codes) > 20:
                        warm.set()

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(load, number) for number in range(4)]
            assert warm.wait(15)
            process.send(signal.SIGTERM)
            assert process.wait() == 0
            lists = [future.result(15) for future in running]
        # Served, then sent to the next leader, then refused by gRPC without having run.
        order = {meta.OK: 0, meta.SERVER_NOT_LEADER: 1, grpc.StatusCode.UNAVAILABLE: 2, grpc.StatusCode.CANCELLED: 2}
        for codes in lists:
            ranks = [order[code] for code in codes]
            assert ranks == sorted(ranks)
            assert ranks.count(2) == 1
        assert "stopped" in process.log
        assert "Traceback" not in process.log


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    with ManagerProcess(settings_of(tmp_path)) as process:
        connection = socket.create_connection(("127.0.0.1", process.endpoint.meta_http_port), timeout=10)
        # A request whose body does not come keeps the stop waiting.
        connection.sendall(b"POST /api/getClusterInfo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 100\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        process.send(signal.SIGTERM)
        while "stopping" not in process.log:
            time.sleep(0.01)
        process.send(signal.SIGTERM)
        assert process.wait() == 1
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_every_stop_signal_ends_with_code_zero(number: signal.Signals, tmp_path: Path) -> None:
    with ManagerProcess(settings_of(tmp_path)) as process:
        process.send(number)
        assert process.wait() == 0


def test_a_separate_admin_port_serves_admin_only(tmp_path: Path) -> None:
    port = free_port()
    with ManagerProcess(settings_of(tmp_path, service__admin_rpc_port=str(port), metrics__enable_prometheus="false")) as process:
        assert process.admin_address == f"127.0.0.1:{port}"
        with grpc.insecure_channel(process.meta_address) as meta_channel, grpc.insecure_channel(process.admin_address) as admin_channel:
            assert admin_stub(admin_channel).CheckHealth(admin.CheckHealthRequest(), timeout=10).is_health
            with pytest.raises(grpc.RpcError) as refused:
                admin_stub(meta_channel).CheckHealth(admin.CheckHealthRequest(), timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            with pytest.raises(grpc.RpcError) as refused:
                meta_stub(admin_channel).GetClusterInfo(meta.GetClusterInfoRequest(), timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert get(f"{process.admin_http_url}/metrics")[0] == 404


def test_a_registry_file_survives_a_crash(tmp_path: Path) -> None:
    with ManagerProcess(settings_of(tmp_path, registry_storage__uri=f"local://{tmp_path}/registry")) as process:
        with grpc.insecure_channel(process.meta_address) as channel:
            assert register(meta_stub(channel), "kept").header.status.code == meta.OK
        process.kill()
        process.start()
        with grpc.insecure_channel(process.meta_address) as channel:
            reply = meta_stub(channel).GetInstanceInfo(meta.GetInstanceInfoRequest(instance_id="kept"), timeout=10)
        assert reply.header.status.code == meta.OK


def test_a_manager_that_cannot_take_over_answers_but_is_not_healthy(tmp_path: Path) -> None:
    """The storage of the startup configuration has no root: no leadership, a sentence in the log, 503, NOT_LEADER."""
    settings = settings_of(tmp_path)
    (tmp_path / "bytes").rmdir()
    (tmp_path / "bytes").write_text("not a folder", encoding="utf-8")

    async def scenario() -> None:
        server = InProcessManager(settings).server
        own = await server.start()
        try:
            async with asyncio.timeout(10):
                while not server.snapshot().elector_last_loop_ms or server.snapshot().leader_node_id:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            status, body, kind = await asyncio.to_thread(get, f"http://127.0.0.1:{own.admin_http_port}/api/healthy")
            assert (status, kind) == (503, "application/json")
            told = json.loads(body)
            assert told["is_health"] is False
            assert told["header"]["status"]["message"].startswith("no leader is known; this node won leadership but cannot take over: ")
            answer = await asyncio.to_thread(post, f"http://127.0.0.1:{own.meta_http_port}/api/getCacheLocation", b"{}")
            assert answer[0] == 200
            assert json.loads(answer[1])["header"]["status"]["code"] == "SERVER_NOT_LEADER"
            known = json.loads((await asyncio.to_thread(post, f"http://127.0.0.1:{own.meta_http_port}/api/getClusterInfo", b"{}"))[1])
            assert known["header"]["status"]["code"] == "OK"
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_an_embedded_manager_serves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    with EmbeddedManager(settings_of(tmp_path)) as embedded, grpc.insecure_channel(embedded.meta_address) as channel:
        assert register(meta_stub(channel), "inside").header.status.code == meta.OK
        assert get(f"{embedded.admin_http_url}/api/healthy")[0] == 200
        address = embedded.endpoint.meta_http_port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", address), timeout=5)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kvcm-embedded")]
    assert threading.active_count() <= before + 20


def test_an_embedded_manager_that_cannot_start_raises_here(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = settings_of(tmp_path, service__http_port=str(taken.getsockname()[1]))
        with pytest.raises(Exception, match="cannot be opened for HTTP"), EmbeddedManager(settings):
            raise AssertionError("it must not start")
