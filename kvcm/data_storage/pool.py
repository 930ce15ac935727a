"""A bounded pool of threads for file I/O that may hang.

A dead NFS server can hold a thread for ever, and no call of Python can take it back. So:

* every job has a deadline; when it passes, the caller gets `PoolTimeout` and goes on, and a job that has not started never will;
* a job that did start is abandoned, not cancelled: it still runs to its end. What it did by then can be taken back with `undo`;
* jobs belong to lanes (one per storage), and a lane may hold only part of the threads, so one dead store does not starve the others;
* the queue is bounded; a full queue refuses at once;
* threads are daemons: a hung one does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, ParamSpec, TypeVar, cast

from kvcm.common.clock import Clock, SystemClock
from kvcm.common.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_DEADLINE_S = 5.0


class PoolRefused(StorageError):
    """The queue is full or the pool is closed; the job never ran."""


class PoolTimeout(StorageError):
    """The deadline passed. The job never ran, or it is still running and its outcome is unknown."""


class _State(Enum):
    QUEUED = 0
    RUNNING = 1
    DONE = 2
    ABANDONED = 3


class _Job(Generic[T]):
    __slots__ = ("call", "deadline_us", "error", "future", "lane", "loop", "result", "state", "undo")

    def __init__(self, call: Callable[[], T], lane: str, deadline_us: int, undo: Callable[[T], None] | None) -> None:
        self.call = call
        self.lane = lane
        self.deadline_us = deadline_us
        self.undo = undo
        self.state = _State.QUEUED
        self.result: T | None = None
        self.error: BaseException | None = None
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def wake(self) -> None:
        # The loop may be closed by now; then nobody waits.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class BlockingPool:
    """`threads` at most, started on demand; at most `queue` jobs wait; one lane holds at most half of the threads (rounded up)."""

    def __init__(self, threads: int = 4, queue: int = 1024, name: str = "kvcm-io", clock: Clock | None = None) -> None:
        if threads < 1 or queue < 1:
            raise ValueError("a pool needs at least one thread and one place in its queue")
        self._max_threads = threads
        self._lane_limit = (threads + 1) // 2
        self._max_queued = queue
        self._name = name
        self._clock: Clock = clock or SystemClock()
        self._cond = threading.Condition()
        self._lanes: dict[str, deque[_Job[Any]]] = {}
        self._running: dict[str, int] = {}
        self._queued = 0
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    async def run(
        self,
        fn: Callable[..., T],
        *args: object,
        deadline_s: float = DEFAULT_DEADLINE_S,
        lane: str = "",
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Run `fn(*args)` in a thread and return its result, or raise what it raised.

        Raises PoolRefused (full, closed) and PoolTimeout (after `deadline_s` seconds). `undo(result)` runs in the thread when the job succeeds
        after its caller has gone (deadline or cancellation).
        """
        job: _Job[T] = _Job(lambda: fn(*args), lane, self._clock.monotonic_us() + int(deadline_s * 1e6), undo)
        self._submit(job)
        try:
            await asyncio.wait((job.future,), timeout=deadline_s)
        finally:
            # Also on cancellation of the caller: whoever leaves first decides, under the lock, whether the result still counts.
            with self._cond:
                self._abandon_unless_done(job)
        if job.state is not _State.DONE:
            raise PoolTimeout("The storage did not answer in time.")
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    def close(self, wait_s: float = 0.0) -> None:
        """Refuse new jobs, drop the waiting ones (their callers get PoolTimeout), let idle threads end. Waits at most `wait_s` per thread."""
        with self._cond:
            self._closed = True
            for jobs in self._lanes.values():
                for job in jobs:
                    job.state = _State.ABANDONED
                    job.wake()
            self._lanes.clear()
            self._queued = 0
            self._cond.notify_all()
        for thread in self._threads:
            thread.join(wait_s)

    @property
    def queued(self) -> int:
        return self._queued

    def _submit(self, job: _Job[Any]) -> None:
        with self._cond:
            if self._closed:
                raise PoolRefused("The pool for storage I/O is closed.")
            if self._queued >= self._max_queued:
                raise PoolRefused("Too many storage operations are waiting already.")
            self._lanes.setdefault(job.lane, deque()).append(job)
            self._queued += 1
            if self._queued > self._idle and len(self._threads) < self._max_threads:
                thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._cond.notify()

    def _abandon_unless_done(self, job: _Job[Any]) -> None:
        if job.state is _State.QUEUED:
            jobs = self._lanes[job.lane]
            jobs.remove(job)
            self._queued -= 1
            if not jobs:
                del self._lanes[job.lane]
        if job.state is not _State.DONE:
            job.state = _State.ABANDONED

    def _next(self) -> _Job[Any] | None:
        """The next job whose lane may run; lanes take turns. Called with the lock held; None ends the thread."""
        while not self._closed:
            for lane, jobs in self._lanes.items():
                if self._running.get(lane, 0) >= self._lane_limit:
                    continue
                job = jobs.popleft()
                self._queued -= 1
                del self._lanes[lane]
                if jobs:
                    self._lanes[lane] = jobs
                if self._clock.monotonic_us() >= job.deadline_us:
                    job.state = _State.ABANDONED
                    job.wake()
                    break
                job.state = _State.RUNNING
                self._running[lane] = self._running.get(lane, 0) + 1
                return job
            else:
                self._idle += 1
                self._cond.wait()
                self._idle -= 1
        return None

    def _work(self) -> None:
        while True:
            with self._cond:
                job = self._next()
            if job is None:
                return
            self._run(job)
            del job

    def _run(self, job: _Job[Any]) -> None:
        try:
            result, error = job.call(), None
        except BaseException as caught:
            result, error = None, caught
        with self._cond:
            abandoned = job.state is _State.ABANDONED
            if not abandoned:
                job.result, job.error, job.state = result, error, _State.DONE
        try:
            if not abandoned:
                job.wake()
            elif job.undo is not None and error is None:
                with contextlib.suppress(Exception):
                    job.undo(result)
        finally:
            with self._cond:
                left = self._running[job.lane] - 1
                if left:
                    self._running[job.lane] = left
                else:
                    del self._running[job.lane]
                # A lane that was full may go on, on any idle thread.
                self._cond.notify_all()
