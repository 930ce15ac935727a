"""`event_report_l1p5`, `event_report_l2`: what hosts hold in their own memory and tell us about (behaviour 21).

A storage without bytes of ours: nothing is allocated in it, asked of it or deleted from it. Its configuration carries the timings of its reporters, and
disabling it hides what they report. Whether a host still lives is known by its reports, not by this backend.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.common.errors import InvalidArgument
from kvcm.common.ids import IdSource
from kvcm.data_storage.model import EventReportSpec, Storage
from kvcm.data_storage.port import AllocationFailed, AllocationItem, BackendTraits, Truth

_TRAITS = BackendTraits(probe_on_read=False, unique_paths=True)


class ReportedBackend:
    def __init__(self, storage: Storage) -> None:
        """Raises InvalidArgument for a configuration of another kind."""
        if not isinstance(storage.spec, EventReportSpec):
            raise InvalidArgument(f"Storage '{storage.name}' has a configuration that does not belong to its type '{storage.type.type_name}'.")
        self.storage = storage
        self.traits = _TRAITS
        self._open = False

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False

    def available(self) -> bool:
        return self._open

    async def allocate(self, items: Sequence[AllocationItem], ids: IdSource) -> list[str]:
        raise AllocationFailed(f"Storage '{self.storage.name}' takes no blocks: hosts report what they hold there.")

    async def probe(self, uris: Sequence[str]) -> list[Truth]:
        return [Truth.UNKNOWN] * len(uris)

    async def delete(self, uris: Sequence[str]) -> list[Truth]:
        return [Truth.UNKNOWN] * len(uris)  # nothing of ours is there, and nothing is done (I-RE-9)

    def adopt(self, uris: Sequence[str]) -> None:
        return
