"""The election of one node as a pure state machine: events in, commands out, no clock, no I/O (behaviour 16.2-16.5; design D6).

    FOLLOWER --won--> PROMOTING --promoted--> LEADER --lost, asked or stopping--> DEMOTING --drained--> FOLLOWER
                          `--failed, lost, asked or stopping--> DEMOTING

What it guarantees, whatever the order of events:
- at most one callback runs at a time, and promote and demote alternate (I-LE-3); a promotion that failed is followed by a demotion;
- the lease is renewed as long as anything of the old role still runs, and given back only after it has drained: nobody else is promoted while
  this node still works. Only a lost lease overtakes the drain, or a callback that takes longer than `drain_ms` to end; then the stores' fences hold;
- a lost lock always ends in FOLLOWER, a kept one in LEADER (I-LE-4, I-LE-5), a failed promotion releases (I-LE-6);
- the deadline counts from the *send* time of the last accepted request, and this node steps down one loop interval before it (I-LE-8);
- nothing campaigns during a ban, a back-off, or after `Stop` (I-LE-7).

Times are microseconds of a monotonic clock that runs through suspend. An answer that arrives late is judged by when its request was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    FOLLOWER = "follower"
    PROMOTING = "promoting"
    LEADER = "leader"
    DEMOTING = "demoting"


@dataclass(frozen=True, slots=True)
class ElectorSettings:
    """All in milliseconds. `campaign_delay_ms` is the ban after losing or giving up leadership (wire contract 5.7)."""

    node_id: str
    lease_ms: int = 10_000
    loop_interval_ms: int = 100
    campaign_delay_ms: int = 0
    promote_backoff_ms: int = 5_000
    promote_backoff_max_ms: int = 60_000
    campaign_retry_max_ms: int = 5_000
    # How long a demotion may drain before the lease is given back all the same, and a cancelled promotion take to end before it is no longer renewed.
    drain_ms: int = 30_000


# Commands. Each is answered by exactly one event: Campaign by Campaigned, KeepAlive by KeptAlive, Resign by Resigned, Promote (cancelled or
# not) by Promoted, Demote by Demoted.


@dataclass(frozen=True, slots=True)
class Campaign:
    pass


@dataclass(frozen=True, slots=True)
class KeepAlive:
    epoch: int


@dataclass(frozen=True, slots=True)
class Resign:
    epoch: int


@dataclass(frozen=True, slots=True)
class Promote:
    epoch: int


@dataclass(frozen=True, slots=True)
class CancelPromote:
    """The running promotion is of no use any more. Not answered by itself: the promotion still ends in a Promoted."""


@dataclass(frozen=True, slots=True)
class Demote:
    epoch: int


Command = Campaign | KeepAlive | Resign | Promote | CancelPromote | Demote


class Elector:
    def __init__(self, settings: ElectorSettings) -> None:
        self._lease_us = settings.lease_ms * 1000
        self._interval_us = settings.loop_interval_ms * 1000
        self._settings = settings
        # May be changed at any time, also while a ban runs: whoever shortens it does not want to wait for the old end. Below 0 is 0.
        self.campaign_delay_us = settings.campaign_delay_ms * 1000
        self.role = Role.FOLLOWER
        # Epoch of the current or last term; `held` tells whether the lease is believed to be ours.
        self.epoch = 0
        self.held = False
        self.deadline_us = 0
        self._left_at_us: int | None = None
        self._backoff_until_us = 0
        self._campaign_at_us = 0
        self._keep_alive_at_us = 0
        self._waiting_for: type[Campaign] | type[KeepAlive] | type[Resign] | None = None
        self._promote_running = False
        self._cancel_sent = False
        self._give_up_us = 0
        self._demote_running = False
        self._leaving = False
        self._stopping = False
        self._failed_campaigns = 0
        self._failed_promotions = 0
        self._ticked_us: int | None = None
        self.left_because = ""
        """Why the last term ended, for people; `was_lost`: not by anybody's wish."""
        self.was_lost = False

    def leads(self, now_us: int) -> bool:
        """May a leader-only request be answered at this moment (I-LE-2)?"""
        return self.role is Role.LEADER and self.held and not self._leaving and now_us < self.deadline_us

    @property
    def banned_until_us(self) -> int:
        """No campaign before this moment (I-LE-7): the delay after a loss, or the pause after a failed promotion."""
        if self._left_at_us is None:
            return self._backoff_until_us
        return max(self._backoff_until_us, self._left_at_us + max(self.campaign_delay_us, 0))

    @property
    def stopped(self) -> bool:
        return self._stopping and self.role is Role.FOLLOWER and self._waiting_for is None

    def tick(self, now_us: int) -> list[Command]:
        """Call it every loop interval, and whenever something else should be looked at."""
        if self.held and now_us >= self.deadline_us:
            away_us = now_us - self._ticked_us if self._ticked_us is not None else 0
            slept = away_us >= self._lease_us // 2
            self._lose(now_us, f"this process did not run for {away_us / 1e6:.1f} s and the lease has ended" if slept else "the lease was not renewed in time")
        self._ticked_us = now_us
        return self._next(now_us)

    def demote(self, now_us: int) -> bool:
        """Step down voluntarily: leadership ends at once, the lease after draining. False when there is nothing to step down from."""
        if self.role not in (Role.LEADER, Role.PROMOTING) or self._leaving:
            return False
        self._leave("it steps down")
        self._left_at_us = now_us
        return True

    def stop(self) -> None:
        self._stopping = True
        if self.role in (Role.LEADER, Role.PROMOTING):
            self._leave("it is being stopped")

    # Answers. Each is followed by a `tick`, which gives the commands.

    def campaigned(self, sent_us: int, now_us: int, epoch: int | None, failed: bool = False) -> None:
        """`epoch` when won; None when another node leads, or with `failed` when nothing is known."""
        self._answered(Campaign)
        self._failed_campaigns = self._failed_campaigns + 1 if failed else 0
        backoff = min(self._interval_us << min(self._failed_campaigns, 16), self._settings.campaign_retry_max_ms * 1000)
        self._campaign_at_us = now_us + (max(backoff, self._interval_us) if failed else self._interval_us)
        if epoch is None:
            return
        self.epoch, self.held, self.deadline_us, self._keep_alive_at_us = epoch, True, 0, 0
        self.left_because, self.was_lost = "", False
        self._extend(sent_us)
        if self._stopping or now_us < self.banned_until_us or now_us >= self.deadline_us:
            # Nothing has begun yet: give it straight back.
            self.role = Role.DEMOTING
            return
        self.role = Role.PROMOTING
        self._leaving = False
        self._left_at_us = None

    def kept_alive(self, sent_us: int, now_us: int, epoch: int, accepted: bool, failed: bool = False) -> None:
        """`failed`: nothing is known; the old deadline stands."""
        self._answered(KeepAlive)
        if not self.held or epoch != self.epoch:
            return
        if failed:
            return
        if accepted:
            self._extend(sent_us)
        else:
            self._lose(now_us, "the coordinator says that the lease is not this node's any more")

    def resigned(self, now_us: int) -> None:
        """Whatever the answer was: a lease that could not be given back runs out by itself."""
        self._answered(Resign)
        self._campaign_at_us = now_us + self._interval_us

    def promoted(self, now_us: int, succeeded: bool) -> None:
        self._promote_running = False
        if succeeded and self.held and not self._leaving and now_us < self.deadline_us:
            self._failed_promotions = 0
            self.role = Role.LEADER
            return
        if not succeeded and self.held and not self._leaving:
            backoff = self._settings.promote_backoff_ms << min(self._failed_promotions, 16)
            self._failed_promotions += 1
            self._backoff_until_us = max(self._backoff_until_us, now_us + min(backoff, self._settings.promote_backoff_max_ms) * 1000)
        self._leave("taking over did not succeed")

    def demoted(self) -> None:
        self._demote_running = False

    # Inside.

    def _next(self, now_us: int) -> list[Command]:
        commands: list[Command] = []
        if self.role is Role.PROMOTING and not self._promote_running and not self._leaving:
            self._promote_running, self._cancel_sent = True, False
            commands.append(Promote(self.epoch))
        if self._leaving and self.role in (Role.PROMOTING, Role.LEADER):
            if self._promote_running and not self._cancel_sent:
                # Once: a second cancellation would hit the promotion's own cleaning up.
                self._cancel_sent = True
                self._give_up_us = now_us + self._settings.drain_ms * 1000
                commands.append(CancelPromote())
            elif not self._promote_running:
                self.role = Role.DEMOTING
                self._leaving = False
                self._demote_running = True
                commands.append(Demote(self.epoch))
        if self.role is Role.DEMOTING and not self._demote_running and not self.held and self._waiting_for is None:
            self.role = Role.FOLLOWER
        if self._waiting_for is not None:
            return commands
        if self.role is Role.DEMOTING and not self._demote_running and self.held:
            # Not ours from the moment that this is sent: it may be another's before the answer comes.
            self._waiting_for, self.held = Resign, False
            commands.append(Resign(self.epoch))
        elif self.held and now_us >= self._keep_alive_at_us and not self._hangs(now_us):
            self._waiting_for = KeepAlive
            self._keep_alive_at_us = now_us + self._interval_us
            commands.append(KeepAlive(self.epoch))
        elif self.role is Role.FOLLOWER and not self._stopping and now_us >= max(self._campaign_at_us, self.banned_until_us):
            self._waiting_for = Campaign
            commands.append(Campaign())
        return commands

    def _hangs(self, now_us: int) -> bool:
        """A promotion that does not end although it was cancelled must not keep the lease from the other nodes for ever."""
        return self._promote_running and self._cancel_sent and now_us >= self._give_up_us

    def _lose(self, now_us: int, why: str) -> None:
        self.held = False
        if self.role in (Role.LEADER, Role.PROMOTING):
            self._leave(why, lost=True)
            self._left_at_us = now_us

    def _leave(self, why: str, *, lost: bool = False) -> None:
        if not self._leaving:  # the first reason is the one
            self.left_because, self.was_lost = why, lost
        self._leaving = True

    def _extend(self, sent_us: int) -> None:
        self.deadline_us = max(self.deadline_us, sent_us + self._lease_us - self._interval_us)
        self._keep_alive_at_us = max(self._keep_alive_at_us, sent_us + self._interval_us)

    def _answered(self, command: type[Campaign] | type[KeepAlive] | type[Resign]) -> None:
        if self._waiting_for is not command:
            raise ValueError(f"an answer to {command.__name__} that was not asked for")
        self._waiting_for = None
