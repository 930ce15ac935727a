"""The checker of the fault runs is fed broken histories: it must see each kind of lie, and none in a history that is good."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from faults.breaches import Kind
from faults.checker import Ledger, Loaded, Place
from faults.terms import Term, check_terms, terms_of

pytestmark = pytest.mark.unit

A, B = "node-a", "node-b"


def written(ledger: Ledger, key: int = 7, uri: str = "file://s/7") -> Place:
    """Acknowledged at 3."""
    place = ledger.given(key, uri)
    ledger.finishing([place], 2.0)
    ledger.acknowledged([place], 3.0)
    return place


def kinds(ledger: Ledger) -> list[Kind]:
    return [breach.kind for breach in ledger.breaches.first]


def test_a_good_history_is_good() -> None:
    ledger = Ledger()
    written(ledger)
    ledger.read([7, 8], ["file://s/7", ""], 4.0, 5.0)
    ledger.read_prefix([7, 8, 9], ["file://s/7"], 4.0, 5.0)
    places = ledger.removing([7], 6.0)
    ledger.read([7], ["file://s/7"], 6.5, 7.5)  # while it is being removed, both are right
    ledger.read([7], [""], 6.5, 7.5)
    ledger.removed(places, 7.0)
    ledger.read([7], [""], 8.0, 9.0)
    again = written(ledger, 7, "file://s/7b")
    again.acknowledged = 10.0
    ledger.read([7], ["file://s/7b"], 11.0, 12.0)
    assert kinds(ledger) == []
    assert ledger.promised() == [7]


def _lost(ledger: Ledger) -> None:
    written(ledger)
    ledger.read([7], [""], 4.0, 5.0)


def _lost_in_a_prefix(ledger: Ledger) -> None:
    written(ledger)
    ledger.read_prefix([7, 8], [], 4.0, 5.0)


def _phantom(ledger: Ledger) -> None:
    ledger.read([7], ["file://s/of-nobody"], 4.0, 5.0)


def _too_many(ledger: Ledger) -> None:
    written(ledger)
    ledger.read_prefix([7], ["file://s/7", "file://s/7"], 4.0, 5.0)


def _early(ledger: Ledger) -> None:
    place = ledger.given(7, "file://s/7")
    ledger.read([7], ["file://s/7"], 4.0, 5.0)
    ledger.finishing([place], 6.0)


def _refused(ledger: Ledger) -> None:
    place = ledger.given(7, "file://s/7")
    ledger.finishing([place], 2.0)
    ledger.refused([place])
    ledger.read([7], ["file://s/7"], 4.0, 5.0)


def _removed(ledger: Ledger) -> None:
    written(ledger)
    ledger.removed(ledger.removing([7], 4.0), 5.0)
    ledger.read([7], ["file://s/7"], 6.0, 7.0)


def _mixed_up(ledger: Ledger) -> None:
    written(ledger)
    ledger.read([8], ["file://s/7"], 4.0, 5.0)


def _two_owners(ledger: Ledger) -> None:
    written(ledger)
    ledger.given(8, "file://s/7")


def _two_leaders(ledger: Ledger) -> None:
    ledger.answered(A, 1.0, 2.0)
    ledger.answered(B, 11.0, 12.0)
    ledger.answered(A, 11.5, 12.0)
    ledger.settle([Term(1, A, 0.5), Term(2, B, 10.5)])


def _leader_before_its_time(ledger: Ledger) -> None:
    ledger.answered(B, 1.0, 2.0)
    ledger.settle([Term(1, A, 0.5), Term(2, B, 10.5)])


def _leader_of_no_term(ledger: Ledger) -> None:
    ledger.answered("node-c", 1.0, 2.0)
    ledger.settle([Term(1, A, 0.5)])


def _one_epoch_twice(ledger: Ledger) -> None:
    ledger.settle([Term(1, A, 0.5), Term(1, B, 0.6)])


def _epochs_in_disorder(ledger: Ledger) -> None:
    ledger.settle([Term(1, A, 5.0), Term(2, B, 4.0)])


def _epoch_told_back(ledger: Ledger) -> None:
    ledger.told_epoch(A, 5, 1.0, 2.0)
    ledger.told_epoch(A, 0, 2.5, 2.6)
    ledger.told_epoch(A, 4, 3.0, 4.0)


def _after_the_lease(ledger: Ledger) -> None:
    ledger.suspended(A, 1.0, 4.0)
    ledger.answered(A, 2.0, 5.0)


@pytest.mark.parametrize(
    ("history", "kind"),
    [
        (_lost, Kind.LOST),
        (_lost_in_a_prefix, Kind.LOST),
        (_phantom, Kind.PHANTOM),
        (_too_many, Kind.PHANTOM),
        (_early, Kind.EARLY),
        (_refused, Kind.REFUSED),
        (_removed, Kind.REMOVED),
        (_mixed_up, Kind.MIXED_UP),
        (_two_owners, Kind.TWO_OWNERS),
        (_two_leaders, Kind.TWO_LEADERS),
        (_leader_before_its_time, Kind.TWO_LEADERS),
        (_leader_of_no_term, Kind.TWO_LEADERS),
        (_one_epoch_twice, Kind.TWO_LEADERS),
        (_epochs_in_disorder, Kind.EPOCH_BACK),
        (_epoch_told_back, Kind.EPOCH_BACK),
        (_after_the_lease, Kind.AFTER_LEASE),
    ],
)
def test_each_kind_of_lie_is_seen(history: Callable[[Ledger], None], kind: Kind) -> None:
    ledger = Ledger()
    history(ledger)
    assert kinds(ledger) == [kind]
    assert ledger.breaches


def _loaded() -> Ledger:
    loaded = Loaded(100)
    loaded.append(["file://s/100", "file://s/101"])
    ledger = Ledger(loaded)
    loaded.seal(ledger.breaches)
    return ledger


def test_loaded_blocks_are_held_to_their_places() -> None:
    ledger = _loaded()
    ledger.read([100, 101, 102], ["file://s/100", "file://s/101", ""], 1.0, 2.0)
    assert kinds(ledger) == []
    ledger.read([100], [""], 1.0, 2.0)
    ledger.read([100], ["file://s/101"], 1.0, 2.0)
    ledger.read([7], ["file://s/101"], 1.0, 2.0)
    ledger.given(7, "file://s/100")
    assert kinds(ledger) == [Kind.LOST, Kind.MIXED_UP, Kind.MIXED_UP, Kind.TWO_OWNERS]


def test_a_place_that_was_loaded_twice_is_seen() -> None:
    ledger = Ledger()
    ledger.loaded.append(["file://s/1", "file://s/2", "file://s/1"])
    ledger.loaded.seal(ledger.breaches)
    assert kinds(ledger) == [Kind.TWO_OWNERS]


def test_written_behind_what_was_synced_must_be_there_and_the_tail_is_counted() -> None:
    ledger = Ledger(behind=True)
    safe, tail = written(ledger), written(ledger, 8, "file://s/8")
    tail.acknowledged = 6.0
    kept = written(ledger, 9, "file://s/9")
    kept.acknowledged = 6.0
    ledger.synced(5.0)
    assert ledger.crashed() == 2
    ledger.read([8, 9], ["", "file://s/9"], 7.0, 8.0)
    ledger.read([8], [""], 9.0, 10.0)
    assert kinds(ledger) == []
    assert (ledger.counts["tail"], ledger.counts["tail_lost"]) == (2, 1)
    ledger.read([7], [""], 9.0, 10.0)
    assert kinds(ledger) == [Kind.LOST]
    assert not safe.tail


def test_written_behind_a_removal_in_the_tail_may_come_back_and_an_older_one_not() -> None:
    ledger = Ledger(behind=True)
    written(ledger)
    written(ledger, 8, "file://s/8")
    ledger.removed(ledger.removing([7], 4.0), 4.5)
    ledger.synced(5.0)
    ledger.removed(ledger.removing([8], 6.0), 6.5)
    assert ledger.crashed() == 0
    ledger.read([8], ["file://s/8"], 7.0, 8.0)
    assert kinds(ledger) == []
    ledger.read([7], ["file://s/7"], 7.0, 8.0)
    assert kinds(ledger) == [Kind.REMOVED]


def test_an_answer_of_the_old_leader_that_was_asked_in_time_is_no_second_leader() -> None:
    ledger = Ledger()
    ledger.answered(A, 10.0, 20.0)  # on its way out when it was stopped
    ledger.answered(B, 11.0, 12.0)
    ledger.answered(A, 31.0, 32.0)
    ledger.settle([Term(1, A, 0.5), Term(2, B, 10.5), Term(3, A, 30.0)])
    assert kinds(ledger) == []


def test_terms_are_read_from_the_logs() -> None:
    log = (
        "time=2026-01-31T12:00:00.250Z level=info logger=kvcm.coordination node node-a: follower -> promoting (epoch 12)\n"
        "time=2026-01-31T12:00:00.300Z level=info logger=kvcm.coordination node node-a: promoting -> leader (epoch 12)\n"
    )
    terms = terms_of({A: log, B: log.replace("node-a", "node-b").replace("12)", "11)").replace("00.250", "00.125")})
    assert [(term.epoch, term.node) for term in terms] == [(11, B), (12, A)]
    assert terms[1].begin - terms[0].begin == pytest.approx(0.125)
    ledger = Ledger()
    check_terms(terms, ledger.breaches)
    assert not ledger.breaches
