"""One save or load while it runs: its deadline, its first error, and the gate to the caller's memory.

The promise (INV-C5): once the call has returned, by result or by error, no byte of the caller's buffers changes any more. Workers read
into memory of their own and copy out through `copy_out`, which holds the call's lock; the caller returns only after closing the gate under
the same lock. So a thread that hangs in a dead mount for an hour wakes up to a closed gate.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable

from kvcm.client.errors import PoolFull, TransferError, TransferTimeout


class TransferCall:
    """`deadline_s` is on the clock `now`; `verb` is the word for messages (`save` or `load`)."""

    def __init__(self, verb: str, blocks: int, tasks: int, deadline_s: float, now: Callable[[], float]) -> None:
        self._verb = verb
        self._deadline_s = deadline_s
        self._now = now
        self._done = bytearray(blocks)
        self._pending = tasks
        self._changed = threading.Condition()
        self._open = True
        self._error: TransferError | None = None
        self._listener: Callable[[], None] | None = None

    # --- the workers' side -------------------------------------------------------------------------------------------------------------

    def may_go_on(self) -> bool:
        """Whether work on a further block (or a further piece of one) may start."""
        with self._changed:
            return self._allowed()

    def copy_out(self, copy: Callable[[], None]) -> bool:
        """Run `copy`, which writes into the caller's memory, unless the call is over or late. False: nothing was touched."""
        with self._changed:
            if not self._allowed():
                return False
            copy()
            return True

    def block_done(self, index: int) -> None:
        with self._changed:
            self._done[index] = 1

    def fail(self, error: TransferError) -> None:
        """Keep the first error; further blocks do not start."""
        with self._changed:
            self._error = self._error or error

    def task_ended(self) -> None:
        with self._changed:
            self._pending -= 1
            if self._pending:
                return
            self._changed.notify_all()
            if self._listener is not None:
                self._listener()

    def task_abandoned(self) -> None:
        self.fail(PoolFull(f"the {self._verb} was given up because the client is closing"))
        self.task_ended()

    # --- the caller's side -------------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Block until every task ended or the deadline passed; raises the call's error."""
        try:
            with self._changed:
                while self._pending and (left := self._deadline_s - self._now()) > 0:
                    self._changed.wait(left)
        finally:
            outcome = self._close()
        if outcome is not None:
            raise outcome

    async def wait_async(self) -> None:
        """As `wait`, on the running loop. A cancelled await closes the gate as well."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def mark() -> None:
            if not ended.done():
                ended.set_result(None)

        with self._changed:
            if self._pending:
                self._listener = functools.partial(_wake_loop, loop, mark)
            else:
                mark()
        try:
            async with asyncio.timeout(max(0.0, self._deadline_s - self._now())):
                await ended
        except TimeoutError:
            pass
        finally:
            outcome = self._close()
        if outcome is not None:
            raise outcome

    def _allowed(self) -> bool:
        return self._open and self._error is None and self._now() < self._deadline_s

    def _close(self) -> TransferError | None:
        with self._changed:
            self._open = False
            self._listener = None
            if self._error is not None:
                return self._error
            first = self._done.find(0)
            if first < 0:
                return None
            finished = self._done.count(1)
            return TransferTimeout(
                f"the {self._verb} did not end in time: {finished} of {len(self._done)} blocks were finished, block {first} was not",
                block_index=first,
            )


def _wake_loop(loop: asyncio.AbstractEventLoop, mark: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(mark)
