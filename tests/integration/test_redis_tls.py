"""Redis over TLS with certificates on both sides, read from disk for each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvcm.common.errors import StorageError
from kvcm.common.redis.connection import connect
from kvcm.common.redis.target import parse_target
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.common.redis.testing_cluster import RedisCluster
from kvcm.common.testing_ports import free_port
from kvcm.meta.testing_redis import loaded
from kvcm.meta.testing_redis_places import RedisPlace
from kvcm.protocol.location_encoder import ProtoLocationEncoder
from kvcm.service.tls.testing import Authority

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]


@dataclass(frozen=True)
class Guarded:
    """A Redis that asks clients for a certificate of the authority `clients`."""

    port: int
    clients: Authority
    ca: Path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("redis-tls")
    servers, clients, port = Authority("servers"), Authority("clients"), free_port()
    certificate, key = servers.issue().write(folder, "server")
    (folder / "clients.crt").write_bytes(clients.cert)
    (folder / "ca.crt").write_bytes(servers.cert)
    options = ("--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", str(folder / "clients.crt"))
    with RedisServer(*options):
        yield Guarded(port, clients, folder / "ca.crt")


def reach(port: int, **files: object) -> None:
    async def story() -> None:
        options = "&".join(f"{name}={value}" for name, value in files.items())
        connection = await connect(parse_target(f"rediss://127.0.0.1:{port}/?timeout_ms=5000&{options}"), "test")
        connection.close()

    asyncio.run(story())


def test_a_renewed_certificate_counts_with_the_next_connection(guarded: Guarded, tmp_path: Path) -> None:
    certificate, key = Authority("strangers").issue().write(tmp_path, "own")
    with pytest.raises(StorageError):
        reach(guarded.port, tls_ca_file=guarded.ca, tls_cert_file=certificate, tls_key_file=key)
    guarded.clients.issue().write(tmp_path, "own")
    reach(guarded.port, tls_ca_file=guarded.ca, tls_cert_file=certificate, tls_key_file=key)


def test_a_server_of_an_unknown_authority_is_not_spoken_to(guarded: Guarded, tmp_path: Path) -> None:
    certificate, key = guarded.clients.issue().write(tmp_path, "own")
    (tmp_path / "other.crt").write_bytes(Authority("others").cert)
    with pytest.raises(StorageError, match="cannot be reached"):
        reach(guarded.port, tls_ca_file=tmp_path / "other.crt", tls_cert_file=certificate, tls_key_file=key)


def test_files_that_are_missing_or_no_certificates_are_told_from_a_server_that_is_away(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "odd.crt").write_text("no certificate")
    for name in ("missing.crt", "odd.crt"):
        with pytest.raises(StorageError, match="files of certificates"):
            reach(guarded.port, tls_ca_file=tmp_path / name)


def test_every_node_of_a_redis_cluster_is_spoken_to_over_tls(tmp_path: Path) -> None:
    authority = Authority("servers")
    certificate, key = authority.issue().write(tmp_path, "node")
    (tmp_path / "ca.crt").write_bytes(authority.cert)
    with RedisCluster(tls=(certificate, key, str(tmp_path / "ca.crt"))) as cluster:
        place = RedisPlace(cluster, ProtoLocationEncoder())
        options = f"timeout_ms=5000&tls_ca_file={tmp_path / 'ca.crt'}"

        async def story() -> None:
            async with place.leader(1, options=options) as backend:
                stored = {key: place.block(key) for key in range(100)}
                assert await backend.apply(stored, 1) == {}
                slot = place.layout.slots[0]
                cluster.move(slot, next(node for node in cluster.masters if node is not cluster.holder(slot)))
                assert await backend.apply(dict.fromkeys(range(50), ()), 1) == {}
                assert await loaded(backend) == {key: stored[key] for key in range(50, 100)}

        asyncio.run(story())
        assert min(len(node.keys("kvcm:*:b:*")) for node in cluster.masters) > 0
