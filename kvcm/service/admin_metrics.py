"""AdminService: GetMetrics, every series there is (wire contract 3.7; on any node).

Danger: thousands of series make a reply of megabytes. The number is bounded, what was left out is told in `extra_data`, and the message is built in a
thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from kvcm.common.errors import NotReady
from kvcm.metrics.families import AnyFamily, Histogram, Labels
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.admin_replies import OK
from kvcm.service.replies import fill_header
from kvcm.service.rpc import Call, Reply, Rpc

MAX_SERIES = 20_000
_MAX_INT = (1 << 63) - 1
T = TypeVar("T")


class MetricsView(Protocol):
    async def in_thread(self, work: Callable[[list[AnyFamily]], T]) -> T:
        """`work(all families now)`, in a thread. Raises TimeoutError."""
        ...


def metrics_rpcs(metrics: MetricsView) -> list[Rpc]:
    return [Rpc("GetMetrics", admin.GetMetricsRequest, admin.GetMetricsResponse, _Metrics(metrics).get, leader_only=False)]


class _Metrics:
    def __init__(self, metrics: MetricsView) -> None:
        self._metrics = metrics

    async def get(self, request: admin.GetMetricsRequest, call: Call) -> Reply:
        try:
            series = await self._metrics.in_thread(_message)
        except TimeoutError:
            raise NotReady("the metrics took too long to collect; try again later") from None
        head = admin.GetMetricsResponse(timestamp=call.now_us // 1000)
        fill_header(head.header, call)
        return OK, head.SerializeToString() + series


def _message(families: list[AnyFamily]) -> bytes:
    """The reply without header and time; messages are merged by appending their bytes."""
    response = admin.GetMetricsResponse()
    dropped = 0
    for number, (name, counter, labels, value) in enumerate(_series(families)):
        if number >= MAX_SERIES:
            dropped += 1
            continue
        data = response.metrics.add(metric_name=name)
        if counter:
            data.metric_value.int_value = _whole(value)
        else:
            data.metric_value.float_value = float(value)
        for key, text in labels:
            if text:
                data.metric_tags.add(tag_key=key, tag_value=text)
    if dropped:
        response.extra_data = json.dumps({"dropped_series": dropped})
    return response.SerializeToString()


def _series(families: Iterable[AnyFamily]) -> Iterator[tuple[str, bool, list[tuple[str, str]], float]]:
    """(name, is a counter, tags, value). A histogram gives its sum and its count."""
    for family in families:
        if isinstance(family, Histogram):
            for values, counts, total in family.samples:
                labels = _pairs(family.label_names, values)
                yield f"{family.name}.sum", False, labels, total
                yield f"{family.name}.count", True, labels, sum(counts)
            continue
        for values, value in family.samples:
            yield family.name, family.kind == "counter", _pairs(family.label_names, values), value


def _pairs(names: Labels, values: Labels) -> list[tuple[str, str]]:
    return list(zip(names, values, strict=True))


def _whole(value: float) -> int:
    if not math.isfinite(value):
        return 0
    return max(-_MAX_INT, min(int(value), _MAX_INT))
