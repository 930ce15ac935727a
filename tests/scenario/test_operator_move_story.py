"""Leases move to another place: all pods of the old place are gone before one of the new place comes, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.subject import Subject
from kvcm_operator.testing_house import House, applied_manager
from kvcm_operator.world import MANAGER, Json, Ref

pytestmark = pytest.mark.scenario

BOSS = Ref(MANAGER, "default", "demo")
SET, CONFIG = Ref("StatefulSet", "default", "demo"), Ref("ConfigMap", "default", "demo-config")
ETCD: Json = {"type": "etcd", "etcd": {"endpoints": ["etcd:2379"]}}
REDIS: Json = {"type": "redis", "redis": {"address": "redis:6379"}}


def run(story: Callable[[House], Awaitable[None]], **spec: object) -> None:
    async def told() -> None:
        house = House(dict(RECONCILERS))
        house.with_nodes()
        house.cluster.slow_stop = True
        house.kube.put(applied_manager(**spec))
        await house.beats(partial(ready, house))
        await story(house)

    asyncio.run(told())


def ready(house: House) -> bool:
    return house.condition(BOSS) == ("True", "Ready") and Subject(house.kube.body(BOSS)).settled


def places(house: House) -> set[str]:
    return {house.kube.body(ref)["metadata"]["annotations"]["kvcm.io/coordination"].partition(":")[0] for ref in house.kube.refs("Pod")}


def settings(house: House) -> str:
    return str(house.kube.body(CONFIG)["data"]["kvcm.conf"])


async def moved(house: House, old: str, new: str, restart: bool = False) -> None:
    """Until ready, looking at each moment."""
    seen: list[set[str]] = []
    for _ in range(60):
        await house.beat()
        if restart:
            house.restart()
        seen.append(places(house))
        assert len(seen[-1]) < 2, "pods of two places at once"
        if old in seen[-1]:
            # A container that is started again in an old pod must find what it had.
            assert new not in settings(house)
        if ready(house):
            break
    assert ready(house)
    assert seen[-1] == {new}
    assert set() in seen


@pytest.mark.parametrize("restart", [False, True])
def test_from_one_that_is_alone_to_three_that_elect(restart: bool) -> None:
    async def story(house: House) -> None:
        house.kube.edit(BOSS, lambda body: body["spec"].update(replicas=3, coordination=ETCD))
        await moved(house, "memory", "etcd", restart)
        assert len(house.kube.refs("Pod")) == 3
        assert house.reasons(BOSS).count("DriftCorrected") == 0
        assert any("because leases move" in event.message for event in house.kube.events)

    run(story)


def test_from_etcd_to_redis_and_the_status_says_so_meanwhile() -> None:
    async def story(house: House) -> None:
        house.kube.statuses.clear()
        house.kube.edit(BOSS, lambda body: body["spec"].update(coordination=REDIS))
        await moved(house, "etcd", "redis")
        told = [body["status"]["conditions"] for ref, body in house.kube.statuses if ref == BOSS]
        available = {(item["status"], item["reason"]) for conditions in told for item in conditions if item["type"] == "Available"}
        assert ("False", "RollingOut") in available

    run(story, replicas=3, coordination=ETCD)


def test_another_member_of_the_same_etcd_is_an_ordinary_roll_out() -> None:
    async def story(house: House) -> None:
        wider = {"type": "etcd", "etcd": {"endpoints": ["etcd:2379", "etcd-1:2379"]}}
        house.kube.edit(BOSS, lambda body: body["spec"].update(coordination=wider))
        for _ in range(60):
            await house.beat()
            assert len(house.kube.refs("Pod")) >= 2
            if ready(house):
                break
        assert ready(house)
        assert "etcd-1:2379" in settings(house)
        assert house.kube.body(SET)["spec"]["replicas"] == 3

    run(story, replicas=3, coordination=ETCD)


def test_without_shared_metadata_the_status_says_what_a_new_leader_begins_with() -> None:
    async def story(house: House) -> None:
        conditions = {item["type"]: item["message"] for item in house.status(BOSS)["conditions"]}
        assert "whoever leads next begins with an empty index" in conditions["Progressing"]
        house.kube.edit(BOSS, lambda body: body["spec"].update(metadataBackend={"type": "redis", "redis": {"address": "redis:6379"}}))
        await house.beats(partial(ready, house))
        assert "empty index" not in str(house.status(BOSS)["conditions"])

    run(story, replicas=3, coordination=ETCD)
