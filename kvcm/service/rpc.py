"""One RPC, free of any transport, and how it is called.

A handler takes the parsed request and a `Call`, and answers `(code, reply bytes)`: hot RPCs join bytes that were encoded long ago, the others serialise a
message. Transports (gRPC, HTTP) only parse and send. Every reply type has its header as field 1, so an error reply is a header and nothing else.

`Dispatcher.call` is on the hot path of every request: it never awaits anything but the handler, and it never lets an exception out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.protobuf.message import Message

from kvcm.common.clock import Clock
from kvcm.common.errors import ErrorCode, InternalError, InvalidArgument, KvcmError, NotLeader, Unsupported
from kvcm.protocol.location_encoder import encode_header
from kvcm.service.tracing import Tracer, tracer_suffix

log = logging.getLogger("kvcm.service")

MAX_TRACE_ID_CHARS = 256
MAX_MESSAGE_CHARS = 4096
"""Messages name what the caller has sent; a caller's megabytes are neither sent back nor logged."""
MAX_REPLY_BYTES = 64 << 20
"""A longer reply is an error instead, by every transport: a few short requests must not fill the memory."""
TRACE_SUFFIX = "__kvcm_need_span_tracer"
"""A trace_id with this end asks for `tracer_result` (wire contract 3.5)."""
FORCE_HEADER = "x-kvcm-force"
"""`true`: remove also what is still referenced (HTTP header or gRPC metadata)."""


class Origin(Protocol):
    """What came with a call besides its request. Asked by the few handlers that want to know; the others pay nothing."""

    def header(self, name: str) -> str:
        """The HTTP header or the gRPC metadata of this lower-case name; empty when there is none."""
        ...

    def peer(self) -> str:
        """Who calls, e.g. `ipv4:10.0.0.1:4711` or `10.0.0.1`; empty when unknown."""
        ...


class Call:
    """What a handler may know about the call besides its request. `group`, `instance` and the counts are set by handlers for metrics and the access log:
    `keys` are the blocks that the call names, `queried_blocks` and `hit_blocks` those that a read looked for and found."""

    __slots__ = ("group", "hit_blocks", "instance", "keys", "now_us", "origin", "queried_blocks", "request_id")

    def __init__(self, request_id: str, now_us: int, origin: Origin | None = None) -> None:
        self.request_id = request_id
        self.now_us = now_us
        self.origin = origin
        self.group = ""
        self.instance = ""
        self.keys = 0
        self.queried_blocks = 0
        self.hit_blocks = 0

    @property
    def forced(self) -> bool:
        """Did the caller ask to go on although something is still referenced?"""
        return self.origin is not None and self.origin.header(FORCE_HEADER).strip().lower() == "true"


Reply = tuple[int, bytes]
"""(ErrorCode number, serialised response message)."""
Handler = Callable[[Any, Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Rpc:
    """`leader_only`: answers SERVER_NOT_LEADER elsewhere. `traced`: the handler of a call that is traced; only meta replies have `tracer_result`."""

    name: str
    request_cls: type[Message]
    response_cls: type[Message]
    handler: Handler
    leader_only: bool = True
    traced: Callable[[Tracer], Handler] | None = None
    reads_state: bool = field(init=False)
    """It only tells what the leader knows, so its answer is worth nothing once the lease is over. What a mutation says its store has confirmed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_state", self.leader_only and self.name.startswith(("Get", "List", "Gen")))


@dataclass(frozen=True, slots=True)
class Service:
    """`full_name` as in gRPC paths, e.g. `kv_cache_manager.proto.meta.MetaService`."""

    full_name: str
    rpcs: Mapping[str, Rpc]


ASK_THE_LEADER = "this node does not lead; ask the leader (GetClusterInfo tells who that is)"


class LeaderCheck(Protocol):
    def may_serve(self, now_us: int) -> bool:
        """Leader with recovery complete and an unexpired lease at `now_us` (monotonic)."""
        ...

    def lease_holds(self, now_us: int) -> bool:
        """Has the lease not run out by `now_us`? True also while this node steps down and answers what it has begun."""
        ...


class CallObserver(Protocol):
    """Where calls are counted. Must be cheap and must not raise (I-ME-4)."""

    def observe(self, api: str, call: Call, code: int, elapsed_us: int) -> None: ...


class CallTap(Protocol):
    """Who looks at answered calls: access log, events. Must be quick, and must copy what it keeps of `call`, whose origin belongs to the transport."""

    def __call__(self, rpc: Rpc, request: Any, call: Call, code: int, reply: bytes, elapsed_us: int) -> None: ...


class FaultCheck(Protocol):
    def check(self, request: Any) -> None:
        """Raises InjectedFault when a call with this request is to fail (wire contract 5.8)."""
        ...


class Dispatcher:
    """`faults`: None unless some are set, so that a call without them costs one look. `taps`: likewise, empty unless somebody looks.

    `why_not_leader`: the sentence for a call that only the leader answers, on a node that does not lead.
    """

    def __init__(self, clock: Clock, leader: LeaderCheck, observer: CallObserver) -> None:
        self._clock = clock
        self._leader = leader
        self._observer = observer
        self.faults: FaultCheck | None = None
        self.taps: tuple[CallTap, ...] = ()
        self.why_not_leader: Callable[[], str] = lambda: ASK_THE_LEADER

    async def call(self, rpc: Rpc, request: Any, origin: Origin | None = None) -> bytes:
        """Run one call to its reply. Never raises except for cancellation."""
        started = self._clock.monotonic_us()
        now = self._clock.wall_us()
        trace_id = getattr(request, "trace_id", "")[:MAX_TRACE_ID_CHARS]
        call = Call(f"{trace_id}_{now}", now, origin)
        handler, tracer = rpc.handler, None
        if trace_id.endswith(TRACE_SUFFIX) and rpc.traced is not None:
            handler, tracer = self._trace(rpc.traced)
        try:
            if rpc.leader_only and not self._leader.may_serve(started):
                raise NotLeader(self.why_not_leader())
            if self.faults is not None:
                self.faults.check(request)
            code, reply = await handler(request, call)
            if len(reply) > MAX_REPLY_BYTES:
                raise InvalidArgument(f"the reply would have {len(reply) >> 20} MiB, and at most {MAX_REPLY_BYTES >> 20} are sent; ask for less at once")
        except KvcmError as error:
            code = int(error.code)
            message = error.message if len(error.message) <= MAX_MESSAGE_CHARS else f"{error.message[: MAX_MESSAGE_CHARS - 3]}..."
            reply = encode_header(code, message, call.request_id)
            # A caller can end in INTERNAL_ERROR through no fault of ours: a write session that it no longer has.
            if isinstance(error, InternalError) and error.fixer == "kvcm":
                log.error("internal_error api=%s request_id=%s: %s", rpc.name, call.request_id, message)
        except Exception:
            log.exception("unexpected_error api=%s request_id=%s", rpc.name, call.request_id)
            code = int(ErrorCode.INTERNAL_ERROR)
            reply = encode_header(code, "the manager failed to handle this call; its log has the details under this request_id", call.request_id)
        ended = self._clock.monotonic_us()
        if rpc.reads_state and not self._leader.lease_holds(ended) and code != ErrorCode.SERVER_NOT_LEADER:
            # The process was stopped meanwhile, or the handler took that long (design D6).
            code = int(ErrorCode.SERVER_NOT_LEADER)
            reply = encode_header(code, "this node has lost its lease while it answered; ask the leader (GetClusterInfo tells who that is)", call.request_id)
        elapsed_us = ended - started
        self._observer.observe(rpc.name, call, code, elapsed_us)
        if self.taps:
            self._show(rpc, request, call, code, reply, elapsed_us)
        return reply if tracer is None else reply + tracer_suffix(rpc.response_cls, tracer.text(trace_id))

    def _trace(self, traced: Callable[[Tracer], Handler]) -> tuple[Handler, Tracer]:
        tracer = Tracer(self._clock.monotonic_us)
        return traced(tracer), tracer

    def _show(self, rpc: Rpc, request: Any, call: Call, code: int, reply: bytes, elapsed_us: int) -> None:
        for tap in self.taps:
            try:
                tap(rpc, request, call, code, reply, elapsed_us)
            except Exception:
                # Whoever looks on must not cost the caller its answer.
                log.exception("tap_failed tap=%s api=%s", type(tap).__name__, rpc.name)


def unsupported(name: str) -> Handler:
    """A handler for an RPC of the contract that this version does not serve."""

    async def refuse(request: Any, call: Call) -> Reply:
        raise Unsupported(f"{name} is not served by this version; docs/compatibility.md lists what is")

    return refuse


def table(full_name: str, rpcs: Iterable[Rpc]) -> Service:
    return Service(full_name, {rpc.name: rpc for rpc in rpcs})
