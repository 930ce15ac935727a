"""The invariants of ReportEvent (behaviour 21.6) and I-LOC-8, against a model and under random interleavings."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import InvalidArgument, KvcmError
from kvcm.data_storage.model import StorageType
from kvcm.manager import event_report
from kvcm.manager.event_report_events import Add, Delete, Event, HostDown, Register, Snapshot, add, check_together, delete, heartbeat, snapshot
from kvcm.manager.testing import ManagerWorld
from kvcm.manager.testing_events import L1, L2, TIMINGS, EventDesk, specs
from kvcm.meta.location import Status, is_reported
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.property

KEYS = range(4)
MEDIUMS = ("mem", "disk")
Content = dict[tuple[int, str], dict[str, str]]
"""(key, medium) -> spec name -> URI."""


def story(tell: Callable[[EventDesk], Awaitable[None]], *, slice_: int = 1, **options: Any) -> None:
    async def run(root: Path) -> None:
        desk = EventDesk(ManagerWorld(root, ProtoLocationEncoder()))
        await desk.open(**options)
        await tell(desk)

    with tempfile.TemporaryDirectory() as root, mock.patch.object(event_report, "_SLICE", slice_):
        asyncio.run(run(Path(root)))


names = st.lists(st.sampled_from(["a", "b"]), min_size=1, unique=True)
adds = st.builds(
    lambda key, medium, chosen, mark: add(str(key), medium, specs(*chosen, mark=mark)),
    st.sampled_from(KEYS),
    st.sampled_from(MEDIUMS),
    names,
    st.sampled_from("xyz"),
)
deletes = st.builds(lambda key, medium, chosen: delete(str(key), medium, chosen), st.sampled_from(KEYS), st.sampled_from(MEDIUMS), names)
deltas = st.lists(adds | deletes, min_size=1, max_size=6)
snapshots = st.lists(adds, max_size=8, unique_by=lambda item: (item.key, item.medium)).map(snapshot)


def applied(content: Content, events: list[Any]) -> Content:
    """The model: a host's set after events in order."""
    after = {where: dict(places) for where, places in content.items()}
    for event in events:
        match event:
            case Snapshot():
                after = {(item.key, item.medium): dict(item.specs) for items in event.blocks.values() for item in items}
            case Add():
                after.setdefault((event.key, event.medium), {}).update(event.specs)
            case Delete():
                places = after.get((event.key, event.medium), {})
                for name in event.spec_names:
                    places.pop(name, None)
                if not places:
                    after.pop((event.key, event.medium), None)
    return after


def seen(desk: EventDesk, host: str, kind: StorageType = L2) -> Content:
    end = f"#{host}"
    begin = f"kvs#{kind.type_name}#"
    return {
        (key, public.removeprefix(begin).removesuffix(end)): places
        for (key, public), places in desk.content(KEYS).items()
        if public.endswith(end) and public.startswith(begin)
    }


def count(event: Snapshot) -> int:
    return sum(map(len, event.blocks.values()))


async def rested(desk: EventDesk) -> None:
    """So much later that a snapshot is welcome, and still a live host."""
    desk.world.clock.advance_us(TIMINGS.snapshot_min_interval_ms * 1000)


@settings(deadline=None, max_examples=30)
@given(deltas, snapshots)
def test_I_RE_2_after_a_snapshot_the_visible_set_is_the_snapshot(before: list[Event], wanted: Snapshot) -> None:
    async def tell(desk: EventDesk) -> None:
        await desk.good("h1", *before)
        await desk.good("h1", wanted)
        assert seen(desk, "h1") == applied({}, [wanted])
        await desk.clean()
        assert seen(desk, "h1") == applied({}, [wanted])
        assert desk.stored() == count(wanted)

    story(tell)


@settings(deadline=None, max_examples=30)
@given(snapshots, st.lists(deltas, max_size=4))
def test_I_RE_3_a_snapshot_and_changes_equal_the_changes_of_the_set_in_order(first: Snapshot, batches: list[list[Event]]) -> None:
    async def tell(desk: EventDesk) -> None:
        await desk.good("h1", first)
        done: list[Event] = [first]
        for batch in batches:
            await desk.good("h1", *batch)
            done += batch
            assert seen(desk, "h1") == applied({}, done)

    story(tell)


@settings(deadline=None, max_examples=25)
@given(snapshots, deltas)
def test_I_RE_4_replaying_changes_or_a_snapshot_changes_nothing(first: Snapshot, batch: list[Event]) -> None:
    async def tell(desk: EventDesk) -> None:
        await desk.good("h1", first)
        await rested(desk)
        await desk.good("h1", first)
        assert seen(desk, "h1") == applied({}, [first])
        await desk.good("h1", *batch)
        once = desk.world.locations()
        await desk.good("h1", *batch)
        assert seen(desk, "h1") == applied({}, [first, *batch, *batch])
        if seen(desk, "h1") == applied({}, [first, *batch]):
            assert [(key, location.wire) for _, key, location in desk.world.locations()] == [(key, location.wire) for _, key, location in once]

    story(tell)


@settings(deadline=None, max_examples=25)
@given(snapshots, snapshots, deltas, deltas, st.integers(0, 12))
def test_I_RE_5_a_snapshot_and_changes_of_one_reporter_never_interleave(
    first: Snapshot, second: Snapshot, batch: list[Event], others: list[Event], wait: int
) -> None:
    async def tell(desk: EventDesk) -> None:
        await desk.good("h1", first)
        await rested(desk)
        running = asyncio.ensure_future(desk.good("h1", second))
        for _ in range(wait % 3):
            await asyncio.sleep(0)
        change = asyncio.ensure_future(desk.good("h1", *batch))
        other = asyncio.ensure_future(desk.good("h2", *others))
        for _ in range(wait):
            await asyncio.sleep(0)
        await asyncio.gather(running, change, other)
        assert seen(desk, "h1") in (applied({}, [second, *batch]), applied({}, [first, *batch, second]))
        assert seen(desk, "h2") == applied({}, others)

    story(tell)


@settings(deadline=None, max_examples=25)
@given(snapshots, snapshots)
def test_I_RE_6_a_failed_snapshot_leaves_token_and_visible_set(first: Snapshot, second: Snapshot) -> None:
    async def tell(desk: EventDesk) -> None:
        committed = await desk.good("h1", first)
        await rested(desk)
        outside = snapshot([*(item for items in second.blocks.values() for item in items), add("99", "mem", specs())])
        desk.shard.index.max_key_count = desk.shard.index.key_count  # no room for the last one
        failed = await desk.report("h1", outside)
        assert failed.failures
        assert (failed.version, failed.snapshot_required) == (committed.version, False)
        assert seen(desk, "h1") == applied({}, [first])
        await desk.clean()
        assert (seen(desk, "h1"), desk.stored()) == (applied({}, [first]), count(first))

    story(tell)


waits = st.sampled_from([0.1, 0.4, 0.9, 1.1, 2.0, 3.1]).map(lambda seconds: [seconds])
lives = st.sampled_from([[HostDown()], [Register()], [heartbeat({})]])
steps = st.lists(
    st.tuples(st.sampled_from(["h1", "h2"]), st.sampled_from([L1, L2]), deltas | snapshots.map(lambda event: [event]) | lives | waits), max_size=14
)


@settings(deadline=None, max_examples=60)
@given(steps)
def test_I_RE_1_and_7_and_9_only_what_live_reporters_say_now_is_seen_and_nothing_else_happens(
    moves: list[tuple[str, StorageType, list[Any]]],
) -> None:
    """A host's whole life, with clean-up after every step: the model knows no generations and no clean-up, so neither may show."""

    async def tell(desk: EventDesk) -> None:
        content: dict[tuple[str, StorageType], Content] = {}
        last: dict[tuple[str, StorageType], float] = {}
        dead: set[tuple[str, StorageType]] = set()
        now = 0.0
        for host, kind, events in moves:
            who = host, kind
            if isinstance(events[0], float):
                await desk.world.advance(events[0])
                now += events[0]
                for other in [other for other, when in last.items() if now - when > 3.0]:
                    dead.add(other)
                    del last[other], content[other]
                continue
            reported = await desk.report(host, *events, kind=kind)
            refused = who in dead and not isinstance(events[0], Register | HostDown)
            assert bool(reported.failures) >= refused
            if isinstance(events[0], HostDown):
                dead.add(who)
                last.pop(who, None)
                content.pop(who, None)
            elif not refused:
                dead.discard(who)
                if who not in last or isinstance(events[0], Register) or events == [heartbeat({})]:
                    last[who] = now
                if not reported.failures:
                    content[who] = applied(content.get(who, {}), events)
                content.setdefault(who, {})
            await desk.world.manager.tend_reports()
            for other, when in last.items():
                assert seen(desk, *other) == (content[other] if now - when <= 1.0 else {})
            for other in dead:
                assert seen(desk, *other) == {}
        await desk.clean()
        assert desk.stored() == sum(len(places) for places in content.values())
        assert {location.status for _, _, location in desk.world.locations()} <= {Status.SERVING}
        assert (desk.world.storages.deleted, desk.world.manager.deleter.pending, desk.world.manager.group_usage("g").total) == ([], 0, 0)

    story(tell)


bad_events = st.sampled_from(
    [
        lambda: add("x", "mem", specs()),
        lambda: add(str(1 << 64), "mem", specs()),
        lambda: add("1", "", specs()),
        lambda: add("1", "me#m", specs()),
        lambda: add("1", "mem", []),
        lambda: add("1", "mem", [("", "a://h/")]),
        lambda: add("1", "mem", [("a", "a://h/"), ("a", "a://h/")]),
        lambda: add("1", "mem", [("a", "no uri")]),
        lambda: add("1", "mem", [("a", "a:///no-host")]),
        lambda: add("1", "mem", [("a", "a://h/?x=1&s_version=2")]),
        lambda: delete("1", "mem", []),
        lambda: delete("1", "mem", ["a", ""]),
        lambda: snapshot([add("1", "mem", specs()), add(str(1 + (1 << 64) - (1 << 64)), "mem", specs())]),
        lambda: check_together([4, 5]),
        lambda: check_together([6, 6]),
        lambda: check_together([6, 2]),
        lambda: check_together([3, 6]),
    ]
)


@settings(deadline=None, max_examples=40)
@given(st.lists(bad_events, min_size=1, max_size=4), snapshots)
def test_I_RE_8_what_is_not_acceptable_changes_nothing(bad: list[Callable[[], object]], first: Snapshot) -> None:
    async def tell(desk: EventDesk) -> None:
        await desk.good("h1", first)
        errors: list[Event | KvcmError] = []
        for make in bad:
            with pytest.raises(InvalidArgument) as caught:
                make()
            errors.append(caught.value)
        reporter = desk.roster.reporters()[0]
        before = (desk.world.locations(), reporter.version, reporter.seen_us, desk.roster.garbage_epoch)
        manager = desk.world.manager
        for host in ("h1", "h2"):
            reported = await manager.report_events(desk.shard, manager.report_storage(desk.shard, L2), host, errors)
            assert list(reported.failures) == list(range(len(errors)))
        assert (desk.world.locations(), reporter.version, reporter.seen_us, desk.roster.garbage_epoch) == before
        assert [found.host for found in desk.roster.reporters()] == ["h1"]
        assert not reporter.gate.closed

    story(tell)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["write", "report", "snapshot", "remove", "trim", "down", "rest"]), max_size=12))
def test_I_LOC_8_reported_copies_are_never_writing_or_deleting_and_no_byte_of_theirs_is_deleted(moves: list[str]) -> None:
    async def tell(desk: EventDesk) -> None:
        world = desk.world
        for move in moves:
            match move:
                case "write":
                    await world.put("i", list(KEYS), replicas=2)
                case "report":
                    await desk.report("h1", Register(), *(add(str(key), "mem", specs("tp0", "tp1")) for key in KEYS))
                case "snapshot":
                    await desk.report("h1", snapshot([add(str(key), "mem", specs()) for key in KEYS]))
                case "remove":
                    await world.manager.remove_cache(desk.shard, [0, 1])
                case "trim":
                    await world.manager.trim(desk.shard, None)
                case "down":
                    await desk.report("h1", HostDown())
                case _:
                    await world.advance(2.0)
            assert {location.status for _, _, location in world.locations() if is_reported(location)} <= {Status.SERVING}
            assert {location.size for _, _, location in world.locations() if is_reported(location)} <= {0}
        assert [uri for uri in world.storages.deleted if uri.startswith("vineyard")] == []

    story(tell)
