"""Hosts that report blocks to a whole manager on a fake clock: see `ManagerWorld`.

    desk = EventDesk(ManagerWorld(tmp_path, ProtoLocationEncoder()))
    await desk.open()
    await desk.report("h1", add("1", "mem", specs()))
    assert await desk.seen([1]) == {1: {"h1"}}

Storage `s` takes writes, `l1` and `l2` are reported; group `g` has all of them, instance `i` is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvcm.config.model import LocationSpecGroup, QueryType
from kvcm.data_storage.model import EventReportSpec, Storage, StorageType
from kvcm.manager.by_backend import BackendQuery, BackendSelector
from kvcm.manager.event_report import Reported
from kvcm.manager.event_report_events import Event, Specs
from kvcm.manager.event_report_hosts import HostMatch, HostQuery
from kvcm.manager.event_report_roster import Roster
from kvcm.manager.shard import InstanceShard
from kvcm.manager.testing import ManagerWorld
from kvcm.meta.location import Location, is_reported

L1, L2 = StorageType.EVENT_REPORT_L1P5, StorageType.EVENT_REPORT_L2
TIMINGS = EventReportSpec(
    heartbeat_timeout_ms=1000,
    cleanup_grace_ms=2000,
    liveness_check_interval_ms=60,
    snapshot_min_interval_ms=500,
    snapshot_delta_drain_timeout_ms=60_000,
)
_CLEAN_STEPS = 1000


def specs(*names: str, host: str = "h1", mark: str = "") -> Specs:
    """One spec `tp0` unless names are given; `mark` tells two reports of the same block apart."""
    return tuple((name, f"vineyard://{host}/mem?mark={mark}" if mark else f"vineyard://{host}/mem") for name in names or ("tp0",))


class EventDesk:
    def __init__(self, world: ManagerWorld, timings: EventReportSpec = TIMINGS) -> None:
        self.world = world
        self.timings = timings

    async def open(self, *, max_keys: int = 1_000_000, spec_groups: Iterable[tuple[str, Sequence[str]]] = (), eagle: bool = False) -> None:
        world = self.world
        await world.open()
        await world.add_storage("s")
        await world.registry.add_storage(Storage("l1", L1, self.timings))
        await world.registry.add_storage(Storage("l2", L2, self.timings))
        await world.add_group(replace(world.group("g", ["s"], max_keys=max_keys), event_report_storage_candidates=("l1", "l2"), extra_info="extra"))
        instance = world.instance("i", "g", [("tp0", 512), ("tp1", 512)])
        groups = tuple(LocationSpecGroup(name, tuple(names)) for name, names in spec_groups)
        await world.manager.register(replace(instance, location_spec_groups=groups, model_deployment=replace(instance.model_deployment, use_eagle_pop=eagle)))

    @property
    def shard(self) -> InstanceShard:
        return self.world.shard("i")

    @property
    def roster(self) -> Roster:
        assert self.shard.reports is not None
        return self.shard.reports

    async def report(self, host: str, *events: Event, kind: StorageType = L2) -> Reported:
        manager = self.world.manager
        return await manager.report_events(self.shard, manager.report_storage(self.shard, kind), host, events)

    async def good(self, host: str, *events: Event, kind: StorageType = L2) -> Reported:
        """`report` of which everything is taken."""
        reported = await self.report(host, *events, kind=kind)
        assert not reported.failures, reported.failures
        return reported

    async def clean(self) -> None:
        """Let the clean-up come to its end."""
        for _ in range(_CLEAN_STEPS):
            if not await self.world.manager._cleaner.step(self.world.manager.shards()):
                return
        raise AssertionError("the clean-up does not end")

    # -- what readers see ----------------------------------------------------------------------------------------------------------------------

    def shown(self, key: int) -> list[Location]:
        """Reported copies of a block that readers may see."""
        return [location for location in self.shard.shown(self.shard.index.get(key)) if is_reported(location)]

    def content(self, keys: Iterable[int]) -> dict[tuple[int, str], dict[str, str]]:
        """(key, location id) -> spec name -> URI without its version, of what readers see."""
        found = {}
        for key in keys:
            for location in self.shown(key):
                places = {name: uri.rpartition("s_version=")[0][:-1] for name, uri in self.world.codec.decode(location.wire)[1]}
                found[key, self.roster.public_id(location)] = places
        return found

    def stored(self) -> int:
        """Reported copies in the index, seen or not."""
        return sum(is_reported(location) for _, _, location in self.world.locations())

    async def batch(self, keys: Sequence[int]) -> list[dict[str, str]]:
        return await self.world.read("i", keys, QueryType.BATCH_GET)

    async def by_backend(self, keys: Sequence[int], *selectors: BackendSelector, spec_names: Sequence[str] = ()) -> list[list[dict[str, str]]]:
        query = BackendQuery(keys, selectors, spec_names)
        found = await self.world.manager.locate_by_backend(self.shard, query, self.world.clock.wall_us())
        return [[dict(self.world.codec.decode(wire)[1]) for wire in entry] for entry in found]

    async def hosts(self, keys: Sequence[int], **options: object) -> list[HostMatch]:
        return await self.world.manager.match_hosts(self.shard, HostQuery(keys, **options))  # type: ignore[arg-type]
