"""How tests run: property tests are never judged by speed, and in CI always have the same examples, so that a red run can be repeated.

Work that `Uncut` drives must not use what binds itself to the current task while that task is its caller's (kvcm.common.uncut). asyncio.timeout does so
silently, and then cancels the caller. So here that work finds no current task in those steps, which makes asyncio.timeout an error.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
import os
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import HealthCheck, settings

from kvcm.common.uncut import Uncut

settings.register_profile("kvcm", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI")))
settings.load_profile("kvcm")


class _Strict:
    """A coroutine that sees no task in steps that it takes in its caller's."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self.has_task = False

    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    def throw(self, error: BaseException) -> Any:
        return self._step(self._work.throw, error)

    def _step(self, step: Callable[[Any], Any], value: Any) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if self.has_task or task is None:
            return step(value)
        asyncio.tasks._leave_task(loop, task)
        try:
            return step(value)
        finally:
            asyncio.tasks._enter_task(loop, task)


_run, _go_on = Uncut.run, Uncut._go_on


def _strict_run(self: Uncut, work: Any) -> Any:
    return _run(self, _Strict(work))  # type: ignore[arg-type]


def _free_go_on(self: Uncut, work: Any, awaited: Any) -> Any:
    work.has_task = True
    return _go_on(self, work, awaited)


Uncut.run = _strict_run  # type: ignore[method-assign]
Uncut._go_on = _free_go_on  # type: ignore[method-assign]
