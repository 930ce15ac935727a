"""The metrics page: names, escapes, numbers, bounds."""

from __future__ import annotations

import asyncio
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvcm.metrics import families as families_module
from kvcm.metrics import text as text_module
from kvcm.metrics.catalogue import Spec
from kvcm.metrics.counters import CounterTable
from kvcm.metrics.families import AnyFamily, Family, Histogram
from kvcm.metrics.registry import Metrics
from kvcm.metrics.request_metrics import RequestMetrics
from kvcm.metrics.text import sanitise, write_text
from kvcm.service.rpc import Call

pytestmark = pytest.mark.unit


def parse(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            # The parser adds the `_total` of the OpenMetrics format to counters.
            key = (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items())))
            assert key not in found, f"duplicate series {key}"
            found[key] = sample.value
    return found


def call(instance: str = "", group: str = "", queried: int = 0, hits: int = 0) -> Call:
    made = Call("t_1", 1)
    made.instance, made.group, made.queried_blocks, made.hit_blocks = instance, group, queried, hits
    return made


@pytest.mark.parametrize(
    ("prefix", "name", "expected"),
    [
        ("kvcm", "service.query_counter", "kvcm_service_query_counter"),
        ("my-app", "a b/c", "my_app_a_b_c"),
        ("", "loop.lag", "loop_lag"),
        ("9x", "y", "_9x_y"),
        ("", "9y", "_9y"),
    ],
)
def test_names_are_sanitised(prefix: str, name: str, expected: str) -> None:
    assert sanitise(prefix, name) == expected


def test_label_values_are_escaped_and_come_back() -> None:
    nasty = 'a"b\\c\nd'
    page = write_text("kvcm", [Family("x", "gauge", "text with \n newline", ("name",), [((nasty,), 1.5)])])
    assert parse(page)["kvcm_x", (("name", nasty),)] == 1.5


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (3.0, "3"), (0.1, "0.1"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (1 << 62, str(1 << 62))]
)
def test_numbers_are_spelled_as_prometheus_expects(value: float, expected: str) -> None:
    page = write_text("kvcm", [Family("x", "gauge", "", (), [((), value)])])
    assert f"\nkvcm_x {expected}\n" in page


def test_families_without_samples_are_left_out_and_empty_labels_too() -> None:
    page = write_text("kvcm", [Family("none", "counter", "", (), []), Family("some", "counter", "", ("a", "b"), [(("1", ""), 2)])])
    assert "kvcm_none" not in page
    assert 'kvcm_some{a="1"} 2' in page


def test_histograms_are_cumulative() -> None:
    page = write_text("kvcm", [Histogram("h", "", (0.1, 1.0), ("api",), [(("A",), (3, 2, 1), 4.5)])])
    found = parse(page)
    label = ("api", "A")
    assert [found["kvcm_h_bucket", (label, ("le", bound))] for bound in ("0.1", "1", "+Inf")] == [3, 5, 6]
    assert found["kvcm_h_sum", (label,)] == 4.5
    assert found["kvcm_h_count", (label,)] == 6


def test_I_ME_3_series_beyond_the_limit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAX_SERIES_PER_FAMILY", 2)
    page = write_text("kvcm", [Family("x", "gauge", "", ("n",), [((str(i),), i) for i in range(5)])])
    found = parse(page)
    assert sum(1 for name, _ in found if name == "kvcm_x") == 2
    assert found["kvcm_metrics_dropped_series", ()] == 3
    assert families_module.MAX_SERIES_PER_FAMILY == 20_000


def test_calls_count_under_their_instance_or_under_the_api_alone() -> None:
    metrics = RequestMetrics({"i1"}.__contains__)
    metrics.observe("GetCacheLocation", call("i1", "g", queried=5, hits=3), 1, 120)
    metrics.observe("GetCacheLocation", call("made up", "g", queried=1), 8, 40)
    metrics.observe("GetCacheLocation", call(), 8, 40)
    found = parse(write_text("kvcm", metrics.families()))
    own = (("api_name", "GetCacheLocation"), ("instance_group", "g"), ("instance_id", "i1"))
    plain = (("api_name", "GetCacheLocation"),)
    assert found["kvcm_service_query_counter", own] == 1
    assert found["kvcm_service_query_counter", plain] == 2
    assert found["kvcm_service_error_counter", plain] == 2
    assert found["kvcm_manager_get_cache_location_query_block_counter", own] == 5
    assert found["kvcm_manager_get_cache_location_hit_block_counter", own] == 3
    assert found["kvcm_service_query_seconds_count", plain] == 3
    assert metrics.instances() == ["i1"]


def test_I_ME_3_instances_beyond_the_limit_get_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcm.metrics.request_metrics.MAX_INSTANCES", 2)
    metrics = RequestMetrics(lambda _: True)
    for name in ("a", "b", "c"):
        metrics.observe("X", call(name, "g"), 1, 1)
    assert metrics.instances() == ["a", "b"]
    assert parse(write_text("kvcm", metrics.families()))["kvcm_service_query_counter", (("api_name", "X"),)] == 1


def test_I_ME_3_removed_entities_take_their_series_with_them() -> None:
    async def scenario() -> None:
        metrics = Metrics(RequestMetrics(lambda _: True))
        table = metrics.counter(Spec("", "x.y", "counter", "", ("type", "unique_name", "instance_id")))
        table.add(("file", "nfs", "i1"), 4)
        table.add(("file", "other", "i2"))
        for name, group in (("i1", "g1"), ("i2", "g1"), ("i3", "g2")):
            metrics.requests.observe("X", call(name, group), 1, 1)
        metrics.purge_storage("nfs")
        metrics.purge_instance("i1")
        page = (await metrics.render()).decode()
        assert "i1" not in page
        assert '"nfs"' not in page
        assert "i2" in page
        metrics.purge_group("g1")
        assert metrics.requests.instances() == ["i3"]
        metrics.keep_instances(set())
        assert metrics.requests.instances() == []
        metrics.close()

    asyncio.run(scenario())


def test_I_ME_3_counter_tables_share_one_series_beyond_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcm.metrics.counters.MAX_LABEL_SETS", 2)
    table = CounterTable(Spec("", "x", "counter", "", ("n",)))
    for name in ("a", "b", "c", "d", "a"):
        table.add((name,))
    (family,) = table.families()
    assert dict(family.samples) == {("a",): 2, ("b",): 1, ("other",): 2}


class _Broken:
    def families(self) -> list[AnyFamily]:
        raise RuntimeError("broken source")


def test_I_ME_4_a_broken_source_costs_only_its_own_numbers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        metrics = Metrics(RequestMetrics(lambda _: True))
        metrics.add(_Broken())
        metrics.requests.observe("X", call(), 1, 1)
        page = (await metrics.render()).decode()
        assert 'kvcm_service_query_counter{api_name="X"} 1' in page
        assert "process_resident_memory_bytes" in page
        metrics.close()

    asyncio.run(scenario())
    assert "metrics_source_failed" in caplog.text
