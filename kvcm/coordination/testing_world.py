"""Several electors, one lock service and one fenced store on one clock that moves when told to; every step is chosen by the test.

A request travels in two steps, to the coordinator (`reach`) and back (`answer`), and may be lost on either. One whose answer was lost or that was given up may
still reach the coordinator later (`arrive_late`). A paused node is not ticked and hears nothing, while time goes on. After every step the invariants
I-LE-1 to I-LE-9 that can be seen from outside are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvcm.coordination.elector import Campaign, CancelPromote, Command, Demote, Elector, ElectorSettings, KeepAlive, Promote, Resign, Role

Ask = Campaign | KeepAlive | Resign


@dataclass(slots=True)
class Request:
    node_id: str
    command: Ask
    sent_us: int
    reached: bool = False
    # An epoch or None for Campaign, accepted or not for KeepAlive.
    outcome: int | bool | None = None


@dataclass(slots=True)
class Node:
    elector: Elector
    lease_us: int
    paused: bool = False
    request: Request | None = None
    running: str = ""
    """`promote` or `demote` while that callback runs."""
    last: str = "demote"
    open_epoch: int = 0
    """What a manager's term is: set when a promotion succeeds, taken back when a demotion begins."""
    seen_role: Role = Role.FOLLOWER
    accepted_us: int = -1
    """When the last request that the coordinator accepted, and that was answered, was sent."""
    held_writes: list[int] = field(default_factory=list)
    """Epochs of mutations that have passed the check and have not reached the store."""


class World:
    """`tell` gets a line for everything that a node does."""

    def __init__(self, tell: Callable[[str], None] = lambda line: None) -> None:
        self.now = 0
        self.nodes: dict[str, Node] = {}
        self._tell = tell
        self._holder = ""
        self._epoch = 0
        self._expires = 0
        self._lost_lock_us = -1
        self._late: list[Request] = []
        # The store of metadata: the highest epoch it was told, and what was written.
        self.fence = 0
        self.written: list[int] = []

    def add(self, settings: ElectorSettings) -> None:
        self.nodes[settings.node_id] = Node(Elector(settings), settings.lease_ms * 1000)

    # Steps. All are no-ops when there is nothing of the kind to do.

    def advance(self, us: int) -> None:
        self.now += us
        self._check()

    def tick(self, name: str) -> None:
        node = self.nodes[name]
        if node.paused:
            return
        for command in node.elector.tick(self.now):
            self._carry_out(name, node, command)
        if node.elector.role is not node.seen_role:
            self._tell(f"{name}: {node.seen_role.value} -> {node.elector.role.value}")
            node.seen_role = node.elector.role
        self._check()

    def reach(self, name: str) -> None:
        request = self.nodes[name].request
        if request is not None and not request.reached:
            self._serve(request)

    def answer(self, name: str) -> None:
        """The request comes back; it must have reached the coordinator."""
        node = self.nodes[name]
        request = node.request
        if node.paused or request is None or not request.reached:
            return
        node.request = None
        match request.command:
            case Campaign():
                epoch = request.outcome if isinstance(request.outcome, int) and request.outcome else None
                if epoch is not None:
                    node.accepted_us = request.sent_us
                node.elector.campaigned(request.sent_us, self.now, epoch)
            case KeepAlive(epoch):
                if request.outcome:
                    node.accepted_us = max(node.accepted_us, request.sent_us)
                node.elector.kept_alive(request.sent_us, self.now, epoch, bool(request.outcome))
            case Resign():
                node.elector.resigned(self.now)
        self.tick(name)

    def fail(self, name: str) -> None:
        """The node gives the request up, or hears an error. If it has not reached the coordinator, it may do so later."""
        node = self.nodes[name]
        request = node.request
        if node.paused or request is None:
            return
        node.request = None
        if not request.reached:
            self._late.append(request)
        match request.command:
            case Campaign():
                node.elector.campaigned(request.sent_us, self.now, None, failed=True)
            case KeepAlive(epoch):
                node.elector.kept_alive(request.sent_us, self.now, epoch, False, failed=True)
            case Resign():
                node.elector.resigned(self.now)
        self.tick(name)

    def arrive_late(self) -> None:
        """The oldest request that was given up arrives after all."""
        if self._late:
            request = self._late.pop(0)
            self._serve(request)
            self._tell(f"late: {request.node_id} {_word(request.command)}")

    def finish(self, name: str, succeeded: bool) -> None:
        """The callback that runs ends."""
        node = self.nodes[name]
        if node.paused or not node.running:
            return
        node.last, node.running = node.running, ""
        if node.last == "promote":
            # A cancellation may come too late to stop it.
            node.elector.promoted(self.now, succeeded)
            if succeeded:
                node.open_epoch = node.elector.epoch
        else:
            node.elector.demoted()
        self.tick(name)

    def demote(self, name: str) -> None:
        node = self.nodes[name]
        if not node.paused:
            stepped = node.elector.demote(self.now)
            self._tell(f"{name}: {'steps down' if stepped else 'has nothing to step down from'}")
            self.tick(name)

    def stop(self, name: str) -> None:
        node = self.nodes[name]
        if not node.paused:
            node.elector.stop()
            self.tick(name)

    def lose_lock(self) -> None:
        """The coordinator forgets who leads, as an eviction or an operator may do."""
        if self._holder:
            self._holder, self._lost_lock_us = "", self.now

    def write(self, name: str) -> None:
        """A request comes in; if the node may serve, its mutation is under way."""
        node = self.nodes[name]
        if node.paused or not node.open_epoch or not node.elector.leads(self.now):
            return
        assert node.running == "", "I-LE-9: nothing is begun while a node steps down"
        assert node.open_epoch == node.elector.epoch
        node.held_writes.append(node.open_epoch)

    def land(self, name: str) -> None:
        """A mutation reaches the store, also from a node that is paused: it was in the network."""
        node = self.nodes[name]
        if node.held_writes:
            epoch = node.held_writes.pop(0)
            if epoch >= self.fence:
                self.written.append(epoch)
            else:
                self._tell(f"{name}: write of epoch {epoch} is refused by the store's fence {self.fence}")

    def holder(self) -> str:
        """Who holds the lease at the coordinator; empty for nobody."""
        return self._holder if self.now < self._expires else ""

    def may_serve(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.open_epoch and node.elector.leads(self.now)]

    # Inside.

    def _serve(self, request: Request) -> None:
        request.reached = True
        lease_us = self.nodes[request.node_id].lease_us
        match request.command:
            case Campaign():
                if self.holder() not in ("", request.node_id):
                    return
                self._epoch += 1
                self._holder, self._expires = request.node_id, self.now + lease_us
                request.outcome = self._epoch
            case KeepAlive(epoch):
                request.outcome = (self.holder(), self._epoch) == (request.node_id, epoch)
                if request.outcome:
                    self._expires = self.now + lease_us
            case Resign(epoch):
                if (self._holder, self._epoch) == (request.node_id, epoch):
                    self._holder = ""

    def _carry_out(self, name: str, node: Node, command: Command) -> None:
        match command:
            case Promote(epoch) | Demote(epoch):
                kind = "promote" if isinstance(command, Promote) else "demote"
                assert node.running == "", "I-LE-3: callbacks never overlap"
                assert node.last != kind, "I-LE-3: they alternate"
                node.running = kind
                if kind == "promote":
                    # The first thing that a promotion does: from here on nothing of an older term lands.
                    self.fence = max(self.fence, epoch)
                else:
                    node.open_epoch = 0
            case CancelPromote():
                assert node.running == "promote"
            case Campaign() | KeepAlive() | Resign():
                assert node.request is None, "one request to the coordinator at a time"
                if isinstance(command, Campaign):
                    assert self.now >= node.elector.banned_until_us, "I-LE-7"
                if isinstance(command, Resign):
                    assert node.running == "", "the lease is given back after draining"
                node.request = Request(name, command, self.now)
        if not isinstance(command, KeepAlive):
            self._tell(f"{name}: {_word(command)}")

    def _check(self) -> None:
        believing = [name for name, node in self.nodes.items() if node.elector.held and self.now < node.elector.deadline_us]
        # A coordinator that forgets is noticed at the next renewal; until then the one that led goes on.
        if self._lost_lock_us < 0 or self.now >= self._lost_lock_us + max(node.lease_us for node in self.nodes.values()):
            assert len(believing) <= 1, f"I-LE-1: {believing} believe that they hold the lease"
        for name, node in self.nodes.items():
            elector = node.elector
            if elector.leads(self.now):
                assert elector.role is Role.LEADER, "I-LE-2"
                assert name in believing, "I-LE-2"
                assert node.running == "", "I-LE-2: nothing of a change of role runs while it leads"
            if elector.held:
                assert elector.deadline_us <= node.accepted_us + node.lease_us, "I-LE-8"
        for name in self.may_serve():
            assert self.nodes[name].open_epoch <= self._epoch
        assert self.written == sorted(self.written), "a write of an old term landed after one of a newer"


def _word(command: Command) -> str:
    match command:
        case Campaign():
            return "campaign"
        case KeepAlive(epoch):
            return f"keep alive {epoch}"
        case Resign(epoch):
            return f"resign {epoch}"
        case Promote(epoch):
            return f"promote {epoch}"
        case CancelPromote():
            return "cancel the promotion"
        case Demote(epoch):
            return f"demote {epoch}"
