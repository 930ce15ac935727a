"""Did a FinishWrite without an answer happen? The blocks tell: each session's places are its own, so a block that is served from one was finished.

Known are the newest sessions that this client opened with keys; of others nothing can be said. Asking changes nothing and may be repeated.

    some blocks are served from their places, none is still being written       it happened
    some block is still being written, and another node leads now               it did not: the node that was asked can write nothing any more
    anything else                                                               not known: it may be on its way, the blocks may be removed since
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvcm.client import meta_ops_detail
from kvcm.client.detail_types import BlockDetail, LocationStatus
from kvcm.client.meta_ops import Operation
from kvcm.client.types import WriteLocation

_MAX_OPEN = 256
_Place = frozenset[str]


@dataclass(frozen=True, slots=True)
class Question:
    """`places`: key -> where the session put it, of the blocks that were reported written."""

    operation: Operation[tuple[BlockDetail, ...]]
    places: dict[int, _Place]

    def answer(self, blocks: Iterable[BlockDetail], *, final: bool) -> bool | None:
        """`final`: whoever was asked to finish can do so no more."""
        served = written = 0
        for block in blocks:
            place = self.places.get(block.key)
            for location in block.locations:
                if place is not None and _place(location.specs) == place:
                    served += location.status is LocationStatus.SERVING
                    written += location.status is LocationStatus.WRITING
        if written:
            return False if final else None
        return True if served else None


class OpenWrites:
    """Thread-safe."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._lock = threading.Lock()
        # Session -> (the request that opened it, what was handed out): whatever costs time is left for the question.
        self._sessions: OrderedDict[str, tuple[Any, WriteLocation]] = OrderedDict()

    def note(self, operation: Operation[Any], result: Any) -> None:
        """A call ended well: remember a session that begins, forget one that ends."""
        if operation.method == "StartWriteCache" and isinstance(result, WriteLocation):
            if operation.request.block_keys and result.locations:
                with self._lock:
                    self._sessions[result.write_session_id] = (operation.request, result)
                    while len(self._sessions) > _MAX_OPEN:
                        self._sessions.popitem(last=False)
        elif operation.method == "FinishWriteCache":
            self.forget(operation)

    def forget(self, operation: Operation[Any]) -> None:
        with self._lock:
            self._sessions.pop(operation.request.write_session_id, None)

    def question(self, operation: Operation[Any]) -> Question | None:
        """None: nothing can be asked."""
        if operation.method != "FinishWriteCache":
            return None
        with self._lock:
            session = self._sessions.get(operation.request.write_session_id)
        if session is None:
            return None
        keys, handed_out = session[0].block_keys, session[1]
        opened = handed_out.block_mask.open_indexes(len(keys))
        places = [(keys[index], _place(location.specs)) for index, location in zip(opened, handed_out.locations, strict=True)]
        mask = operation.request.success_blocks
        flags = list(mask.bool_masks.values) if mask.WhichOneof("info") == "bool_masks" else [index < mask.offset for index in range(len(places))]
        told = dict(place for place, written in zip(places, flags, strict=False) if written)
        if not told:
            return None
        ask = meta_ops_detail.match_meta_detail(self._instance_id, list(told), (), None, operation.request.trace_id)
        return Question(ask, told)


def _place(specs: Iterable[Any]) -> _Place:
    return frozenset(spec.uri for spec in specs)
