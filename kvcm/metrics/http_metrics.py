"""Requests to the JSON API by listener (behaviour 18.2): how many, and where their time goes."""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily

_MAX_STATUSES = 32


class HttpMeter:
    """One listener's numbers; times are seconds as `time.perf_counter` gives them. Cheap, never raises (I-ME-4)."""

    __slots__ = ("answer_s", "parse_s", "queries", "refused", "requests", "whole_s", "write_s")

    def __init__(self) -> None:
        self.requests = 0
        self.queries = 0
        self.parse_s = 0.0
        self.answer_s = 0.0
        self.write_s = 0.0
        self.whole_s = 0.0
        self.refused: dict[int, int] = {}

    def answered(self, began: float, parsed: float, called: float, written: float) -> None:
        """A request whose RPC has answered and whose reply is written."""
        self.requests += 1
        self.queries += 1
        self.parse_s += parsed - began
        self.answer_s += called - parsed
        self.write_s += written - called
        self.whole_s += written - began

    def refuse(self, status: int, took_s: float) -> None:
        """A request that got `status` instead of a reply."""
        self.requests += 1
        self.whole_s += took_s
        if status in self.refused or len(self.refused) < _MAX_STATUSES:
            self.refused[status] = self.refused.get(status, 0) + 1


class HttpMetrics:
    """`meter(listener)` makes the meter of a listener, e.g. `meta`; the names are ours, so their number is bounded (I-ME-3)."""

    def __init__(self) -> None:
        self._meters: dict[str, HttpMeter] = {}

    def meter(self, listener: str) -> HttpMeter:
        return self._meters.setdefault(listener, HttpMeter())

    def families(self) -> Iterable[AnyFamily]:
        meters = [((name,), meter) for name, meter in self._meters.items()]
        yield catalogue.HTTP_REQUESTS.of([(labels, meter.requests) for labels, meter in meters])
        yield catalogue.HTTP_QUERIES.of([(labels, meter.queries) for labels, meter in meters])
        refused = [((name, str(status)), count) for name, meter in self._meters.items() for status, count in meter.refused.items()]
        yield catalogue.HTTP_REFUSED.of(refused)
        yield catalogue.HTTP_PARSE.of([(labels, int(meter.parse_s * 1e6)) for labels, meter in meters])
        yield catalogue.HTTP_CALLBACK.of([(labels, int(meter.answer_s * 1e6)) for labels, meter in meters])
        yield catalogue.HTTP_SERIALIZE.of([(labels, int(meter.write_s * 1e6)) for labels, meter in meters])
        yield catalogue.HTTP_HANDLER.of([(labels, int(meter.whole_s * 1e6)) for labels, meter in meters])
