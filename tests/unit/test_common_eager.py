"""A coroutine that is run to its end whoever waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvcm.common.eager import run_to_end

pytestmark = pytest.mark.unit


def kept() -> tuple[list[asyncio.Task[Any]], Any]:
    tasks: list[asyncio.Task[Any]] = []
    return tasks, tasks.append


def test_without_a_suspension_there_is_no_task() -> None:
    async def work() -> int:
        return 7

    async def main() -> None:
        tasks, keep = kept()
        assert await run_to_end(work(), keep) == 7
        assert tasks == []

    asyncio.run(main())


def test_an_error_before_the_first_suspension_reaches_the_caller() -> None:
    async def work() -> int:
        raise KeyError("x")

    async def main() -> None:
        tasks, keep = kept()
        with pytest.raises(KeyError):
            await run_to_end(work(), keep)
        assert tasks == []

    asyncio.run(main())


def test_the_rest_after_suspensions_of_every_kind_gives_the_result() -> None:
    async def work(future: asyncio.Future[int]) -> int:
        got = await future
        await asyncio.sleep(0)
        inner = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        except TimeoutError:
            got += 1
        return got + sum(inner)

    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        tasks, keep = kept()
        waiting = asyncio.ensure_future(run_to_end(work(future), keep))
        await asyncio.sleep(0)
        future.set_result(10)
        assert await waiting == 14
        assert len(tasks) == 1

    asyncio.run(main())


def test_an_error_after_a_suspension_reaches_the_caller() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise KeyError("late")

    async def main() -> None:
        with pytest.raises(KeyError, match="late"):
            await run_to_end(work(), kept()[1])

    asyncio.run(main())


def test_an_error_of_what_is_awaited_first_can_be_handled_inside() -> None:
    async def work(future: asyncio.Future[int]) -> str:
        try:
            await future
        except ValueError:
            await asyncio.sleep(0)
            return "handled"
        return "not reached"

    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(run_to_end(work(future), kept()[1]))
        await asyncio.sleep(0)
        future.set_exception(ValueError())
        assert await waiting == "handled"

    asyncio.run(main())


def test_cancelling_the_caller_does_not_cut_the_work() -> None:
    done: list[str] = []

    async def work(gate: asyncio.Event) -> None:
        await gate.wait()
        await asyncio.sleep(0)
        done.append("to its end")

    async def main() -> None:
        gate = asyncio.Event()
        tasks, keep = kept()
        caller = asyncio.ensure_future(run_to_end(work(gate), keep))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert done == []
        gate.set()
        await tasks[0]
        assert done == ["to its end"]

    asyncio.run(main())
