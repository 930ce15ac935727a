"""The access log: one JSON line per answered call, made and written in a thread (wire contract 1.4; upstream's field names).

    {"request_begin_time":"2026.01.31,12:00:00.123456","client_ip":"127.0.0.1","trace_id":"t","request_id":"t_17...","api_name":"GetCacheLocation",
     "status_code":1,"request_cost_time_us":87,"instance_id":"i1","blocks":256,"hit_blocks":256,"reply_bytes":23040}

A call with an error has its `message` too. With payload, `request` and `response` follow as short JSON objects (see `payload.py`): what a list holds is
counted, not copied, and a reply above MAX_KEPT_BYTES is left out, because what a read costs must not depend on who looks at it.

On the path of a request this only fills a tuple. Dangers: what waits must not hold requests of megabytes (a weight bounds it), nor anything of the
transport; secrets must not reach the line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring_ascii as quote  # the C function behind json.dumps
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from kvcm.common.errors import ErrorCode
from kvcm.common.handoff import Handoff
from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily
from kvcm.service.payload import payload_text, short
from kvcm.service.rpc import Call, Rpc

LOGGER: Final = "kvcm.access"
MAX_KEPT_BYTES: Final = 64 << 10
_MAX_WAITING_BYTES: Final = 64 << 20
_LINE_WEIGHT: Final = 512
_MAX_MESSAGE_CHARS: Final = 512
_OK = int(ErrorCode.OK)
_Entry = tuple[Rpc, str, str, int, int, int, int, int, int, str, Message | None, bytes]


class AccessLog:
    """A `CallTap`. `write` takes finished lines, in the thread."""

    def __init__(self, write: Callable[[Sequence[str]], None], queue_size: int, with_payload: bool, max_payload_chars: int) -> None:
        self._write = write
        self._with_payload = with_payload
        self._max_chars = max_payload_chars
        self._second = -1
        self._second_text = ""
        self._lines: Handoff[_Entry] = Handoff("kvcm-access", self._deliver, queue_size, _MAX_WAITING_BYTES)

    def __call__(self, rpc: Rpc, request: Any, call: Call, code: int, reply: bytes, elapsed_us: int) -> None:
        origin = call.origin
        peer = origin.peer() if origin is not None else ""
        size = len(reply)
        kept, weight = None, _LINE_WEIGHT
        if self._with_payload:
            request_size = request.ByteSize()
            if request_size <= MAX_KEPT_BYTES:
                kept, weight = request, weight + request_size
        wanted = reply if (code != _OK or self._with_payload) and size <= MAX_KEPT_BYTES else b""
        self._lines.offer(
            (rpc, call.request_id, call.instance, call.now_us, code, elapsed_us, call.keys, call.hit_blocks, size, peer, kept, wanted),
            weight + len(wanted),
        )

    def families(self) -> Iterable[AnyFamily]:
        yield catalogue.ACCESS_LOG_LINES.only(self._lines.delivered)
        yield catalogue.ACCESS_LOG_DROPPED.only(self._lines.dropped)

    def close(self) -> None:
        """Write what waits, for at most two seconds."""
        self._lines.close()

    def _deliver(self, entries: Sequence[_Entry]) -> None:
        self._write([self._line(entry) for entry in entries])

    def _line(self, entry: _Entry) -> str:
        rpc, request_id, instance, now_us, code, elapsed_us, blocks, hits, size, peer, request, reply = entry
        trace_id = request_id.rpartition("_")[0]
        parts = [
            f'{{"request_begin_time":"{self._time(now_us)}","client_ip":{quote(_address(peer))},"trace_id":{quote(trace_id)},'
            f'"request_id":{quote(request_id)},"api_name":"{rpc.name}","status_code":{code},"request_cost_time_us":{elapsed_us},'
            f'"instance_id":{quote(instance)},"blocks":{blocks},"hit_blocks":{hits},"reply_bytes":{size}'
        ]
        response = _parsed(rpc, reply) if reply else None
        if code != _OK and response is not None:
            parts.append(f',"message":{quote(short(response.header.status.message, _MAX_MESSAGE_CHARS))}')
        if request is not None:
            parts.append(f',"request":{payload_text(request, self._max_chars)}')
        if self._with_payload and response is not None:
            parts.append(f',"response":{payload_text(response, self._max_chars)}')
        parts.append("}")
        return "".join(parts)

    def _time(self, wall_us: int) -> str:
        """UTC, in upstream's form."""
        second, rest = divmod(wall_us, 1_000_000)
        if second != self._second:
            self._second, self._second_text = second, time.strftime("%Y.%m.%d,%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{rest:06d}"


def _parsed(rpc: Rpc, reply: bytes) -> Any:
    try:
        return rpc.response_cls.FromString(reply)
    except DecodeError:
        return None


def _address(peer: str) -> str:
    """`ipv4:10.0.0.1:4711` -> `10.0.0.1`, `ipv6:%5B::1%5D:4711` -> `::1`; others as they are."""
    scheme, colon, rest = peer.partition(":")
    if not colon or scheme not in ("ipv4", "ipv6"):
        return peer
    return rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
