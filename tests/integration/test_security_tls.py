"""TLS on every listener of a manager: who can connect, with which certificate, and what changes while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import uvloop

from kvcm.common.errors import KvcmError
from kvcm.common.testing_ports import free_port
from kvcm.config.errors import SettingsError
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.http import listener as listener_module
from kvcm.service.server import ManagerServer
from kvcm.service.testing import InProcessManager
from kvcm.service.tls.testing import DAY, Authority, Pair

pytestmark = pytest.mark.integration

OURS, THEIRS = Authority("ours"), Authority("theirs")
REFUSALS = (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError)
Story = Callable[["Desk"], Awaitable[None]]


class Desk:
    """A manager whose files lie in `folder`, and clients that trust an authority and may show a certificate."""

    def __init__(self, folder: Path, server: ManagerServer) -> None:
        self.folder = folder
        self.server = server
        own = server.endpoint
        self.http_ports = {"meta": own.meta_http_port, "admin": own.admin_http_port, "debug": own.meta_http_port + 3000}
        self.grpc_ports = {"meta": own.meta_rpc_port, "admin": own.admin_rpc_port}

    def client(self, trusted: Authority, shown: Pair | None = None) -> httpx.AsyncClient:
        context = ssl.create_default_context(cadata=trusted.cert.decode())
        if shown is not None:
            context.load_cert_chain(*shown.write(self.folder, "shown"))
        return httpx.AsyncClient(verify=context, trust_env=False, timeout=10)

    async def http(self, plane: str, trusted: Authority, shown: Pair | None = None) -> int:
        async with self.client(trusted, shown) as client:
            reply = await client.post(f"https://localhost:{self.http_ports[plane]}/api/nothing", json={})
            return reply.status_code

    def channel(self, plane: str, trusted: Authority, shown: Pair | None = None) -> grpc.aio.Channel:
        key, cert = (None, None) if shown is None else (shown.key, shown.cert)
        credentials = grpc.ssl_channel_credentials(trusted.cert, key, cert)
        return grpc.aio.secure_channel(f"localhost:{self.grpc_ports[plane]}", credentials, options=(("grpc.use_local_subchannel_pool", 1),))

    async def rpc(self, plane: str, trusted: Authority, shown: Pair | None = None) -> str:
        async with self.channel(plane, trusted, shown) as channel:
            return await ask(channel, plane)

    async def everywhere(self, trusted: Authority, shown: Pair | None = None) -> dict[str, bool]:
        """Which listeners talk to such a client?"""
        found = {}
        for plane in self.http_ports:
            try:
                found[f"http {plane}"] = await self.http(plane, trusted, shown) == 404
            except REFUSALS:
                found[f"http {plane}"] = False
        for plane in self.grpc_ports:
            found[f"grpc {plane}"] = await self.rpc(plane, trusted, shown) == "OK"
        return found


async def ask(channel: Any, plane: str) -> str:
    path, request = {
        "meta": ("/kv_cache_manager.proto.meta.MetaService/GetClusterInfo", meta.GetClusterInfoRequest()),
        "admin": ("/kv_cache_manager.proto.admin.AdminService/CheckHealth", admin.CheckHealthRequest()),
    }[plane]
    try:
        await channel.unary_unary(path, request_serializer=lambda message: message.SerializeToString())(request, timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def run(folder: Path, pair: Pair, story: Story, more: Mapping[str, str] | None = None) -> None:
    async def whole() -> None:
        cert, key = pair.write(folder, "server")
        settings = {
            "kvcm.tls.cert_file": cert,
            "kvcm.tls.key_file": key,
            "kvcm.service.enable_debug_service": "true",
            "kvcm.service.admin_rpc_port": str(free_port()),
        }
        async with InProcessManager(settings | dict(more or {})) as server:
            await story(Desk(folder, server))

    # The loop of a real manager has its own TLS.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


ALL = dict.fromkeys(["http meta", "http admin", "http debug", "grpc meta", "grpc admin"], True)
NONE = dict.fromkeys(ALL, False)


def test_every_listener_speaks_tls_and_only_tls(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        assert await desk.everywhere(OURS) == ALL
        assert await desk.everywhere(THEIRS) == NONE
        async with httpx.AsyncClient(trust_env=False) as client:
            for port in desk.http_ports.values():
                with pytest.raises(REFUSALS):
                    await client.get(f"http://localhost:{port}/api/healthy")
        async with grpc.aio.insecure_channel(f"localhost:{desk.grpc_ports['admin']}") as channel:
            assert await ask(channel, "admin") == "UNAVAILABLE"

    run(tmp_path, OURS.issue(), story)


def test_clients_without_the_right_certificate_are_not_served_when_one_is_required(tmp_path: Path) -> None:
    authority = tmp_path / "clients.crt"
    authority.write_bytes(THEIRS.cert)

    async def story(desk: Desk) -> None:
        assert await desk.everywhere(OURS, THEIRS.issue("engine")) == ALL
        assert await desk.everywhere(OURS) == NONE
        assert await desk.everywhere(OURS, OURS.issue("engine")) == NONE
        assert await desk.everywhere(OURS, THEIRS.issue("engine", valid_for=-DAY)) == NONE
        # The authority of the clients is replaced: the old one's certificates are worth nothing from the next connection on.
        authority.write_bytes(OURS.cert)
        await desk.server.reload_credentials()
        assert await desk.everywhere(OURS, OURS.issue("engine")) == ALL
        assert await desk.everywhere(OURS, THEIRS.issue("engine")) == NONE
        async with httpx.AsyncClient(trust_env=False) as client:
            reply = await client.get(f"http://127.0.0.1:{probe_port}/readyz")
            assert (reply.status_code, reply.text) == (200, "ok")
            assert (await client.get(f"http://127.0.0.1:{probe_port}/api/healthy")).status_code == 404

    probe_port = free_port()
    run(tmp_path, OURS.issue(), story, {"kvcm.tls.client_ca_file": str(authority), "kvcm.service.probe_port": str(probe_port)})


def test_client_auth_none_keeps_the_authority_out_of_use(tmp_path: Path) -> None:
    authority = tmp_path / "clients.crt"
    authority.write_bytes(THEIRS.cert)

    async def story(desk: Desk) -> None:
        assert await desk.everywhere(OURS) == ALL

    run(tmp_path, OURS.issue(), story, {"kvcm.tls.client_ca_file": str(authority), "kvcm.tls.client_auth": "none"})


def test_the_meta_plane_can_stay_in_plain_text(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        assert await desk.everywhere(OURS) == ALL | {"http meta": False, "grpc meta": False}
        async with grpc.aio.insecure_channel(f"localhost:{desk.grpc_ports['meta']}") as channel:
            assert await ask(channel, "meta") == "OK"

    run(tmp_path, OURS.issue(), story, {"kvcm.tls.admin_only": "true"})


def test_whoever_never_begins_to_speak_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_S", 0.2)

    async def story(desk: Desk) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.http_ports["admin"])
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        assert await desk.http("admin", OURS) == 404

    run(tmp_path, OURS.issue(), story)


def test_an_expired_certificate_is_shown_to_be_expired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(desk: Desk) -> None:
        assert await desk.everywhere(OURS) == NONE
        assert "certificate_expired" in caplog.text
        fresh = OURS.issue()
        fresh.write(desk.folder, "server")
        await desk.server.reload_credentials()
        assert await desk.everywhere(OURS) == ALL

    run(tmp_path, OURS.issue(valid_for=-DAY), story)


def test_a_rotated_certificate_counts_from_the_next_connection_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(desk: Desk) -> None:
        async with desk.client(OURS) as client, desk.channel("admin", OURS) as channel:
            url = f"https://localhost:{desk.http_ports['admin']}/api/healthy"
            assert (await client.get(url)).status_code == 200
            assert await ask(channel, "admin") == "OK"
            # A certificate without its key must not take anything away.
            (desk.folder / "server.crt").write_bytes(THEIRS.issue().cert)
            await desk.server.reload_credentials()
            assert "credentials_kept" in caplog.text
            assert await desk.everywhere(OURS) == ALL
            THEIRS.issue().write(desk.folder, "server")
            await desk.server.reload_credentials()
            assert await desk.everywhere(THEIRS) == ALL
            assert await desk.everywhere(OURS) == NONE
            # Open connections go on.
            assert (await client.get(url)).status_code == 200
            assert await ask(channel, "admin") == "OK"
        async with desk.client(THEIRS) as client:
            page = (await client.get(f"https://localhost:{desk.http_ports['admin']}/metrics")).text
            assert "kvcm_tls_certificate_expiry_seconds 1" in page
            assert 'kvcm_credentials_failing{name="tls"} 0' in page

    run(tmp_path, OURS.issue(), story)


def test_a_manager_that_cannot_be_guarded_does_not_start(tmp_path: Path) -> None:
    async def start(settings: dict[str, str]) -> None:
        async with InProcessManager(settings):
            raise AssertionError("it has started")

    cert, _ = OURS.issue().write(tmp_path, "one")
    _, key = OURS.issue().write(tmp_path, "other")
    empty = tmp_path / "empty"
    empty.touch()
    for settings in (
        {"kvcm.tls.cert_file": cert, "kvcm.tls.key_file": key},
        {"kvcm.tls.cert_file": "/nonexistent", "kvcm.tls.key_file": key},
        {"kvcm.service.admin_auth_token_file": str(empty)},
        {"kvcm.service.meta_auth_token_file": "/nonexistent"},
    ):
        with pytest.raises(SettingsError) as caught:
            asyncio.run(start(settings))
        assert isinstance(caught.value, KvcmError)
        assert caught.value.message.endswith(".")
