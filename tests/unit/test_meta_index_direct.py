"""Mutations whose end the store tells by a call: the caller may go away, the keys stay held, `close` waits, bugs hold nothing for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import pytest

from kvcm.common.errors import StorageError
from kvcm.meta.backend import Rest
from kvcm.meta.index import MetaIndex, Outcome
from kvcm.meta.location import Block
from kvcm.meta.testing import Fault, Scheduler, published, written
from kvcm.meta.testing_moves import DirectStore

pytestmark = pytest.mark.unit


def put(position: int, key: int, block: Block) -> Block:
    return (*block, written(f"{len(block)}"))


def test_a_caller_that_goes_away_changes_nothing_about_the_change() -> None:
    async def story() -> None:
        scheduler = Scheduler()
        store = DirectStore(scheduler)
        index = MetaIndex(store, max_key_count=10)
        first = asyncio.ensure_future(index.mutate([1], put, 1))
        second = asyncio.ensure_future(index.mutate([1], put, 1))
        await scheduler.settle()
        first.cancel()
        await scheduler.release_all()
        assert first.cancelled()
        assert await second == [Outcome(True)]
        assert published(index) == store.store == {1: (written("0"), written("1"))}

    asyncio.run(story())


def test_closing_waits_for_what_the_store_has_not_told_of() -> None:
    async def story() -> None:
        scheduler = Scheduler()
        store = DirectStore(scheduler)
        index = MetaIndex(store, max_key_count=10)
        store.faults.extend([None, Fault.LOST_ANSWER])
        calls = [asyncio.ensure_future(index.mutate([key], put, 1)) for key in (1, 2)]
        await scheduler.settle()
        closing = asyncio.ensure_future(index.close())
        await scheduler.settle()
        assert not closing.done()
        await scheduler.release_all()
        await closing
        assert all(call.done() for call in calls)
        assert published(index) == store.store

    asyncio.run(story())


def test_a_store_that_cannot_send_is_asked_the_usual_way(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(DirectStore):
        def submit(self, changes: Mapping[int, Block], fence: int, stored: Callable[[], None], otherwise: Callable[[Rest], None]) -> bool:
            raise RuntimeError("a bug in a backend")

    async def story() -> None:
        store = Broken()
        index = MetaIndex(store, max_key_count=10)
        with caplog.at_level(logging.ERROR):
            assert await index.mutate([1], put, 1) == [Outcome(True)]
        assert "metadata_backend_bug" in caplog.text
        assert published(index) == store.store
        await index.close()

    asyncio.run(story())


def test_what_the_store_refuses_is_told_to_the_caller() -> None:
    async def story() -> None:
        store = DirectStore()
        index = MetaIndex(store, max_key_count=10)
        store.failing_keys = {2}
        outcomes = await index.mutate([1, 2], put, 1)
        assert [type(outcome.error) for outcome in outcomes] == [type(None), StorageError]
        assert published(index) == store.store == {1: (written("0"),)}
        store.failing_keys = set()
        assert await index.mutate([2], put, 1) == [Outcome(True)]

    asyncio.run(story())
