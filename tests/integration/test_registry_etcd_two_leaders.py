"""Two leaders of one epoch (two elections that do not know of each other) over one registry in a real etcd: only who has read it last may write."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import ErrorCode, OutcomeUnknown
from kvcm.config.errors import FencedOut
from kvcm.config.registry import Registry
from kvcm.config.registry_core import RegistryEvent, RegistryEventKind
from kvcm.config.startup import default_group, default_storage
from kvcm.config.store import Change
from kvcm.config.store_etcd import EtcdStore
from kvcm.config.testing import FakeStorages
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.testing import PROGRAM, EtcdServer
from kvcm.etcd.uri import parse_etcd_uri

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")]

ALARM = "etcd_two_leaders"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as etcd:
        yield etcd


@pytest.fixture
def uri(server: EtcdServer) -> str:
    return f"etcd://{server.address}/t{next(_numbers)}"


def group(name: str, number: int = 0) -> Change:
    return Change("instance_group", name, {"name": name, "number": number})


def many(number: int) -> list[Change]:
    return [Change("instance", f"i{n}", {"instance_id": f"i{n}", "number": number}) for n in range(250)]


@asynccontextmanager
async def two(uri: str) -> AsyncIterator[tuple[EtcdStore, EtcdStore, EtcdClient]]:
    """The stores of two processes, and a client that looks at the same etcd directly."""
    one, other, client = EtcdStore(uri, process="one"), EtcdStore(uri, process="other"), EtcdClient(parse_etcd_uri(uri))
    try:
        yield one, other, client
    finally:
        for each in (one, other, client):
            await each.close()


async def fence_of(client: EtcdClient) -> dict[str, object]:
    found, _ = await client.get(client.config.key("registry", "fence"))
    assert found is not None
    value: dict[str, object] = json.loads(found.value)
    return value


def test_of_two_leaders_of_one_epoch_the_one_that_was_overtaken_is_refused_and_one_line_says_why(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with two(uri) as (one, other, client):
            await one.apply([group("g")], 5)
            assert (await fence_of(client))["process"] == "one"
            await other.apply((), 5)
            assert (await other.load()).get("instance_group", "g") == group("g").record
            assert ALARM not in caplog.text
            for changes in ([group("g", 1)], many(1), []):
                with pytest.raises(FencedOut) as caught:
                    await one.apply(changes, 5)
                assert (caught.value.fence, caught.value.code) == (5, ErrorCode.SERVER_NOT_LEADER)
            await other.apply([group("h")], 5)
            snapshot = await one.load()
            assert set(snapshot.tables["instance_group"]) == {"g", "h"}
            assert snapshot.get("instance_group", "g") == group("g").record
            assert (snapshot.tables["instance"], snapshot.quarantined) == ({}, ())
            # It leads anew under a greater epoch, as ever; the other one is the older leader then.
            await one.apply([group("i")], 6)
            with pytest.raises(FencedOut) as caught:
                await other.apply([group("h", 1)], 5)
            assert caught.value.fence == 6

    asyncio.run(run())
    lines = [record.message for record in caplog.records if ALARM in record.message]
    assert len(lines) == 1
    assert f"at={uri.removeprefix('etcd://')} epoch=5" in lines[0]
    assert "kvcm.coordination.uri" in lines[0]


@pytest.mark.parametrize("held", range(1, 5))
def test_a_large_change_in_which_the_other_takes_over_counts_as_a_whole_or_not_at_all(uri: str, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`held`: before which of its transactions (the sweep, the part, the commit, the spreading) the other one takes over."""

    async def run() -> None:
        async with two(uri) as (one, other, _):
            await one.apply(many(1), 5)
            real, count = one._client.txn, 0

            async def overtaken(*args: object, **kwargs: object) -> object:
                nonlocal count
                count += bool(args[0])
                if args[0] and count == held:
                    await other.apply((), 5)
                return await real(*args, **kwargs)  # type: ignore[arg-type]

            monkeypatch.setattr(one._client, "txn", overtaken)
            if held < 4:
                with pytest.raises(FencedOut):
                    await one.apply(many(2), 5)
            else:
                await one.apply(many(2), 5)
            await other.apply([group("g")], 5)
            snapshot = await other.load()
            assert {record["number"] for record in snapshot.tables["instance"].values()} == {1 if held < 4 else 2}
            with pytest.raises(FencedOut):
                await one.apply([group("g", 1)], 5)

    asyncio.run(run())


@pytest.mark.parametrize("epoch", [4, 5])
def test_a_registry_of_a_version_that_names_no_process_is_taken_over(uri: str, epoch: int, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with two(uri) as (one, other, client):
            await client.put(client.config.key("registry", "entity", "instance_group", "g"), b'{"version":1,"record":{"name":"g"}}')
            await client.put(client.config.key("registry", "fence"), json.dumps({"version": 1, "epoch": epoch}).encode())
            snapshot = await one.load()
            assert (snapshot.fence, snapshot.quarantined) == (epoch, ())
            with pytest.raises(FencedOut):
                await one.apply([group("h")], epoch - 1)
            await one.apply((), 5)
            assert await fence_of(client) == {"version": 1, "epoch": 5, "process": "one"}
            await one.apply([group("h")], 5)
            assert set((await one.load()).tables["instance_group"]) == {"g", "h"}
            # Set by nobody that is known: no other leader has to be there.
            await client.put(client.config.key("registry", "fence"), b'{"version":1,"epoch":5}')
            await one.apply([group("h", 1)], 5)
            assert await fence_of(client) == {"version": 1, "epoch": 5, "process": "one"}
            # And back: such a version leads under a greater epoch, and this one after it.
            await client.put(client.config.key("registry", "fence"), b'{"version":1,"epoch":6}')
            with pytest.raises(FencedOut) as caught:
                await one.apply([group("h", 2)], 5)
            assert caught.value.fence == 6
            await other.apply([group("i")], 7)
            assert await fence_of(client) == {"version": 1, "epoch": 7, "process": "other"}

    asyncio.run(run())
    assert ALARM not in caplog.text


def test_a_lost_answer_to_the_fence_makes_nobody_believe_in_another_leader(uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with two(uri) as (one, _, client):
            real, lost = one._client.txn, 2

            async def losing(*args: object, **kwargs: object) -> object:
                nonlocal lost
                answer = await real(*args, **kwargs)  # type: ignore[arg-type]
                if args[0] and lost:
                    lost -= 1
                    raise OutcomeUnknown("no answer")
                return answer

            monkeypatch.setattr(one._client, "txn", losing)
            with pytest.raises(OutcomeUnknown):
                await one.apply((), 5)
            assert await fence_of(client) == {"version": 1, "epoch": 5, "process": "one"}
            with pytest.raises(OutcomeUnknown):
                await one.apply([group("g")], 5)
            # Settled under our own name.
            assert (await one.load()).get("instance_group", "g") == group("g").record
            assert await fence_of(client) == {"version": 1, "epoch": 5, "process": "one"}
            await one.apply([group("h")], 5)

    asyncio.run(run())
    assert ALARM not in caplog.text


def test_the_process_that_starts_again_with_the_same_epoch_goes_on(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """As one whose leases are in memory does."""

    async def run() -> None:
        async with two(uri) as (before, after, _):
            await before.apply([group("g")], 1)
            await before.close()
            await after.apply([group("h")], 1)
            await after.apply((), 1)
            assert set((await after.load()).tables["instance_group"]) == {"g", "h"}

    asyncio.run(run())
    assert ALARM not in caplog.text


def test_a_registry_that_was_overtaken_says_that_its_manager_has_to_step_down(uri: str) -> None:
    async def run() -> None:
        async with two(uri) as (one, other, _):
            first, second = (Registry(store, FakeStorages(), FakeClock()) for store in (one, other))
            events: list[RegistryEvent] = []
            first.on_change(events.append)
            await first.recover(3)
            await first.apply_startup(default_storage(), None)
            await second.recover(3)
            with pytest.raises(FencedOut):
                await first.create_group(default_group())
            assert RegistryEvent(RegistryEventKind.FENCED_OUT) in events
            assert first.list_groups() == []
            await second.create_group(default_group())
            # Its next term begins with a look at what the other has done.
            await first.recover(4)
            assert [known.name for known in first.list_groups()] == [default_group().name]
            for registry in (first, second):
                await registry.cleanup()

    asyncio.run(run())
