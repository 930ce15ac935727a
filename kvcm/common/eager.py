"""Run a coroutine to its end whoever waits for it, without a task if it never suspends.

`asyncio.shield(create_task(...))` protects a mutation from its caller's cancellation, but costs two trips through the event loop even if the coroutine has
nothing to wait for, as is usual with metadata in memory. Here its first step runs at once; only if it suspends, the rest becomes a task. (Python 3.12 has
eager tasks; this works on 3.11.)

Danger: during the first step `asyncio.current_task()` is still the caller's, so the coroutine must not use what binds itself to the current task
(`asyncio.timeout`, `asyncio.wait_for`) before it has suspended for another reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Rest(Generic[T]):
    """What is left of a coroutine that has yielded `first`: awaiting this goes on with it."""

    def __init__(self, work: Coroutine[Any, Any, T], first: Any) -> None:
        self._work = work
        self._first = first

    def __await__(self) -> Generator[Any, Any, T]:
        yielded = self._first
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


async def _go_on(rest: _Rest[T]) -> T:
    return await rest


async def run_to_end(work: Coroutine[Any, Any, T], on_task: Callable[[asyncio.Task[T]], None]) -> T:
    """The coroutine's result. `on_task` gets the task that runs the rest if there is one; cancelling the caller does not cancel it."""
    try:
        first = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    task = asyncio.get_running_loop().create_task(_go_on(_Rest(work, first)))
    on_task(task)
    return await asyncio.shield(task)
