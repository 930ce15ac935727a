"""How a metadata client finds and follows the leader, without a transport: generators that yield commands and get their results.

`MetaClient` and `AsyncMetaClient` drive the same generators with blocking and awaiting calls, so the rules exist once:

- Start (C4): for each address in order connect and register. A node that is down or not the leader leads to the next; any other answer
  ends the start. If no address leads, the nodes are asked who does.
- "Not leader" means that nothing was done, so the client looks for the leader once and repeats the call there once, mutations too (INV-C6).
- A call without an answer is not repeated here (gRPC repeats idempotent reads on UNAVAILABLE); a mutation becomes `RpcOutcomeUnknown`.
  The next call first asks the nodes who leads, at most once a second, so a client never stays with a dead leader.
- One search runs at a time and ends after three connection timeouts. A replaced connection stays open for the calls still on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from kvcm.client import meta_ops
from kvcm.client.config import ClientConfig
from kvcm.client.errors import AccessDenied, ClientError, ConnectFailed, InvalidClientConfig, RpcFailed, RpcOutcomeUnknown, ServiceError, ServiceNotLeader
from kvcm.client.meta_ops import Operation, Registration

T = TypeVar("T")

_MAX_RETIRED = 4
_SEARCH_TIMEOUTS = 3
_STALE_PAUSE_S = 1.0
_SEARCH_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a channel; the result is the transport's handle. Does not wait for a connection."""

    address: str


@dataclass(frozen=True, slots=True)
class HangUp:
    handle: Any


@dataclass(frozen=True, slots=True)
class Invoke:
    """One RPC; the result is its reply. Raises RpcFailed. `wait_for_ready`: wait for a connection until the timeout."""

    handle: Any
    address: str
    method: str
    request: Any
    timeout_s: float
    wait_for_ready: bool


@dataclass(frozen=True, slots=True)
class EnterSearch:
    """Take the lock of the search for the leader, waiting at most `timeout_s`; the result says whether it was got."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class LeaveSearch:
    pass


Command = Dial | HangUp | Invoke | EnterSearch | LeaveSearch
Flow = Generator[Command, Any, T]


@dataclass(frozen=True, slots=True)
class _Link:
    """`stamp`: which certificates it was opened with."""

    address: str
    handle: Any
    stamp: object


class MetaCore:
    """State of one metadata client. `now` is in seconds and never goes back."""

    def __init__(self, config: ClientConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._addresses = config.require_addresses()
        self._now = now
        self._link: _Link | None = None
        self._retired: deque[_Link] = deque()
        self._registration = Registration("", "")
        self._stale = False
        self._searched_at = float("-inf")

    @property
    def registration(self) -> Registration:
        return self._registration

    @property
    def address(self) -> str:
        """The node this client talks to, empty when it is closed."""
        return self._link.address if self._link else ""

    def connect(self) -> Flow[None]:
        """Find a node that accepts the registration. Raises ConnectFailed, ServiceNotLeader, or the refusal."""
        problem = yield from self._walk(self._addresses, set())
        if problem is None:
            return
        if isinstance(problem, ServiceNotLeader) and (yield from self._follow_hints(self._addresses, set(self._addresses), self._budget())):
            return
        raise problem

    def call(self, operation: Operation[T], timeout_s: float | None = None) -> Flow[T]:
        """Run one operation; `timeout_s` replaces the configured call timeout. Looking for a new leader comes on top."""
        timeout_s = timeout_s or self._config.meta_channel.call_timeout_s
        yield from self._leave_dead_node()
        link = self._current()
        try:
            return (yield from self._run(link, operation, timeout_s))
        except ServiceNotLeader:
            if not (yield from self._search(link, deposed=True)):
                raise
        return (yield from self._run(self._current(), operation, timeout_s))

    def close(self) -> Flow[None]:
        links = [*self._retired, *([self._link] if self._link else [])]
        self._retired.clear()
        self._link = None
        for link in links:
            yield HangUp(link.handle)

    def _current(self) -> _Link:
        if self._link is None:
            raise ConnectFailed("the metadata client is closed")
        return self._link

    def _run(self, link: _Link, operation: Operation[T], timeout_s: float) -> Flow[T]:
        try:
            reply = yield Invoke(link.handle, link.address, operation.method, operation.request, timeout_s, wait_for_ready=True)
        except RpcFailed as error:
            self._stale = self._stale or not isinstance(error, AccessDenied)
            if operation.mutation and error.may_have_run:
                raise RpcOutcomeUnknown(f"{error.message}; it may have happened all the same", grpc_status=error.grpc_status) from error
            raise
        return meta_ops.result_of(operation, reply)

    def _budget(self) -> float:
        return self._now() + _SEARCH_TIMEOUTS * self._config.meta_channel.connection_timeout_s

    def _leave_dead_node(self) -> Flow[None]:
        """After a call without an answer: ask who leads, and stay where we are if nobody knows better."""
        if not self._stale or self._now() - self._searched_at < _STALE_PAUSE_S:
            return
        self._stale = False
        try:
            yield from self._search(self._current(), deposed=False)
        except (ServiceError, AccessDenied, InvalidClientConfig):
            pass  # the call itself will tell; files may be half-way through a rotation

    def _search(self, link: _Link, *, deposed: bool) -> Flow[bool]:
        """Move to the leader. True: the client has another link than `link` now. `deposed`: `link` itself said that it does not lead."""
        if not (yield EnterSearch(_SEARCH_TIMEOUTS * self._config.meta_channel.connection_timeout_s)):
            return False
        try:
            if self._link is not link:
                return self._link is not None
            if self._now() - self._searched_at < _SEARCH_PAUSE_S:
                return False
            until = self._budget()
            nodes = tuple(dict.fromkeys((link.address, *self._addresses)))
            tried = {link.address} if deposed else set()
            if (yield from self._follow_hints(nodes, tried, until)):
                return True
            return deposed and (yield from self._walk(nodes, tried, until)) is None
        finally:
            self._searched_at = self._now()
            yield LeaveSearch()

    def _walk(self, addresses: tuple[str, ...], tried: set[str], until: float = float("inf")) -> Flow[ClientError | None]:
        """Try to register at each address. None: one accepted. A refusal other than "not leader" is raised."""
        problem: ClientError | None = None
        for address in addresses:
            if address in tried or self._now() >= until:
                continue
            try:
                yield from self._adopt(address)
            except ServiceNotLeader as error:
                problem = error
            except AccessDenied:
                raise
            except RpcFailed as error:
                if problem is None:
                    problem = ConnectFailed(f"no manager could be reached; the first one tried, {address}: {error.message}")
            else:
                return None
        return problem or ConnectFailed("no manager is left to try")

    def _follow_hints(self, nodes: tuple[str, ...], tried: set[str], until: float) -> Flow[bool]:
        """Ask nodes who leads and move there. True: moved, or the leader is the node we are at."""
        for node in nodes:
            if self._now() >= until:
                return False
            hint = yield from self._ask(node)
            if not hint or hint in tried:
                continue
            if self._link is not None and hint == self._link.address and self._link.stamp == self._config.security.stamp():
                return True
            tried.add(hint)
            try:
                yield from self._adopt(hint)
            except (ServiceNotLeader, RpcFailed):
                continue
            return True
        return False

    def _ask(self, address: str) -> Flow[str]:
        """`host:port` of the leader as this node knows it, empty if it does not."""
        operation = meta_ops.get_cluster_info(self._config.instance_id, "")
        handle = yield Dial(address)
        try:
            reply = yield self._first_call(handle, address, operation)
            endpoint = meta_ops.result_of(operation, reply).leader_endpoint
        except (RpcFailed, ServiceError):
            return ""
        finally:
            yield HangUp(handle)
        return f"{endpoint.host}:{endpoint.meta_rpc_port}" if endpoint and endpoint.host and endpoint.meta_rpc_port else ""

    def _adopt(self, address: str) -> Flow[None]:
        """Connect and register; on success this becomes the link."""
        operation = meta_ops.register(self._config)
        stamp = self._config.security.stamp()
        handle = yield Dial(address)
        try:
            reply = yield self._first_call(handle, address, operation)
            registration = meta_ops.result_of(operation, reply)
        except BaseException:
            yield HangUp(handle)
            raise
        self._registration = registration
        if self._link is not None:
            self._retired.append(self._link)
        self._link = _Link(address, handle, stamp)
        self._stale = False
        while len(self._retired) > _MAX_RETIRED:
            yield HangUp(self._retired.popleft().handle)

    def _first_call(self, handle: Any, address: str, operation: Operation[Any]) -> Invoke:
        """The first call on a fresh channel fails at once when the connection is refused."""
        channel = self._config.meta_channel
        timeout_s = max(channel.connection_timeout_s, channel.call_timeout_s)
        return Invoke(handle, address, operation.method, operation.request, timeout_s, wait_for_ready=False)
