"""Each rule of ReportEvent (wire contract 4.18) on a whole manager and a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import CapacityReached, InstanceNotExist
from kvcm.data_storage.model import StorageType
from kvcm.manager import event_report_roster as roster_module
from kvcm.manager.errors import NodeNotRegistered, SnapshotTooSoon
from kvcm.manager.event_report_events import Heartbeat, HostDown, Register, Snapshot, add, delete, heartbeat, snapshot
from kvcm.manager.testing import ManagerWorld
from kvcm.manager.testing_events import L1, L2, TIMINGS, EventDesk, specs
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario

Story = Callable[[EventDesk], Awaitable[None]]


def play(root: Path, story: Story, **options: Any) -> None:
    async def run() -> None:
        desk = EventDesk(ManagerWorld(root, ProtoLocationEncoder()))
        await desk.open(**options)
        await story(desk)

    asyncio.run(run())


def uris(found: list[dict[str, str]]) -> list[str]:
    return [uri for entry in found for uri in entry.values()]


def holds(*keys: int, medium: str = "mem", host: str = "h1", mark: str = "") -> Snapshot:
    return snapshot([add(str(key), medium, specs(host=host, mark=mark)) for key in keys])


# -- what is reported is seen ----------------------------------------------------------------------------------------------------------------------


def test_a_reported_block_is_seen_by_every_read_and_has_the_id_of_its_reporter(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        first = await desk.good("h1", add("1", "mem", specs()))
        assert (first.snapshot_required, len(first.version)) == (True, 32)
        assert (await desk.batch([1])) == [{"tp0": f"vineyard://h1/mem?s_version={first.version}"}]
        assert len(await desk.world.read("i", [1, 2])) == 1
        detail = desk.world.manager.detail(desk.shard, 1)
        assert [location.location_id for location in detail.locations] == ["kvs#event_report_l2#mem#h1"]
        assert detail.previous_key is None
        (view,) = desk.world.manager.view(desk.shard, [1])
        assert view.meta_json == '{"id":"kvs#event_report_l2#mem#h1","status":"CLS_SERVING"}'
        assert [match.local for match in await desk.hosts([1, 2])] == [1]
        second = await desk.good("h1", add("2", "mem", specs()))
        assert (second.snapshot_required, second.version) == (False, first.version)

    play(tmp_path, story)


def test_registering_alone_begins_no_generation(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        for _ in range(2):
            reported = await desk.good("h1", Register(("mem", "disk")))
            assert (reported.version, reported.snapshot_required, reported.retry_after_ms) == ("", True, 0)

    play(tmp_path, story)


def test_two_mediums_of_a_host_are_two_locations_and_one_answer(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs("a")), add("1", "disk", specs("b")))
        assert [sorted(entry) for entry in await desk.batch([1])] == [["a", "b"]]
        ids = [location.location_id for location in desk.world.manager.detail(desk.shard, 1).locations]
        assert ids == ["kvs#event_report_l2#mem#h1", "kvs#event_report_l2#disk#h1"]

    play(tmp_path, story)


def test_two_hosts_are_never_merged(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs("a", host="h1")))
        await desk.good("h2", add("1", "mem", specs("b", host="h2")))
        seen = {tuple(entry) for _ in range(40) for entry in await desk.batch([1])}
        assert seen == {("a",), ("b",)}

    play(tmp_path, story)


def test_add_merges_by_spec_name_and_delete_removes_named_specs(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs("a", "b", mark="1")))
        await desk.good("h1", add("1", "mem", specs("b", "c", mark="2")))
        (content,) = desk.content([1]).values()
        assert content == {name: f"vineyard://h1/mem?mark={mark}" for name, mark in (("a", 1), ("b", 2), ("c", 2))}
        for _ in range(2):
            await desk.good("h1", delete("1", "mem", ["a", "c", "unknown"]), delete("1", "disk", ["a"]), delete("7", "mem", ["a"]))
            assert [list(entry) for entry in desk.content([1]).values()] == [["b"]]
        await desk.good("h1", delete("1", "mem", ["b"]))
        assert desk.shard.index.key_count == 0

    play(tmp_path, story)


def test_within_a_report_the_last_operation_of_a_spec_wins(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good(
            "h1",
            add("1", "mem", specs("a", mark="old")),
            delete("1", "mem", ["a"]),
            add("1", "mem", specs("a", mark="new")),
            add("2", "mem", specs("a")),
            delete("2", "mem", ["a"]),
        )
        assert desk.content([1, 2]) == {(1, "kvs#event_report_l2#mem#h1"): {"a": "vineyard://h1/mem?mark=new"}}

    play(tmp_path, story)


def test_signed_and_unsigned_spellings_are_one_block(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add(str((1 << 64) - 5), "mem", specs("a")), add("-5", "mem", specs("b")), add("007", "mem", specs()))
        assert [sorted(entry) for entry in desk.content([-5]).values()] == [["a", "b"]]
        assert len(desk.content([7])) == 1

    play(tmp_path, story)


def test_the_kinds_are_reporters_of_their_own(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        for kind in (L1, L2):
            await desk.good("h1", add("1", "mem", specs(kind.name)), kind=kind)
        await desk.good("h1", HostDown(), kind=L1)
        assert [list(entry) for entry in desk.content([1]).values()] == [[L2.name]]
        await desk.good("h1", delete("1", "mem", [L2.name]), kind=L2)
        assert desk.content([1]) == {}

    play(tmp_path, story)


def test_no_storage_of_the_kind_in_the_group(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.world.update_group("g", event_report_storage_candidates=("absent", "s", "l1"))
        with pytest.raises(InstanceNotExist, match="event_report_l2"):
            desk.world.manager.report_storage(desk.shard, StorageType.EVENT_REPORT_L2)
        assert desk.world.manager.report_storage(desk.shard, StorageType.EVENT_REPORT_L1P5).name == "l1"

    play(tmp_path, story)


# -- results of single events --------------------------------------------------------------------------------------------------------------------


def test_folded_events_share_their_outcome_and_others_go_on(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        reported = await desk.report("h1", add("1", "mem", specs("a")), add("2", "mem", specs("a")), delete("2", "mem", ["b"]), add("1", "mem", specs("b")))
        assert sorted(reported.failures) == [1, 2]
        assert all(isinstance(error, CapacityReached) for error in reported.failures.values())
        assert [sorted(entry) for entry in desk.content([1, 2]).values()] == [["a", "b"]]

    play(tmp_path, story, max_keys=1)


def test_specs_and_mediums_and_reporters_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "MAX_REPORTERS", 2)
    monkeypatch.setattr(roster_module, "MAX_MEDIUMS", 2)
    monkeypatch.setattr(roster_module, "MAX_TOMBSTONES", 3)

    async def story(desk: EventDesk) -> None:
        many = tuple(str(number) for number in range(200))
        await desk.good("h1", add("1", "mem", specs(*many)))
        more = await desk.report("h1", add("1", "mem", specs(*(f"x{name}" for name in many))))
        third = await desk.report("h1", add("1", "disk", specs()), add("2", "ssd", specs()))
        await desk.good("h2", Register())
        full = await desk.report("h3", Register())
        for reported in (more, third, full):
            assert [type(error) for error in reported.failures.values()] == [CapacityReached]
        await desk.good("h2", HostDown())
        await desk.good("h3", Heartbeat())
        for number in range(9):
            await desk.good(f"x{number}", HostDown())
        assert desk.roster.tombstones == 3

    play(tmp_path, story)


# -- life ------------------------------------------------------------------------------------------------------------------------------------------


def test_silence_hides_a_heartbeat_brings_back_and_grace_ends(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs()))
        await desk.world.advance(1.1)
        assert (await desk.batch([1]), await desk.world.read("i", [1]), await desk.hosts([1])) == ([{"tp0": "", "tp1": ""}], [], [])
        assert desk.world.manager.detail(desk.shard, 1).locations == []
        await desk.good("h1", add("2", "mem", specs()))  # no sign of life
        assert desk.content([1, 2]) == {}
        await desk.good("h1", heartbeat({"load": "0.5", "name": "x"}))
        assert len(desk.content([1, 2])) == 2
        assert next(iter(desk.roster.reporters())).status == {"load": 0.5}
        await desk.world.advance(3.1)
        assert desk.content([1, 2]) == {}
        for event in (add("1", "mem", specs()), delete("1", "mem", ["tp0"]), heartbeat({}), holds(1)):
            reported = await desk.report("h1", event)
            assert isinstance(reported.failures[0], NodeNotRegistered)
            assert (reported.version, reported.snapshot_required) == ("", True)
        await desk.clean()
        assert desk.stored() == 0
        await desk.good("h1", Register())
        assert desk.content([1, 2]) == {}

    play(tmp_path, story)


def test_changes_and_snapshots_do_not_keep_a_host_alive(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs()))
        for _ in range(3):
            await desk.world.advance(0.4)
            await desk.good("h1", add("1", "mem", specs()), delete("2", "mem", ["tp0"]))
        await desk.good("h1", holds(1))
        assert desk.content([1]) == {}

    play(tmp_path, story)


def test_host_down_hides_at_once_and_may_be_repeated(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs()), add("1", "disk", specs()))
        for _ in range(2):
            reported = await desk.good("h1", HostDown())
            assert (reported.version, reported.snapshot_required) == ("", True)
            assert desk.content([1]) == {}
        await desk.good("never", HostDown())
        assert isinstance((await desk.report("never", add("1", "mem", specs()))).failures[0], NodeNotRegistered)
        await desk.clean()
        assert desk.shard.index.key_count == 0

    play(tmp_path, story)


def test_events_of_one_report_take_effect_in_order(tmp_path: Path) -> None:
    """Upstream applied them in fixed phases once (behaviour 27)."""

    async def story(desk: EventDesk) -> None:
        await desk.good("h1", HostDown())
        reported = await desk.report("h1", add("1", "mem", specs()), Heartbeat(), Register(), add("2", "mem", specs()), Register())
        assert {at: type(error) for at, error in reported.failures.items()} == {0: NodeNotRegistered, 1: NodeNotRegistered}
        assert [key for key, _ in desk.content([1, 2])] == [2]

    play(tmp_path, story)


def test_timings_of_an_updated_storage_count_at_once(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs()))
        storage = desk.world.registry.list_storages()[1]
        await desk.world.registry.update_storage(type(storage)("l2", L2, type(TIMINGS)()))
        await desk.world.advance(20)
        assert len(desk.content([1])) == 1

    play(tmp_path, story)


# -- snapshots -------------------------------------------------------------------------------------------------------------------------------------


def test_a_snapshot_replaces_everything_in_all_mediums(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        before = await desk.good("h1", add("1", "mem", specs("a", "b")), add("2", "disk", specs()), add("3", "mem", specs()))
        created = desk.shown(1)[0].create_time_us
        desk.world.clock.advance_us(5)
        after = await desk.good("h1", snapshot([add("1", "mem", specs("a", mark="new")), add("4", "ssd", specs())]))
        assert (after.snapshot_required, len(after.version)) == (False, 32)
        assert after.version != before.version
        assert desk.content(range(9)) == {
            (1, "kvs#event_report_l2#mem#h1"): {"a": "vineyard://h1/mem?mark=new"},
            (4, "kvs#event_report_l2#ssd#h1"): {"tp0": "vineyard://h1/mem"},
        }
        assert all(uri.endswith(f"s_version={after.version}") for uri in uris(await desk.world.read("i", [1])))
        assert desk.shown(1)[0].create_time_us == created
        await desk.clean()
        assert desk.stored() == 2
        await desk.world.advance(0.6)
        await desk.good("h1", snapshot([]))
        assert desk.content(range(9)) == {}
        await desk.good("h1", add("5", "mem", specs()))
        assert [key for key, _ in desk.content(range(9))] == [5]

    play(tmp_path, story)


def test_snapshots_are_rated_and_say_when_to_come_back(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        version = (await desk.good("h1", holds(1))).version
        desk.world.clock.advance_us(100_001)
        early = await desk.report("h1", Heartbeat(), holds(2))
        assert {at: type(error) for at, error in early.failures.items()} == {1: SnapshotTooSoon}
        assert (early.retry_after_ms, early.version, early.snapshot_required) == (400, version, False)
        assert [key for key, _ in desk.content([1, 2])] == [1]
        desk.world.clock.advance_us(400_000)
        await desk.good("h1", holds(2))
        assert [key for key, _ in desk.content([1, 2])] == [2]
        await desk.good("h1", HostDown())
        await desk.good("h1", Register(), holds(3))  # a new life has a free first snapshot
        assert [key for key, _ in desk.content([1, 2, 3])] == [3]

    play(tmp_path, story)


# -- beside blocks that are written ----------------------------------------------------------------------------------------------------------------


def test_reported_copies_count_as_replicas_while_they_can_be_seen(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs("tp0", "tp1")))
        assert (await desk.world.start("i", [1])).keys == []
        write = await desk.world.start("i", [1], replicas=2)
        assert write.keys == [1]
        desk.world.write(write)
        await desk.world.finish(write)
        assert (await desk.world.start("i", [1], replicas=2)).keys == []
        await desk.world.advance(1.1)
        assert (await desk.world.start("i", [1], replicas=2)).keys == [1]
        assert (await desk.world.start("i", [1])).keys == []

    play(tmp_path, story)


def test_removing_and_trimming_take_reported_copies_with_them_and_delete_nothing(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.world.put("i", [1])
        await desk.good("h1", *(add(str(key), "mem", specs()) for key in (1, 2, 3)))
        assert await desk.world.manager.remove_cache(desk.shard, [1, 2]) == 3
        assert desk.content([1, 2, 3]).keys() == {(3, "kvs#event_report_l2#mem#h1")}
        await desk.world.manager.trim(desk.shard, None)
        await desk.world.rest()
        assert desk.shard.index.key_count == 0
        assert [uri for uri in desk.world.storages.deleted if "vineyard" in uri] == []

    play(tmp_path, story)


def test_a_removed_instance_drains_and_comes_back_without_reports(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.world.put("i", [1])
        await desk.good("h1", add("1", "mem", specs()), add("2", "mem", specs()))
        old, storage = desk.shard, desk.world.manager.report_storage(desk.shard, L2)
        await desk.world.manager.remove_instance("i")
        late = await desk.world.manager.report_events(old, storage, "h1", [add("3", "mem", specs())])
        assert [type(error) for error in late.failures.values()] == [InstanceNotExist]
        await desk.world.manager.register(desk.world.instance("i", "g"))
        assert await desk.world.read("i", [2, 3]) == []
        await desk.world.rest()
        assert desk.shard.index.key_count == 0
        await desk.world.manager.remove_instance("i")
        await desk.world.rest()
        assert desk.world.holders() == []

    play(tmp_path, story)


def test_a_disabled_storage_hides_what_is_reported_there(tmp_path: Path) -> None:
    async def story(desk: EventDesk) -> None:
        await desk.good("h1", add("1", "mem", specs()))
        await desk.world.registry.set_storage_enabled("l2", False)
        assert await desk.world.read("i", [1]) == []
        assert await desk.hosts([1]) == []
        await desk.world.registry.set_storage_enabled("l2", True)
        assert len(await desk.world.read("i", [1])) == 1

    play(tmp_path, story)
