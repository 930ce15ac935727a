"""Managers over a folder, in any order of what they ask of the file system: one may stop before each single request, for as long as it likes (I-LE-1).

The requests to the file system are real. Only their order is chosen here: each manager is a thread that goes on for one request when it is told to. Whoever
finds the queue held passes over its holder at once, as if that were stopped, which is the worst that the queue can do. Now and then the disk is full.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common import file_turn
from kvcm.common.clock import FakeClock
from kvcm.common.file_turn import TurnLost
from kvcm.coordination.file_lease import LeaseFolder

pytestmark = pytest.mark.property

LEASE = 1_000_000
REQUESTS = {
    os: ("open", "read", "write", "fsync", "mkdir", "rmdir", "rename", "replace", "unlink", "listdir", "scandir"),
    fcntl: ("flock",),
}


@dataclass(slots=True)
class Belief:
    node_id: str
    epoch: int
    since_us: int
    until_us: int


class Actor:
    """One manager: its calls run in a thread that waits before each request to the file system."""

    def __init__(self, world: World, number: int) -> None:
        self.node_id = f"n{number}"
        self._world = world
        self._node = LeaseFolder(world.folder, world.clock, 0, "boot")
        self._go = threading.Semaphore(0)
        self._waits = threading.Semaphore(0)
        self._work: Callable[[], None] | None = None
        self._ends = False
        self.mine: Belief | None = None
        self.busy = False
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def begin(self, work: Callable[[], None]) -> None:
        self._work, self.busy = work, True

    def step(self) -> None:
        """Until its next request to the file system, or the end of its call."""
        self._go.release()
        self._waits.acquire()

    def pause(self) -> None:
        self._waits.release()
        self._go.acquire()

    def end(self) -> None:
        while self.busy:
            self.step()
        self._ends = True
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        self._world.actors[threading.get_ident()] = self
        while True:
            self._go.acquire()
            if self._ends:
                return
            try:
                assert self._work is not None
                self._work()
            except BaseException as error:
                if not isinstance(error, TurnLost) and "no room" not in str(error):
                    self.errors.append(error)
            self.busy = False
            self._waits.release()

    # What a manager does, and what it then believes.

    def campaign(self) -> None:
        sent = self._world.clock.monotonic_us()
        epoch = self._node.campaign(self.node_id, LEASE)
        if epoch is not None:
            self.mine = Belief(self.node_id, epoch, self._world.clock.monotonic_us(), sent + LEASE)
            self._world.beliefs.append(self.mine)

    def keep(self) -> None:
        if self.mine is None:
            return
        sent = self._world.clock.monotonic_us()
        if self._node.keep_alive(self.node_id, self.mine.epoch, LEASE):
            self.mine.until_us = max(self.mine.until_us, sent + LEASE)
        else:
            self.mine = None

    def resign(self) -> None:
        if self.mine is None:
            return
        self.mine.until_us = min(self.mine.until_us, self._world.clock.monotonic_us())
        before, self.mine = self.mine, None
        self._node.resign(self.node_id, before.epoch)

    def share(self) -> None:
        """Its text names the term, so that one that lands after a later term's is seen."""
        if self.mine is None:
            return
        epoch = self.mine.epoch
        self._node.put_shared(self.node_id, epoch, "plan", str(epoch))

    def look(self) -> None:
        self._node.observe()
        shown = int(self._node.get_shared("plan") or 0)
        assert shown >= self._world.shown, "an older term's text came back"
        self._world.shown = shown

    def tell(self) -> None:
        self._node.put_node(self.node_id, "{}")
        self._node.list_nodes()


@dataclass(slots=True)
class World:
    folder: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(monotonic_us=10**9))
    actors: dict[int, Actor] = field(default_factory=dict)
    beliefs: list[Belief] = field(default_factory=list)
    shown: int = 0
    full: bool = False

    def pause(self) -> None:
        actor = self.actors.get(threading.get_ident())
        if actor is not None:
            actor.pause()

    def check(self) -> None:
        held = sorted((belief for belief in self.beliefs if belief.since_us < belief.until_us), key=lambda belief: belief.since_us)
        for before, after in pairwise(held):
            assert before.epoch < after.epoch, f"epochs grow: {before}, {after}"
            assert before.node_id == after.node_id or before.until_us <= after.since_us, f"{before} and {after} overlap"
        assert len({belief.epoch for belief in self.beliefs}) == len(self.beliefs), "an epoch was given out twice"


@contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        made = World(Path(name))

        def waiting(real: Callable[..., Any]) -> Callable[..., Any]:
            def request(*args: Any, **kwargs: Any) -> Any:
                made.pause()
                if made.full and real is mkdir:
                    raise OSError(errno.ENOSPC, "no room")
                return real(*args, **kwargs)

            return request

        mkdir = os.mkdir
        for module, names in REQUESTS.items():
            for request in names:
                patch.setattr(module, request, waiting(getattr(module, request)))
        patch.setattr(file_turn, "_STOPPED_POLLS", 1)
        patch.setattr(file_turn, "_is_stopped", lambda pid: True)
        yield made


@given(luck=st.randoms(use_true_random=False), nodes=st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_I_LE_1_no_order_of_requests_lets_two_nodes_believe_that_they_lead(luck: random.Random, nodes: int) -> None:
    with world() as here:
        actors = [Actor(here, number) for number in range(nodes)]
        try:
            for _ in range(250):
                chance = luck.random()
                if chance > 0.98:
                    here.full = not here.full
                if chance < 0.03:
                    here.clock.advance_us(int(luck.choice((0.1, 0.5, 1.1)) * LEASE))
                    continue
                actor = luck.choice(actors)
                if not actor.busy:
                    actor.begin(luck.choice((actor.campaign, actor.campaign, actor.keep, actor.keep, actor.resign, actor.share, actor.look, actor.tell)))
                _steps(actor, luck.choice((1, 1, 2, 5, 40)))
        finally:
            for actor in actors:
                actor.end()
        assert not [error for actor in actors for error in actor.errors]
        here.check()


@pytest.mark.parametrize(("call", "leads"), [("campaign", False), ("tell", False), *((call, True) for call in ("campaign", "keep", "resign", "share", "tell"))])
def test_wherever_a_node_is_stopped_the_other_leads_once_the_lease_is_over_and_not_before(call: str, leads: bool) -> None:
    """Each request of each call in turn; the stopped one goes on when the other has led for a while."""
    stops = 0
    while True:
        with world() as here:
            stopped, other = Actor(here, 0), Actor(here, 1)
            try:
                if leads:
                    _whole(stopped, stopped.campaign)
                stopped.begin(getattr(stopped, call))
                _steps(stopped, stops)
                went_through = not stopped.busy
                if leads and call != "resign":
                    _whole(other, other.campaign)
                    assert other.mine is None, f"the lease was not over, request {stops}"
                here.clock.advance_us(LEASE)
                _whole(other, other.campaign)
                if other.mine is None:  # passing over somebody who has just written takes a second attempt
                    here.clock.advance_us(LEASE)
                    _whole(other, other.campaign)
                assert other.mine is not None, f"nobody leads while the other is stopped, request {stops}"
                _whole(other, other.keep)
                _whole(other, other.share)
                _steps(stopped, 1000)
                _whole(other, other.look)
                _whole(other, other.keep)
                assert other.mine is not None, f"the lease was taken from its holder, request {stops}"
                assert here.shown == other.mine.epoch
            finally:
                for actor in (stopped, other):
                    actor.end()
            assert not stopped.errors + other.errors
            here.check()
        if went_through:
            break
        stops += 1
    assert stops > 1


def _whole(actor: Actor, call: Callable[[], None]) -> None:
    actor.begin(call)
    while actor.busy:
        actor.step()


def test_two_that_stop_one_in_the_turn_of_the_other_do_not_write_for_each_other() -> None:
    """The leader stops at each request of a renewal, another at each request of its campaign; then the first goes on, and then the second."""
    seen = set()
    for stops in range(1, 100):
        for others in range(1, 100):
            with world() as here:
                first, second = Actor(here, 0), Actor(here, 1)
                try:
                    _whole(first, first.campaign)
                    first.begin(first.keep)
                    _steps(first, stops)
                    here.clock.advance_us(LEASE)
                    second.begin(second.campaign)
                    _steps(second, others)
                    seen.add(now := (first.busy, second.busy))
                    for actor in (first, second):
                        _steps(actor, 1000)
                    _whole(second, second.look)
                finally:
                    for actor in (first, second):
                        actor.end()
                assert not first.errors + second.errors
                here.check()
            if not now[1]:
                break
        if not now[0]:
            break
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def _steps(actor: Actor, count: int) -> None:
    for _ in range(count):
        if actor.busy:
            actor.step()
