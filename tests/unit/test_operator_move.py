"""When do leases move, so that all pods have to stop first?"""

from __future__ import annotations

from typing import Any

import pytest

from kvcm.resources.manager_uris import ALONE, coordination_place
from kvcm.resources.parse import parse_manager
from kvcm_operator.move import must_stop_first, same_place
from kvcm_operator.rollout_fleet import fleet_of
from kvcm_operator.testing_house import applied_manager
from kvcm_operator.world import Json

pytestmark = pytest.mark.unit


def etcd(*endpoints: str, **more: Any) -> Json:
    return {"type": "etcd", "etcd": {"endpoints": list(endpoints), **more}}


def redis(address: str, **more: Any) -> Json:
    return {"type": "redis", "redis": {"address": address, **more}}


def sentinel(*addresses: str, master: str = "m") -> Json:
    return {"type": "redis", "redis": {"sentinel": {"addresses": list(addresses), "masterName": master}}}


def place(coordination: Json | None) -> str:
    return coordination_place(parse_manager(applied_manager(**({} if coordination is None else {"coordination": coordination}))))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (None, None, True),
        (None, {"type": "memory", "leaseDuration": "3s"}, True),
        (None, etcd("a:1"), False),
        (etcd("a:1", "b:1"), etcd("b:1", "c:1"), True),
        (etcd("a:1"), etcd("a:1", tls={}, credentials={"secretName": "s"}), True),
        (etcd("a:1"), etcd("b:1"), False),
        (etcd("a:1"), etcd("a:1", prefix="other"), False),
        (etcd("a:1"), etcd("a:1", prefix="kvcm/default/demo"), True),
        (etcd("a:1"), redis("a:1"), False),
        (redis("a:1"), redis("a:1", credentials={"secretName": "s"}), True),
        (redis("a:1"), redis("b:1"), False),
        (redis("a:1"), redis("a:1", database=2), False),
        (redis("a:1"), redis("a:1", clusterName="other"), False),
        (redis("a:1"), sentinel("a:1"), False),
        (sentinel("a:1", "b:1"), sentinel("b:1", "c:1"), True),
        (sentinel("a:1"), sentinel("a:1", master="n"), False),
    ],
)
def test_two_places_are_one_when_they_have_a_name_and_an_endpoint_in_common(one: Json | None, other: Json | None, same: bool) -> None:
    assert same_place(place(one), place(other)) is same
    assert same_place(place(other), place(one)) is same


def fleet(*places: str | None, size: int, stopping: bool = False) -> Any:
    pods = []
    for number, word in enumerate(places):
        meta: Json = {"name": f"demo-{number}", "annotations": {} if word is None else {"kvcm.io/coordination": word}}
        if stopping:
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        pods.append({"metadata": meta})
    return fleet_of({"metadata": {"name": "demo"}, "spec": {"replicas": size}}, pods, 0)


def test_pods_of_two_places_never_run_at_the_same_time() -> None:
    here, there = etcd("a:1"), place(etcd("b:1"))
    one, three = (parse_manager(applied_manager(replicas=count, coordination=here)) for count in (1, 3))
    assert not must_stop_first(three, fleet_of(None, [], 0))
    assert not must_stop_first(three, fleet(place(here), place(here), place(here), size=3))
    assert must_stop_first(three, fleet(there, there, there, size=3))
    assert must_stop_first(three, fleet(place(here), there, size=0))
    assert must_stop_first(three, fleet(there, size=0, stopping=True))
    # Growing at the same time: the new ones would not wait for the old one.
    assert must_stop_first(three, fleet(ALONE, size=1))
    assert must_stop_first(three, fleet(None, size=1))
    # One gives its name to the next one.
    assert not must_stop_first(one, fleet(there, size=1))
    assert must_stop_first(one, fleet(there, there, size=2))
