"""A coroutine that is run to its end whoever waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvcm.common.uncut import Answer, Uncut

pytestmark = pytest.mark.unit


def test_without_a_suspension_there_is_no_task() -> None:
    async def work() -> int:
        return 7

    async def main() -> None:
        uncut = Uncut()
        before = len(asyncio.all_tasks())
        assert await uncut.run(work()) == 7
        assert len(asyncio.all_tasks()) == before
        assert len(uncut) == 0

    asyncio.run(main())


def test_an_error_before_the_first_suspension_reaches_the_caller() -> None:
    async def work() -> int:
        raise KeyError("x")

    async def main() -> None:
        uncut = Uncut()
        with pytest.raises(KeyError):
            await uncut.run(work())
        assert len(uncut) == 0

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
        uncut = Uncut()
        waiting = asyncio.ensure_future(uncut.run(work(future)))
        await asyncio.sleep(0)
        assert len(uncut) == 1
        future.set_result(10)
        assert await waiting == 14
        await uncut.ended()

    asyncio.run(main())


def test_an_error_after_a_suspension_reaches_the_caller() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise KeyError("late")

    async def main() -> None:
        with pytest.raises(KeyError, match="late"):
            await Uncut().run(work())

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
        waiting = asyncio.ensure_future(Uncut().run(work(future)))
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
        uncut = Uncut()
        caller = asyncio.ensure_future(uncut.run(work(gate)))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert done == []
        gate.set()
        await uncut.ended()
        assert done == ["to its end"]

    asyncio.run(main())


# -- answers: the caller waits in the coroutine's place ------------------------------------------------------------------------------------------


class Story:
    """Work that waits for answers one after the other, and notes what it gets."""

    def __init__(self, answers: int = 1) -> None:
        self.answers: list[Answer[int]] = [Answer() for _ in range(answers)]
        self.seen: list[object] = []
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.uncut = Uncut()

    async def work(self) -> int:
        try:
            for answer in self.answers:
                self.tasks.append(asyncio.current_task())
                self.seen.append(await answer)
            self.tasks.append(asyncio.current_task())
        except BaseException as error:
            self.seen.append(type(error))
            raise
        return len(self.seen)

    async def begin(self) -> asyncio.Task[int]:
        caller = asyncio.ensure_future(self.uncut.run(self.work()))
        await asyncio.sleep(0)
        assert len(self.uncut) == 1
        return caller


def test_work_that_waits_for_answers_only_needs_no_task() -> None:
    async def main() -> None:
        story = Story(3)
        caller = await story.begin()
        before = len(asyncio.all_tasks())
        for number, answer in enumerate(story.answers):
            answer.set_result(number)
            await asyncio.sleep(0)
        assert await caller == 3
        assert len(asyncio.all_tasks()) == before - 1
        assert story.seen == [0, 1, 2]
        assert set(story.tasks) == {None}  # the caller's own: see tests/conftest.py
        assert len(story.uncut) == 0

    asyncio.run(main())


@pytest.mark.parametrize("answered", [False, True])
def test_cancelling_the_caller_does_not_cancel_the_answer(answered: bool) -> None:
    """`answered`: both in the same moment."""

    async def main() -> None:
        story = Story(2)
        caller = await story.begin()
        first, second = story.answers
        if answered:
            first.set_result(1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert len(story.uncut) == 1
        if not answered:
            first.set_result(1)
        second.set_result(2)
        await story.uncut.ended()
        assert story.seen == [1, 2]
        assert story.tasks[-1] is not caller

    asyncio.run(main())


def test_an_answer_that_is_an_error_or_none_at_all_reaches_the_work() -> None:
    async def main() -> None:
        story = Story()
        caller = await story.begin()
        story.answers[0].set_exception(KeyError("x"))
        with pytest.raises(KeyError):
            await caller
        story = Story()
        caller = await story.begin()
        story.answers[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert story.seen == [asyncio.CancelledError]

    asyncio.run(main())


def test_whoever_waits_for_all_work_waits_for_answers_too() -> None:
    async def main() -> None:
        story = Story(2)
        caller = await story.begin()
        all_of_it = asyncio.ensure_future(story.uncut.ended())
        for answer in story.answers:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not all_of_it.done()
            answer.set_result(1)
        await all_of_it
        assert await caller == 2

    asyncio.run(main())


def test_what_waits_for_an_answer_can_be_cut_off() -> None:
    async def main() -> None:
        story = Story(2)
        caller = await story.begin()
        story.uncut.cut()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert story.seen == [asyncio.CancelledError]
        assert len(story.uncut) == 0
        assert not story.answers[0].done()

    asyncio.run(main())


def test_what_is_cut_off_in_the_moment_of_its_answer_goes_on_no_further() -> None:
    async def main() -> None:
        story = Story(2)
        caller = await story.begin()
        story.answers[0].set_result(1)
        story.uncut.cut()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert story.seen == [asyncio.CancelledError]
        assert len(story.uncut) == 0

    asyncio.run(main())


def test_here_a_time_out_that_would_cancel_the_caller_is_an_error() -> None:
    """See tests/conftest.py: every other test is looked at in this way."""

    async def early() -> None:
        async with asyncio.timeout(10):
            await asyncio.sleep(0)

    async def after_an_answer(answer: Answer[int]) -> None:
        await answer
        await early()

    async def late() -> None:
        await asyncio.sleep(0)
        await early()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="inside a task"):
            await Uncut().run(early())
        answer = Answer[int]()
        asyncio.get_running_loop().call_soon(answer.set_result, 1)
        with pytest.raises(RuntimeError, match="inside a task"):
            await Uncut().run(after_an_answer(answer))
        await Uncut().run(late())

    asyncio.run(main())


def test_after_an_answer_the_rest_may_still_become_a_task() -> None:
    async def work(answer: Answer[int], gate: asyncio.Event) -> tuple[int, asyncio.Task[Any] | None]:
        got = await answer
        await gate.wait()
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
        return got, asyncio.current_task()

    async def main() -> None:
        uncut, answer, gate = Uncut(), Answer[int](), asyncio.Event()
        caller = asyncio.ensure_future(uncut.run(work(answer, gate)))
        await asyncio.sleep(0)
        answer.set_result(5)
        await asyncio.sleep(0)
        assert len(uncut) == 1
        caller.cancel()
        gate.set()
        await uncut.ended()
        assert caller.cancelled()

    asyncio.run(main())


def test_elsewhere_an_answer_is_a_future_like_others() -> None:
    async def main() -> None:
        answer = Answer[int]()
        asyncio.get_running_loop().call_soon(answer.set_result, 3)
        assert await answer == 3
        answer = Answer[int]()
        waiting = asyncio.ensure_future(asyncio.wait_for(answer, 0.001))
        with pytest.raises(TimeoutError):
            await waiting
        assert answer.cancelled()

    asyncio.run(main())
