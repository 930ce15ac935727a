"""The gRPC clients and the command against a manager with TLS, client certificates, tokens and accounts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvcm.client import AccountLogin, AdminClient, AsyncMetaClient, BearerToken, ClientConfig, ClientSecurity, DebugClient, MetaClient, TlsFiles
from kvcm.client.admin_client import ManagerUnreachable
from kvcm.client.admin_types import AccountRole
from kvcm.client.errors import AccessDenied, ConnectFailed
from kvcm.service.testing import ManagerProcess
from kvcm.service.tls.testing import Authority

pytestmark = pytest.mark.integration

CANARY = "c4n4ry-t0ken-" + "0" * 32


@dataclass(frozen=True)
class Secured:
    manager: ManagerProcess
    folder: Path
    security: ClientSecurity

    @property
    def admin(self) -> str:
        return f"localhost:{self.manager.endpoint.admin_rpc_port}"

    @property
    def meta(self) -> str:
        return f"localhost:{self.manager.endpoint.meta_rpc_port}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """TLS with client certificates on every listener, one token for everything, accounts on."""
    folder = tmp_path_factory.mktemp("secured")
    ours = Authority()
    (folder / "ca.pem").write_bytes(ours.cert)
    cert, key = ours.issue().write(folder, "server")
    client_cert, client_key = ours.issue("a client").write(folder, "client")
    token = folder / "token"
    token.write_text(f"{CANARY}\n")
    settings = {
        "kvcm.tls.cert_file": cert,
        "kvcm.tls.key_file": key,
        "kvcm.tls.client_ca_file": str(folder / "ca.pem"),
        "kvcm.tls.client_auth": "require",
        "kvcm.service.admin_auth_token_file": str(token),
        "kvcm.service.meta_auth_token_file": str(token),
        "kvcm.service.auth": "accounts",
        "kvcm.service.enable_debug_service": "true",
    }
    tls = TlsFiles(str(folder / "ca.pem"), client_cert, client_key)
    with ManagerProcess(settings) as manager:
        yield Secured(manager, folder, ClientSecurity(tls, BearerToken(file=str(token))))


def _config(secured: Secured, security: ClientSecurity) -> ClientConfig:
    parsed = ClientConfig.parse(
        {
            "instance_group": "default",
            "instance_id": "secured",
            "block_size": 4,
            "address": [secured.meta],
            "location_spec_infos": {"tp0": 64},
            "model_deployment": {"model_name": "m", "dtype": "fp8"},
            "meta_channel_config": {"call_timeout": 10_000, "connection_timeout": 10_000},
        }
    )
    return replace(parsed, security=security)


def test_the_metadata_clients(secured: Secured) -> None:
    with MetaClient.connect(_config(secured, secured.security)) as meta:
        assert meta.start_write([1]).locations

    async def run() -> None:
        async with await AsyncMetaClient.connect(_config(secured, secured.security)) as found:
            assert (await found.get_instance_info()).instance_group == "default"

    asyncio.run(run())


def test_admin_and_debug(secured: Secured) -> None:
    async def run() -> None:
        async with AdminClient(secured.admin, security=secured.security) as admin:
            assert await admin.list_storages()
        async with DebugClient(secured.admin, security=secured.security) as debug:
            await debug.clear_faults()

    asyncio.run(run())


@pytest.mark.parametrize("credential", [None, BearerToken("wrong-" + "0" * 40)])
def test_a_wrong_token_is_refused_by_every_service(secured: Secured, credential: BearerToken | None) -> None:
    wrong = replace(secured.security, credential=credential)
    with pytest.raises(AccessDenied, match="token") as caught:
        MetaClient.connect(_config(secured, wrong))
    assert (caught.value.client_code, caught.value.retryable, caught.value.unknown_outcome) == (2, False, False)

    async def run() -> None:
        async with AdminClient(secured.admin, security=wrong) as admin:
            with pytest.raises(AccessDenied):
                await admin.list_storages()
            with pytest.raises(AccessDenied):
                await admin.delete_account("ann")
        async with DebugClient(secured.admin, security=wrong) as debug:
            with pytest.raises(AccessDenied):
                await debug.clear_faults()

    asyncio.run(run())


@pytest.mark.parametrize("tls", [None, "other authority", "no certificate"])
def test_the_wrong_certificates_reach_nobody(secured: Secured, tls: str | None, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(Authority("others").cert)
    files = {None: None, "other authority": TlsFiles(str(tmp_path / "ca.pem")), "no certificate": TlsFiles(str(secured.folder / "ca.pem"))}[tls]
    wrong = replace(secured.security, tls=files)
    with pytest.raises(ConnectFailed):
        MetaClient.connect(_config(secured, wrong))

    async def run() -> None:
        async with AdminClient(secured.admin, security=wrong, timeout_s=5) as admin:
            with pytest.raises(ManagerUnreachable):
                await admin.list_storages()

    asyncio.run(run())


def test_an_account_may_do_what_its_role_says(secured: Secured) -> None:
    async def run() -> None:
        async with AdminClient(secured.admin, security=secured.security) as admin:
            await admin.add_account("reader", "p4ssword-of-reader", AccountRole.USER)
        login = replace(secured.security, credential=AccountLogin("reader", "p4ssword-of-reader"))
        async with AdminClient(secured.admin, security=login) as admin:
            assert await admin.list_storages()
            with pytest.raises(AccessDenied, match="does not allow this"):
                await admin.remove_group("default")

    asyncio.run(run())


def _kvcm(secured: Secured, *arguments: str, token: bool = True) -> subprocess.CompletedProcess[str]:
    tls = secured.security.tls
    assert tls is not None
    identity = ["--tls-ca", tls.ca_file, "--tls-cert", tls.cert_file, "--tls-key", tls.key_file]
    if token:
        identity += ["--token-file", str(secured.folder / "token")]
    command = [sys.executable, "-m", "kvcm.cli.main", *arguments, "--manager", secured.admin, *identity]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command(secured: Secured) -> None:
    found = _kvcm(secured, "get", "storages", "-o", "json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)[0]["name"] == "nfs_01"
    refused = _kvcm(secured, "get", "storages", token=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"error: ListStorage: the manager at {secured.admin} wants a token that it accepts\n"
    assert _kvcm(secured, "call", "debug/ClearFaults").returncode == 0


def test_a_replay_with_the_metrics_page(secured: Secured) -> None:
    tls = secured.security.tls
    assert tls is not None
    address = f"https://localhost:{secured.manager.endpoint.admin_http_port}/metrics"
    command = [sys.executable, "-m", "kvcm.cli.main", "replay", "conversation", "--limit", "2", "--manager", secured.meta, "--metrics-url", address]
    identity = ["--tls-ca", tls.ca_file, "--tls-cert", tls.cert_file, "--tls-key", tls.key_file, "--token-file", str(secured.folder / "token")]
    done = subprocess.run([*command, *identity], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "reported usage" in done.stdout


def test_a_rotated_token_needs_no_new_client(secured: Secured) -> None:
    """The manager and its clients read the same file; each in its own time, so the client is asked until both have."""
    token = secured.folder / "token"
    second = "sec0nd-" + "1" * 40

    async def run() -> None:
        async with AdminClient(secured.admin, security=secured.security) as admin:
            await admin.list_storages()
            token.write_text(second)
            fresh = replace(secured.security, credential=BearerToken(second))
            async with AdminClient(secured.admin, security=fresh) as other:
                for client in (other, admin):
                    await _until_accepted(client)

    async def _until_accepted(client: AdminClient) -> None:
        async with asyncio.timeout(30):
            while True:
                try:
                    await client.list_storages()
                except AccessDenied:
                    await asyncio.sleep(0.05)
                else:
                    return

    try:
        asyncio.run(run())
    finally:
        token.write_text(CANARY)
    assert "sec0nd" not in secured.manager.log
    assert "c4n4ry" not in secured.manager.log
