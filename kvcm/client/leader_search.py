"""Where the leader is: the link of one metadata client, and how it moves. Generators that yield commands (meta_commands); no transport, no clock.

- Start (C4): for each address in order connect and register. A node that is down or not the leader leads to the next; any other answer ends the start.
  If no address leads, the nodes are asked who does.
- A search asks all nodes at once who leads. What they say is a hint, the newest epoch first; proof is a node that accepts the registration, which only a
  leader with an unexpired lease does. So an old leader that answers late is not believed, and epochs that began anew do no harm.
- Only one search runs at a time; whoever waits for it uses its result. A replaced connection stays open for the calls still on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvcm.client import meta_ops
from kvcm.client.config import ClientConfig
from kvcm.client.errors import AccessDenied, ClientError, ConnectFailed, InvalidClientConfig, RpcFailed, ServiceError, ServiceNotLeader
from kvcm.client.meta_commands import Dial, EnterSearch, Flow, HangUp, Invoke, LeaveSearch, LookUp, Survey
from kvcm.client.meta_ops import Operation, Registration
from kvcm.client.seeds import Seeds
from kvcm.client.types import ClusterInfo
from kvcm.common.errors import ErrorCode

_MAX_RETIRED = 4
_MAX_ASKED = 16
_SEARCH_TIMEOUTS = 3
_STALE_PAUSE_S = 1.0
_SEARCH_PAUSE_S = 0.05
_GRACE_S = 0.1


@dataclass(frozen=True, slots=True)
class Link:
    """`stamp`: which certificates it was opened with. `epoch`: of the leadership that it was found under, 0 unknown."""

    address: str
    handle: Any
    stamp: object
    epoch: int = 0


class Found(Enum):
    MOVED = "the client has another link now"
    SAME = "the node that it is at leads, as far as the others know"
    NOBODY = "nobody was found who leads"


class LeaderSearch:
    """`now` is in seconds and never goes back."""

    def __init__(self, config: ClientConfig, now: Callable[[], float]) -> None:
        config.require_addresses()
        self._config = config
        self._now = now
        self._seeds = Seeds(config.addresses)
        self._retired: deque[Link] = deque()
        self._stale = False
        self._searched_at = float("-inf")
        self._turn = 0
        self._heard = False
        """Somebody has answered the last survey."""
        self.link: Link | None = None
        self.registration = Registration("", "")
        # The newest leadership that this client knows of.
        self.epoch = 0

    def current(self) -> Link:
        if self.link is None:
            raise ConnectFailed("the metadata client is closed")
        return self.link

    def doubt(self) -> None:
        """A call got no answer: look for the leader before the next one."""
        self._stale = True

    def close(self) -> Flow[None]:
        links = [*self._retired, *([self.link] if self.link else [])]
        self._retired.clear()
        self.link = None
        for link in links:
            yield HangUp(link.handle)

    def connect(self) -> Flow[None]:
        """Find a node that accepts the registration. Raises ConnectFailed, ServiceNotLeader, or the refusal."""
        yield from self._look_up()
        known = self._seeds.all()
        if not known:
            raise ConnectFailed("no manager could be reached: the addresses name no member, or their names cannot be looked up")
        left, dead = list(known), set[str]()
        problem = yield from self._walk(left, dead)
        if problem is None:
            return
        # All at once now: a node that hangs may have taken the time of those behind it, and meanwhile another one may lead.
        if left or isinstance(problem, ServiceNotLeader):
            if (yield from self._follow_hints(known, dead)) is Found.MOVED:
                return
            if self._heard and not isinstance(problem, ServiceNotLeader):
                raise ServiceNotLeader("none of the managers that answer leads", service_code=int(ErrorCode.SERVER_NOT_LEADER)) from problem
        raise problem

    def leave_dead_node(self) -> Flow[None]:
        """After a call without an answer: ask who leads, and stay where we are if nobody knows better. At most once a second."""
        if not self._stale or self._now() - self._searched_at < _STALE_PAUSE_S:
            return
        self._stale = False
        try:
            yield from self.search(self.current(), deposed=False)
        except (ServiceError, AccessDenied, InvalidClientConfig):
            pass  # the call itself will tell; files may be half-way through a rotation

    def search(self, link: Link, *, deposed: bool) -> Flow[Found]:
        """Move to the leader, away from `link`. `deposed`: `link` itself said that it does not lead. Raises a refusal other than "not leader"."""
        if not (yield EnterSearch(_SEARCH_TIMEOUTS * self._config.meta_channel.connection_timeout_s)):
            return Found.NOBODY
        try:
            if self.link is not link:
                return Found.MOVED if self.link is not None else Found.NOBODY
            if self._now() - self._searched_at < _SEARCH_PAUSE_S:
                return Found.NOBODY
            try:
                yield from self._look_up()
                return (yield from self._follow_hints((link.address, *self._seeds.all()), set(), deposed=deposed))
            finally:
                # Only of a search: one that was put off must not put off the next, or a caller that repeats at once would never find anybody.
                self._searched_at = self._now()
        finally:
            yield LeaveSearch()

    def _look_up(self) -> Flow[None]:
        if self._seeds.due():
            yield LookUp(self._seeds, self._config.meta_channel.connection_timeout_s)

    def _walk(self, addresses: list[str], dead: set[str]) -> Flow[ClientError | None]:
        """Try to register at each address. None: one accepted. A refusal other than "not leader" is raised. What was tried is taken out of `addresses`, and put
        into `dead` if it did not answer."""
        problem: ClientError | None = None
        until = self._now() + max(_SEARCH_TIMEOUTS, len(addresses)) * self._config.meta_channel.connection_timeout_s
        while addresses and self._now() < until:
            address = addresses.pop(0)
            try:
                yield from self._adopt(address, 0)
            except ServiceNotLeader as error:
                problem = error
            except AccessDenied:
                raise
            except RpcFailed as error:
                dead.add(address)
                if problem is None:
                    problem = ConnectFailed(f"no manager could be reached; the first one tried, {address}: {error.message}")
            else:
                return None
        return problem or ConnectFailed("no manager is left to try")

    def _follow_hints(self, nodes: tuple[str, ...], tried: set[str], *, deposed: bool = True) -> Flow[Found]:
        """Ask nodes who leads and move there. Those that named nobody or themselves are tried where they were asked."""
        hints, silent = yield from self._ask(nodes)
        until = self._now() + _SEARCH_TIMEOUTS * self._config.meta_channel.connection_timeout_s
        at = self.link.address if self.link is not None else ""
        stamp = self._config.security.stamp()
        # The newest leadership first; then those older than one that this client has seen, then those of unknown age.
        order = sorted(hints, key=lambda address: hints[address] if hints[address] >= self.epoch else hints[address] - self.epoch, reverse=True)
        for address in order:
            if address == at and self.link is not None and self.link.stamp == stamp:
                return Found.SAME
            if (yield from self._try(address, hints[address], tried, until)):
                return Found.MOVED
        if deposed:
            for address in silent:
                if address != at and (yield from self._try(address, 0, tried, until)):
                    return Found.MOVED
        return Found.NOBODY

    def _try(self, address: str, epoch: int, tried: set[str], until: float) -> Flow[bool]:
        if address in tried or self._now() >= until:
            return False
        tried.add(address)
        try:
            yield from self._adopt(address, epoch)
        except AccessDenied:
            raise
        except (ServiceNotLeader, RpcFailed):
            return False
        return True

    def _ask(self, nodes: tuple[str, ...]) -> Flow[tuple[dict[str, int], list[str]]]:
        """(leader's `host:port` -> newest epoch it is said to have, nodes that named no leader or themselves)."""
        unique = tuple(dict.fromkeys(nodes))
        if len(unique) > _MAX_ASKED:
            # The node we are at, and the others in turn.
            self._turn = (self._turn + _MAX_ASKED) % len(unique)
            unique = (unique[0], *(unique[1:] * 2)[self._turn : self._turn + _MAX_ASKED - 1])
        operation = meta_ops.get_cluster_info(self._config.instance_id, "")
        replies = yield Survey(unique, operation.method, operation.request, self._first_timeout(), _GRACE_S, lambda reply: bool(_hint(operation, reply)[0]))
        self._heard = bool(replies)
        hints: dict[str, int] = {}
        silent: list[str] = []
        for address, reply in replies:
            hint, epoch = _hint(operation, reply)
            if hint:
                hints[hint] = max(epoch, hints.get(hint, 0))
            # One that leads itself may be reachable only where it was asked: what it is called inside its network is no use outside.
            if not hint or reply.self_node_id == reply.leader_node_id:
                silent.append(address)
        return hints, silent

    def _adopt(self, address: str, epoch: int) -> Flow[None]:
        """Connect and register; on success this becomes the link."""
        operation = meta_ops.register(self._config)
        stamp = self._config.security.stamp()
        handle = yield Dial(address)
        try:
            reply = yield Invoke(handle, address, operation.method, operation.request, self._first_timeout())
            registration = meta_ops.result_of(operation, reply)
        except BaseException:
            yield HangUp(handle)
            raise
        self.registration = registration
        if self.link is not None:
            self._retired.append(self.link)
        self.link = Link(address, handle, stamp, epoch)
        self.epoch = epoch or self.epoch
        self._stale = False
        while len(self._retired) > _MAX_RETIRED:
            yield HangUp(self._retired.popleft().handle)

    def _first_timeout(self) -> float:
        channel = self._config.meta_channel
        return max(channel.connection_timeout_s, channel.call_timeout_s)


def _hint(operation: Operation[ClusterInfo], reply: Any) -> tuple[str, int]:
    """(`host:port` of the leader as a node knows it or empty, its epoch or 0)."""
    try:
        info = meta_ops.result_of(operation, reply)
    except ServiceError:
        return "", 0
    endpoint = info.leader_endpoint
    if endpoint is None or not endpoint.host or not endpoint.meta_rpc_port:
        return "", 0
    host = f"[{endpoint.host}]" if ":" in endpoint.host and not endpoint.host.startswith("[") else endpoint.host
    return f"{host}:{endpoint.meta_rpc_port}", info.leader_epoch
