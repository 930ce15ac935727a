"""The I/O pool: deadlines, bounds, lanes and jobs that outlive their callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from kvcm.data_storage.pool import BlockingPool, PoolRefused, PoolTimeout

pytestmark = pytest.mark.unit

SOON = 0.02


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (what is waited for happens in a thread)
        await asyncio.sleep(0)


async def occupy(pool: BlockingPool, release: threading.Event) -> asyncio.Future[bool]:
    """A job that holds a thread until `release`; it has started when this returns."""
    started = threading.Event()

    def hold() -> bool:
        started.set()
        return release.wait(10)

    job = asyncio.ensure_future(pool.run(hold, deadline_s=20))
    await until(started.is_set)
    return job


def test_results_and_errors_come_back() -> None:
    async def main() -> None:
        pool = BlockingPool(threads=2)
        assert await pool.run(pow, 2, 10) == 1024
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        pool.close(1)

    asyncio.run(main())


def test_a_hung_job_times_out_and_its_result_is_undone_later() -> None:
    async def main() -> None:
        pool, release, undone = BlockingPool(threads=2), threading.Event(), threading.Event()
        seen: list[str] = []

        def hang() -> str:
            release.wait(10)
            return "late"

        def undo(result: str) -> None:
            seen.append(result)
            undone.set()

        with pytest.raises(PoolTimeout, match="in time"):
            await pool.run(hang, deadline_s=SOON, undo=undo)
        assert not seen
        release.set()
        assert undone.wait(10)
        assert seen == ["late"]
        pool.close(1)

    asyncio.run(main())


def test_a_job_that_has_not_started_by_its_deadline_never_runs() -> None:
    async def main() -> None:
        pool, release = BlockingPool(threads=1), threading.Event()
        ran: list[int] = []
        hung = await occupy(pool, release)
        with pytest.raises(PoolTimeout):
            await pool.run(ran.append, 1, deadline_s=SOON)
        assert pool.queued == 0
        release.set()
        assert await hung
        await pool.run(ran.append, 2)
        assert ran == [2]
        pool.close(1)

    asyncio.run(main())


def test_a_full_queue_refuses_at_once() -> None:
    async def main() -> None:
        pool, release = BlockingPool(threads=1, queue=2), threading.Event()
        running = await occupy(pool, release)
        waiting = [asyncio.ensure_future(pool.run(int)) for _ in range(2)]
        await until(lambda: pool.queued == 2)
        with pytest.raises(PoolRefused, match="Too many"):
            await pool.run(int)
        release.set()
        assert await running
        assert await asyncio.gather(*waiting) == [0, 0]
        pool.close(1)

    asyncio.run(main())


def test_one_dead_storage_does_not_take_all_threads() -> None:
    async def main() -> None:
        pool, release = BlockingPool(threads=4), threading.Event()
        hung = [asyncio.ensure_future(pool.run(release.wait, 10, lane="dead")) for _ in range(8)]
        await until(lambda: pool.queued == 6)
        assert await pool.run(lambda: "served", lane="alive") == "served"
        release.set()
        assert all(await asyncio.gather(*hung))
        pool.close(1)

    asyncio.run(main())


def test_cancelling_the_caller_withdraws_the_job() -> None:
    async def main() -> None:
        pool, release = BlockingPool(threads=1), threading.Event()
        ran: list[int] = []
        hung = await occupy(pool, release)
        waiting = asyncio.ensure_future(pool.run(ran.append, 1))
        await until(lambda: pool.queued == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert pool.queued == 0
        release.set()
        assert await hung
        assert not ran
        pool.close(1)

    asyncio.run(main())


def test_a_closed_pool_refuses_and_drops_what_waits() -> None:
    async def main() -> None:
        pool, release = BlockingPool(threads=1), threading.Event()
        hung = await occupy(pool, release)
        waiting = asyncio.ensure_future(pool.run(int))
        await until(lambda: pool.queued == 1)
        pool.close()
        with pytest.raises(PoolTimeout):
            await waiting
        with pytest.raises(PoolRefused, match="closed"):
            await pool.run(int)
        release.set()
        assert await hung
        pool.close(1)

    asyncio.run(main())


def test_a_pool_needs_room() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockingPool(threads=0)
