"""The contract of registry stores (kvcm.config.testing_store_contract) against every implementation, with real stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.config.store import RegistryStore, open_store
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing_store_contract import CASES, run_case
from kvcm.etcd.testing import PROGRAM, EtcdServer

pytestmark = pytest.mark.integration
_numbers = itertools.count()


class MemoryStorePlace:
    def __init__(self) -> None:
        self._only = MemoryStore()

    def open(self) -> RegistryStore:
        return self._only


class UriStorePlace:
    def __init__(self, uri: str) -> None:
        self._uri = uri

    def open(self) -> RegistryStore:
        return open_store(self._uri)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.mark.parametrize("case", CASES)
def test_contract_in_memory(case: str) -> None:
    run_case(case, MemoryStorePlace())


@pytest.mark.parametrize("case", CASES)
def test_contract_in_a_file(case: str, tmp_path: Path) -> None:
    run_case(case, UriStorePlace(f"local://{tmp_path}/registry.json"))


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")
@pytest.mark.parametrize("case", CASES)
def test_contract_in_redis(case: str, redis: RedisServer) -> None:
    run_case(case, UriStorePlace(f"{redis.uri}?cluster_name=contract-{next(_numbers)}"))


@pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")
@pytest.mark.parametrize("case", CASES)
def test_contract_in_etcd(case: str, etcd: EtcdServer) -> None:
    run_case(case, UriStorePlace(f"etcd://{etcd.address}/contract-{next(_numbers)}"))
