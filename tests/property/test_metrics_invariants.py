"""I-ME-1..3 under random calls and removals."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvcm.metrics.loop_monitor import LoopMonitor
from kvcm.metrics.registry import Metrics
from kvcm.metrics.request_metrics import RequestMetrics
from kvcm.service.rpc import Call

pytestmark = pytest.mark.property

NAMES = st.sampled_from(["a", "b", 'q"uote', "new\nline", "ünï"])
CALLS = st.tuples(st.just("call"), st.sampled_from(["X", "Y"]), NAMES, st.sampled_from([1, 3, 8]), st.integers(0, 10**8))
PURGES = st.tuples(st.just("purge"), NAMES)


def page_of(metrics: Metrics) -> str:
    return asyncio.run(metrics.render()).decode()


def counters(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(page):
        if family.type in ("counter", "histogram") and family.name.startswith("kvcm_"):
            for sample in family.samples:
                found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.one_of(CALLS, PURGES), max_size=8), min_size=1, max_size=4))
def test_I_ME_1_and_2_counters_never_decrease_and_every_page_parses(rounds: list[list[tuple[object, ...]]]) -> None:
    metrics = Metrics(RequestMetrics(lambda name: name != "b"))
    monitor = LoopMonitor()
    metrics.add(monitor)
    before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for operations in rounds:
        purged = set()
        for operation in operations:
            if operation[0] == "call":
                _, api, name, code, elapsed = operation
                call = Call("t", 0)
                call.instance, call.group, call.queried_blocks = str(name), "g", 2
                assert isinstance(code, int)
                assert isinstance(elapsed, int)
                metrics.requests.observe(str(api), call, code, elapsed)
            else:
                metrics.purge_instance(str(operation[1]))
                purged.add(str(operation[1]))
        page = page_of(metrics)
        types = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")]
        assert len(types) == len(set(types))
        now = counters(page)
        assert not any(("instance_id", "b") in labels for _, labels in now)
        for key, value in before.items():
            gone = dict(key[1]).get("instance_id") in purged
            assert gone or now[key] >= value
        before = now
    metrics.close()
