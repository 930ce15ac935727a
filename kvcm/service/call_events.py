"""Events of calls: a successful read, start or finish of the meta service gives exactly one (I-EV-5; behaviour 17.1).

On the path of a request this makes one small object. What the event says is read from the request when it is delivered; of a reply only its head is kept,
not the locations.

Danger: an event that waits keeps its whole request alive, also what no event shows (texts, fields that nobody knows), so it weighs as much as that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from kvcm.common.errors import ErrorCode
from kvcm.common.ids import IdSource
from kvcm.event.bus import EventManager
from kvcm.event.model import Event
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.rpc import Call, Rpc

_OK = int(ErrorCode.OK)
_BASE_WEIGHT: Final = 512
_LOCATIONS: Final = 4
_QUERY_TYPES: Final = {meta.QT_BATCH_GET: "batch_get", meta.QT_PREFIX_MATCH: "prefix_match", meta.QT_REVERSE_ROLL_SW_MATCH: "reverse_roll_sw_match"}
_Fields = Mapping[str, object]


class CallEvents:
    """A `CallTap`. Only worth having while `events.enabled`."""

    def __init__(self, events: EventManager, ids: IdSource) -> None:
        self._events = events
        self._ids = ids
        self._makers: dict[object, Callable[[Any, bytes], tuple[str, int, Callable[[], _Fields]]]] = {
            meta.GetCacheLocationRequest: _read,
            meta.StartWriteCacheRequest: _start,
            meta.FinishWriteCacheRequest: _finish,
        }

    def __call__(self, rpc: Rpc, request: Any, call: Call, code: int, reply: bytes, elapsed_us: int) -> None:
        make = self._makers.get(rpc.request_cls)
        if make is None or code != _OK:
            return
        kind, kept, fields = make(request, reply)
        weight = _BASE_WEIGHT + request.ByteSize() + kept
        self._events.publish(Event(self._ids.session_id(), request.instance_id, "cache_manager", kind, call.now_us, weight, fields))


def _read(request: meta.GetCacheLocationRequest, reply: bytes) -> tuple[str, int, Callable[[], _Fields]]:
    return "GetCacheLocation", 0, partial(_read_fields, request)


def _read_fields(request: meta.GetCacheLocationRequest) -> _Fields:
    return {
        "query_type": _QUERY_TYPES.get(request.query_type, "unspecified"),
        "keys": request.block_keys,
        "tokens": request.token_ids,
        "block_mask": _mask(request.block_mask),
        "sw_size": request.sw_size,
        "location_spec_names": request.location_spec_names,
        "trace_id": request.trace_id,
    }


def _start(request: meta.StartWriteCacheRequest, reply: bytes) -> tuple[str, int, Callable[[], _Fields]]:
    head = head_of(reply, _LOCATIONS)
    return "StartWriteCache", len(head), partial(_start_fields, request, head)


def _start_fields(request: meta.StartWriteCacheRequest, head: bytes) -> _Fields:
    response = meta.StartWriteCacheResponse.FromString(head)
    return {
        "write_session_id": response.write_session_id,
        "keys": request.block_keys,
        "tokens": request.token_ids,
        "block_mask": _mask(response.block_mask),
        "location_spec_group_names": request.location_spec_group_names,
        "write_timeout_seconds": request.write_timeout_seconds,
    }


def _finish(request: meta.FinishWriteCacheRequest, reply: bytes) -> tuple[str, int, Callable[[], _Fields]]:
    return "FinishWriteCache", 0, partial(_finish_fields, request)


def _finish_fields(request: meta.FinishWriteCacheRequest) -> _Fields:
    return {"write_session_id": request.write_session_id, "success_block": _mask(request.success_blocks)}


def _mask(mask: meta.BlockMask) -> object:
    """A number, or a list of booleans; an empty list when there is none (as upstream writes it)."""
    return mask.offset if mask.WhichOneof("info") == "offset" else mask.bool_masks.values


def head_of(reply: bytes, stop: int) -> bytes:
    """The fields of a message before the first one numbered `stop`. All of them must be length-delimited, as in our replies."""
    at, size = 0, len(reply)
    while at < size and reply[at] >> 3 != stop:
        at += 1
        length = shift = 0
        while True:
            byte = reply[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += length
    return reply[:at]
