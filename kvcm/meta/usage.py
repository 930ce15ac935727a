"""Bytes in use, counted at publication and never estimated.

A counter adds up location sizes per quota type (WRITING and DELETING included: their bytes exist). Counters form a chain instance -> group, so that
a quota check reads one number.
"""

from __future__ import annotations

from kvcm.data_storage.model import StorageType


class UsageCounter:
    def __init__(self, parent: UsageCounter | None = None) -> None:
        self._parent = parent
        self._by_type: dict[int, int] = {}
        self.total = 0
        self.keys = 0

    def add_bytes(self, type_code: int, delta: int) -> None:
        kind = _quota_code(type_code)
        self._by_type[kind] = self._by_type.get(kind, 0) + delta
        self.total += delta
        if self._parent is not None:
            self._parent.add_bytes(type_code, delta)

    def add_keys(self, delta: int) -> None:
        self.keys += delta
        if self._parent is not None:
            self._parent.add_keys(delta)

    def bytes_of(self, kind: StorageType) -> int:
        return self._by_type.get(kind.quota_type, 0)

    def by_type(self) -> dict[StorageType, int]:
        return {StorageType(code): count for code, count in self._by_type.items() if count}

    def detach(self) -> None:
        """Take this counter's amounts out of its parent (the instance leaves the group)."""
        if self._parent is None:
            return
        for code, count in self._by_type.items():
            self._parent.add_bytes(code, -count)
        self._parent.add_keys(-self.keys)
        self._parent = None

    def attach(self, parent: UsageCounter) -> None:
        """Add this counter's amounts to a parent; the opposite of `detach`."""
        if self._parent is not None:
            raise ValueError("the counter already has a parent")
        self._parent = parent
        for code, count in self._by_type.items():
            parent.add_bytes(code, count)
        parent.add_keys(self.keys)


_VCNS, _HF3FS = int(StorageType.VCNS_HF3FS), int(StorageType.HF3FS)


def _quota_code(type_code: int) -> int:
    return _HF3FS if type_code == _VCNS else type_code
