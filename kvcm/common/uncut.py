"""Run coroutines to their end whoever waits for them, without a task while they hardly wait.

`asyncio.shield(create_task(...))` protects a mutation from its caller's cancellation, but costs several trips through the event loop even if the coroutine has
nothing to wait for, as is usual with metadata in memory. Here its first step runs at once. If it waits for an `Answer`, as for metadata in Redis, the caller
waits in its place, and goes on with it. Only a caller that is cancelled meanwhile, or a coroutine that waits for anything else, makes the rest a task.
(Python 3.12 has eager tasks, which do the first half of this; this works on 3.11.)

Danger: during the first step, and the step after an `Answer`, `asyncio.current_task()` is the caller's, so the coroutine must not use what binds itself to the
current task (`asyncio.timeout`, `asyncio.wait_for`) before it has suspended for another reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Answer(asyncio.Future[T]):
    """A future for what will come whether somebody waits for it or not. A coroutine that `Uncut` runs may wait for it with its caller's task; in every other
    place it is a future like others."""

    stand_in: asyncio.Future[None] | None = None
    """What the caller really waits for: cancelling a task cancels what it waits for, and the answer is still wanted then."""
    cut = False
    """The wait is given up although the caller is not."""

    def set_result(self, result: T, /) -> None:
        super().set_result(result)
        self._wake()

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        self._wake()

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        self._wake()
        return cancelled

    def _wake(self) -> None:
        stand_in = self.stand_in
        if stand_in is not None and not stand_in.done():
            stand_in.set_result(None)


class Uncut:
    """All such work of one owner, who may wait for it or cut it off."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answers: set[Answer[Any]] = set()

    def __len__(self) -> int:
        """What is under way and has suspended."""
        return len(self._tasks) + len(self._answers)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; cancelling the caller does not cancel it."""
        step: Callable[[Any], Any] = work.send
        argument: BaseException | None = None
        while True:
            try:
                awaited = step(argument)
            except StopIteration as end:
                result: T = end.value
                return result
            if type(awaited) is not Answer:
                return await asyncio.shield(self._go_on(work, awaited))
            step, argument = work.send, None
            awaited._asyncio_future_blocking = False
            stand_in = awaited.stand_in = awaited.get_loop().create_future()
            self._answers.add(awaited)
            try:
                await stand_in
                if awaited.cut:  # in the same turn of the loop in which the answer came
                    raise asyncio.CancelledError
            except asyncio.CancelledError as error:
                if not awaited.cut:
                    awaited._asyncio_future_blocking = True
                    self._go_on(work, awaited)
                    raise
                if awaited.done() and not awaited.cancelled():
                    awaited.exception()  # retrieved: nobody will ask any more
                step, argument = work.throw, error
            finally:
                self._answers.discard(awaited)
                awaited.stand_in = None

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same as a task from its first step on."""
        task = asyncio.get_running_loop().create_task(work)
        self._keep(task)
        return task

    async def ended(self) -> None:
        """Until nothing is under way."""
        while self._tasks or self._answers:
            stand_ins = [answer.stand_in for answer in self._answers if answer.stand_in is not None]
            await asyncio.wait([*self._tasks, *stand_ins])

    def cut(self) -> None:
        """Cancel what is under way."""
        for task in self._tasks:
            task.cancel()
        for answer in self._answers:
            answer.cut = True
            if answer.stand_in is not None:
                answer.stand_in.cancel()

    def _go_on(self, work: Coroutine[Any, Any, T], awaited: Any) -> asyncio.Task[T]:
        return self.spawn(_await(_Rest(work, awaited)))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here: the caller may be gone


class _Rest(Generic[T]):
    """What is left of a coroutine that has yielded `awaited`: awaiting this goes on with it."""

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        yielded = self._awaited
        step: Callable[[Any], Any]
        while True:
            try:
                value = yield yielded
            except BaseException as error:
                step, argument = self._work.throw, error
            else:
                step, argument = self._work.send, value
            try:
                yielded = step(argument)
            except StopIteration as end:
                result: T = end.value
                return result


async def _await(rest: _Rest[T]) -> T:
    return await rest
