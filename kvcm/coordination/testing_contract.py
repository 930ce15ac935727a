"""What every coordinator promises, as test cases for any of them: `CASES` by name, each run against a `Place`.

    @pytest.mark.parametrize("name", CASES)
    def test_contract(name): run_case(name, lambda: EtcdPlace(...))

A place is one store as several processes see it. Real stores run on real time, so no case asserts how long something takes: what must not happen too early
is compared with the clock, what must happen at all is waited for. A machine that stops for longer than a lease makes no case fail.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from kvcm.common.errors import InvalidArgument, KvcmError
from kvcm.coordination.port import MAX_LEASE_MS, MAX_NODE_ID_CHARS, MAX_TEXT_CHARS, Coordinator, Leader, NodeInfo
from kvcm.coordination.testing_place import Ability, Place

T = TypeVar("T")
CASE_S = 120.0
_HOUR_US = 3_600_000_000


async def until(place: Place, ask: Callable[[], Awaitable[T | None]], *, patient: bool = False) -> T:
    """The first answer that is neither None nor False. `patient`: errors of a store that is coming back are no answers either."""
    for _ in range(2000):
        try:
            found = await ask()
        except (KvcmError, TimeoutError):
            if not patient:
                raise
            found = None
        if found is not None and found is not False:
            return found
        await place.wait_us(place.lease_ms * 1000 // 20)
    raise AssertionError("it never happened")


async def win(place: Place, node: Coordinator, node_id: str) -> int:
    epoch = await node.campaign(node_id, place.lease_ms)
    assert epoch is not None, f"{node_id} should win: nobody else holds the lease"
    return epoch


async def one_holds_the_lease_and_everybody_sees_it(place: Place) -> None:
    a, b = place.open(), place.open()
    assert await b.observe() is None
    epoch = await win(place, a, "a")
    assert epoch > 0
    assert await b.campaign("b", place.lease_ms) is None
    assert await b.observe() == await a.observe() == Leader("a", epoch)


async def one_of_many_that_campaign_at_once_wins(place: Place) -> None:
    nodes = [place.open() for _ in range(6)]
    epochs = await asyncio.gather(*(node.campaign(f"n{number}", place.lease_ms) for number, node in enumerate(nodes)))
    (winner,) = [number for number, epoch in enumerate(epochs) if epoch is not None]
    assert await nodes[0].observe() == Leader(f"n{winner}", epochs[winner] or 0)


async def the_holder_wins_again_with_a_new_epoch_when_an_answer_was_lost(place: Place) -> None:
    a, b = place.open(), place.open()
    lost = await win(place, a, "a")
    epoch = await win(place, place.open(), "a")  # the process has started anew, under its old name
    assert epoch > lost
    assert await b.campaign("b", place.lease_ms) is None
    assert not await a.keep_alive("a", lost, place.lease_ms)
    assert await a.keep_alive("a", epoch, place.lease_ms)
    assert await b.observe() == Leader("a", epoch)


async def a_lease_that_is_kept_alive_goes_on(place: Place) -> None:
    a, b = place.open(), place.open()
    for _ in range(10):
        sent = place.now_us()
        epoch = await win(place, a, "a")
        began, kept = sent, True
        while kept and place.now_us() < began + 2500 * place.lease_ms:
            await place.wait_us(place.lease_ms * 1000 // 4)
            asked = place.now_us()
            kept = await a.keep_alive("a", epoch, place.lease_ms)
            if kept:
                sent = asked
                other = await b.campaign("b", place.lease_ms)
                assert other is None or place.now_us() >= sent + place.lease_ms * 1000
                if other is not None:
                    await b.resign("b", other)
            else:
                assert place.now_us() >= sent + place.lease_ms * 1000, "lost although it was renewed in time"
        if kept:
            return
    raise AssertionError("this machine is too slow to keep a lease")


async def a_lease_runs_out_not_before_its_time_and_then_another_wins(place: Place) -> None:
    a, b = place.open(), place.open()
    sent = place.now_us()
    first = await win(place, a, "a")
    second = await until(place, lambda: b.campaign("b", place.lease_ms))
    assert place.now_us() >= sent + place.lease_ms * 1000
    assert second > first
    assert not await a.keep_alive("a", first, place.lease_ms)
    await a.resign("a", first)
    assert await b.observe() in (Leader("b", second), None)


async def a_lease_that_nobody_wants_runs_out_too(place: Place) -> None:
    a, b = place.open(), place.open()
    first = await win(place, a, "a")

    async def gone() -> bool:
        return await b.observe() is None

    await until(place, gone)
    assert not await a.keep_alive("a", first, place.lease_ms)
    assert await win(place, a, "a") > first


async def the_last_lease_counts_when_a_renewal_shortens_it(place: Place) -> None:
    a, b = place.open(), place.open()
    epoch = await a.campaign("a", 100 * place.lease_ms)
    assert epoch is not None
    sent = place.now_us()
    assert await a.keep_alive("a", epoch, place.lease_ms)
    assert await until(place, lambda: b.campaign("b", place.lease_ms)) > epoch
    assert place.now_us() >= sent + place.lease_ms * 1000


async def what_is_given_back_is_free_at_once(place: Place) -> None:
    a, b = place.open(), place.open()
    first = await a.campaign("a", 100 * place.lease_ms)
    assert first is not None
    await a.resign("a", first)
    assert await b.observe() is None
    assert not await a.keep_alive("a", first, place.lease_ms)
    second = await b.campaign("b", 100 * place.lease_ms)
    assert second is not None
    assert second > first
    await a.resign("a", first)
    await a.resign("b", first)
    await a.resign("a", second)
    assert await a.observe() == Leader("b", second)


async def what_arrives_late_changes_nothing(place: Place) -> None:
    a, b = place.open(), place.open()
    lease = 100 * place.lease_ms
    first = await a.campaign("a", lease)
    second = await a.campaign("a", lease)
    assert first is not None
    assert second is not None
    await a.resign("a", first)
    assert not await a.keep_alive("a", first, lease)
    assert await b.campaign("b", lease) is None
    await a.resign("a", second)
    third = await b.campaign("b", lease)
    assert third is not None
    for epoch in (first, second, third):
        assert not await a.keep_alive("a", epoch, lease)
    assert not await a.keep_alive("b", second, lease)
    assert await a.observe() == Leader("b", third)
    assert await b.keep_alive("b", third, lease)


async def nodes_tell_how_they_are_reached(place: Place) -> None:
    a, b = place.open(), place.open()
    assert await b.get_node_info("a") is None
    assert await b.list_nodes() == ()
    odd = "h:1_x/../é*? \n'\""
    await a.put_node_info("a", '{"host":"old"}')
    await a.put_node_info("a", '{"host":"ü"}')
    await b.put_node_info(odd, "")
    assert await b.get_node_info("a") == '{"host":"ü"}'
    assert await a.get_node_info(odd) == ""
    assert await a.list_nodes() == (NodeInfo("a", '{"host":"ü"}'), NodeInfo(odd, ""))
    epoch = await win(place, a, odd)
    assert await b.observe() == Leader(odd, epoch)
    for _ in range(2):
        await b.remove_node_info("a")
    assert await a.get_node_info("a") is None
    assert await b.list_nodes() == (NodeInfo(odd, ""),)


async def only_the_leader_of_this_term_writes_what_is_shared(place: Place) -> None:
    a, b = place.open(), place.open()
    lease = 100 * place.lease_ms
    assert await a.get_shared("plan") is None
    assert not await a.put_shared("a", 1, "plan", "nobody leads")
    first = await a.campaign("a", lease)
    assert first is not None
    assert await a.put_shared("a", first, "plan", "one\n")
    assert not await b.put_shared("b", first, "plan", "not the leader")
    second = await a.campaign("a", lease)
    assert second is not None
    assert not await a.put_shared("a", first, "plan", "an old term")
    assert await b.get_shared("plan") == "one\n"
    assert await a.put_shared("a", second, "plan", "")
    await a.resign("a", second)
    assert not await a.put_shared("a", second, "plan", "given back")
    assert await b.get_shared("plan") == ""
    assert await b.get_shared("other") is None


async def what_breaks_a_limit_is_refused(place: Place) -> None:
    a = place.open()
    long = "x" * (MAX_NODE_ID_CHARS + 1)
    refused: list[Coroutine[Any, Any, object]] = [
        a.campaign("", 1000),
        a.campaign(long, 1000),
        a.campaign("a", 0),
        a.campaign("a", MAX_LEASE_MS + 1),
        a.keep_alive("a", 1, -1),
        a.put_node_info("", "{}"),
        a.put_node_info("a", "x" * (MAX_TEXT_CHARS + 1)),
        a.put_shared("a", 1, "../x", ""),
        a.get_shared(""),
    ]
    for attempt in refused:
        try:
            await attempt
        except InvalidArgument:
            continue
        raise AssertionError("what breaks a limit was accepted")
    assert await a.observe() is None


async def a_wall_clock_that_steps_neither_ends_nor_stretches_a_lease(place: Place) -> None:
    a, b = place.open(), place.open()
    for _ in range(10):
        sent = place.now_us()
        epoch = await win(place, a, "a")
        place.step_wall(_HOUR_US)
        other = await b.campaign("b", place.lease_ms)
        place.step_wall(-2 * _HOUR_US)
        if other is None and await a.keep_alive("a", epoch, place.lease_ms):
            break
        assert place.now_us() >= sent + place.lease_ms * 1000, "lost to a step of the wall clock"
        if other is not None:
            await b.resign("b", other)
    else:
        raise AssertionError("this machine is too slow to keep a lease")
    assert await until(place, lambda: b.campaign("b", place.lease_ms)) > epoch


async def a_call_that_is_given_up_leaves_the_client_of_use(place: Place) -> None:
    a, b = place.open(), place.open()
    for _ in range(8):
        task = asyncio.ensure_future(a.campaign("a", place.lease_ms))
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    before = await b.observe()
    # Whatever arrived: the node wins again, above it.
    epoch = await win(place, a, "a")
    assert before is None or epoch > before.epoch
    assert await until(place, lambda: b.campaign("b", place.lease_ms)) > epoch


async def epochs_go_on_above_a_floor(place: Place) -> None:
    a = place.open(epoch_floor=1000)
    epoch = await win(place, a, "a")
    assert epoch > 1000
    await a.resign("a", epoch)
    await a.close()
    b = place.open()
    second = await win(place, b, "b")
    assert second > epoch
    assert await b.keep_alive("b", second, place.lease_ms)


@dataclass(slots=True)
class _Belief:
    """From when the answer had come until a lease after the request was sent, or until the lease is given back; all on one clock."""

    node_id: str
    epoch: int
    since_us: int
    until_us: int


async def I_LE_1_no_two_nodes_ever_believe_that_they_hold_it(place: Place) -> None:
    beliefs: list[_Belief] = []
    lease_us = place.lease_ms * 1000
    end = place.now_us() + 8 * lease_us

    async def live(node_id: str, luck: random.Random) -> None:
        node, mine = place.open(), None
        while place.now_us() < end:
            sent = place.now_us()
            if mine is None:
                epoch = await node.campaign(node_id, place.lease_ms)
                if epoch is not None:
                    mine = _Belief(node_id, epoch, place.now_us(), sent + lease_us)
                    beliefs.append(mine)
            elif luck.random() < 0.15:
                mine.until_us = min(mine.until_us, sent)
                await node.resign(node_id, mine.epoch)
                mine = None
            elif await node.keep_alive(node_id, mine.epoch, place.lease_ms):
                mine.until_us = sent + lease_us
            else:
                mine = None
            # Sometimes longer than the lease, as a process that was stopped.
            await place.wait_us(int(luck.choice((0.05, 0.1, 0.4, 1.2)) * lease_us * luck.random()))

    await asyncio.gather(*(live(f"n{number}", random.Random(number)) for number in range(4)))
    held = sorted((belief for belief in beliefs if belief.since_us < belief.until_us), key=lambda belief: belief.since_us)
    assert held
    for before, after in pairwise(held):
        assert before.epoch < after.epoch, "epochs grow"
        assert before.node_id == after.node_id or before.until_us <= after.since_us, f"{before} and {after} overlap"


async def epochs_grow_and_leases_hold_over_a_restart_of_the_store(place: Place) -> None:
    a, b = place.open(), place.open()
    sent = place.now_us()
    first = await win(place, a, "a")
    assert await b.observe() == Leader("a", first)
    await place.restart()
    second = await until(place, lambda: b.campaign("b", place.lease_ms), patient=True)
    assert place.now_us() >= sent + place.lease_ms * 1000
    assert second > first
    assert await until(place, lambda: _known(a.keep_alive("a", first, place.lease_ms)), patient=True) == "False"
    third = await until(place, lambda: a.campaign("a", place.lease_ms), patient=True)
    assert third > second


async def the_holder_goes_on_over_a_restart_of_the_store(place: Place) -> None:
    a, b = place.open(), place.open()
    lease = 20 * place.lease_ms
    first = await a.campaign("a", lease)
    assert first is not None
    assert await b.observe() == Leader("a", first)
    await place.restart()
    kept = await until(place, lambda: _known(a.keep_alive("a", first, lease)), patient=True)
    assert kept == "True"
    assert await until(place, lambda: _known(b.campaign("b", lease)), patient=True) == "None"
    assert await b.observe() == Leader("a", first)


async def a_store_that_stops_answers_nothing_and_goes_on_where_it_was(place: Place) -> None:
    a, b = place.open(), place.open()
    sent = place.now_us()
    first = await win(place, a, "a")
    await place.pause()
    attempts: list[Coroutine[Any, Any, object]] = [a.keep_alive("a", first, place.lease_ms), b.campaign("b", place.lease_ms), b.observe()]
    answers = await asyncio.gather(*attempts, return_exceptions=True)
    await place.resume()
    assert all(isinstance(answer, (KvcmError, TimeoutError)) for answer in answers), answers
    second = await until(place, lambda: b.campaign("b", place.lease_ms), patient=True)
    assert place.now_us() >= sent + place.lease_ms * 1000
    assert second > first
    assert await until(place, lambda: _known(a.keep_alive("a", first, place.lease_ms)), patient=True) == "False"


async def _known(answer: Awaitable[object]) -> str:
    """An answer that `until` takes, whatever it is."""
    return str(await answer)


Case = Callable[[Place], Coroutine[Any, Any, None]]
CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        one_holds_the_lease_and_everybody_sees_it,
        one_of_many_that_campaign_at_once_wins,
        the_holder_wins_again_with_a_new_epoch_when_an_answer_was_lost,
        a_lease_that_is_kept_alive_goes_on,
        a_lease_runs_out_not_before_its_time_and_then_another_wins,
        a_lease_that_nobody_wants_runs_out_too,
        the_last_lease_counts_when_a_renewal_shortens_it,
        what_is_given_back_is_free_at_once,
        what_arrives_late_changes_nothing,
        nodes_tell_how_they_are_reached,
        only_the_leader_of_this_term_writes_what_is_shared,
        what_breaks_a_limit_is_refused,
        a_wall_clock_that_steps_neither_ends_nor_stretches_a_lease,
        a_call_that_is_given_up_leaves_the_client_of_use,
        I_LE_1_no_two_nodes_ever_believe_that_they_hold_it,
        epochs_go_on_above_a_floor,
        epochs_grow_and_leases_hold_over_a_restart_of_the_store,
        the_holder_goes_on_over_a_restart_of_the_store,
        a_store_that_stops_answers_nothing_and_goes_on_where_it_was,
    )
}
_NEEDS: dict[str, Ability] = {
    epochs_go_on_above_a_floor.__name__: Ability.FLOOR,
    epochs_grow_and_leases_hold_over_a_restart_of_the_store.__name__: Ability.RESTART,
    the_holder_goes_on_over_a_restart_of_the_store.__name__: Ability.RESTART,
    a_store_that_stops_answers_nothing_and_goes_on_where_it_was.__name__: Ability.PAUSE,
}


def cases_for(abilities: frozenset[Ability]) -> list[str]:
    """Names of the cases that apply to a place."""
    return [name for name in CASES if name not in _NEEDS or _NEEDS[name] in abilities]


def run_case(name: str, place: Place) -> None:
    """In a loop of its own. Raises AssertionError, or TimeoutError after CASE_S seconds."""

    async def run() -> None:
        async with asyncio.timeout(CASE_S):
            await place.start()
            try:
                await CASES[name](place)
            finally:
                await place.stop()

    asyncio.run(run())
