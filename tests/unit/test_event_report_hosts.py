"""GetHostCacheState: how much of a prompt each host holds, alone and with one peer (wire contract 4.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.config.model import QueryType
from kvcm.data_storage.model import StorageType
from kvcm.manager.event_report_events import HostDown, add
from kvcm.manager.event_report_hosts import HostMatch
from kvcm.manager.testing import ManagerWorld
from kvcm.manager.testing_events import L1, L2, EventDesk, specs
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

MAMBA = QueryType.PREFIX_MATCH_WITH_MAMBA
KEYS = [10, 11, 12, 13, 14, 15]
# host -> kind -> keys
Holdings = dict[str, dict[StorageType, Sequence[int]]]


def play(root: Path, tell: Callable[[EventDesk], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        desk = EventDesk(ManagerWorld(root, ProtoLocationEncoder()))
        await desk.open(**options)
        await tell(desk)

    asyncio.run(run())


async def hold(desk: EventDesk, holdings: Holdings, *names: str, medium: str = "mem") -> None:
    for host, kinds in holdings.items():
        for kind, keys in kinds.items():
            await desk.good(host, *(add(str(key), medium, specs(*names, host=host)) for key in keys), kind=kind)


def test_a_host_counts_as_one_over_its_kinds_and_hosts_without_the_first_block_are_left_out(tmp_path: Path) -> None:
    async def tell(desk: EventDesk) -> None:
        assert await desk.hosts(KEYS) == []
        await hold(
            desk,
            {
                "10.0.0.1:80": {L1: [10, 11], L2: [10, 13]},
                "10.0.0.2:80": {L1: [10, 12], L2: [10, 11, 13]},
                "10.0.0.3:80": {L2: [10]},
                "10.0.0.4:80": {L2: [11, 12]},
            },
        )
        assert await desk.hosts(KEYS[:4]) == [HostMatch("10.0.0.1:80", 2, 0, 2), HostMatch("10.0.0.2:80", 4, 0, 4), HostMatch("10.0.0.3:80", 1, 0, 1)]
        await desk.good("10.0.0.2:80", HostDown(), kind=L1)
        assert [match.local for match in await desk.hosts(KEYS[:4])] == [2, 2, 1]

    play(tmp_path, tell)


def test_mediums_narrow_what_counts(tmp_path: Path) -> None:
    async def tell(desk: EventDesk) -> None:
        await hold(desk, {"h1": {L2: [10, 11]}})
        await hold(desk, {"h1": {L2: [12]}, "h2": {L2: [10]}}, medium="disk")
        assert [match.local for match in await desk.hosts(KEYS)] == [3, 1]
        assert await desk.hosts(KEYS, mediums={"mem"}) == [HostMatch("h1", 2, 0, 2)]
        assert await desk.hosts(KEYS, mediums={"disk"}) == [HostMatch("h2", 1, 0, 1)]
        assert await desk.hosts(KEYS, mediums={"tape"}) == []

    play(tmp_path, tell)


def test_the_best_hosts_are_extended_by_the_one_peer_that_brings_them_furthest(tmp_path: Path) -> None:
    async def tell(desk: EventDesk) -> None:
        await hold(
            desk,
            {
                "h1": {L2: [10, 11, 14]},
                "h2": {L2: [10]},
                "p1": {L2: [12]},
                "p2": {L2: [12, 13]},
                "p3": {L1: [12, 13, 15]},  # only L2 can be fetched
            },
        )
        assert await desk.hosts(KEYS, p2p_hosts=1) == [HostMatch("h1", 2, 2, 5), HostMatch("h2", 1, 0, 1)]
        assert await desk.hosts(KEYS, p2p_hosts=9) == [HostMatch("h1", 2, 2, 5), HostMatch("h2", 1, 1, 2)]

    play(tmp_path, tell)


def test_peers_are_not_mixed(tmp_path: Path) -> None:
    async def tell(desk: EventDesk) -> None:
        await hold(desk, {"h1": {L2: [10]}, "p1": {L2: [11]}, "p2": {L2: [12, 13]}})
        assert await desk.hosts(KEYS, p2p_hosts=1) == [HostMatch("h1", 1, 1, 2)]

    play(tmp_path, tell)


def test_an_engine_that_computes_its_last_block_anew_has_one_less(tmp_path: Path) -> None:
    async def tell(desk: EventDesk) -> None:
        await hold(desk, {"h1": {L2: [10, 11]}, "h2": {L2: [10]}, "p1": {L2: [12]}})
        assert await desk.hosts(KEYS, p2p_hosts=2) == [HostMatch("h1", 1, 1, 2)]

    play(tmp_path, tell, eagle=True)


GROUPS = [("Full", ["tp0"]), ("Linear", ["tp1"])]


def test_hybrid_prefixes_end_behind_a_block_with_state(tmp_path: Path) -> None:
    async def tell(desk: EventDesk) -> None:
        await hold(desk, {"h1": {L2: [10, 11, 12, 13]}, "h2": {L2: [10, 11]}}, "tp0")
        await hold(desk, {"h1": {L1: [11, 15]}}, "tp1")
        assert await desk.hosts(KEYS, query_type=MAMBA) == [HostMatch("h1", 2, 0, 2)]
        await hold(desk, {"p1": {L2: [13]}}, "tp1")
        assert await desk.hosts(KEYS, query_type=MAMBA, p2p_hosts=1) == [HostMatch("h1", 2, 1, 4)]
        assert [match.local for match in await desk.hosts(KEYS, query_type=QueryType.PREFIX_MATCH)] == [4, 2]

    play(tmp_path, tell, spec_groups=GROUPS)


@pytest.mark.parametrize(("query_type", "groups"), [(QueryType.BATCH_GET, []), (QueryType.REVERSE_ROLL_SW_MATCH, []), (MAMBA, [("Window", ["tp0"])])])
def test_other_questions_are_refused(tmp_path: Path, query_type: QueryType, groups: list[tuple[str, list[str]]]) -> None:
    async def tell(desk: EventDesk) -> None:
        with pytest.raises(InvalidArgument, match="QT_PREFIX_MATCH"):
            await desk.hosts(KEYS, query_type=query_type)

    play(tmp_path, tell, spec_groups=groups)


def test_long_questions_let_others_run(tmp_path: Path) -> None:
    async def tell(desk: EventDesk) -> None:
        keys = list(range(1000))
        await hold(desk, {"h1": {L2: keys}, "p1": {L2: [1000]}})
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        assert await desk.hosts([*keys, 1000], p2p_hosts=1) == [HostMatch("h1", 1000, 1, 1001)]
        task.cancel()
        assert turns >= 3

    play(tmp_path, tell)
