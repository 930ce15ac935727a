"""I-WL-1 .. I-WL-4 (behaviour 5): every session ends once, in time, and nothing is held after its end."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvcm.manager.testing_story import numbers, run_story
from kvcm.manager.write_sessions import WriteSession, WriteSessions
from kvcm.meta.location import Location, begin_write
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.property

CODEC = ProtoLocationEncoder()
CHOICES = st.builds(numbers, st.integers(0, 1 << 32), st.integers(60, 500))
IDS = ("aaaaaaaa", "bbbbbbbb")  # few, so that different blocks have equal ids
INSTANCES = ("i", "j")


def location(location_id: str, serial: int) -> Location:
    """A location belongs to one session: what sessions share is at most the id, never the time of creation too."""
    return begin_write(type_code=4, storage_slot=1, create_time_us=serial, size=1, location_id=location_id, previous_key=None, wire=b"\x12\x00")


class Sessions(RuleBasedStateMachine):
    """The table of sessions against a model: who may still end what, and what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.table = WriteSessions()
        self.now = 0
        self.serial = 0
        self.seen: list[tuple[str, int, Location]] = []
        self.open: dict[str, WriteSession] = {}
        self.claimed: dict[str, WriteSession] = {}
        self.ends: Counter[str] = Counter()

    @rule(
        instance=st.sampled_from(INSTANCES),
        blocks=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(IDS)), max_size=3, unique=True),
        life=st.integers(0, 5),
    )
    def begin(self, instance: str, blocks: list[tuple[int, str]], life: int) -> None:
        self.serial += 1
        session = WriteSession(str(self.serial), instance, [key for key, _ in blocks], [location(name, self.serial) for _, name in blocks], self.now + life)
        self.seen += [(instance, key, location(name, self.serial)) for key, name in blocks]
        self.table.put(session)
        self.open[session.session_id] = session

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        known = sorted({*self.open, *self.claimed, *self.ends})
        if not known:
            return
        name = data.draw(st.sampled_from(known))
        session = self.table.claim(name)
        finishable = name in self.open and not self.open[name].expired
        assert (session is not None) == finishable, "I-WL-1: only a session that is open and has not expired can be finished"
        if session is not None:
            self.claimed[name] = self.open.pop(name)

    @rule(passed=st.integers(0, 4))
    def expire(self, passed: int) -> None:
        self.now += passed
        due = {name for name, session in self.open.items() if session.deadline_us <= self.now}
        found = self.table.claim_due(self.now)
        assert {session.session_id for session in found} == due, "I-WL-2: all that are due, and none before its deadline"
        for session in found:
            self.claimed[session.session_id] = self.open.pop(session.session_id)
            assert self.table.get(session.session_id) is None

    @rule(instance=st.sampled_from([None, *INSTANCES]))
    def clean(self, instance: str | None) -> None:
        found = {session.session_id for session in self.table.claim_all(instance)}
        assert found == {name for name, session in self.open.items() if instance in (None, session.instance_id)}
        for name in found:
            self.claimed[name] = self.open.pop(name)

    @rule(data=st.data(), give_back=st.booleans(), settled=st.integers(0, 3))
    def settle(self, data: st.DataObject, give_back: bool, settled: int) -> None:
        if not self.claimed:
            return
        name = data.draw(st.sampled_from(sorted(self.claimed)))
        session = self.claimed.pop(name)
        for position in range(min(settled, len(session.keys))):
            self.table.settle(session, position)
        if give_back:
            self.table.reopen(session, self.now + 2)
            self.open[name] = session
            return
        self.table.end(session)
        self.ends[name] += 1

    @rule(instance=st.sampled_from([None, *INSTANCES]))
    def forget(self, instance: str | None) -> None:
        self.table.forget(instance)
        for group in (self.open, self.claimed):
            for name in [name for name, session in group.items() if instance in (None, session.instance_id)]:
                self.table.reopen(group[name], self.now)  # whoever had the claim gives it back: it stays forgotten
                del group[name]
                self.ends[name] += 1

    @invariant()
    def ends_once(self) -> None:
        assert max(self.ends.values(), default=1) == 1, "I-WL-1"
        assert len(self.table) == len(self.open) + len(self.claimed)

    @invariant()
    def holds_exactly_what_is_open(self) -> None:
        alive = [*self.open.values(), *self.claimed.values()]
        held = {(session.instance_id, key, loc) for session in alive for key, loc in zip(session.keys, session.locations, strict=True) if loc}
        for mark in self.seen:
            assert self.table.holds(*mark) == (mark in held), "I-WL-3"
        assert self.table.is_holding() == bool(held)


def test_I_WL_1_to_3_on_the_table_alone() -> None:
    run_state_machine_as_test(Sessions, settings=settings(deadline=None, max_examples=60, stateful_step_count=30))


@given(CHOICES)
@settings(deadline=None, max_examples=40)
def test_I_WL_1_a_session_is_finished_or_expires_or_is_cleaned(choices: list[int]) -> None:
    ops = ("start", "start", "finish", "finish", "finish", "sweep", "sweep", "advance", "advance", "fault", "remove_instance", "register")
    story = run_story(CODEC, choices, ops)
    assert len(story.world.manager.sessions) == 0
    assert max(story.finished.values(), default=0) <= 1


@given(CHOICES)
@settings(deadline=None, max_examples=40)
def test_I_WL_2_a_session_lives_until_its_deadline(choices: list[int]) -> None:
    run_story(CODEC, choices, ("start", "start", "finish", "finish", "sweep", "sweep", "sweep", "advance", "fault"))


@given(CHOICES)
@settings(deadline=None, max_examples=30)
def test_I_WL_3_nothing_is_held_after_its_session(choices: list[int]) -> None:
    story = run_story(CODEC, choices, ("start", "start", "finish", "remove", "trim", "delete", "sweep", "advance", "fault"))
    manager = story.world.manager
    assert not any(manager.sessions.holds(instance, key, location) for instance, key, location in story.world.locations())


@given(CHOICES)
@settings(deadline=None, max_examples=30)
def test_I_WL_4_after_clean_up_no_session_is_left(choices: list[int]) -> None:
    story = run_story(CODEC, choices, ("start", "start", "start", "finish", "advance", "sweep", "fault", "demote"))
    assert len(story.world.manager.sessions) == 0
