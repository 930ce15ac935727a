"""Places handed out, by storage (behaviour 18.3). `kvcm.data_storage.manager.AllocationObserver`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily

_SECOND_US = 1_000_000


class _Cell:
    __slots__ = ("bytes", "errors", "keys", "kind", "last_second", "last_us", "requests", "second", "this_second")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.requests = 0
        self.errors = 0
        self.keys = 0
        self.bytes = 0
        self.last_us = 0
        self.second = 0
        self.this_second = 0
        self.last_second = 0

    def turn(self, second: int) -> None:
        if second != self.second:
            self.last_second = self.this_second if second == self.second + 1 else 0
            self.this_second = 0
            self.second = second


class StorageMetrics:
    """`exists(name)`: is there such a storage? A request that ends after its storage was removed leaves no series behind (I-ME-3)."""

    def __init__(self, exists: Callable[[str], bool], now_us: Callable[[], int]) -> None:
        self._exists = exists
        self._now_us = now_us
        self._cells: dict[str, _Cell] = {}

    def allocated(self, kind: str, name: str, count: int, size: int, elapsed_us: int, now_us: int) -> None:
        cell = self._cell(kind, name)
        if cell is None:
            return
        cell.requests += 1
        cell.keys += count
        cell.bytes += size
        cell.last_us = elapsed_us
        cell.turn(now_us // _SECOND_US)
        cell.this_second += count

    def failed(self, kind: str, name: str) -> None:
        cell = self._cell(kind, name)
        if cell is not None:
            cell.requests += 1
            cell.errors += 1

    def purge(self, label: str, value: str) -> None:
        if label == "unique_name":
            self._cells.pop(value, None)

    def keep(self, existing: Collection[str]) -> None:
        """Forget every other storage."""
        for name in [name for name in self._cells if name not in existing]:
            del self._cells[name]

    def families(self) -> Iterable[AnyFamily]:
        second = self._now_us() // _SECOND_US
        for cell in self._cells.values():
            cell.turn(second)
        cells = [((cell.kind, name), cell) for name, cell in self._cells.items()]
        yield catalogue.STORAGE_CREATES.of([(labels, cell.requests) for labels, cell in cells])
        yield catalogue.STORAGE_CREATED_KEYS.of([(labels, cell.keys) for labels, cell in cells])
        yield catalogue.STORAGE_FAILURES.of([(labels, cell.errors) for labels, cell in cells])
        yield catalogue.STORAGE_BYTES.of([(labels, cell.bytes) for labels, cell in cells])
        yield catalogue.STORAGE_QPS.of([(labels, cell.last_second) for labels, cell in cells])
        yield catalogue.STORAGE_TIME.of([(labels, cell.last_us) for labels, cell in cells])

    def _cell(self, kind: str, name: str) -> _Cell | None:
        cell = self._cells.get(name)
        if cell is None and self._exists(name):
            cell = self._cells[name] = _Cell(kind)
        return cell
