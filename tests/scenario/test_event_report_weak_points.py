"""What can go wrong around ReportEvent (behaviour 21.7, 27): restarts, half-way failures, hosts that vanish in the middle, calls that meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.manager import event_report
from kvcm.manager.errors import NodeNotRegistered, SnapshotInProgress, SnapshotTooSoon
from kvcm.manager.event_report import Reported
from kvcm.manager.event_report_events import HostDown, Register, Snapshot, add, delete, heartbeat, snapshot
from kvcm.manager.testing import ManagerWorld
from kvcm.manager.testing_events import L1, TIMINGS, EventDesk, specs
from kvcm.meta.errors import KeyLimitReached
from kvcm.meta.location import is_reported
from kvcm.meta.testing import Scheduler
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario

Story = Callable[[EventDesk], Awaitable[None]]


@pytest.fixture(autouse=True)
def _one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every block of a report is a point at which others run."""
    monkeypatch.setattr(event_report, "_SLICE", 1)


def play(root: Path, story: Story, *, world: dict[str, Any] | None = None, drain_ms: int = 60_000, **options: Any) -> None:
    async def run() -> None:
        desk = EventDesk(ManagerWorld(root, ProtoLocationEncoder(), **(world or {})), replace(TIMINGS, snapshot_delta_drain_timeout_ms=drain_ms))
        await desk.open(**options)
        await story(desk)

    asyncio.run(run())


def holds(*keys: int, mark: str = "") -> Snapshot:
    return snapshot([add(str(key), "mem", specs(mark=mark)) for key in keys])


def begin(desk: EventDesk, host: str, *events: Any, kind: Any = None) -> asyncio.Task[Reported]:
    return asyncio.ensure_future(desk.report(host, *events, **({"kind": kind} if kind else {})))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come to that")


def closed(desk: EventDesk) -> bool:
    return any(reporter.gate.closed for reporter in desk.roster.reporters())


def keys(desk: EventDesk) -> list[int]:
    return [key for key, _ in desk.content(range(40))]


# -- restarts --------------------------------------------------------------------------------------------------------------------------------------


def test_a_restart_forgets_what_was_reported_and_asks_for_snapshots(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        write = await desk.world.put("i", [1])
        old = await desk.good("h1", add("1", "mem", specs()), add("2", "mem", specs()))
        await desk.world.restart()
        assert await desk.world.read("i", [1]) == write.uris
        assert desk.shard.index.key_count == 1
        assert (await desk.report("h1", heartbeat({}))).snapshot_required
        new = await desk.good("h1", add("2", "mem", specs()))
        assert new.version != old.version
        assert keys(desk) == [2]

    play(tmp_path, story, world={"metadata": "file"})


def test_reports_never_reach_the_metadata_store(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.world.put("i", [1])
        (store,) = (tmp_path / "meta").glob("g*")
        before = store.stat().st_size
        await desk.good("h1", add("1", "mem", specs()), add("2", "mem", specs()))
        await desk.good("h1", holds(1, 3), kind=L1)
        await desk.good("h1", HostDown())
        await desk.clean()
        assert store.stat().st_size == before
        await desk.good("h1", add("4", "mem", specs()), kind=L1)
        write = await desk.world.start("i", [4], replicas=2)
        desk.world.write(write)
        await desk.world.finish(write)
        assert "vineyard" not in store.read_text()
        assert store.stat().st_size > before

    play(tmp_path, story, world={"metadata": "file"})


def test_a_written_copy_may_go_while_a_reported_one_stays(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.world.put("i", [1])
        before = desk.world.manager.group_usage("g").total
        await desk.good("h1", add("1", "mem", specs()))
        assert desk.world.manager.group_usage("g").total == before
        deleter = desk.world.manager.deleter
        await deleter.condemn(desk.shard, [1], 0, lambda _, location: not is_reported(location))
        await desk.world.manager.run_due_deletions()
        assert (keys(desk), desk.world.manager.group_usage("g").total) == ([1], 0)
        await desk.world.restart()
        assert desk.shard.index.key_count == 0

    play(tmp_path, story, world={"metadata": "file"})


# -- snapshots that fail or are met ----------------------------------------------------------------------------------------------------------------


def test_a_snapshot_that_fails_half_way_leaves_what_readers_saw(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        first = await desk.good("h1", holds(1, 2, 3, mark="old"))
        before = desk.content(range(40))
        desk.world.clock.advance_us(600_000)
        failed = await desk.report("h1", holds(1, 2, 10, 11, 12, mark="new"))
        assert [type(error) for error in failed.failures.values()] == [KeyLimitReached]
        assert (failed.version, failed.snapshot_required) == (first.version, False)
        assert desk.content(range(40)) == before
        await desk.clean()
        assert (desk.content(range(40)), desk.stored()) == (before, 3)
        assert (await desk.good("h1", holds(1, 2, 10, mark="new"))).version != first.version  # not rated: it was no success
        assert keys(desk) == [1, 2, 10]

    play(tmp_path, story, max_keys=4)


def test_readers_see_the_old_blocks_without_a_gap_and_the_new_ones_at_once(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", holds(1, 2, 3, 4, mark="old"))
        desk.world.clock.advance_us(600_000)
        running = begin(desk, "h1", holds(1, 3, 8, 9, mark="new"))
        seen = []
        while not running.done():
            await asyncio.sleep(0)
            seen.append(keys(desk))
        assert [at for at, found in enumerate(seen) if found not in ([1, 2, 3, 4], [1, 3, 8, 9])] == []
        assert (seen[0], seen[-1], len(seen) > 3) == ([1, 2, 3, 4], [1, 3, 8, 9], True)

    play(tmp_path, story)


def test_changes_wait_for_a_snapshot_and_a_second_snapshot_does_not(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", Register())
        first = begin(desk, "h1", holds(1, 2, 3))
        await until(lambda: closed(desk))
        change = begin(desk, "h1", add("4", "mem", specs()), delete("1", "mem", ["tp0"]), heartbeat({}))
        second = await desk.report("h1", holds(9))
        assert [type(error) for error in second.failures.values()] == [SnapshotInProgress]
        assert not change.done()
        other = await desk.good("h2", add("5", "mem", specs(host="h2")))
        assert other.version
        assert not first.done()
        assert not (await first).failures
        assert not (await change).failures
        assert keys(desk) == [2, 3, 4, 5]

    play(tmp_path, story)


def test_a_snapshot_waits_for_changes_under_way_but_not_for_ever(tmp_path: Path) -> None:
    """A write of block 1 hangs in the metadata store and holds the block, so a change of it hangs too."""
    scheduler = Scheduler()

    async def story(desk: EventDesk) -> None:
        desk.world.stores["i"]._scheduler = scheduler
        write = asyncio.ensure_future(desk.world.start("i", [1]))
        await until(lambda: bool(scheduler.pending()))
        await desk.good("h1", add("7", "mem", specs()))
        change = begin(desk, "h1", add("1", "mem", specs()))
        await until(lambda: desk.roster.reporters()[0].gate._running == 1)
        late = await desk.report("h1", holds(3))
        assert [type(error) for error in late.failures.values()] == [SnapshotInProgress]
        assert not desk.roster.reporters()[0].gate.closed
        other = await desk.report("h2", snapshot([add("5", "mem", specs(host="h2"))]))
        assert not other.failures
        while not (write.done() and change.done()):
            await scheduler.release_all()
        assert not (await change).failures
        assert keys(desk) == [1, 5, 7]

    play(tmp_path, story, world={"metadata": "suspending"}, drain_ms=20)


def test_changes_do_not_wait_for_ever_for_a_snapshot(tmp_path: Path) -> None:
    scheduler = Scheduler()

    async def story(desk: EventDesk) -> None:
        desk.world.stores["i"]._scheduler = scheduler
        write = asyncio.ensure_future(desk.world.start("i", [1]))
        await until(lambda: bool(scheduler.pending()))
        running = begin(desk, "h1", holds(1))
        await until(lambda: desk.shard.reports is not None and closed(desk))
        change = await desk.report("h1", add("4", "mem", specs()), heartbeat({}))
        assert {at: type(error) for at, error in change.failures.items()} == {0: SnapshotInProgress}
        while not (write.done() and running.done()):
            await scheduler.release_all()
        assert not (await running).failures
        assert keys(desk) == [1]

    play(tmp_path, story, world={"metadata": "suspending"}, drain_ms=20)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_host_that_goes_down_during_its_snapshot_has_not_committed(tmp_path: Path, comes_back: bool) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", holds(1, 2))
        desk.world.clock.advance_us(600_000)
        running = begin(desk, "h1", holds(1, 2, 3, 4))
        await until(lambda: closed(desk))
        await desk.good("h1", HostDown())
        assert keys(desk) == []
        if comes_back:
            await desk.good("h1", Register(), add("9", "mem", specs()))
        reported = await running
        assert [type(error) for error in reported.failures.values()] == [NodeNotRegistered]
        await desk.clean()
        assert (keys(desk), desk.stored()) == (([9], 1) if comes_back else ([], 0))

    play(tmp_path, story)


def test_a_host_that_goes_down_during_its_changes_leaves_nothing(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        running = begin(desk, "h1", *(add(str(key), "mem", specs()) for key in range(8)))
        await until(lambda: desk.stored() == 2)
        await desk.good("h1", HostDown())
        await desk.clean()
        reported = await running
        assert sorted(reported.failures) == list(range(2, 8))
        assert {type(error) for error in reported.failures.values()} == {NodeNotRegistered}
        await desk.clean()
        assert (keys(desk), desk.stored()) == ([], 0)

    play(tmp_path, story)


def test_blocks_that_are_removed_during_a_failing_snapshot_stay_removed(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", holds(1, 2))
        desk.world.clock.advance_us(600_000)
        running = begin(desk, "h1", holds(1, 2, 3, 4, 5))
        await until(lambda: closed(desk))
        await asyncio.sleep(0)
        await desk.world.manager.remove_cache(desk.shard, [1])
        await desk.good("h1", heartbeat({}))
        desk.shard.index.max_key_count = 2
        assert [type(error) for error in (await running).failures.values()] == [KeyLimitReached]
        assert keys(desk) == [2]

    play(tmp_path, story)


def test_an_instance_removed_during_a_snapshot_keeps_nothing(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", holds(1, 2))
        shard, world = desk.shard, desk.world
        desk.world.clock.advance_us(600_000)
        running = begin(desk, "h1", *[holds(*range(30))])
        await until(lambda: closed(desk))
        await world.manager.remove_instance("i")
        assert len((await running).failures) == 1
        await world.rest()
        assert (shard.index.key_count, world.holders()) == (0, [])

    play(tmp_path, story)


# -- clean-up --------------------------------------------------------------------------------------------------------------------------------------


def test_clean_up_touches_no_access_time_and_nothing_of_others(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        write = await desk.world.put("i", list(range(100, 400)))
        await desk.good("h1", *(add(str(key), "mem", specs()) for key in range(90, 410)))
        await desk.good("h2", *(add(str(key), "mem", specs(host="h2")) for key in range(50, 410)))
        times = desk.shard.index.access.snapshot(range(50, 410))
        await desk.good("h1", HostDown())
        await desk.clean()
        assert desk.stored() == 360
        assert desk.shard.index.access.snapshot(range(50, 410)) == times
        await desk.good("h2", HostDown())
        await desk.clean()
        assert (desk.stored(), desk.shard.index.key_count) == (0, 300)
        assert len(await desk.world.read("i", write.keys)) == 300
        assert desk.shard.index._reported == 0
        assert await desk.world.manager.tend_reports() == 0.06

    play(tmp_path, story)


def test_a_heartbeat_and_a_snapshot_together_after_silence_lose_nothing_to_clean_up(tmp_path: Path) -> None:
    """Upstream lost the intent to clean up, or what was new, when the two met (behaviour 27)."""

    async def story(desk: EventDesk) -> None:
        await desk.good("h1", holds(1, 2, 3))
        await desk.world.advance(1.5)
        await desk.good("h1", heartbeat({}), holds(3, 4))
        assert keys(desk) == [3, 4]
        await desk.clean()
        assert (keys(desk), desk.stored()) == ([3, 4], 2)
        too_soon = await desk.report("h1", heartbeat({}), holds(5))
        assert [type(error) for error in too_soon.failures.values()] == [SnapshotTooSoon]

    play(tmp_path, story)


def test_groups_without_reports_read_on_the_plain_path(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.world.put("i", [1, 2])
        assert desk.world.manager.plain_prefix(desk.shard, [1, 2], None, 1) is not None
        await desk.good("h1", add("2", "mem", specs()))
        assert desk.world.manager.plain_prefix(desk.shard, [1, 2], None, 1) is None
        await desk.good("h1", HostDown())
        await desk.clean()
        assert desk.world.manager.plain_prefix(desk.shard, [1, 2], None, 1) is not None

    play(tmp_path, story)
