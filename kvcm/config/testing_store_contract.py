"""What every registry store promises (kvcm.config.store), as test cases for any of them: `CASES` by name, each run against a `StorePlace`.

@pytest.mark.parametrize("name", CASES)
def test_contract(name): run_case(name, SomePlace())
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.config.errors import FencedOut
from kvcm.config.store import TABLES, Change, RegistrySnapshot, RegistryStore, Table

CASE_S = 60.0
ODD_IDS = ("a", "a/b", "/", "../x", "ü ß", "x*?[y]\\", '"quoted"', "a" * 500)


class StorePlace(Protocol):
    """One place where a registry is kept, empty at first."""

    def open(self) -> RegistryStore:
        """As another process would open it. Closed by `run_case`."""
        ...


def group(name: str, number: int = 0) -> Change:
    return Change("instance_group", name, {"name": name, "number": number, "text": 'ä"\\\n', "list": [1, {"x": None}], "big": 1 << 53})


def instances(count: int, number: int) -> list[Change]:
    return [Change("instance", f"i{n:05}", {"instance_id": f"i{n:05}", "number": number}) for n in range(count)]


def ids(snapshot: RegistrySnapshot, table: Table) -> set[str]:
    return set(snapshot.tables.get(table, {}))


async def nothing_is_there_at_first(open_: Callable[[], RegistryStore]) -> None:
    store = open_()
    await store.open()
    await store.probe()
    snapshot = await store.load()
    assert (snapshot.quarantined, snapshot.fence) == ((), 0)
    assert all(not ids(snapshot, table) for table in TABLES)


async def what_was_applied_is_there_for_everybody(open_: Callable[[], RegistryStore]) -> None:
    store = open_()
    await store.open()
    changes = [Change(table, name, {"id": name, "table": table}) for table in TABLES for name in ODD_IDS]
    await store.apply(changes, 1)
    for reader in (store, open_()):
        snapshot = await reader.load()
        assert snapshot.quarantined == ()
        assert snapshot.fence == 1
        for change in changes:
            assert snapshot.get(change.table, change.id) == change.record
        assert all(ids(snapshot, table) == set(ODD_IDS) for table in TABLES)
    await store.apply([Change(change.table, change.id, None) for change in changes[::2]], 1)
    snapshot = await open_().load()
    assert {(table, name) for table in TABLES for name in ids(snapshot, table)} == {(change.table, change.id) for change in changes[1::2]}


async def a_record_comes_back_as_it_was_and_shares_nothing(open_: Callable[[], RegistryStore]) -> None:
    store = open_()
    change = group("g")
    await store.apply([change, Change("storage", "never there", None)], 3)
    assert change.record is not None
    before = dict(change.record)
    change.record["number"] = 99
    found = (await store.load()).get("instance_group", "g")
    assert found == before
    found["number"] = 98
    assert (await store.load()).get("instance_group", "g") == before
    await store.apply([group("g", 2)], 3)
    assert (await store.load()).get("instance_group", "g") == group("g", 2).record


async def an_older_leader_is_refused_and_changes_nothing(open_: Callable[[], RegistryStore]) -> None:
    old, new = open_(), open_()
    await old.apply([group("a")], 5)
    await new.apply((), 7)
    assert (await old.load()).fence == 7
    for attempt in ([group("a", 1), group("b"), Change("instance_group", "a", None)], [], instances(300, 1)):
        try:
            await old.apply(attempt, 6)
        except FencedOut as error:
            known = error.fence
        else:
            raise AssertionError("an older leader wrote")
        assert known == 7
    snapshot = await new.load()
    assert snapshot.get("instance_group", "a") == group("a").record
    assert (ids(snapshot, "instance_group"), ids(snapshot, "instance"), snapshot.fence) == ({"a"}, set(), 7)
    await new.apply([group("b")], 7)
    await new.apply((), 7)
    await old.apply([group("c")], 8)
    snapshot = await open_().load()
    assert (ids(snapshot, "instance_group"), snapshot.fence) == ({"a", "b", "c"}, 8)


async def changes_of_thousands_are_all_or_nothing(open_: Callable[[], RegistryStore]) -> None:
    writer, reader = open_(), open_()
    await writer.apply(instances(1500, 1), 1)
    writing = asyncio.ensure_future(writer.apply([*instances(1500, 2), Change("instance", "gone", None)], 1))
    seen = []
    while not writing.done():
        await asyncio.sleep(0)
        tables = (await reader.load()).tables["instance"]
        seen.append({record["number"] for record in tables.values()})
        assert len(tables) == 1500
    await writing
    assert all(numbers in ({1}, {2}) for numbers in seen), "half of a change was seen"
    assert {record["number"] for record in (await reader.load()).tables["instance"].values()} == {2}
    await writer.apply([Change("instance", change.id, None) for change in instances(1500, 2)[:1400]], 1)
    assert len((await reader.load()).tables["instance"]) == 100


async def a_take_over_in_the_middle_leaves_all_or_nothing(open_: Callable[[], RegistryStore]) -> None:
    for number in range(1, 6):
        old, new = open_(), open_()
        await old.apply(instances(400, 0), 10 * number)
        writing = asyncio.ensure_future(old.apply(instances(400, number), 10 * number))
        for _ in range(number * 3):
            await asyncio.sleep(0)
        await new.apply((), 10 * number + 1)
        taken = await new.load()
        try:
            await writing
        except StorageError as error:
            # OutcomeUnknown and what counts although the rest is spread by others are possible; a plain refusal means that nothing was written.
            done = None if isinstance(error, OutcomeUnknown) else 0
        else:
            done = number
        numbers = {record["number"] for record in taken.tables["instance"].values()}
        assert numbers in ({0}, {number})
        assert done is None or numbers == {done}
        final = await open_().load()
        assert final.tables == taken.tables, "an old leader's write landed after the take-over"


async def changes_at_once_lose_nothing(open_: Callable[[], RegistryStore]) -> None:
    stores = [open_(), open_()]
    await stores[0].apply((), 1)
    await asyncio.gather(*(stores[n % 2].apply([group(f"g{n}")], 1) for n in range(8)))
    assert ids(await open_().load(), "instance_group") == {f"g{n}" for n in range(8)}


async def a_write_that_is_given_up_has_happened_or_never_will(open_: Callable[[], RegistryStore]) -> None:
    store, other = open_(), open_()
    await store.apply((), 1)
    for number in range(12):
        writing = asyncio.ensure_future(store.apply([group("g", number)], 1))
        for _ in range(number):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        told = (await store.load()).get("instance_group", "g")
        await asyncio.sleep(0.01)
        assert (await other.load()).get("instance_group", "g") == told


async def closing_loses_nothing_and_may_be_repeated(open_: Callable[[], RegistryStore]) -> None:
    store = open_()
    await store.apply([group("g")], 1)
    await store.close()
    await store.close()
    assert ids(await open_().load(), "instance_group") == {"g"}


Case = Callable[[Callable[[], RegistryStore]], Coroutine[Any, Any, None]]
CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        nothing_is_there_at_first,
        what_was_applied_is_there_for_everybody,
        a_record_comes_back_as_it_was_and_shares_nothing,
        an_older_leader_is_refused_and_changes_nothing,
        changes_of_thousands_are_all_or_nothing,
        a_take_over_in_the_middle_leaves_all_or_nothing,
        changes_at_once_lose_nothing,
        a_write_that_is_given_up_has_happened_or_never_will,
        closing_loses_nothing_and_may_be_repeated,
    )
}


def run_case(name: str, place: StorePlace) -> None:
    """In a loop of its own. Raises AssertionError, or TimeoutError after CASE_S seconds."""

    async def run() -> None:
        opened: list[RegistryStore] = []

        def open_() -> RegistryStore:
            opened.append(place.open())
            return opened[-1]

        async with asyncio.timeout(CASE_S):
            try:
                await CASES[name](open_)
            finally:
                for store in opened:
                    await store.close()

    asyncio.run(run())
