"""Calls whose request has not come: they hold a place among the calls under way, and a client can open thousands that it never completes.

A call is noticed when grpc.aio hands it over and marks itself begun (`begin`) in its handler. One that has not begun after ten seconds, or is the oldest
of too many, is refused. The mark is the status code OK, which is what a call would send anyway, and the one thing that two contexts of a call share.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc._cython import cygrpc

REQUEST_DEADLINE_S = 10.0
MAX_UNSENT = 1024
_SWEEP_S = 0.5
_OK = grpc.StatusCode.OK
_cython: Any = cygrpc


def begin(context: Any) -> None:
    """First thing in each handler: the request is here."""
    context.set_code(_OK)


class Unsent:
    """Belongs to one server and its loop. A call costs it a list entry; looking at them is left for later and for many at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fresh: list[Any] = []
        self._waiting: list[tuple[Any, float]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._refusals: set[asyncio.Task[None]] = set()

    def add(self, call: Any) -> None:
        """A call that has just been handed over (an RPCState)."""
        fresh = self._fresh
        fresh.append(_cython._ServicerContext(call, None, None, self._loop))
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP_S, self._sweep)
        if len(fresh) >= MAX_UNSENT:
            self._look()

    def _sweep(self) -> None:
        self._look()
        self._timer = self._loop.call_later(_SWEEP_S, self._sweep) if self._waiting else None

    def _look(self) -> None:
        """Forget what has begun or ended; refuse what is late, and the oldest of what is too much."""
        now = self._loop.time()
        waiting = [entry for entry in self._waiting if _is_unsent(entry[0])]
        waiting += [(context, now + REQUEST_DEADLINE_S) for context in self._fresh if _is_unsent(context)]
        self._fresh.clear()
        late = max(0, sum(deadline <= now for _, deadline in waiting), len(waiting) - MAX_UNSENT)
        for context, _ in waiting[:late]:
            task = self._loop.create_task(_refuse(context))
            self._refusals.add(task)
            task.add_done_callback(self._refusals.discard)
        self._waiting = waiting[late:]


def _is_unsent(context: Any) -> bool:
    return context.code() is None and not context.done()


async def _refuse(context: Any) -> None:
    try:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not come in time")
    except Exception:
        # That is how abort ends, and how it fails when the peer has gone meanwhile.
        return
