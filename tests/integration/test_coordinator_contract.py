"""The contract of coordinators (kvcm.coordination.testing_contract) against every implementation, with real stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.coordination.testing_contract import cases_for, run_case
from kvcm.coordination.testing_etcd import EtcdPlace
from kvcm.coordination.testing_place import FilePlace, MemoryPlace, Place, RedisPlace
from kvcm.etcd.testing import PROGRAM, EtcdServer

pytestmark = pytest.mark.integration

KINDS: dict[str, type[Place]] = {"memory": MemoryPlace, "file": FilePlace, "redis": RedisPlace, "redis-forgetful": RedisPlace}


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], RedisServer]]:
    """Real stores, started when the first case wants one."""
    running: dict[str, RedisServer] = {}
    with ExitStack() as stack:

        def of(where: str) -> RedisServer:
            if redis_binary() is None:
                pytest.skip("redis-server is not installed")
            if where not in running:
                running[where] = stack.enter_context(RedisServer(durable=where == "redis"))
            return running[where]

        yield of


@pytest.mark.parametrize(("where", "case"), [(where, case) for where, kind in KINDS.items() for case in cases_for(kind.abilities)])
def test_contract(where: str, case: str, servers: Callable[[str], RedisServer]) -> None:
    kind = KINDS[where]
    run_case(case, RedisPlace(servers(where)) if kind is RedisPlace else kind())


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer("--heartbeat-interval=20", "--election-timeout=200") as server:
        yield server


@pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")
@pytest.mark.parametrize("case", cases_for(EtcdPlace.abilities))
def test_contract_in_etcd(etcd: EtcdServer, case: str) -> None:
    run_case(case, EtcdPlace(etcd))
