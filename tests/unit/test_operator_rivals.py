"""Other managers that elect their leader in the same place are told of, and nobody else is."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from kvcm.resources.parse import parse_manager
from kvcm_operator.rivals import names_its_place, rivals
from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.subject import Subject
from kvcm_operator.testing_house import House, applied_manager, several
from kvcm_operator.testing_several import BOSS, message, ready
from kvcm_operator.world import Json

pytestmark = pytest.mark.unit


def etcd(*endpoints: str, **more: Any) -> Json:
    return {"type": "etcd", "etcd": {"endpoints": list(endpoints), **more}}


def redis(**fields: Any) -> Json:
    return {"type": "redis", "redis": fields}


def other(coordination: Json, name: str = "blue", namespace: str = "default", **spec: Any) -> Json:
    body = applied_manager(name, coordination=coordination, **spec)
    return {**body, "metadata": {**body["metadata"], "namespace": namespace, "uid": f"{namespace}-{name}"}}


MINE = etcd("a:1", "b:1", prefix="shared")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (other(etcd("b:1", prefix="shared")), "KVCacheManager default/blue has"),
        (other(etcd("b:1", prefix="shared"), "demo", "elsewhere"), "as their pods have equal names"),
        (other(etcd("c:1", prefix="shared")), ""),
        (other(etcd("a:1")), ""),
        (other(redis(address="a:1", clusterName="shared")), ""),
        (other({"type": "memory"}), ""),
        (other(etcd("b:1", prefix="shared"), replicas="many"), ""),
        (other(MINE, "demo"), ""),
    ],
    ids=["same", "same-names", "another-etcd", "by-its-name", "redis", "alone", "not-readable", "itself"],
)
def test_who_shares_the_place(body: Json, told: str) -> None:
    mine = parse_manager(applied_manager(coordination=MINE))
    assert names_its_place(mine)
    found = rivals(mine, "default-demo", [body])
    assert told in found
    assert bool(told) == bool(found)


def test_two_clusters_of_redis_meet_by_name_and_database() -> None:
    mine = parse_manager(applied_manager(coordination=redis(address="r:1", clusterName="shared")))
    assert rivals(mine, "me", [other(redis(address="r:1", clusterName="shared"))])
    assert not rivals(mine, "me", [other(redis(address="r:1", clusterName="shared", database=1))])


def test_managers_that_name_no_place_never_meet() -> None:
    assert not names_its_place(parse_manager(applied_manager(coordination=etcd("a:1"))))
    assert not names_its_place(parse_manager(applied_manager()))


def test_it_stands_in_the_status_and_is_no_fault() -> None:
    async def story() -> None:
        house = House(dict(RECONCILERS))
        house.with_nodes()
        house.kube.put(applied_manager(**several(3) | {"coordination": MINE}))
        house.kube.put(other(MINE, paused=True))
        await house.beats(partial(ready, house))
        assert "default/blue" in message(house, "Progressing")
        assert Subject(house.kube.body(BOSS)).condition("Progressing")["status"] == "False"

    asyncio.run(story())
