"""Tokens in front of a whole manager, by HTTP and by gRPC: what is covered, what is open, and how a refusal looks (wire contract 3.6)."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvcm.common.testing_ports import free_port
from kvcm.config.passwords import Cost, PasswordHasher
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import debug_service_pb2 as debug
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service import server as server_module
from kvcm.service.http.body import MAX_BODY_BYTES
from kvcm.service.server import ManagerServer
from kvcm.service.testing import InProcessManager

pytestmark = pytest.mark.integration

GOOD, OTHER, META = "good-token-0123456789abcdef-0123456789", "other-token-0123456789abcdef-0123456789", "meta-token-0123456789abcdef-0123456789"
Story = Callable[["Desk"], Awaitable[None]]
RPCS: dict[str, tuple[str, Any]] = {
    "admin": ("/kv_cache_manager.proto.admin.AdminService/ListStorage", admin.ListStorageRequest()),
    "meta": ("/kv_cache_manager.proto.meta.MetaService/GetClusterInfo", meta.GetClusterInfoRequest()),
    "debug": ("/kv_cache_manager.proto.debug.DebugService/ClearFaults", debug.ClearFaultsRequest()),
}


class Desk:
    def __init__(self, server: ManagerServer, client: httpx.AsyncClient, channels: dict[str, Any]) -> None:
        self.server = server
        self.client = client
        self.channels = channels
        own = server.endpoint
        self.ports = {"meta": own.meta_http_port, "admin": own.admin_http_port, "debug": own.meta_http_port + 3000}

    async def http(self, plane: str, path: str, header: str | None = None, method: str = "POST") -> httpx.Response:
        headers = {} if header is None else {"Authorization": header}
        return await self.client.request(method, f"http://127.0.0.1:{self.ports[plane]}{path}", headers=headers, content=b"{}" if method == "POST" else None)

    async def rpc(self, plane: str, header: str | None = None) -> grpc.StatusCode:
        path, request = RPCS[plane]
        call = self.channels["meta" if plane == "meta" else "admin"].unary_unary(path, request_serializer=lambda message: message.SerializeToString())
        try:
            await call(request, timeout=10, metadata=None if header is None else (("authorization", header),))
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def run(story: Story, settings: Mapping[str, str]) -> None:
    async def whole() -> None:
        given = {"kvcm.service.enable_debug_service": "true", "kvcm.service.admin_rpc_port": str(free_port())} | dict(settings)
        async with InProcessManager(given) as server:
            own = server.endpoint
            async with (
                httpx.AsyncClient(trust_env=False, timeout=10) as client,
                grpc.aio.insecure_channel(f"127.0.0.1:{own.meta_rpc_port}") as to_meta,
                grpc.aio.insecure_channel(f"127.0.0.1:{own.admin_rpc_port}") as to_admin,
            ):
                await story(Desk(server, client, {"meta": to_meta, "admin": to_admin}))

    asyncio.run(whole())


def test_without_a_token_nothing_is_asked_for() -> None:
    async def story(desk: Desk) -> None:
        for plane in RPCS:
            assert await desk.rpc(plane) is grpc.StatusCode.OK
        assert (await desk.http("admin", "/api/listStorage", "nonsense")).status_code == 200
        assert (await desk.http("admin", "/metrics", method="GET")).status_code == 200

    run(story, {})


@pytest.mark.parametrize("source", ["list", "file"])
def test_admin_and_debug_are_closed_and_meta_is_open(source: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{OTHER}\n{GOOD}\n")
    settings = {"kvcm.service.admin_auth_token": f" {OTHER}, ,{GOOD}"} if source == "list" else {"kvcm.service.admin_auth_token_file": str(path)}

    async def story(desk: Desk) -> None:
        for plane, path, method in (
            ("admin", "/api/listStorage", "POST"),
            ("admin", "/api/healthy", "GET"),
            ("admin", "/metrics", "GET"),
            ("admin", "/no/such/page", "GET"),
            ("debug", "/api/clearFaults", "POST"),
        ):
            for header, challenge in (
                (None, 'Bearer realm="kvcm"'),
                ("Basic YTpi", 'Bearer realm="kvcm", error="invalid_request"'),
                (f"Bearer {GOOD} x", 'Bearer realm="kvcm", error="invalid_request"'),
                ("Bearer", 'Bearer realm="kvcm", error="invalid_request"'),
                ("Bearer wrong", 'Bearer realm="kvcm", error="invalid_token"'),
                (f"Bearer {GOOD[:-1]}", 'Bearer realm="kvcm", error="invalid_token"'),
            ):
                reply = await desk.http(plane, path, header, method)
                assert (reply.status_code, reply.text) == (401, '{"error":"unauthorized"}'), path
                assert (reply.headers["content-type"], reply.headers["www-authenticate"]) == ("application/json", challenge)
            for header in (f"Bearer {GOOD}", f"bearer \t {OTHER}"):
                assert (await desk.http(plane, path, header, method)).status_code == (404 if path.startswith("/no") else 200), path
        for plane in ("admin", "debug"):
            for wrong in (None, "Bearer wrong", GOOD, "Basic YTpi"):
                assert await desk.rpc(plane, wrong) is grpc.StatusCode.UNAUTHENTICATED
            assert await desk.rpc(plane, f"Bearer {GOOD}") is grpc.StatusCode.OK
        assert await desk.rpc("meta") is grpc.StatusCode.OK
        assert (await desk.http("meta", "/api/getClusterInfo")).status_code == 200
        # Probes tell nothing, and so need nothing.
        for path, text in (("/healthz", "ok"), ("/readyz", "ok")):
            reply = await desk.http("admin", path, method="GET")
            assert (reply.status_code, reply.text) == (200, text)
        health: Any = health_pb2_grpc.HealthStub(desk.channels["admin"])
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        page = (await desk.http("admin", "/metrics", f"Bearer {GOOD}", "GET")).text
        assert 'kvcm_auth_refused_counter{plane="admin",reason="missing"} 7' in page

    run(story, settings)


def test_the_plain_key_can_cover_http_alone_as_upstream() -> None:
    async def story(desk: Desk) -> None:
        assert await desk.rpc("admin") is grpc.StatusCode.OK
        assert (await desk.http("admin", "/api/listStorage")).status_code == 401

    run(story, {"kvcm.service.admin_auth_token": GOOD, "kvcm.service.admin_auth_http_only": "true"})


def test_tokens_on_the_port_that_both_services_share() -> None:
    async def story(desk: Desk) -> None:
        assert await desk.rpc("meta") is grpc.StatusCode.OK
        assert await desk.rpc("admin") is grpc.StatusCode.UNAUTHENTICATED
        assert await desk.rpc("admin", f"Bearer {GOOD}") is grpc.StatusCode.OK

    run(story, {"kvcm.service.admin_auth_token": GOOD, "kvcm.service.admin_rpc_port": "0"})


def test_the_meta_plane_has_tokens_of_its_own_and_takes_those_of_administrators(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    path.write_text(META)

    async def story(desk: Desk) -> None:
        for header, status, code in (
            (None, grpc.StatusCode.UNAUTHENTICATED, 401),
            ("Bearer wrong", grpc.StatusCode.UNAUTHENTICATED, 401),
            (f"Bearer {META}", grpc.StatusCode.OK, 200),
            (f"Bearer {GOOD}", grpc.StatusCode.OK, 200),
        ):
            assert await desk.rpc("meta", header) is status
            assert (await desk.http("meta", "/api/getClusterInfo", header)).status_code == code
        assert await desk.rpc("admin", f"Bearer {META}") is grpc.StatusCode.UNAUTHENTICATED
        assert (await desk.http("admin", "/api/listStorage", f"Bearer {META}")).status_code == 401

    run(story, {"kvcm.service.meta_auth_token_file": str(path), "kvcm.service.admin_auth_token": GOOD})


def test_tokens_change_with_their_file_and_a_broken_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text(GOOD)

    async def accepted(desk: Desk, token: str) -> bool:
        by_rpc = await desk.rpc("admin", f"Bearer {token}") is grpc.StatusCode.OK
        by_http = (await desk.http("admin", "/api/listStorage", f"Bearer {token}")).status_code == 200
        assert by_rpc == by_http
        return by_rpc

    async def story(desk: Desk) -> None:
        assert (await accepted(desk, GOOD), await accepted(desk, OTHER)) == (True, False)
        path.write_text(f"{GOOD},{OTHER}")
        await desk.server.reload_credentials()
        assert (await accepted(desk, GOOD), await accepted(desk, OTHER)) == (True, True)
        path.write_text(OTHER)
        await desk.server.reload_credentials()
        assert (await accepted(desk, GOOD), await accepted(desk, OTHER)) == (False, True)
        for damage in (b"", b"\xff\xfe", b"two words"):
            path.write_bytes(damage)
            await desk.server.reload_credentials()
            assert (await accepted(desk, GOOD), await accepted(desk, OTHER)) == (False, True)
        assert "holds no token" in caplog.text
        page = (await desk.http("admin", "/metrics", f"Bearer {OTHER}", "GET")).text
        assert 'kvcm_credentials_failing{name="admin_tokens"} 1' in page

    run(story, {"kvcm.service.admin_auth_token_file": str(path)})


def test_a_refused_call_costs_no_body() -> None:
    async def story(desk: Desk) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.ports["admin"])
        # The body is announced and never sent: the answer comes all the same, and the connection ends.
        writer.write(b"POST /api/listStorage HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MAX_BODY_BYTES)
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert answer.endswith(b'{"error":"unauthorized"}')
        writer.close()
        # Two headers, one of them good, are not one good header.
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.ports["admin"])
        head = f"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {GOOD}\r\nAuthorization: Bearer wrong\r\n\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()

    run(story, {"kvcm.service.admin_auth_token": GOOD})


def test_a_manager_for_this_machine_only(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        assert desk.server.endpoint.host == "127.0.0.1"

    run(story, {})


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_ipv6_listeners() -> None:
    async def whole() -> None:
        async with InProcessManager({"kvcm.service.bind_host": "::1"}) as server:
            own = server.endpoint
            to_meta: Any = grpc.aio.insecure_channel(f"[::1]:{own.meta_rpc_port}")
            async with httpx.AsyncClient(trust_env=False) as client, to_meta as channel:
                assert (await client.get(f"http://[::1]:{own.admin_http_port}/api/healthy")).status_code == 200
                await channel.unary_unary(RPCS["meta"][0])(b"", timeout=10)

    asyncio.run(whole())


def test_accounts_with_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    # A hash that takes a fifth of a second is right for passwords and wrong for a test.
    monkeypatch.setattr(server_module, "PasswordHasher", partial(PasswordHasher, Cost(n=16, r=1, p=1)))

    def basic(user: str, password: str) -> str:
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    async def story(desk: Desk) -> None:
        add = {"trace_id": "t", "user_name": "ann", "password": "ann-password", "role": "ROLE_USER"}
        url = f"http://127.0.0.1:{desk.ports['admin']}/api/"
        own = {"Authorization": f"Bearer {GOOD}"}
        for body in (add, add | {"user_name": "root", "password": "root-password", "role": "ROLE_ADMIN"}):
            reply = await desk.client.post(url + "addAccount", json=body, headers=own)
            assert reply.json()["header"]["status"]["code"] == "OK"
        ann, root = basic("ann", "ann-password"), basic("root", "root-password")
        assert (await desk.http("admin", "/api/listStorage", ann)).status_code == 200
        assert (await desk.http("admin", "/metrics", ann, "GET")).status_code == 200
        for path in ("/api/addStorage", "/api/addAccount", "/api/listAccount", "/api/genConfigSnapshot"):
            assert (await desk.http("admin", path, ann)).status_code == 403
            assert (await desk.http("admin", path, root)).status_code == 200
        assert (await desk.http("debug", "/api/clearFaults", ann)).status_code == 403
        assert await desk.rpc("admin", ann) is grpc.StatusCode.OK
        assert await desk.rpc("debug", ann) is grpc.StatusCode.PERMISSION_DENIED
        assert await desk.rpc("debug", root) is grpc.StatusCode.OK
        refused = await desk.http("admin", "/api/listStorage", basic("ann", "root-password"))
        assert refused.status_code == 401
        assert refused.headers.get_list("www-authenticate") == ['Bearer realm="kvcm", error="invalid_token"', 'Basic realm="kvcm", charset="UTF-8"']
        # What is remembered about an account ends with it.
        await desk.client.post(url + "deleteAccount", json={"user_name": "ann"}, headers=own)
        assert await desk.rpc("admin", ann) is grpc.StatusCode.UNAUTHENTICATED
        for _ in range(10):
            last = await desk.http("admin", "/api/listStorage", basic("root", "guess"))
        assert last.status_code == 401
        assert (await desk.http("admin", "/api/listStorage", basic("root", "guess"))).status_code == 429
        assert await desk.rpc("admin", root) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await desk.rpc("admin", f"Bearer {GOOD}") is grpc.StatusCode.OK

    run(story, {"kvcm.service.auth": "accounts", "kvcm.service.admin_auth_token": GOOD})
