"""How a metadata client makes a call and what it repeats, without a transport: generators that yield commands (meta_commands).

- "Not leader" and a refused connection mean that nothing was done: the client looks for the leader and repeats the call there, changes too (INV-C6).
- A read without an answer is repeated when the leader is found elsewhere, or when nobody could be reached. One that timed out at a node that still leads is
  not: that node has enough to do.
- A change that may have been carried out is never repeated. FinishWrite's outcome is asked for (finish_outcome); every other one is `RpcOutcomeUnknown`.
- No attempt begins later than `failover_s` after the first one failed, but the one at a leader that was found by then. Pauses in between grow, and their
  length is drawn so that clients do not come in step.
  A client that has just waited in vain does not wait again for a second: without a leader, most calls fail at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from kvcm.client import meta_ops
from kvcm.client.config import ClientConfig
from kvcm.client.errors import AccessDenied, ClientError, RpcFailed, RpcOutcomeUnknown, ServiceNotLeader
from kvcm.client.finish_outcome import OpenWrites
from kvcm.client.leader_search import Found, LeaderSearch, Link
from kvcm.client.meta_commands import Flow, Invoke, Pause
from kvcm.client.meta_ops import Operation, Registration

T = TypeVar("T")

_MAX_MOVES = 64
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 0.5
_GIVEN_UP_S = 1.0
_MAX_LOOKS = 8
# These say that the node could not be reached or went away; any other status is an answer.
_GONE = ("UNAVAILABLE", "CANCELLED")


class MetaCore:
    """State of one metadata client. `now` is in seconds and never goes back; `draw` gives numbers from 0 to 1."""

    def __init__(self, config: ClientConfig, now: Callable[[], float], draw: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._draw = draw
        self._leader = LeaderSearch(config, now)
        self._open = OpenWrites(config.instance_id)
        self._gave_up_at = float("-inf")

    @property
    def registration(self) -> Registration:
        return self._leader.registration

    @property
    def address(self) -> str:
        """The node this client talks to, empty when it is closed."""
        return self._leader.link.address if self._leader.link else ""

    @property
    def epoch(self) -> int:
        """The newest leadership that this client has found; 0 while it had not to look."""
        return self._leader.epoch

    def connect(self) -> Flow[None]:
        """Find a node that accepts the registration; while nodes answer but none leads, for `failover_s`. Raises ConnectFailed, ServiceNotLeader, a refusal."""
        until = self._now() + self._config.meta_channel.failover_s
        attempt = 0
        while True:
            try:
                return (yield from self._leader.connect())
            except ServiceNotLeader:
                if not (yield from self._rest(attempt, until)):
                    raise
            attempt += 1

    def close(self) -> Flow[None]:
        yield from self._leader.close()

    def call(self, operation: Operation[T], timeout_s: float | None = None) -> Flow[T]:
        """Run one operation; `timeout_s` replaces the configured call timeout. Following the leader comes on top, at most `failover_s`."""
        timeout_s = timeout_s or self._config.meta_channel.call_timeout_s
        patience_s = 0.0 if self._now() - self._gave_up_at < _GIVEN_UP_S else self._config.meta_channel.failover_s
        yield from self._leader.leave_dead_node()
        attempt, until = 0, float("inf")
        while True:
            link = self._leader.current()
            try:
                result = yield from self._run(link, operation, timeout_s)
            except RpcOutcomeUnknown as error:
                return (yield from self._outcome(link, operation, error, timeout_s, self._now() + patience_s))
            except (ServiceNotLeader, RpcFailed) as error:
                # From the first problem on: a call that goes well at once costs no look at the clock.
                until = min(until, self._now() + patience_s)
                attempt = yield from self._move(link, error, attempt, until)
            else:
                self._open.note(operation, result)
                return result

    def _run(self, link: Link, operation: Operation[T], timeout_s: float) -> Flow[T]:
        try:
            reply = yield Invoke(link.handle, link.address, operation.method, operation.request, timeout_s)
        except RpcFailed as error:
            if not isinstance(error, AccessDenied):
                self._leader.doubt()
            if operation.mutation and error.may_have_run:
                raise RpcOutcomeUnknown(f"{error.message}; it may have happened all the same", grpc_status=error.grpc_status) from error
            raise
        return meta_ops.result_of(operation, reply)

    def _move(self, link: Link, error: ClientError, attempt: int, until: float) -> Flow[int]:
        """Look for the leader until there is a reason to try again; returns the next attempt's number. Raises `error` when there is none."""
        deposed = isinstance(error, ServiceNotLeader)
        if isinstance(error, RpcFailed) and error.grpc_status not in (*_GONE, "DEADLINE_EXCEEDED"):
            raise error
        gone = deposed or (isinstance(error, RpcFailed) and (error.grpc_status in _GONE or not error.may_have_run))
        while True:
            found = yield from self._leader.search(link, deposed=gone)
            if found is Found.MOVED and (attempt == 0 or (attempt < _MAX_MOVES and self._now() < until)):
                return attempt + 1
            if not gone or not (yield from self._rest(attempt, until)):
                raise error
            attempt += 1
            if found is Found.SAME:
                return attempt

    def _rest(self, attempt: int, until: float) -> Flow[bool]:
        """Wait a little before the next attempt. False: there is no time for one."""
        pause = min(_FIRST_PAUSE_S * 2 ** min(attempt, 10), _MAX_PAUSE_S) * (0.5 + self._draw() / 2)
        if self._now() + pause >= until:
            self._gave_up_at = self._now()
            return False
        yield Pause(pause)
        return True

    def _outcome(self, link: Link, operation: Operation[T], error: RpcOutcomeUnknown, timeout_s: float, until: float) -> Flow[T]:
        """What became of a change without an answer, where it can be asked for. Raises `error` when nobody knows."""
        question = self._open.question(operation)
        if question is None:
            raise error
        attempt = looks = 0
        while True:
            answer = None
            try:
                yield from self._leader.search(link, deposed=False)
                at = self._leader.current()
                blocks = yield from self._run(at, question.operation, timeout_s)
                final = at.address != link.address
                answer = question.answer(blocks, final=final)
                # Nothing changes any more, or nothing has for a while: the request is lost, or its blocks were removed.
                looks = _MAX_LOOKS if final else looks + 1
            except ClientError as problem:
                if not problem.retryable:
                    raise error from None
            if answer is True:
                self._open.forget(operation)
                return cast("T", None)  # what FinishWrite gives when it ends well
            if answer is False:
                gone = f"{operation.method}: the manager that was asked does not lead any more and had not carried it out"
                raise RpcFailed(gone, grpc_status=error.grpc_status, may_have_run=False) from error
            if looks >= _MAX_LOOKS or not (yield from self._rest(attempt, until)):
                raise error
            attempt += 1
