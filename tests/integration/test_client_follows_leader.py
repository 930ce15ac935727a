"""Three managers over one folder of leases, a shared registry and durable metadata: clients of every kind go on while leaders die, step down and come back.

What is checked at the end: nothing that a client was told is written is missing; nothing that it was told failed is there; no change ran twice.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.client import AdminClient, AsyncMetaClient, ClientConfig, KvCacheManagerClient, MetaClient, QueryType
from kvcm.client.admin_types import NodeRole
from kvcm.client.errors import ClientError
from kvcm.common.errors import KvcmError, NotReady, OutcomeUnknown
from kvcm.common.testing_ports import free_port
from kvcm.config.persisted import group_to_dict, storage_to_dict
from kvcm.config.startup import default_group, default_storage
from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration

PATIENCE_S = 20.0
PAUSE_S = 0.02
LEASE_MS = 1500
OK, INTERNAL_ERROR = 1, 3
CHANGES = {"StartWriteCache", "FinishWriteCache", "CreateInstanceGroup"}


def _settings(folder: Path, number: int) -> dict[str, str]:
    ports = dict.fromkeys(("rpc_port", "http_port", "admin_rpc_port", "admin_http_port"), "")
    return {
        **{f"kvcm.service.{name}": str(free_port()) for name in ports},
        "kvcm.leader_elector.node_id": f"node-{number}",
        "kvcm.leader_elector.lease_ms": str(LEASE_MS),
        "kvcm.leader_elector.loop_interval_ms": "50",
        "kvcm.coordination.uri": f"file://{folder}/coordination",
        "kvcm.registry_storage.uri": f"local://{folder}/registry.json",
        "kvcm.startup_config": str(folder / "startup.json"),
        "kvcm.service.advertised_host": "127.0.0.1",
        "kvcm.access_log.enabled": "true",
    }


class House:
    """Three managers; `calls` are the lines of their access logs."""

    def __init__(self, folder: Path) -> None:
        storage: Any = storage_to_dict(default_storage())
        group: Any = group_to_dict(default_group())
        storage["storage_spec"]["root_path"] = f"{folder}/blocks/"
        backend = group["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"]
        backend["storage_type"], backend["storage_uri"] = "dummy", f"file://{folder}/metadata"
        (folder / "startup.json").write_text(json.dumps({"storage_config": storage, "instance_group": group}))
        self.managers = [ManagerProcess(_settings(folder, number)) for number in range(3)]

    @property
    def meta(self) -> list[str]:
        return [manager.meta_address for manager in self.managers]

    @property
    def admin(self) -> list[str]:
        return [manager.admin_address for manager in self.managers]

    def leader(self, not_this: int = -1) -> int:
        """Waits for one that serves; its number."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for number, manager in enumerate(self.managers):
                if number != not_this and manager.process is not None and manager.process.poll() is None:
                    with KvCacheManagerClient(manager.http_url) as client:
                        try:
                            known = client.get_cluster_info({})
                        except ClientError:
                            continue
                    if known["leader_node_id"] == known["self_node_id"]:
                        return number
            time.sleep(0.05)
        raise AssertionError("nobody leads")

    def calls(self) -> list[dict[str, Any]]:
        lines = [line[line.index("{") :] for manager in self.managers for line in manager.log.splitlines() if '"api_name"' in line]
        return [json.loads(line) for line in lines]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    started: list[ManagerProcess] = []
    try:
        for manager in made.managers:
            started.append(manager.__enter__())
        yield made
    finally:
        for manager in started:
            manager.__exit__(None, None, None)


@dataclass
class Diary:
    """What one client was told."""

    name: str
    base: int
    acknowledged: list[int] = field(default_factory=list)
    denied: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    reads: int = 0
    late: int = 0
    problems: list[str] = field(default_factory=list)


def _config(house: House) -> ClientConfig:
    return ClientConfig.parse(
        {
            "address": ["static://" + ",".join(house.meta)],
            "instance_group": "default",
            "instance_id": "i",
            "block_size": 4,
            "location_spec_infos": {"tp0": 64},
            "model_deployment": {"model_name": "m", "dtype": "FP8", "tp_size": 1},
            "meta_channel_config": {"call_timeout": 1000, "connection_timeout": 1000, "failover_timeout": int(PATIENCE_S * 1000)},
        }
    )


def _note(diary: Diary, step: str, key: int, error: ClientError) -> None:
    lost = step == "finish" and (getattr(error, "service_code", 0) == INTERNAL_ERROR or getattr(error, "may_have_run", True) is False)
    if error.unknown_outcome:
        diary.unknown.append(key)
    elif lost:
        # The session of a leader that is gone: that write is lost, and its client knows.
        diary.denied.append(key)
    elif step == "read" and getattr(error, "grpc_status", "") == "DEADLINE_EXCEEDED":
        # From a leader that is suspended and has its lease still: a read is not sent twice to a node that leads.
        diary.late += 1
    else:
        diary.problems.append(f"{diary.name} {step}: {type(error).__name__} {error}")


def _sync_loop(house: House, diary: Diary, stop: threading.Event) -> None:
    with MetaClient.connect(_config(house)) as meta:
        key = diary.base
        while not stop.is_set():
            key += 1
            step = "start"
            try:
                session = meta.start_write([key], trace_id=f"{diary.name}-start-{key}")
                step = "finish"
                meta.finish_write(session.write_session_id, [True], trace_id=f"{diary.name}-finish-{key}")
                diary.acknowledged.append(key)
                step = "read"
                assert meta.match_location(QueryType.PREFIX_MATCH, [key]).locations, key
                diary.reads += 1
            except ClientError as error:
                _note(diary, step, key, error)
            except AssertionError as error:
                diary.problems.append(f"{diary.name}: acknowledged and not served: {error}")
            time.sleep(PAUSE_S)


def _async_loop(house: House, diary: Diary, stop: threading.Event) -> None:
    async def run() -> None:
        async with await AsyncMetaClient.connect(_config(house)) as meta:
            key = diary.base
            while not stop.is_set():
                key += 1
                step = "start"
                try:
                    session = await meta.start_write([key], trace_id=f"{diary.name}-start-{key}")
                    step = "finish"
                    await meta.finish_write(session.write_session_id, [True], trace_id=f"{diary.name}-finish-{key}")
                    diary.acknowledged.append(key)
                    step = "read"
                    if not (await meta.match_location(QueryType.PREFIX_MATCH, [key])).locations:
                        diary.problems.append(f"{diary.name}: acknowledged and not served: {key}")
                    diary.reads += 1
                except ClientError as error:
                    _note(diary, step, key, error)
                await asyncio.sleep(PAUSE_S)

    asyncio.run(run())


def _http_loop(house: House, diary: Diary, stop: threading.Event) -> None:
    seeds = "static://" + ",".join(manager.http_url.removeprefix("http://") for manager in house.managers)
    with KvCacheManagerClient(seeds, instance_id="i", auto_discover_leader=True, failover_seconds=PATIENCE_S) as client:
        key = diary.base
        while not stop.is_set():
            key += 1
            step = "start"
            try:
                session = client.start_write_cache(
                    {"trace_id": f"{diary.name}-start-{key}", "instance_id": "i", "block_keys": [key], "write_timeout_seconds": 30}
                )
                step = "finish"
                done = {"bool_masks": {"values": [True]}}
                request = {"instance_id": "i", "write_session_id": session["write_session_id"], "success_blocks": done}
                client.finish_write_cache({"trace_id": f"{diary.name}-finish-{key}", **request})
                diary.acknowledged.append(key)
                step = "read"
                found = client.get_cache_location({"instance_id": "i", "query_type": "QT_PREFIX_MATCH", "block_keys": [key]})
                if not found["locations"]:
                    diary.problems.append(f"{diary.name}: acknowledged and not served: {key}")
                diary.reads += 1
            except ClientError as error:
                _note(diary, step, key, error)
            time.sleep(PAUSE_S)


def _admin_loop(house: House, diary: Diary, stop: threading.Event) -> None:
    async def run() -> None:
        async with AdminClient(house.admin, failover_s=PATIENCE_S, timeout_s=2.0, trace_id="admin") as admin:
            (template,) = [group for group in await admin.list_groups() if group.name == "default"]
            number = diary.base
            while not stop.is_set():
                number += 1
                try:
                    await admin.create_group(_named(template, f"g{number}"))
                    diary.acknowledged.append(number)
                except OutcomeUnknown:
                    diary.unknown.append(number)
                except KvcmError as error:
                    diary.problems.append(f"{diary.name} create: {type(error).__name__} {error}")
                try:
                    assert any(group.name == "default" for group in await admin.list_groups())
                    diary.reads += 1
                except NotReady:
                    diary.late += 1
                except KvcmError as error:
                    diary.problems.append(f"{diary.name} read: {type(error).__name__} {error}")
                await asyncio.sleep(0.05)

    asyncio.run(run())


def _named(template: Any, name: str) -> Any:
    cache = template.cache_config
    reclaim = replace(cache.reclaim_strategy, storage_unique_name=template.storage_candidates[0])
    return replace(template, name=name, version=1, cache_config=replace(cache, reclaim_strategy=reclaim))


def _until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def test_clients_of_every_kind_follow_the_leader_and_nothing_acknowledged_is_lost_or_done_twice(house: House) -> None:
    diaries = [Diary("sync", 1_000_000), Diary("asyncio", 2_000_000), Diary("http", 3_000_000), Diary("admin", 4_000_000)]
    stop = threading.Event()
    threads = [
        threading.Thread(target=loop, args=(house, diary, stop))
        for loop, diary in zip((_sync_loop, _async_loop, _http_loop, _admin_loop), diaries, strict=True)
    ]

    def progress() -> None:
        before = [(len(diary.acknowledged), diary.reads) for diary in diaries]
        _until(
            lambda: all(len(diary.acknowledged) > done + 3 and diary.reads > reads + 3 for diary, (done, reads) in zip(diaries, before, strict=True)),
            lambda: f"the clients do not go on: {diaries}"[:1500],
        )

    MetaClient.connect(_config(house)).close()  # registers the instance
    for thread in threads:
        thread.start()
    try:
        progress()
        first = house.leader()
        house.managers[first].kill()
        second = house.leader(first)
        progress()
        house.managers[first].start()
        asyncio.run(_step_down(house.admin[second]))
        third = house.leader(second)
        progress()
        # Suspended beyond its lease, and back: whatever it still wants to answer or write comes too late.
        house.managers[third].send(signal.SIGSTOP)
        try:
            fourth = house.leader(third)
            progress()
        finally:
            house.managers[third].send(signal.SIGCONT)
        progress()
        house.managers[fourth].stop()
        house.leader(fourth)
        progress()
    finally:
        stop.set()
        for thread in threads:
            thread.join(3 * PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert [problem for diary in diaries for problem in diary.problems] == []

    last = house.leader()
    with MetaClient.connect(_config(house)) as meta:
        for diary in diaries[:3]:
            assert _served(meta, diary.acknowledged) == diary.acknowledged, f"{diary.name} was told of writes that are gone"
            assert _served(meta, diary.denied) == [], f"{diary.name} was told that these were not written"
    assert max(diary.late for diary in diaries) <= 5
    groups, nodes = asyncio.run(_final(house))
    assert {f"g{number}" for number in diaries[3].acknowledged} <= groups
    assert nodes == {f"node-{number}": NodeRole.LEADER if number == last else NodeRole.FOLLOWER for number in range(3) if number != fourth}
    # No change was carried out twice: what ran is in the access logs; refusals ("not the leader", 9) are not counted.
    ran = Counter((call["api_name"], call["trace_id"]) for call in house.calls() if call["api_name"] in CHANGES and call["status_code"] == OK)
    changes = {name: count for name, count in ran.items() if name[0] != "CreateInstanceGroup"}
    assert changes
    assert [name for name, count in changes.items() if count > 1] == []
    finishes = Counter(call["trace_id"] for call in house.calls() if call["api_name"] == "FinishWriteCache" and call["status_code"] != 9)
    assert [name for name, count in finishes.items() if count > 1] == []


def _served(meta: MetaClient, keys: list[int]) -> list[int]:
    found = meta.match_location(QueryType.BATCH_GET, keys).locations if keys else ()
    return [key for key, location in zip(keys, found, strict=True) if location.hit]


async def _step_down(address: str) -> None:
    async with AdminClient(address) as admin:
        await admin.set_campaign_delay(5000)
        await admin.leader_demote()


async def _final(house: House) -> tuple[set[str], dict[str, NodeRole]]:
    async with AdminClient(house.admin[house.leader()], failover_s=PATIENCE_S) as admin:
        groups = {group.name for group in await admin.list_groups()}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            nodes = {node.endpoint.node_id: node.role for node in (await admin.cluster_info()).nodes}
            if (NodeRole.UNKNOWN not in nodes.values() and NodeRole.PROMOTING not in nodes.values()) or time.monotonic() > deadline:
                return groups, nodes
            await asyncio.sleep(0.1)
