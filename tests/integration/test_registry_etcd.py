"""The registry in a real etcd: what lies there, damage, lost answers, writes that arrive late, large changes that are cut off, and etcd's own limits."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.common.this_process import THIS_PROCESS
from kvcm.config import store_etcd
from kvcm.config.errors import StoreDamaged
from kvcm.config.registry import Registry
from kvcm.config.startup import default_group, default_storage
from kvcm.config.store import Change
from kvcm.config.store_etcd import EtcdStore
from kvcm.config.testing import FakeStorages
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.model import RangeResult, prefix_end
from kvcm.etcd.testing import PROGRAM, EtcdServer
from kvcm.etcd.testing_proxy import TcpProxy
from kvcm.etcd.uri import parse_etcd_uri

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")]

GROUP = Change("instance_group", "g", {"name": "g"})
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as etcd:
        yield etcd


@pytest.fixture
def uri(server: EtcdServer) -> str:
    return f"etcd://{server.address}/r{next(_numbers)}"


def many(count: int, number: int = 0) -> list[Change]:
    return [Change("instance", f"i{n}", {"instance_id": f"i{n}", "number": number}) for n in range(count)]


@asynccontextmanager
async def opened(uri: str) -> AsyncIterator[tuple[EtcdStore, EtcdClient]]:
    """A store, and a client that looks at the same etcd directly."""
    store, client = EtcdStore(uri), EtcdClient(parse_etcd_uri(uri))
    try:
        yield store, client
    finally:
        await store.close()
        await client.close()


async def keys_of(client: EtcdClient) -> list[str]:
    prefix = client.config.key("")
    return [kv.key.decode().removeprefix(prefix.decode()) for kv in (await client.range(prefix, prefix_end(prefix))).kvs]


def test_one_key_per_entity_below_the_prefix(uri: str) -> None:
    async def run() -> None:
        async with opened(uri) as (store, client):
            await store.apply([GROUP, Change("instance", "x/y", {"instance_id": "x/y"})], 7)
            assert await keys_of(client) == ["registry/entity/instance/x/y", "registry/entity/instance_group/g", "registry/fence"]
            found, _ = await client.get(client.config.key("registry", "entity", "instance_group", "g"))
            assert found is not None
            assert json.loads(found.value) == {"version": 1, "record": {"name": "g"}}
            found, _ = await client.get(client.config.key("registry", "fence"))
            assert found is not None
            assert json.loads(found.value) == {"version": 1, "epoch": 7, "process": THIS_PROCESS.decode()}

    asyncio.run(run())


def test_what_cannot_be_read_is_quarantined_and_left_alone(uri: str) -> None:
    async def run() -> None:
        async with opened(uri) as (store, client):
            await store.apply([GROUP, Change("storage", "s", {"name": "s"})], 3)
            damage = {"storage/s": b"\xff{", "account/new": b'{"version":2,"record":{}}', "account/list": b'{"version":1,"record":[]}', "planet/p": b"{}"}
            for name, value in damage.items():
                await client.put(client.config.key("registry", "entity", name), value)
            await client.put(client.config.key("registry", "fence"), b"nonsense")
            snapshot = await store.load()
            bad = {(item.table, item.id) for item in snapshot.quarantined}
            assert bad == {("storage", "s"), ("account", "new"), ("account", "list"), ("planet", "p"), ("fence", "")}
            assert (snapshot.get("instance_group", "g"), snapshot.fence) == (GROUP.record, 0)
            assert not any("nonsense" in item.reason for item in snapshot.quarantined)
            await store.apply([Change("storage", "s", {"name": "s"}), Change("account", "list", None)], 4)
            snapshot = await store.load()
            assert {(item.table, item.id) for item in snapshot.quarantined} == {("account", "new"), ("planet", "p")}
            assert (snapshot.get("storage", "s"), snapshot.fence) == ({"name": "s"}, 4)
            found, _ = await client.get(client.config.key("registry", "entity", "account", "new"))
            assert found is not None
            assert found.value == damage["account/new"]

    asyncio.run(run())


@pytest.mark.parametrize("held", [1, 2, 3, 4])
def test_a_write_that_arrives_after_it_was_given_up_does_nothing(server: EtcdServer, uri: str, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`held`: which of the transactions is kept back by the network; 1 is a small change, 2 to 4 are the sweep, the part and the commit of a large one."""

    async def run() -> None:
        async with TcpProxy(server.only.port) as proxy:
            through = uri.replace(server.address, proxy.address) + "?timeout_ms=600"
            async with opened(through) as (store, _), opened(uri) as (other, client):
                await store.apply([GROUP], 1)
                real, count = store._client.txn, 0

                async def holding(*args: object, **kwargs: object) -> object:
                    nonlocal count
                    count += bool(args[0])
                    if count == max(held - 1, 1) and args[0]:
                        proxy.hold()
                    return await real(*args, **kwargs)  # type: ignore[arg-type]

                monkeypatch.setattr(store._client, "txn", holding)
                with pytest.raises(StorageError) as caught:
                    await store.apply([Change("instance_group", "late", {"name": "late"}), *(many(300) if held > 1 else [])], 1)
                assert isinstance(caught.value, OutcomeUnknown) == (held in (1, 4)), "the rest certainly does not count"
                monkeypatch.setattr(store._client, "txn", real)
                told = await store.load()
                assert told.get("instance_group", "late") is None
                if held == 2:
                    await store.apply(many(300), 1)
                    told = await store.load()
                before = await keys_of(client)
                proxy.release()
                async with asyncio.timeout(10):
                    await proxy.delivered.wait()
                await asyncio.sleep(0.2)
                assert (await other.load()).tables == told.tables, "it landed after a read had said that it had not happened"
                assert await keys_of(client) == before

    asyncio.run(run())


def test_a_lost_answer_is_resolved_by_reading(server: EtcdServer, uri: str) -> None:
    async def run() -> None:
        async with TcpProxy(server.only.port) as proxy, opened(uri) as (other, _):
            through = uri.replace(server.address, proxy.address) + "?timeout_ms=600"
            async with opened(through) as (store, _):
                registry = Registry(store, FakeStorages(), FakeClock())
                await registry.recover(1)
                await registry.apply_startup(default_storage(), None)
                proxy.delay_s = 1.0  # the request passes, the answer comes after the deadline

                async def healed() -> None:
                    await asyncio.sleep(0.7)
                    proxy.delay_s = 0.0

                healing = asyncio.create_task(healed())
                try:
                    await registry.create_group(default_group())
                except StorageError:
                    pass
                await healing
                # Whatever was said, memory and store agree (I-RG-2).
                stored = await other.load()
                again = await registry_of(uri)
                assert set(stored.tables["instance_group"]) == {group.name for group in again.list_groups()}
                await asyncio.sleep(0.5)
                assert (await other.load()).tables == stored.tables
                await registry.cleanup()

    async def registry_of(uri: str) -> Registry:
        store = EtcdStore(uri)
        registry = Registry(store, FakeStorages(), FakeClock())
        await registry.recover(2)
        await store.close()
        return registry

    asyncio.run(run())


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_large_change_that_is_cut_off_anywhere_is_all_or_nothing_and_finished_by_the_next(uri: str, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with opened(uri) as (store, _), opened(uri) as (other, client):
            await store.apply([*many(250, 1), GROUP], 1)
            before = (await store.load()).tables
            real, count = store._client.txn, 0

            async def dying(*args: object, **kwargs: object) -> object:
                nonlocal count
                if args[1] and args[0]:
                    count += 1
                    if count >= cut:
                        raise OutcomeUnknown("the process died here")
                return await real(*args, **kwargs)  # type: ignore[arg-type]

            monkeypatch.setattr(store._client, "txn", dying)
            after = {change.id: change.record for change in many(250, 2)}
            try:
                await store.apply(many(250, 2), 1)
                told = True
            except StorageError:
                told = False
            seen = (await other.load()).tables
            assert seen["instance"] == (after if told else before["instance"])
            await other.apply([Change("instance", "i0", None)], 2)
            final = await other.load()
            del after["i0"]
            assert final.tables["instance"] == (after if told else {key: value for key, value in before["instance"].items() if key != "i0"})
            assert final.get("instance_group", "g") == GROUP.record
            if told:
                assert not [key for key in await keys_of(client) if "batch" in key]

    asyncio.run(run())


def test_half_a_batch_does_not_pass_for_a_whole_one(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with opened(uri) as (store, client):

            async def not_now() -> None:
                store._to_spread = False

            monkeypatch.setattr(store, "_spread_behind", not_now)
            await store.apply(many(300), 1)
            assert len((await store.load()).tables["instance"]) == 300
            (part,) = [key for key in await keys_of(client) if "batch/part" in key]
            await client.delete(client.config.key(part))
            with pytest.raises(StoreDamaged, match="large change"):
                await store.load()
            with pytest.raises(StoreDamaged):
                await store.apply([GROUP], 1)

    asyncio.run(run())


def test_an_etcd_that_takes_few_operations_gets_few_at_a_time() -> None:
    async def run() -> None:
        with EtcdServer("--max-txn-ops=8") as etcd:
            async with opened(f"etcd://{etcd.address}/x") as (store, client):
                await store.apply(many(50), 1)
                await store.apply([GROUP, *many(30, 1)], 1)
                assert len((await store.load()).tables["instance"]) == 50
                assert not [key for key in await keys_of(client) if "batch" in key]

    asyncio.run(run())


def test_an_entry_that_is_too_large_is_refused_with_a_sentence_and_changes_nothing(uri: str) -> None:
    async def run() -> None:
        async with opened(uri) as (store, _):
            await store.apply([GROUP], 1)
            large = Change("instance_group", "g", {"name": "g", "user_data": "x" * 1_600_000})
            for changes in ([large], [large, *many(200)]):
                with pytest.raises(StorageError, match="larger than etcd takes") as caught:
                    await store.apply(changes, 1)
                assert not isinstance(caught.value, OutcomeUnknown)
            snapshot = await store.load()
            assert (snapshot.get("instance_group", "g"), snapshot.tables["instance"]) == (GROUP.record, {})
            near = [Change("instance_group", f"n{n}", {"user_data": "ü" * 600_000}) for n in range(16)]
            await store.apply(near, 1)
            assert (await store.load()).get("instance_group", "n15") == near[15].record, "pages shrink until they fit"

    asyncio.run(run())


def test_a_load_starts_anew_when_etcd_forgets_its_revision(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_etcd, "_PAGE", 40)

    async def run() -> None:
        async with opened(uri) as (store, client):
            await store.apply(many(90), 1)
            real, compacted = store._client.range, 0

            async def forgetting(*args: object, **kwargs: object) -> RangeResult:
                nonlocal compacted
                result = await real(*args, **kwargs)  # type: ignore[arg-type]
                if compacted < 2:
                    compacted += 1
                    await client.put(b"x", b"")
                    await client.compact((await client.get(b"x"))[1])
                return result

            monkeypatch.setattr(store._client, "range", forgetting)
            assert len((await store.load()).tables["instance"]) == 90
            assert compacted == 2

    asyncio.run(run())


def test_a_crash_of_etcd_loses_nothing_that_was_acknowledged() -> None:
    async def run() -> None:
        with EtcdServer() as etcd:
            async with opened(f"etcd://{etcd.address}/x?timeout_ms=2000") as (store, _):
                acknowledged: set[str] = set()
                some = asyncio.Event()

                async def write() -> None:
                    for number in range(60):
                        try:
                            await store.apply([Change("instance_group", f"g{number}", {"name": str(number)})], 1)
                        except StorageError:
                            continue
                        acknowledged.add(f"g{number}")
                        if len(acknowledged) == 10:
                            some.set()

                writing = asyncio.create_task(write())
                await some.wait()
                etcd.only.kill()
                etcd.only.start()
                await writing
                stored = set((await store.load()).tables["instance_group"])
                assert acknowledged <= stored
                assert len(acknowledged) > 20

    asyncio.run(run())
