"""Tokens, headers, roles and attempts: who is let in, and that the check does the same work whatever is offered."""

from __future__ import annotations

import asyncio
import base64
import hmac
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.clock import FakeClock
from kvcm.config.errors import SettingsError
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.admin_service import FULL_NAME
from kvcm.service.auth.accounts import MAX_WAITING, REMEMBER_S, AccountCheck, Busy, Role
from kvcm.service.auth.guard import READS, Guard, Refusal, Tokens
from kvcm.service.auth.header import BasicOffer, BearerOffer, NoOffer, parse_authorization
from kvcm.service.auth.limiter import FailureLimiter
from kvcm.service.auth.tokens import MAX_TOKENS, TokenSet, parse_token_file, parse_token_list, weak_tokens

pytestmark = pytest.mark.unit

MINUTE_US = 60_000_000


@pytest.mark.parametrize(
    ("value", "offer"),
    [
        (None, NoOffer.MISSING),
        (b"", NoOffer.MALFORMED),
        (b"  ", NoOffer.MALFORMED),
        (b"Bearer", NoOffer.MALFORMED),
        (b"Bearer ", NoOffer.MALFORMED),
        (b"Bearer a b", NoOffer.MALFORMED),
        (b"Token abc", NoOffer.MALFORMED),
        (b"Bearer abc", BearerOffer(b"abc")),
        (b"\t bEaReR \t abc  ", BearerOffer(b"abc")),
        (b"BEARER\tabc", BearerOffer(b"abc")),
        (b"Bearer " + b"x" * 9000, NoOffer.MALFORMED),
        (b"Basic " + base64.b64encode(b"ann:pass:word"), BasicOffer("ann", "pass:word")),
        (b"Basic " + base64.b64encode(b":word"), NoOffer.MALFORMED),
        (b"Basic " + base64.b64encode(b"ann"), NoOffer.MALFORMED),
        (b"Basic " + base64.b64encode(b"\xff:\xff"), NoOffer.MALFORMED),
        (b"Basic !!!", NoOffer.MALFORMED),
    ],
)
def test_the_header_is_read_as_the_contract_says(value: bytes | None, offer: object) -> None:
    assert parse_authorization(value) == offer


@settings(deadline=None, max_examples=200)
@given(value=st.binary(max_size=64))
def test_no_header_breaks_the_reader(value: bytes) -> None:
    assert parse_authorization(value) is not NoOffer.MISSING
    assert parse_authorization(b"Basic " + value) is not NoOffer.MISSING


def test_lists_and_files_of_tokens() -> None:
    assert parse_token_list(" a, ,b ,a,", "it") == [b"a", b"b"]
    assert parse_token_list(" , ", "it") == []
    assert parse_token_file(b"one\r\ntwo, three\n\n", "it") == [b"one", b"two", b"three"]
    assert weak_tokens([b"short", b"x" * 32]) == 1


@pytest.mark.parametrize(
    "content", [b"", b"\n ,\n", b"two words", b"\xff\xfe", "schlüssel".encode(), b"x" * 5000, b",".join(b"%d" % n for n in range(MAX_TOKENS + 1))]
)
def test_a_token_file_that_cannot_be_meant_is_refused_without_its_content(content: bytes) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_token_file(content, "The token file")
    assert caught.value.message.startswith("The token file holds") or "UTF-8" in caught.value.message
    assert "words" not in caught.value.message


def test_the_same_comparisons_are_made_for_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [b"%032d" % number for number in range(8)]
    made = TokenSet(known)
    compared: list[tuple[int, int]] = []

    honest = hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return honest(left, right)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for offered, wanted in [(known[0], True), (known[7], True), (b"", False), (b"x", False), (known[3][:-1], False), (b"x" * 4096, False)]:
        compared.clear()
        assert made.accepts(offered) is wanted
        assert compared == [(32, 32)] * 8


def test_a_token_set_shows_and_keeps_no_token() -> None:
    made = TokenSet([b"canary-canary"])
    assert repr(made) == "TokenSet(1 tokens)"
    assert all(b"canary" not in kept for kept in made._hashes)
    assert "canary" not in repr(parse_authorization(b"Bearer canary")) + repr(parse_authorization(b"Basic " + base64.b64encode(b"a:canary")))


def test_failures_are_bounded_per_peer_and_the_table_too() -> None:
    limiter = FailureLimiter(burst=3, per_minute=6, max_peers=10)
    for _ in range(3):
        assert not limiter.blocked("a", 0)
        limiter.failed("a", 0)
    assert limiter.blocked("a", 0)
    assert not limiter.blocked("b", 0)
    assert not limiter.blocked("a", MINUTE_US // 6)
    for number in range(1000):
        limiter.failed(str(number), 0)
    assert len(limiter) == 10


class Book:
    """Accounts `ann` (USER) and `root` (ADMIN) with the password `pw`; counts and can hold back the slow check."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = threading.Event()
        self.go.set()
        self.roles = {"ann": Role.USER, "root": Role.ADMIN}

    def verify(self, user: str, password: str) -> Role | None:
        self.asked += 1
        self.go.wait(10)
        return self.roles.get(user) if password == "pw" else None


def test_a_right_password_is_remembered_for_a_while_and_a_wrong_one_never() -> None:
    async def story() -> None:
        book, clock = Book(), FakeClock()
        check = AccountCheck(book.verify, clock)
        assert await check.role("ann", "pw", "p") is Role.USER
        assert await check.role("ann", "pw", "p") is Role.USER
        assert book.asked == 1
        assert await check.role("ann", "no", "p") is None
        assert await check.role("ann", "no", "p") is None
        assert book.asked == 3
        # The border between name and password belongs to what is remembered.
        assert await check.role("an", "npw", "p") is None
        clock.advance_us(REMEMBER_S * 1_000_000 + 1)
        assert await check.role("ann", "pw", "p") is Role.USER
        assert book.asked == 5
        del book.roles["ann"]
        assert await check.role("ann", "pw", "p") is Role.USER
        check.forget()
        assert await check.role("ann", "pw", "p") is None
        check.close()

    asyncio.run(story())


def test_an_answer_from_before_a_change_of_accounts_is_not_remembered() -> None:
    async def story() -> None:
        book = Book()
        book.go.clear()
        check = AccountCheck(book.verify, FakeClock())
        asking = asyncio.ensure_future(check.role("ann", "pw", "p"))
        await asyncio.sleep(0)
        check.forget()
        book.go.set()
        assert await asking is Role.USER
        del book.roles["ann"]
        assert await check.role("ann", "pw", "p") is None
        check.close()

    asyncio.run(story())


def test_a_peer_that_guesses_is_not_served_and_others_are() -> None:
    async def story() -> None:
        book, clock = Book(), FakeClock()
        check = AccountCheck(book.verify, clock, FailureLimiter(burst=2, per_minute=1))
        assert await check.role("root", "pw", "good") is Role.ADMIN
        for _ in range(2):
            assert await check.role("root", "guess", "bad") is None
        asked = book.asked
        with pytest.raises(Busy):
            await check.role("root", "third guess", "bad")
        assert book.asked == asked
        assert await check.role("root", "pw", "good") is Role.ADMIN
        clock.advance_us(MINUTE_US)
        assert await check.role("root", "guess", "bad") is None
        check.close()

    asyncio.run(story())


def test_only_so_many_checks_wait() -> None:
    async def story() -> None:
        book = Book()
        book.go.clear()
        check = AccountCheck(book.verify, FakeClock())
        waiting = [asyncio.ensure_future(check.role("ann", "pw", str(number))) for number in range(MAX_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await check.role("ann", "pw", "one more")
        book.go.set()
        assert set(await asyncio.gather(*waiting)) == {Role.USER}
        check.close()

    asyncio.run(story())


def basic(user: str, password: str = "pw") -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


@pytest.mark.parametrize(
    ("header", "rpc", "refusal"),
    [
        (b"Bearer admin-token", "AddStorage", None),
        (b"Bearer meta-token", "ListStorage", Refusal.UNKNOWN),
        (None, "ListStorage", Refusal.MISSING),
        (b"Digest x", "ListStorage", Refusal.MALFORMED),
        (basic("ann"), "ListStorage", None),
        (basic("ann"), "", None),
        (basic("ann"), "AddStorage", Refusal.FORBIDDEN),
        (basic("ann"), "RpcOfTheFuture", Refusal.FORBIDDEN),
        (basic("root"), "AddStorage", None),
        (basic("root", "no"), "ListStorage", Refusal.UNKNOWN),
        (basic("nobody"), "ListStorage", Refusal.UNKNOWN),
    ],
)
def test_who_may_call_what(header: bytes | None, rpc: str, refusal: Refusal | None) -> None:
    async def story() -> None:
        check = AccountCheck(Book().verify, FakeClock())
        guard = Guard((Tokens(TokenSet([b"admin-token"])),), check)
        assert await guard.admit(header, "peer", rpc) is refusal
        assert sum(guard.refused.values()) == (refusal is not None)
        check.close()

    asyncio.run(story())


def test_the_meta_plane_takes_both_kinds_of_tokens_and_all_roles() -> None:
    async def story() -> None:
        check = AccountCheck(Book().verify, FakeClock())
        meta, own = Tokens(TokenSet([b"meta-token"])), Tokens(TokenSet([b"admin-token"]))
        guard = Guard((meta, own), check, meta=True)
        for header in (b"Bearer meta-token", b"Bearer admin-token", basic("ann")):
            assert await guard.admit(header, "peer", "StartWriteCache") is None
        meta.current = TokenSet([b"another"])
        assert await guard.admit(b"Bearer meta-token", "peer", "StartWriteCache") is Refusal.UNKNOWN
        assert await Guard((own,)).admit(basic("root"), "peer", "ListStorage") is Refusal.MALFORMED
        check.close()

    asyncio.run(story())


def test_what_accounts_may_read_exists_and_changes_nothing() -> None:
    names = {method.name for method in admin.DESCRIPTOR.services_by_name[FULL_NAME.rpartition(".")[2]].methods}
    assert names >= READS
    assert all(name.startswith(("Get", "List", "Check")) for name in READS)
    assert "ListAccount" not in READS
