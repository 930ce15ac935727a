"""The asyncio loop around the elector: it tells time, carries out commands, and feeds the answers back.

Dangers:
- a request to the coordinator that hangs: each has a time-out well below the lease, and counts as "nothing known";
- a callback that fails or hangs: a failed promotion releases the lease and is retried after a growing pause; a demotion is cut off after its
  drain time, because a lease that nobody serves under is worse than a drain that did not finish;
- a log that drowns in repetitions: a failure is logged when it changes, not each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kvcm.common.clock import Clock
from kvcm.common.errors import KvcmError
from kvcm.coordination.elector import Campaign, CancelPromote, Command, Demote, Elector, ElectorSettings, KeepAlive, Promote, Resign, Role
from kvcm.coordination.namesake import Namesake
from kvcm.coordination.port import Coordinator
from kvcm.coordination.standing_back import StandingBack

_log = logging.getLogger("kvcm.coordination")


@dataclass(slots=True)
class ElectionStats:
    """Monotone counters; `failures` by operation: campaign, keep_alive, resign, promote, demote."""

    promotions: int = 0
    demotions: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class LeaderRunner:
    """`on_promote(epoch)` makes this node ready to serve and raises if it cannot; `on_demote(epoch)` drains and cleans up.

    The two never overlap and alternate; `on_demote` also follows a promotion that failed or was cancelled. Time-outs: each coordinator call
    gets a third of the lease, a demotion `settings.drain_ms`. `ready` says whether this node could serve at once; while not, it leaves a free lease to others
    for a moment (StandingBack).
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        settings: ElectorSettings,
        on_promote: Callable[[int], Awaitable[None]],
        on_demote: Callable[[int], Awaitable[None]],
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._settings = settings
        self._on_promote = on_promote
        self._on_demote = on_demote
        self._elector = Elector(settings)
        self._standing_back = StandingBack(coordinator, settings.node_id, ready)
        self._namesake = Namesake(coordinator, settings.node_id)
        self._call_s = max(settings.lease_ms / 3, settings.loop_interval_ms) / 1000
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._promotion: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen = Role.FOLLOWER
        self._failure = ""
        self.stats = ElectionStats()
        self.last_loop_wall_ms = 0
        """Unix milliseconds of the last turn of the loop; 0 before the first."""

    async def start(self) -> None:
        """Begin to campaign. Returns at once; see `wait_for`."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Drain, give the lease back, and end; bounded by the drain time and the calls under way. Idempotent."""
        if self._loop is None:
            return
        self._elector.stop()
        self._pump()
        self._wake.set()
        limit = self._settings.drain_ms / 1000 + 4 * self._call_s
        done, _ = await asyncio.wait({self._loop}, timeout=limit)
        if not done:
            _log.error("the election loop did not stop in time; the lease runs out by itself")
        left = (self._loop, *self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def demote(self) -> bool:
        """Step down: not leader from this moment, draining goes on behind. False when this node did not lead."""
        stepped = self._elector.demote(self._clock.monotonic_us())
        self._pump()
        return stepped

    def is_leader(self) -> bool:
        """May a leader-only request be answered now? Checks role and deadline (design D6)."""
        return self._elector.leads(self._clock.monotonic_us())

    def leads_at(self, now_us: int) -> bool:
        """`is_leader` for a caller that has just read the clock."""
        return self._elector.leads(now_us)

    @property
    def role(self) -> Role:
        return self._elector.role

    @property
    def epoch(self) -> int:
        """Of the current term, or of the last one; 0 before the first."""
        return self._elector.epoch

    @property
    def deadline_us(self) -> int:
        """Until when (the clock's monotonic microseconds) this node may lead; 0 while it holds no lease."""
        return self._elector.deadline_us if self._elector.held else 0

    def lease_ends_wall_us(self) -> int:
        """The same in Unix microseconds, -1 when not leading (wire contract 5.7)."""
        now = self._clock.monotonic_us()
        return self._clock.wall_us() + self._elector.deadline_us - now if self._elector.leads(now) else -1

    @property
    def last_failure(self) -> str:
        """Why this node last failed to campaign or to take over; empty when the last attempt went well."""
        return self._failure

    @property
    def campaign_delay_ms(self) -> int:
        """How long this node stays out of elections after losing or giving up leadership; any value, below 0 counts as 0. In memory only."""
        return self._elector.campaign_delay_us // 1000

    @campaign_delay_ms.setter
    def campaign_delay_ms(self, value: int) -> None:
        self._elector.campaign_delay_us = value * 1000
        self._pump()

    async def wait_for(self, *roles: Role) -> None:
        """Until this node has one of these roles. The caller sets the time-out."""
        while self._elector.role not in roles:
            await self._changed.wait()

    async def _run(self) -> None:
        interval_s = self._settings.loop_interval_ms / 1000
        while True:
            self._wake.clear()
            self.last_loop_wall_ms = self._clock.wall_us() // 1000
            self._pump()
            if self._elector.stopped:
                return
            try:
                async with asyncio.timeout(interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _pump(self) -> None:
        """Let the elector look at the time and carry out what it wants. Only starts tasks, so it cannot re-enter itself."""
        if self._loop is None:
            return
        for command in self._elector.tick(self._clock.monotonic_us()):
            self._carry_out(command)
        role = self._elector.role
        if role is not self._seen:
            why = f": {self._elector.left_because}" if role is Role.DEMOTING and self._elector.left_because else ""
            level = logging.WARNING if why and self._elector.was_lost else logging.INFO
            _log.log(level, "node %s: %s -> %s (epoch %d)%s", self._settings.node_id, self._seen.value, role.value, self._elector.epoch, why)
            self._seen = role
            self._changed.set()
            self._changed = asyncio.Event()
        if self._elector.stopped:
            self._wake.set()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Campaign():
                self._spawn(self._campaign())
            case KeepAlive(epoch):
                self._spawn(self._keep_alive(epoch))
            case Resign(epoch):
                self._spawn(self._resign(epoch))
            case Promote(epoch):
                self._promotion = self._spawn(self._promote(epoch))
                self._promotion.add_done_callback(self._promotion_ended)
            case CancelPromote():
                if self._promotion is not None:
                    self._promotion.cancel()
            case Demote(epoch):
                self._spawn(self._demote(epoch))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _campaign(self) -> None:
        sent = self._clock.monotonic_us()
        epoch, failed = None, False
        try:
            async with asyncio.timeout(self._call_s):
                if await self._namesake.leads():
                    self._say("another manager runs with this node id and leads: give each manager its own kvcm.leader_elector.node_id")
                elif await self._standing_back.may_campaign(sent):
                    epoch = await self._coordinator.campaign(self._settings.node_id, self._settings.lease_ms)
        except Exception as error:
            failed = True
            self._note("campaign", "the coordinator cannot be asked for leadership", error)
        self._elector.campaigned(sent, self._clock.monotonic_us(), epoch, failed)
        self._pump()

    async def _keep_alive(self, epoch: int) -> None:
        sent = self._clock.monotonic_us()
        accepted, failed = False, False
        try:
            async with asyncio.timeout(self._call_s):
                accepted = await self._coordinator.keep_alive(self._settings.node_id, epoch, self._settings.lease_ms)
        except Exception as error:
            failed = True
            self._note("keep_alive", "the lease cannot be renewed", error)
        if not accepted and not failed:
            self._namesake.refused(epoch)
        self._elector.kept_alive(sent, self._clock.monotonic_us(), epoch, accepted, failed)
        self._pump()

    async def _resign(self, epoch: int) -> None:
        try:
            async with asyncio.timeout(self._call_s):
                await self._coordinator.resign(self._settings.node_id, epoch)
        except Exception as error:
            self._note("resign", "the lease cannot be given back and runs out by itself", error)
        self._elector.resigned(self._clock.monotonic_us())
        self._pump()

    async def _promote(self, epoch: int) -> None:
        await self._on_promote(epoch)

    def _promotion_ended(self, task: asyncio.Task[None]) -> None:
        """As a callback of the task, because a task that is cancelled before its first step never runs any line of its own."""
        self._promotion = None
        error = None if task.cancelled() else task.exception()
        succeeded = not task.cancelled() and error is None
        if succeeded:
            self.stats.promotions += 1
            self._failure = ""
        elif isinstance(error, Exception):
            self._note("promote", "this node won leadership but cannot take over", error)
        self._elector.promoted(self._clock.monotonic_us(), succeeded)
        self._pump()

    async def _demote(self, epoch: int) -> None:
        self.stats.demotions += 1
        try:
            async with asyncio.timeout(self._settings.drain_ms / 1000):
                await self._on_demote(epoch)
        except Exception as error:
            self._note("demote", "stepping down did not end cleanly", error)
        self._elector.demoted()
        self._pump()

    def _note(self, operation: str, what: str, error: Exception) -> None:
        """Remember a failure and log it when it differs from the last. Messages of our own errors are made for users; others are only named."""
        self.stats.failures[operation] += 1
        if isinstance(error, KvcmError):
            reason = error.message
        elif isinstance(error, TimeoutError):
            reason = "no answer in time"
        else:
            reason = f"internal error ({type(error).__name__})"
        known = isinstance(error, (KvcmError, TimeoutError))
        self._say(f"{what}: {reason}", None if known else error)

    def _say(self, text: str, error: Exception | None = None) -> None:
        if text != self._failure:
            self._failure = text
            _log.error("node %s: %s", self._settings.node_id, text, exc_info=error)
