"""The etcd client and what guards an etcd: users whose tokens run out, TLS, client certificates that are renewed on disk; and secrets that show nowhere."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from kvcm.etcd.client import EtcdClient
from kvcm.etcd.errors import AccessRefused, EtcdUnavailable
from kvcm.etcd.testing import PROGRAM, EtcdServer, ServerTls, enable_auth
from kvcm.etcd.uri import parse_etcd_uri
from kvcm.service.tls.testing import Authority

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")]

PASSWORD = "canary-pass word"


def test_tokens_are_renewed_whenever_etcd_forgets_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def run() -> None:
        with EtcdServer("--auth-token-ttl=1") as etcd:
            (tmp_path / "user").write_text("kvcm\n")
            (tmp_path / "password").write_text("wrong canary\n")
            client = EtcdClient(parse_etcd_uri(f"etcd://{etcd.address}?username_file={tmp_path}/user&password_file={tmp_path}/password"))
            await client.put(b"a", b"1")  # nobody is asked yet: a user does not hurt
            enable_auth(etcd.address, {"root": "r", "kvcm": PASSWORD})
            with pytest.raises(AccessRefused, match="does not accept the user and password") as caught:
                await client.get(b"a")
            assert "canary" not in str(caught.value)
            # The Secret is corrected; no restart is needed.
            (tmp_path / "password").write_text(PASSWORD + "\n")
            found, revision = await client.get(b"a")
            assert found is not None
            watch = client.watch(b"a", start_revision=revision + 1, silence_s=0.5)
            await watch.next()
            lease = await client.grant(30)
            # Unused for longer than its life, then forgotten by a restart.
            await asyncio.sleep(2.5)
            await client.put(b"a", b"2", lease.id)
            assert await client.keep_alive(lease.id)
            etcd.only.kill()
            etcd.only.start()
            found, _ = await client.get(b"a", timeout_s=10)
            assert found is not None
            assert found.value == b"2"
            seen = b""
            async with asyncio.timeout(20):
                while not seen:
                    try:
                        events = (await watch.next()).events
                    except EtcdUnavailable:
                        continue
                    seen = events[0].kv.value if events else b""
            assert seen == b"2"
            await watch.close()
            await client.close()
            stranger = EtcdClient(parse_etcd_uri(f"etcd://{etcd.address}"))
            with pytest.raises(AccessRefused, match="without a valid login"):
                await stranger.get(b"a")
            await stranger.close()
            named = EtcdClient(parse_etcd_uri(f"etcd://kvcm:{PASSWORD.replace(' ', '%20')}@{etcd.address}"))
            await named.put(b"a", b"3")
            await named.close()

    asyncio.run(run())
    assert "canary" not in caplog.text


def test_certificates_are_read_again_when_they_are_renewed(tmp_path: Path) -> None:
    authority, other = Authority(), Authority("another one")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.cert)
    cert, key = authority.issue().write(tmp_path, "server")
    own_cert, own_key = authority.issue("test").write(tmp_path, "test")
    mine_cert, mine_key = authority.issue("kvcm").write(tmp_path, "kvcm")

    async def run() -> None:
        with EtcdServer(tls=ServerTls(cert, key, str(ca), str(ca), own_cert, own_key)) as etcd:
            uri = f"etcd://localhost:{etcd.only.port}/x?ca={ca}&cert={mine_cert}&key={mine_key}&timeout_ms=3000"
            client = EtcdClient(parse_etcd_uri(uri))
            await client.put(b"a", b"1")
            # Certificates that etcd does not know, then ones that cannot be read, then good ones again: each is found without a restart.
            other.issue("kvcm").write(tmp_path, "kvcm")
            await asyncio.sleep(1.1)
            with pytest.raises(EtcdUnavailable):
                await client.get(b"a", timeout_s=1)
            authority.issue("kvcm", valid_for=timedelta(days=1)).write(tmp_path, "kvcm")
            found, _ = await client.get(b"a")
            assert found is not None
            Path(mine_key).unlink()
            await asyncio.sleep(1.1)
            assert (await client.get(b"a"))[0] == found, "the connection that works stays"
            authority.issue("kvcm").write(tmp_path, "kvcm")
            await asyncio.sleep(1.1)
            assert (await client.get(b"a"))[0] == found
            await client.close()
            for wrong in (f"?ca={ca}&timeout_ms=1000", "?tls=true&timeout_ms=1000", "?timeout_ms=1000", f"?ca={tmp_path}/none"):
                stranger = EtcdClient(parse_etcd_uri(f"etcd://localhost:{etcd.only.port}/x{wrong}"))
                with pytest.raises(EtcdUnavailable):
                    await stranger.get(b"a")
                await stranger.close()

    asyncio.run(run())


def test_the_name_in_a_certificate_may_differ_from_the_endpoint(tmp_path: Path) -> None:
    authority = Authority()
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.cert)
    cert, key = authority.issue(names=("etcd.internal",)).write(tmp_path, "server")

    async def run() -> None:
        with EtcdServer(tls=ServerTls(cert, key, "", str(ca), "", "")) as etcd:
            client = EtcdClient(parse_etcd_uri(f"etcd://{etcd.address}?ca={ca}&server_name=etcd.internal"))
            await client.put(b"a", b"1")
            await client.close()
            client = EtcdClient(parse_etcd_uri(f"etcd://{etcd.address}?ca={ca}&server_name=elsewhere&timeout_ms=500"))
            with pytest.raises(EtcdUnavailable, match="no connection"):
                await client.put(b"a", b"1")
            await client.close()

    asyncio.run(run())
