"""Accounts: what is kept, who may log in, and that a password is nowhere but in its hash."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import CapacityReached, DuplicateEntity, InvalidArgument, NotFound, NotReady, StorageError
from kvcm.config.accounts import MAX_ACCOUNTS, MAX_PASSWORD_CHARS, Account, Role
from kvcm.config.passwords import Cost, PasswordHash, PasswordHasher
from kvcm.config.registry import Registry
from kvcm.config.store import Change
from kvcm.config.store_local import LocalStore
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing import FakeStorages, Fault, FaultyStore, quick_hasher

pytestmark = pytest.mark.unit

CANARY = "canary-S3cret-\u00fc"


class CountingHasher(PasswordHasher):
    def __init__(self) -> None:
        super().__init__(Cost(2, 1, 1))
        self.checks = 0

    async def matches(self, password: str, stored: PasswordHash | None) -> bool:
        self.checks += 1
        return await super().matches(password, stored)


class World:
    def __init__(self) -> None:
        self.store = FaultyStore(MemoryStore())
        self.hasher = CountingHasher()
        self.clock = FakeClock()
        self.registry = Registry(self.store, FakeStorages(), self.clock, hasher=self.hasher)
        self.accounts = self.registry.accounts


def play(story: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await world.registry.recover(1)
        await story(world)
        world.hasher.close()

    asyncio.run(run())


def test_a_right_password_gives_the_role_and_nothing_else_does() -> None:
    async def story(world: World) -> None:
        accounts = world.accounts
        await accounts.add("ann", CANARY, Role.ADMIN)
        await accounts.add("bob", "b", Role.USER)
        assert await accounts.verify("ann", CANARY) is Role.ADMIN
        assert await accounts.verify("bob", "b") is Role.USER
        for name, password in (("ann", "b"), ("bob", CANARY), ("ann", ""), ("", ""), ("Ann", CANARY), ("ann", CANARY + " "), ("x", CANARY), ("ann", "\ud800")):
            assert await accounts.verify(name, password) is None
        await accounts.delete("ann")
        assert await accounts.verify("ann", CANARY) is None

    play(story)


def test_accounts_survive_the_process_with_their_hashes() -> None:
    async def story(world: World) -> None:
        await world.accounts.add("ann", CANARY, Role.ADMIN)
        later = Registry(world.store, FakeStorages(), FakeClock(), hasher=quick_hasher())
        await later.recover(2)
        assert [(account.user_name, account.role) for account in later.accounts.list()] == [("ann", Role.ADMIN)]
        assert await later.accounts.verify("ann", CANARY) is Role.ADMIN
        await later.cleanup()
        with pytest.raises(NotReady):
            await later.accounts.verify("ann", CANARY)

    play(story)


def test_a_password_is_nowhere_in_clear(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = LocalStore(str(tmp_path / "registry.json"))
        registry = Registry(store, FakeStorages(), FakeClock(), hasher=PasswordHasher(Cost(4, 8, 1)))
        await registry.recover(1)
        await registry.accounts.add("ann", CANARY, Role.USER)
        assert await registry.accounts.verify("ann", CANARY) is Role.USER
        snapshot = await registry.snapshot()
        stored = json.loads(json.loads(json.loads((tmp_path / "registry.json").read_text())["account"])["ann"])
        assert stored["password"].startswith("scrypt$4$8$1$")
        assert (stored["user_name"], stored["role"]) == ("ann", 0)
        hashed = stored["password"].rpartition("$")[2]
        for text in ((tmp_path / "registry.json").read_text(), snapshot, repr(registry.accounts.list()), caplog.text):
            assert CANARY not in text
            assert CANARY.encode("unicode_escape").decode() not in text
        assert hashed not in snapshot + repr(registry.accounts.list()) + caplog.text
        await store.close()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())


def test_the_same_password_is_stored_differently_each_time() -> None:
    async def story(world: World) -> None:
        await world.accounts.add("a", "same", Role.USER)
        await world.accounts.add("b", "same", Role.USER)
        first, second = (account.secret for account in world.accounts.list())
        assert first is not None
        assert second is not None
        assert first.salt != second.salt
        assert first.hash != second.hash

    play(story)


def test_what_cannot_be_an_account_is_refused() -> None:
    async def story(world: World) -> None:
        accounts = world.accounts
        await accounts.add("ann", "p", Role.USER)
        with pytest.raises(DuplicateEntity):
            await accounts.add("ann", "p", Role.USER)
        for name in ("", " a", "a\n", "x" * 300, "__kvcm_x"):
            with pytest.raises(InvalidArgument):
                await accounts.add(name, "p", Role.USER)
        with pytest.raises(InvalidArgument):
            await accounts.add("bob", "p" * (MAX_PASSWORD_CHARS + 1), Role.USER)
        with pytest.raises(NotFound):
            await accounts.delete("bob")
        assert [account.user_name for account in accounts.list()] == ["ann"]

    play(story)


def test_their_number_is_bounded() -> None:
    async def story(world: World) -> None:
        for number in range(MAX_ACCOUNTS):
            await world.accounts.add(f"u{number}", "", Role.USER)
        with pytest.raises(CapacityReached):
            await world.accounts.add("one more", "p", Role.USER)

    play(story)


def test_an_account_without_a_password_or_with_a_foreign_one_is_locked() -> None:
    async def story(world: World) -> None:
        await world.accounts.add("empty", "", Role.ADMIN)
        foreign = {"user_name": "old", "password": "plain text of another program", "role": 1}
        greedy = {"user_name": "greedy", "password": "scrypt$1073741824$8$1$YQ==$" + "YWFh" * 10 + "YWE=", "role": 1}
        await world.store.apply([Change("account", "old", foreign), Change("account", "greedy", greedy)], 1)
        await world.registry.recover(2)
        assert {account.user_name: account.secret for account in world.accounts.list()} == {"empty": None, "old": None, "greedy": None}
        for name, password in (("empty", ""), ("empty", "p"), ("old", foreign["password"]), ("greedy", "aa")):
            assert await world.accounts.verify(name, str(password)) is None

    play(story)


def test_a_damaged_record_is_quarantined_and_can_be_removed() -> None:
    async def story(world: World) -> None:
        await world.store.apply([Change("account", "ann", {"user_name": "ann", "role": "king"}), Change("account", "eve", {"user_name": "bob"})], 1)
        await world.registry.recover(2)
        assert {(item.table, item.id) for item in world.registry.quarantined()} == {("account", "ann"), ("account", "eve")}
        await world.accounts.delete("eve")
        await world.accounts.add("ann", "p", Role.USER)
        assert world.registry.quarantined() == []

    play(story)


def test_a_failed_store_changes_nothing() -> None:
    async def story(world: World) -> None:
        world.store.faults = [Fault.FAIL]
        with pytest.raises(StorageError):
            await world.accounts.add("ann", "p", Role.USER)
        assert world.accounts.list() == []
        await world.accounts.add("ann", "p", Role.USER)
        world.store.faults = [Fault.FAIL]
        with pytest.raises(StorageError):
            await world.accounts.delete("ann")
        assert await world.accounts.verify("ann", "p") is Role.USER

    play(story)


def test_a_success_is_remembered_for_a_minute_and_a_refusal_never() -> None:
    async def story(world: World) -> None:
        accounts = world.accounts
        await accounts.add("ann", "p", Role.USER)
        for _ in range(3):
            assert await accounts.verify("ann", "p") is Role.USER
        assert world.hasher.checks == 1
        for _ in range(2):
            assert await accounts.verify("ann", "q") is None
            assert await accounts.verify("nobody", "p") is None
        assert world.hasher.checks == 5
        world.clock.advance_us(60_000_000)
        assert await accounts.verify("ann", "p") is Role.USER
        assert world.hasher.checks == 6
        # Another account of the same name and password is another one.
        await accounts.delete("ann")
        await accounts.add("ann", "p", Role.ADMIN)
        assert await accounts.verify("ann", "p") is Role.ADMIN
        assert world.hasher.checks == 7

    play(story)


def test_an_account_that_goes_while_its_password_is_checked_gets_no_role() -> None:
    async def story(world: World) -> None:
        await world.accounts.add("ann", "p", Role.ADMIN)
        checking = asyncio.ensure_future(world.accounts.verify("ann", "p"))
        await asyncio.sleep(0)
        # What a removal that overtakes the check leaves behind.
        world.registry._core.tables.accounts.clear()
        assert await checking is None

    play(story)


def test_the_usual_cost_makes_a_guess_expensive_and_fits_the_bounds() -> None:
    cost = Cost()
    assert cost.fits()
    assert cost.n * cost.r * cost.p >= 1 << 19
    text = PasswordHash(cost, b"salt", bytes(32)).text()
    assert PasswordHash.parse(text) == PasswordHash(cost, b"salt", bytes(32))


@pytest.mark.parametrize(
    "text",
    ["", "scrypt", "plain", "scrypt$2$1$1$$", "md5$2$1$1$YQ==$YQ==", "scrypt$3$1$1$YQ==$" + "A" * 43 + "=", "scrypt$2$1$-1$YQ==$x", "scrypt$2$1$1$YQ==$YQ=="],
)
def test_what_is_no_hash_is_none(text: str) -> None:
    assert PasswordHash.parse(text) is None
    assert "secret" not in repr(Account("a", Role.USER, PasswordHash(Cost(), b"s", b"h")))
