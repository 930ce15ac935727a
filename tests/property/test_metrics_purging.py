"""I-ME-3 and I-ME-4 of the sources with series of their own: storages come and go, requests end late, and nothing is left behind or raised."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvcm.metrics.http_metrics import HttpMeter, HttpMetrics
from kvcm.metrics.registry import Metrics
from kvcm.metrics.request_metrics import RequestMetrics
from kvcm.metrics.storage_metrics import StorageMetrics
from kvcm.service.rpc import Call

pytestmark = pytest.mark.property

NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("allocated"), NAMES),
        st.tuples(st.just("failed"), NAMES),
        st.tuples(st.just("call"), NAMES),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=40)
@given(STEPS)
def test_I_ME_3_series_belong_to_what_exists_whenever_a_request_ends(steps: list[tuple[str, str]]) -> None:
    existing: set[str] = set()
    metrics = Metrics(RequestMetrics(existing.__contains__))
    places = StorageMetrics(existing.__contains__, lambda: 5_000_000)
    metrics.add(places)
    counted: dict[str, int] = {}
    for step, name in steps:
        match step:
            case "add":
                existing.add(name)
            case "remove":
                existing.discard(name)
                metrics.purge_storage(name)
                metrics.purge_instance(name)
                counted.pop(name, None)
            case "allocated":
                places.allocated("file", name, 3, 30, 7, 4_900_000)
                if name in existing:
                    counted[name] = counted.get(name, 0) + 1
            case "failed":
                places.failed("file", name)
                if name in existing:
                    counted[name] = counted.get(name, 0) + 1
            case _:
                call = Call("t", 0)
                call.instance, call.group = name, "g"
                metrics.requests.observe("X", call, 1, 1)
        page = asyncio.run(metrics.render()).decode()
        labels = [sample.labels for family in text_string_to_metric_families(page) for sample in family.samples]
        assert {found["unique_name"] for found in labels if "unique_name" in found} == set(counted) <= existing
        assert {found["instance_id"] for found in labels if "instance_id" in found} <= existing
    creates = next(family for family in places.families() if family.name == "data_storage.create_counter")
    assert {labels[1]: count for labels, count, *_ in creates.samples} == counted
    metrics.close()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4_000_000), st.integers(1, 50)), max_size=20))
def test_places_of_the_last_full_second_are_those_that_were_handed_out_in_it(moments: list[tuple[int, int]]) -> None:
    now = [0]
    places = StorageMetrics(lambda _: True, lambda: now[0])
    moments.sort()
    for at, count in moments:
        now[0] = at
        places.allocated("file", "s", count, count, 1, at)
    shown = {family.name: [sample[1] for sample in family.samples] for family in places.families()}["data_storage.create_keys_qps"]
    wanted = sum(count for at, count in moments if at // 1_000_000 == now[0] // 1_000_000 - 1)
    assert shown == ([wanted] if moments else [])


def test_I_ME_3_http_statuses_are_bounded_and_refusals_are_counted() -> None:
    metrics = HttpMetrics()
    meter = metrics.meter("meta")
    assert metrics.meter("meta") is meter
    meter.answered(1.0, 1.001, 1.003, 1.006)
    for status in range(400, 500):
        meter.refuse(status, 0.001)
    shown = {family.name: {sample[0]: sample[1] for sample in family.samples} for family in metrics.families()}
    assert shown["http.request_counter"] == {("meta",): 101}
    assert shown["http.service_query_counter"] == {("meta",): 1}
    assert len(shown["http.refused_counter"]) == 32
    assert shown["http.request_parse_time_us_sum"][("meta",)] in (999, 1000, 1001)
    assert isinstance(HttpMeter().refused, dict)
