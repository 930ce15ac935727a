"""How write sessions end is counted, each once: finished, expired with blocks, run out without any, aborted. And what a manager counts of its writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import KvcmError
from kvcm.manager.testing import ManagerWorld
from kvcm.manager.write_sessions import WriteSession, WriteSessions
from kvcm.metrics.families import AnyFamily
from kvcm.metrics.storage_metrics import StorageMetrics
from kvcm.protocol.location_encoder import ProtoLocationEncoder
from kvcm.service.state_metrics import ManagerSource

pytestmark = pytest.mark.unit


def shown(families: list[AnyFamily]) -> dict[str, float]:
    """Families of one series."""
    return {family.name: float(family.samples[0][1]) for family in families if len(family.samples) == 1 and isinstance(family.samples[0][1], (int, float))}


def test_every_session_is_counted_by_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = ManagerWorld(tmp_path, ProtoLocationEncoder())
        await world.open()
        await world.simple(instances=("i", "j"))
        stats = world.manager.sessions.stats
        written = await world.put("i", [1, 2])
        assert written.session_id
        empty = await world.start("i", [1, 2])
        late = await world.start("i", [3], timeout_s=5)
        await world.start("j", [4], timeout_s=600)
        assert (stats.opened, stats.finished) == (4, 1)
        await world.advance(11)
        await world.manager.expire_sessions()
        assert (stats.expired, stats.idle) == (1, 1)
        for gone in (late, empty):
            with pytest.raises(KvcmError):
                await world.finish(gone, 0)
        await world.manager.remove_instance("j")
        assert (stats.opened, stats.finished, stats.expired, stats.idle, stats.aborted) == (4, 1, 1, 1, 1)
        assert len(world.manager.sessions) == 0

    asyncio.run(scenario())


def test_parts_of_writes_and_places_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = ManagerWorld(tmp_path, ProtoLocationEncoder())
        await world.open()
        await world.simple()
        places = StorageMetrics(lambda name: world.storages.get(name) is not None, world.clock.monotonic_us)
        world.storages.observer = places
        source = ManagerSource(world.manager)
        before = shown(list(source.families()))
        assert "manager.filter_write_cache_time_us" not in before
        await world.put("i", [1, 2, 3])
        after = shown(list(source.families()))
        assert {"manager.filter_write_cache_time_us", "manager.write_cache_io_cost_us", "manager.batch_add_location_time_us"} <= set(after)
        assert "manager.batch_update_location_time_us" in after
        assert (after["meta_indexer.total_key_count"], after["write_session.finished_counter"]) == (3, 1)
        counted = shown(list(places.families()))
        assert (counted["data_storage.create_counter"], counted["data_storage.create_keys_counter"]) == (1, 3)
        assert counted["data_storage.write_bytes_dispatched_total"] > 0
        assert counted["data_storage.create_error_counter"] == 0

    asyncio.run(scenario())


STEPS = st.lists(st.tuples(st.sampled_from(["put", "claim", "due", "reopen", "end", "all", "forget"]), st.integers(0, 5)), max_size=30)


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_I_ME_1_no_session_is_counted_twice_whatever_the_order(steps: list[tuple[str, int]]) -> None:
    sessions = WriteSessions()
    put: dict[str, WriteSession] = {}
    last = (0, 0, 0)
    for at, (step, number) in enumerate(steps):
        name = f"s{number}"
        match step:
            case "put":
                if name not in put:
                    keys = [number] if number % 2 else []
                    put[name] = WriteSession(name, "i", keys, [None] * len(keys), deadline_us=at)
                    sessions.put(put[name])
            case "claim":
                sessions.claim(name)
            case "due":
                sessions.claim_due(at)
            case "reopen":
                if name in put and put[name].claimed:
                    sessions.reopen(put[name], at)
            case "end":
                if name in put and put[name].claimed:
                    sessions.end(put[name])
            case "all":
                sessions.claim_all()
            case _:
                sessions.forget()
        stats = sessions.stats
        now = (stats.expired, stats.idle, stats.aborted)
        assert all(after >= before for before, after in zip(last, now, strict=True))
        assert sum(now) <= len(put)
        last = now
