"""Requests by API, and by API and instance (behaviour 18.2). On the hot path of every request.

Danger: a label set per name that a client makes up would grow without bound. So an instance gets series only when `exists` knows it, which is
asked once per instance; how many instances have series is bounded (I-ME-3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily, Labels

BOUNDS_US: Final = (50, 100, 200, 300, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000, 10_000_000)
_BOUNDS_S: Final = tuple(bound / 1e6 for bound in BOUNDS_US)
MAX_INSTANCES = 2_000
"""Instances beyond this are counted under their API only."""
MAX_APIS = 256
_OK = 1


class CallLabels(Protocol):
    """The part of `kvcm.service.rpc.Call` that is counted."""

    group: str
    instance: str
    keys: int
    queried_blocks: int
    hit_blocks: int


class _Cell:
    __slots__ = ("calls", "errors", "hit_blocks", "last_code", "last_hits", "last_keys", "last_queried", "last_us", "queried_blocks", "total_us")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.hit_blocks = 0
        self.queried_blocks = 0
        self.total_us = 0
        self.last_us = 0
        self.last_code = _OK
        self.last_keys = 0
        self.last_queried = 0
        self.last_hits = 0


class _Api:
    """`buckets` and `total_us` cover every call of the API, `plain` those without (known) instance."""

    __slots__ = ("buckets", "plain", "total_us")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_US) + 1)
        self.total_us = 0
        self.plain = _Cell()


class _Instance:
    __slots__ = ("cells", "group")

    def __init__(self, group: str) -> None:
        self.group = group
        self.cells: dict[str, _Cell] = {}


class RequestMetrics:
    """`kvcm.service.rpc.CallObserver`. `exists(instance_id)` tells whether an instance is registered.

    A call is counted once per family: under its instance when that is known, else under its API alone, so that sums are right. The histogram is by
    API only and covers all calls; it stays when an instance goes.
    """

    def __init__(self, exists: Callable[[str], bool]) -> None:
        self._exists = exists
        self._apis: dict[str, _Api] = {}
        self._instances: dict[str, _Instance] = {}

    def observe(self, api: str, call: CallLabels, code: int, elapsed_us: int) -> None:
        """Count one answered call. Never raises (I-ME-4)."""
        entry = self._apis.get(api)
        if entry is None:
            if len(self._apis) >= MAX_APIS:
                return
            entry = self._apis[api] = _Api()
        entry.buckets[bisect_left(BOUNDS_US, elapsed_us)] += 1
        entry.total_us += elapsed_us
        cell = entry.plain
        name = call.instance
        if name:
            known = self._instances.get(name) or self._admit(name, call.group)
            if known is not None:
                own = known.cells.get(api)
                if own is None:
                    own = known.cells[api] = _Cell()
                cell = own
        cell.calls += 1
        cell.total_us += elapsed_us
        cell.last_us = elapsed_us
        cell.last_code = code
        if call.keys:
            cell.last_keys = call.keys
        queried = call.queried_blocks
        if queried:
            hits = call.hit_blocks
            cell.queried_blocks += queried
            cell.hit_blocks += hits
            cell.last_queried = queried
            cell.last_hits = hits
        if code != _OK:
            cell.errors += 1

    def instances(self) -> list[str]:
        """Those that have series."""
        return list(self._instances)

    def purge_instance(self, instance_id: str) -> None:
        self._instances.pop(instance_id, None)

    def purge_group(self, group: str) -> None:
        for name in [name for name, known in self._instances.items() if known.group == group]:
            del self._instances[name]

    def families(self) -> Iterable[AnyFamily]:
        cells = [((api, "", ""), entry.plain) for api, entry in self._apis.items() if entry.plain.calls]
        cells += [((api, known.group, name), cell) for name, known in self._instances.items() for api, cell in known.cells.items()]
        yield catalogue.QUERY_COUNTER.of([(labels, cell.calls) for labels, cell in cells])
        yield catalogue.ERROR_COUNTER.of([(labels, cell.errors) for labels, cell in cells])
        yield catalogue.QUERY_TIME_SUM.of([(labels, cell.total_us) for labels, cell in cells])
        yield catalogue.QUERY_RT.of([(labels, cell.last_us) for labels, cell in cells])
        yield catalogue.ERROR_CODE.of([(labels, cell.last_code) for labels, cell in cells])
        yield catalogue.REQUEST_KEYS.of([(labels, cell.last_keys) for labels, cell in cells if cell.last_keys])
        yield from _reads([(labels, cell) for labels, cell in cells if cell.queried_blocks])
        samples = [((api,), list(entry.buckets), entry.total_us / 1e6) for api, entry in self._apis.items()]
        yield catalogue.QUERY_SECONDS.of(_BOUNDS_S, samples)

    def _admit(self, name: str, group: str) -> _Instance | None:
        if len(self._instances) >= MAX_INSTANCES or not self._exists(name):
            return None
        known = self._instances[name] = _Instance(group)
        return known


def _reads(cells: list[tuple[Labels, _Cell]]) -> Iterable[AnyFamily]:
    yield catalogue.QUERIED_BLOCKS.of([(labels, cell.queried_blocks) for labels, cell in cells])
    yield catalogue.HIT_BLOCKS.of([(labels, cell.hit_blocks) for labels, cell in cells])
    yield catalogue.PREFIX_LEN.of([(labels, cell.last_hits) for labels, cell in cells])
    yield catalogue.PREFIX_TIME.of([(labels, cell.last_us) for labels, cell in cells])
    yield catalogue.QUERY_KEYS.of([(labels, cell.last_queried) for labels, cell in cells])
    yield catalogue.NOT_FOUND_KEYS.of([(labels, max(0, cell.last_queried - cell.last_hits)) for labels, cell in cells])
