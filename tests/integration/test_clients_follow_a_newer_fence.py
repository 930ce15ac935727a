"""A newer fence has been raised behind a leader's back, in a real Redis and a real etcd: what clients ask of it is refused as by a node that does not lead, so
that they look for the leader and repeat it there. Nobody is told of a failing store."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.client import AdminClient, ClientConfig, MetaClient, QueryType
from kvcm.client.errors import ServiceInternal
from kvcm.common.errors import ErrorCode
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.config.persisted import group_to_dict, storage_to_dict
from kvcm.config.startup import default_group, default_storage
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.testing import PROGRAM, EtcdServer
from kvcm.etcd.uri import parse_etcd_uri
from kvcm.service.testing import ManagerProcess

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PROGRAM or redis_binary() is None, reason="needs Debian's packages etcd-server and redis-server"),
]

PATIENCE_S = 20.0
NOT_LEADER, OK = int(ErrorCode.SERVER_NOT_LEADER), int(ErrorCode.OK)


class House:
    """Two managers over one place of leases and registry; both know a group whose blocks are in Redis when one is given."""

    def __init__(self, folder: Path, uri: str, redis: RedisServer | None = None) -> None:
        storage: Any = storage_to_dict(default_storage())
        group: Any = group_to_dict(default_group())
        storage["storage_spec"]["root_path"] = f"{folder}/blocks/"
        if redis is not None:
            backend = group["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"]
            backend["storage_type"], backend["storage_uri"] = "redis", redis.uri
        startup = folder / "startup.json"
        startup.write_text(json.dumps({"storage_config": storage, "instance_group": group}))
        settings = {
            "kvcm.coordination.uri": uri,
            "kvcm.registry_storage.uri": uri,
            "kvcm.startup_config": str(startup),
            "kvcm.leader_elector.lease_ms": "2000",
            "kvcm.service.advertised_host": "127.0.0.1",
            "kvcm.access_log.enabled": "true",
        }
        self.managers = [ManagerProcess(settings) for _ in range(2)]

    def stop(self) -> list[dict[str, Any]]:
        """End both; what their access logs tell."""
        for manager in self.managers:
            manager.send(signal.SIGTERM)
        assert [manager.wait() for manager in self.managers] == [0, 0]
        return [json.loads(line[line.index("{") :]) for manager in self.managers for line in manager.log.splitlines() if '"api_name"' in line]

    def client_config(self) -> ClientConfig:
        return ClientConfig.parse(
            {
                "address": ["static://" + ",".join(manager.meta_address for manager in self.managers)],
                "instance_group": "default",
                "instance_id": "i",
                "block_size": 4,
                "location_spec_infos": {"tp0": 64},
                "model_deployment": {"model_name": "m", "dtype": "FP8", "tp_size": 1},
                "meta_channel_config": {"call_timeout": 5000, "connection_timeout": 2000, "failover_timeout": int(PATIENCE_S * 1000)},
            }
        )

    def fenced_out(self) -> int:
        return sum(manager.log.count("fenced_out:") for manager in self.managers)


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_changes_of_blocks_are_repeated_at_the_leader_when_redis_has_a_newer_fence(running: ExitStack, tmp_path: Path) -> None:
    redis = running.enter_context(RedisServer())
    house = House(tmp_path, f"{redis.uri}?cluster_name=c", redis)
    for manager in house.managers:
        running.enter_context(manager)
    meta = running.enter_context(MetaClient.connect(house.client_config()))
    fence = "kvcache:instance_i:__kvcm_fence__"

    def overtake() -> int:
        """As the leader of the next term will, only before anybody knows of it. Returns the epoch of the present one."""
        epoch = int(redis.call("GET", fence)[:20])
        redis.call("SET", fence, f"{epoch + 1:020d}.0123456789abcdef")
        return epoch

    kept = meta.start_write([1, 2], trace_id="kept")
    meta.finish_write(kept.write_session_id, [True, True])
    epoch = overtake()
    session = meta.start_write([3, 4], trace_id="start")
    assert len(session.locations) == 2
    assert overtake() > epoch
    # Nothing of it has been carried out; that nobody can carry it out any more is what the next leader says.
    with pytest.raises(ServiceInternal, match="earlier leader"):
        meta.finish_write(session.write_session_id, [True, True], trace_id="finish")
    overtake()
    meta.remove_cache([1], trace_id="remove")
    assert [location.hit for location in meta.match_location(QueryType.BATCH_GET, [1, 2, 3]).locations] == [False, True, False]
    calls = house.stop()
    for trace_id, last in (("start", OK), ("finish", int(ErrorCode.INTERNAL_ERROR)), ("remove", OK)):
        codes = [call["status_code"] for call in calls if call["trace_id"] == trace_id]
        assert (set(codes), codes.count(last)) == ({NOT_LEADER, last}, 1), trace_id
    assert house.fenced_out() == 3


def test_changes_of_the_registry_are_repeated_at_the_leader_when_etcd_has_a_newer_fence(running: ExitStack, tmp_path: Path) -> None:
    etcd = running.enter_context(EtcdServer("--heartbeat-interval=20", "--election-timeout=200"))
    uri = f"etcd://{etcd.address}/c"
    house = House(tmp_path, uri)
    for manager in house.managers:
        running.enter_context(manager)

    async def story() -> None:
        client = EtcdClient(parse_etcd_uri(uri))
        async with AdminClient([manager.admin_address for manager in house.managers], failover_s=PATIENCE_S, trace_id="admin") as admin:
            try:
                (template,) = await admin.list_groups()
                found, _ = await client.get(client.config.key("registry", "fence"))
                assert found is not None
                epoch = json.loads(found.value)["epoch"]
                # As a version would that names no process.
                await client.put(client.config.key("registry", "fence"), json.dumps({"version": 1, "epoch": epoch + 1}).encode())
                reclaim = replace(template.cache_config.reclaim_strategy, storage_unique_name=template.storage_candidates[0])
                await admin.create_group(replace(template, name="g", version=1, cache_config=replace(template.cache_config, reclaim_strategy=reclaim)))
                assert {group.name for group in await admin.list_groups()} == {"default", "g"}
                found, _ = await client.get(client.config.key("registry", "fence"))
                assert found is not None
                assert json.loads(found.value)["epoch"] > epoch
            finally:
                await client.close()

    asyncio.run(story())
    codes = [call["status_code"] for call in house.stop() if call["api_name"] == "CreateInstanceGroup"]
    assert (set(codes), codes.count(OK)) == ({NOT_LEADER, OK}, 1)
    assert house.fenced_out() == 1
