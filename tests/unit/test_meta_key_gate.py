"""Keys in flight: one holder a key, all or nothing, bounded waiting, nothing left behind."""

from __future__ import annotations

import asyncio

import pytest

from kvcm.meta.errors import KeysBusy
from kvcm.meta.key_gate import KeyGate
from kvcm.meta.testing import Scheduler

pytestmark = pytest.mark.unit


async def hold(gate: KeyGate, keys: list[int], name: str, scheduler: Scheduler, log: list[str]) -> None:
    async with gate.hold(keys):
        log.append(f"{name} in")
        await scheduler.point(name)
        log.append(f"{name} out")


def test_free_keys_are_taken_without_waiting_and_given_back() -> None:
    async def story() -> None:
        gate = KeyGate()
        async with gate.hold([1, 2]):
            assert (gate.is_held(1), gate.is_held(2), gate.is_held(3), len(gate)) == (True, True, False, 2)
        assert len(gate) == 0

    asyncio.run(story())


def test_other_keys_are_not_held_up() -> None:
    async def story() -> list[str]:
        scheduler, gate, log = Scheduler(), KeyGate(), list[str]()
        await scheduler.run([hold(gate, [1], "a", scheduler, log), hold(gate, [2], "b", scheduler, log)], lambda count: count - 1)
        return log

    assert asyncio.run(story()) == ["a in", "b in", "b out", "a out"]


def test_a_second_holder_of_a_key_waits_for_the_first() -> None:
    async def story() -> list[str]:
        scheduler, gate, log = Scheduler(), KeyGate(), list[str]()
        await scheduler.run([hold(gate, [1, 2], "a", scheduler, log), hold(gate, [2, 3], "b", scheduler, log)], lambda count: count - 1)
        return log

    assert asyncio.run(story()) == ["a in", "a out", "b in", "b out"]


def test_who_waits_holds_nothing_so_nobody_can_be_locked_out_for_ever() -> None:
    async def story() -> list[str]:
        scheduler, gate, log = Scheduler(), KeyGate(), list[str]()
        # b waits for a's key 1 and must not keep c from key 2.
        calls = [hold(gate, [1], "a", scheduler, log), hold(gate, [1, 2], "b", scheduler, log), hold(gate, [2], "c", scheduler, log)]
        await scheduler.run(calls, lambda count: count - 1)
        assert len(gate) == 0
        return log

    assert asyncio.run(story()) == ["a in", "c in", "c out", "a out", "b in", "b out"]


def test_crossing_batches_do_not_deadlock() -> None:
    async def story() -> None:
        scheduler, gate, log = Scheduler(), KeyGate(), list[str]()
        calls = [hold(gate, [n % 3, (n + 1) % 3], str(n), scheduler, log) for n in range(9)]
        await scheduler.run(calls, lambda count: count - 1)
        assert (len(log), len(gate)) == (18, 0)

    asyncio.run(story())


def test_waiting_ends_with_keys_busy_and_takes_nothing() -> None:
    async def story() -> None:
        gate = KeyGate(wait_s=0)
        async with gate.hold([1]):
            with pytest.raises(KeysBusy, match="repeat the call"):
                await gate.acquire([1, 2])
            assert (gate.is_held(2), len(gate)) == (False, 1)
        assert len(gate) == 0

    asyncio.run(story())


def test_a_cancelled_waiter_leaves_no_trace() -> None:
    async def story() -> None:
        gate, scheduler = KeyGate(), Scheduler()
        async with gate.hold([1]):
            waiter = asyncio.ensure_future(gate.acquire([1, 2]))
            await scheduler.settle()
            waiter.cancel()
            await scheduler.settle()
            assert waiter.cancelled()
            assert len(gate) == 1
        async with gate.hold([1, 2]):
            assert len(gate) == 2

    asyncio.run(story())


def test_keys_come_free_when_the_holder_fails() -> None:
    async def story() -> None:
        gate = KeyGate()
        with pytest.raises(ValueError, match="boom"):
            async with gate.hold([1]):
                raise ValueError("boom")
        assert len(gate) == 0

    asyncio.run(story())


def test_no_keys_need_no_gate() -> None:
    async def story() -> None:
        gate = KeyGate(wait_s=0)
        async with gate.hold([1]), gate.hold([]):
            assert len(gate) == 1

    asyncio.run(story())


def test_a_holder_that_ends_before_the_wait_for_it_has_begun_wakes_whoever_waits() -> None:
    async def story() -> None:
        gate = KeyGate(wait_s=3600.0)
        first = await gate.acquire([1])
        second = asyncio.ensure_future(gate.acquire([1]))
        await asyncio.sleep(0)
        # It has seen the holder, and the task that waits has not taken its first step.
        gate.release([1], first)
        async with asyncio.timeout(10):
            gate.release([1], await second)
        assert len(gate) == 0

    asyncio.run(story())
