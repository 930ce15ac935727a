"""A bounded pool of threads for blocking file work.

At most `thread_num` tasks run and `queue_size` wait; a group of tasks is taken whole or refused whole. Threads are daemons: one that hangs
in a dead mount must not keep the process alive. A hanging thread stays lost until the mount answers, which is why everything is bounded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol


class Task(Protocol):
    def run(self) -> None:
        """Do the work; never raises."""
        ...

    def abandon(self) -> None:
        """Called instead of `run` when the pool closes before the task's turn; never raises."""
        ...


class BoundedPool:
    def __init__(self, thread_num: int, queue_size: int) -> None:
        self._thread_num = thread_num
        self._queue_size = queue_size
        self._queue: deque[Task] = deque()
        self._wake = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._closed = False

    @property
    def thread_num(self) -> int:
        return self._thread_num

    def submit_all(self, tasks: Sequence[Task]) -> bool:
        """Queue every task, or none (False) when there is no room or the pool is closed."""
        with self._wake:
            room = self._queue_size + self._thread_num - self._busy - len(self._queue)
            if self._closed or len(tasks) > room:
                return False
            self._queue.extend(tasks)
            while len(self._threads) < min(self._thread_num, self._busy + len(self._queue)):
                self._start_thread()
            self._wake.notify(len(tasks))
        return True

    def close(self, wait_s: float = 5.0) -> None:
        """Abandon what waits, let running tasks end, and wait for them up to `wait_s` seconds. Safe to call twice."""
        with self._wake:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            self._wake.notify_all()
            threads = list(self._threads)
        for task in waiting:
            task.abandon()
        until = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"kvcm-transfer-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closed:
                    self._wake.wait()
                if not self._queue:
                    return
                task = self._queue.popleft()
                self._busy += 1
            try:
                task.run()
            finally:
                with self._wake:
                    self._busy -= 1
