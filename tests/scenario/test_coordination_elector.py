"""Stories about one elector on a fake clock: every hazard of behaviour 16.5 that concerns one node, and the invariants I-LE-*."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.coordination.elector import (
    Campaign,
    CancelPromote,
    Command,
    Demote,
    Elector,
    ElectorSettings,
    KeepAlive,
    Promote,
    Resign,
    Role,
)

pytestmark = pytest.mark.scenario

LEASE, INTERVAL = 10_000_000, 100_000
SETTINGS = ElectorSettings("n", lease_ms=10_000, loop_interval_ms=100)


class Story:
    """The elector, a clock, and the commands since the last look."""

    def __init__(self, settings: ElectorSettings = SETTINGS) -> None:
        self.now = 1_000_000
        self.elector = Elector(settings)

    def tick(self, after_us: int = 0) -> list[Command]:
        self.now += after_us
        return self.elector.tick(self.now)

    def win(self, epoch: int = 1) -> None:
        """From FOLLOWER to PROMOTING."""
        self.now = max(self.now, self.elector.banned_until_us, self.elector._campaign_at_us)
        assert self.tick() == [Campaign()]
        self.elector.campaigned(self.now, self.now, epoch)
        assert self.tick() == [Promote(epoch)]

    def lead(self, epoch: int = 1) -> None:
        self.win(epoch)
        self.elector.promoted(self.now, True)
        assert self.tick() == []
        assert self.elector.leads(self.now)

    def renew(self, accepted: bool = True, failed: bool = False, takes_us: int = 0) -> list[Command]:
        sent = self.now
        self.now += takes_us
        self.elector.kept_alive(sent, self.now, self.elector.epoch, accepted, failed)
        return self.tick()


def test_leadership_comes_with_the_promotion_not_with_the_lock() -> None:
    story = Story()
    story.win()
    assert story.elector.held
    assert not story.elector.leads(story.now)
    story.elector.promoted(story.now, True)
    assert story.elector.leads(story.now)


def test_why_a_term_ended_is_known_and_whether_anybody_wanted_it() -> None:
    stopped, slow, refused, asked, ended, failed = stories = [Story() for _ in range(6)]
    for story in stories:
        story.win() if story is failed else story.lead()
    stopped.tick(15_700_000)
    for _ in range(LEASE // INTERVAL):
        slow.tick(INTERVAL)
    refused.tick(INTERVAL)
    refused.renew(accepted=False)
    asked.elector.demote(asked.now)
    ended.elector.stop()
    failed.elector.promoted(failed.now, False)
    assert [(story.elector.left_because, story.elector.was_lost) for story in stories] == [
        ("this process did not run for 15.7 s and the lease has ended", True),
        ("the lease was not renewed in time", True),
        ("the coordinator says that the lease is not this node's any more", True),
        ("it steps down", False),
        ("it is being stopped", False),
        ("taking over did not succeed", False),
    ]
    asked.tick()
    asked.elector.stop()
    assert asked.elector.left_because == "it steps down", "the first reason is the one"


def test_while_another_node_leads_this_one_asks_once_per_interval() -> None:
    story = Story()
    assert story.tick() == [Campaign()]
    assert story.tick() == []
    story.elector.campaigned(story.now, story.now, None)
    assert story.tick() == []
    assert story.tick(INTERVAL) == [Campaign()]


def test_the_deadline_counts_from_the_send_time_of_the_last_accepted_request() -> None:
    story = Story()
    story.lead()
    sent = story.now + INTERVAL
    assert story.tick(INTERVAL) == [KeepAlive(1)]
    story.renew(takes_us=3_000_000)
    assert story.elector.deadline_us == sent + LEASE - INTERVAL


def test_an_unreachable_coordinator_lets_the_leader_go_on_until_its_deadline_and_not_longer() -> None:
    story = Story()
    story.lead()
    deadline = story.elector.deadline_us
    assert story.tick(INTERVAL) == [KeepAlive(1)]
    assert story.renew(failed=True) == []
    assert story.elector.leads(deadline - 1)
    assert not story.elector.leads(deadline)
    story.now = deadline
    assert story.tick() == [Demote(1)]
    story.elector.demoted()
    # The lease is not ours any more: nothing to give back.
    assert not any(isinstance(command, Resign) for command in story.tick())
    assert story.elector.role is Role.FOLLOWER


def test_a_lease_that_is_gone_or_taken_ends_leadership_at_once() -> None:
    story = Story()
    story.lead()
    story.tick(INTERVAL)
    assert story.renew(accepted=False) == [Demote(1)]
    assert not story.elector.leads(story.now)


def test_a_process_that_slept_through_its_lease_answers_nothing_afterwards() -> None:
    story = Story()
    story.lead()
    story.tick(INTERVAL)
    story.now += 2 * LEASE
    assert not story.elector.leads(story.now)
    # The answer to the keep-alive sent before the sleep is accepted, but too old to help.
    sent = story.now - 2 * LEASE
    story.elector.kept_alive(sent, story.now, 1, True)
    assert not story.elector.leads(story.now)
    assert story.tick() == [Demote(1)]


def test_a_voluntary_demotion_drains_first_and_renews_meanwhile_then_releases() -> None:
    story = Story()
    story.lead()
    assert story.elector.demote(story.now)
    assert not story.elector.leads(story.now)
    assert story.tick() == [Demote(1)]
    assert story.tick(INTERVAL) == [KeepAlive(1)]
    assert story.renew() == []
    story.elector.demoted()
    assert story.tick() == [Resign(1)]
    story.elector.resigned(story.now)
    story.tick()
    assert story.elector.role is Role.FOLLOWER


def test_a_demote_request_during_a_promotion_wins_over_it() -> None:
    story = Story()
    story.win()
    assert story.elector.demote(story.now)
    assert story.tick() == [CancelPromote()]
    assert story.tick() == []
    # Even if the promotion had succeeded just before.
    story.elector.promoted(story.now, True)
    assert story.tick() == [Demote(1)]
    assert not story.elector.leads(story.now)
    story.elector.demoted()
    assert story.tick() == [Resign(1)]


def test_a_node_without_leadership_cannot_step_down() -> None:
    story = Story()
    assert not story.elector.demote(story.now)
    story.lead()
    assert story.elector.demote(story.now)
    assert not story.elector.demote(story.now)


def test_a_lock_won_again_right_after_a_demotion_ends_in_leadership() -> None:
    story = Story()
    story.lead(1)
    story.elector.demote(story.now)
    story.tick()
    story.elector.demoted()
    story.tick()
    story.elector.resigned(story.now)
    story.tick()
    story.lead(2)


def test_a_failed_promotion_is_cleaned_up_released_and_not_repeated_before_its_pause() -> None:
    story = Story()
    pauses = []
    for epoch in range(1, 7):
        story.win(epoch)
        story.elector.promoted(story.now, False)
        assert story.tick() == [Demote(epoch)]
        story.elector.demoted()
        assert story.tick() == [Resign(epoch)]
        pauses.append(story.elector.banned_until_us - story.now)
        story.elector.resigned(story.now)
        assert story.tick() == []
        assert story.tick(INTERVAL) == []
    assert pauses == [5_000_000, 10_000_000, 20_000_000, 40_000_000, 60_000_000, 60_000_000]
    story.lead(7)
    assert story.elector._failed_promotions == 0


def test_a_campaign_ban_is_kept_to_its_end() -> None:
    story = Story(ElectorSettings("n", campaign_delay_ms=5000))
    story.lead()
    story.elector.demote(story.now)
    until = story.now + 5_000_000
    story.tick()
    story.elector.demoted()
    story.tick()
    story.elector.resigned(story.now)
    story.now = until - 1
    assert story.tick() == []
    story.now = until
    assert story.tick() == [Campaign()]


@pytest.mark.parametrize(("delay_us", "waits_us"), [(0, 0), (-1000, 0), (2_000_000, 1_000_000), (60_000_000, 59_000_000)])
def test_a_delay_that_is_changed_while_it_runs_counts_from_when_leadership_ended(delay_us: int, waits_us: int) -> None:
    story = Story(ElectorSettings("n", campaign_delay_ms=5000))
    story.lead()
    story.elector.demote(story.now)
    story.tick()
    story.elector.demoted()
    story.tick()
    story.elector.resigned(story.now)
    assert story.tick(1_000_000) == []
    story.elector.campaign_delay_us = delay_us
    if waits_us:
        assert story.tick(waits_us - 1) == []
        story.now += 1
    assert story.tick() == [Campaign()]


def test_a_changed_delay_does_not_shorten_the_pause_after_a_failed_promotion() -> None:
    story = Story(ElectorSettings("n", campaign_delay_ms=60_000, promote_backoff_ms=3000))
    story.win()
    story.elector.promoted(story.now, False)
    until = story.elector.banned_until_us
    assert until == story.now + 3_000_000
    story.elector.campaign_delay_us = 0
    assert story.elector.banned_until_us == until


def test_stopping_runs_the_demotion_and_gives_the_lease_back() -> None:
    story = Story()
    story.lead()
    story.elector.stop()
    assert not story.elector.stopped
    assert story.tick() == [Demote(1)]
    story.elector.demoted()
    assert story.tick() == [Resign(1)]
    story.elector.resigned(story.now)
    assert story.tick(10 * LEASE) == []
    assert story.elector.stopped


def test_a_campaign_that_is_won_while_stopping_is_given_straight_back() -> None:
    story = Story()
    assert story.tick() == [Campaign()]
    story.elector.stop()
    assert not story.elector.stopped
    story.elector.campaigned(story.now, story.now, 1)
    assert story.tick() == [Resign(1)]
    story.elector.resigned(story.now)
    story.tick()
    assert story.elector.stopped


def test_a_campaign_whose_answer_took_the_whole_lease_is_not_believed() -> None:
    story = Story()
    story.tick()
    sent = story.now
    story.now += LEASE
    story.elector.campaigned(sent, story.now, 1)
    assert not any(isinstance(command, Promote) for command in story.tick())


def test_failing_campaigns_are_spaced_out_up_to_a_bound() -> None:
    story = Story()
    waits = []
    for _ in range(10):
        assert story.tick() == [Campaign()]
        story.elector.campaigned(story.now, story.now, None, failed=True)
        waits.append(story.elector._campaign_at_us - story.now)
        story.now = story.elector._campaign_at_us
    assert waits == sorted(waits)
    assert waits[0] <= 2 * INTERVAL
    assert waits[-1] == 5_000_000


def test_an_answer_that_nobody_asked_for_is_refused() -> None:
    story = Story()
    with pytest.raises(ValueError, match="not asked for"):
        story.elector.resigned(story.now)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("trwlfpxdDsz"), st.integers(0, 20)), max_size=60))
def test_I_LE_invariants_hold_under_any_order_of_events(steps: list[tuple[str, int]]) -> None:
    story = Story(ElectorSettings("n", lease_ms=1000, loop_interval_ms=100, campaign_delay_ms=300))
    elector = story.elector
    asked: list[tuple[Command, int]] = []
    running: list[str] = []
    finished: list[str] = []
    epoch = 0

    def take(commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Promote() | Demote():
                    kind = type(command).__name__
                    assert running == [], "I-LE-3: callbacks never overlap"
                    assert kind != (finished[-1] if finished else "Demote"), "I-LE-3: they alternate"
                    running.append(kind)
                case CancelPromote():
                    assert running == ["Promote"]
                case _:
                    assert asked == [], "one request to the coordinator at a time"
                    if isinstance(command, Campaign):
                        assert story.now >= elector.banned_until_us, "I-LE-7"
                        assert not elector._stopping
                    if isinstance(command, Resign):
                        assert running == [], "released only after draining"
                    asked.append((command, story.now))

    def answer(letter: str) -> None:
        nonlocal epoch
        command, sent = asked.pop()
        if isinstance(command, Campaign):
            won = letter in "rw"
            epoch += won
            elector.campaigned(sent, story.now, epoch if won else None, failed=letter == "f")
            assert not won or elector.deadline_us <= sent + 1_000_000, "I-LE-8"
        elif isinstance(command, KeepAlive):
            elector.kept_alive(sent, story.now, command.epoch, letter in "rw", failed=letter == "f")
        else:
            elector.resigned(story.now)

    for letter, amount in steps:
        story.now += amount * 10_000
        if letter in "rwlf" and asked:
            answer(letter)
        elif letter in "px" and running:
            kind = running.pop()
            finished.append(kind)
            if kind == "Promote":
                elector.promoted(story.now, letter == "p")
            else:
                elector.demoted()
        elif letter == "d":
            elector.demote(story.now)
        elif letter == "D":
            story.now += 1_000_000
        elif letter == "s" and amount == 20:
            elector.stop()
        take(story.tick())
        if elector.leads(story.now):
            assert elector.role is Role.LEADER, "I-LE-2"
            assert elector.held
            assert running == []

    # Let everything end well: the node must come to rest as a leader, or as a stopped follower (I-LE-4, I-LE-5).
    for _ in range(60):
        story.now += 100_000
        if asked:
            answer("r")
        if running:
            kind = running.pop()
            finished.append(kind)
            elector.promoted(story.now, True) if kind == "Promote" else elector.demoted()
        take(story.tick())
        if elector.leads(story.now) or elector.stopped:
            break
        story.now = max(story.now, elector.banned_until_us)
    assert elector.stopped if elector._stopping else elector.leads(story.now)
