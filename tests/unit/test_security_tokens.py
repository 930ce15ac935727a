"""Tokens, headers, roles and attempts: who is let in, and that the check does the same work whatever is offered."""

from __future__ import annotations

import asyncio
import base64
import hmac

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.clock import FakeClock
from kvcm.common.errors import NotReady
from kvcm.config.accounts import Role
from kvcm.config.errors import SettingsError
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.admin_service import FULL_NAME
from kvcm.service.auth.accounts import PER_NAME_BURST, PER_NAME_MINUTE, PER_PEER_BURST, AccountCheck, Busy, caller_of
from kvcm.service.auth.grpc_guard import guarded
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
    """Accounts `ann` (USER) and `root` (ADMIN) with the password `pw`; counts, and can hold the check back or not know."""

    def __init__(self) -> None:
        self.asked = 0
        self.leads = True
        self.go = asyncio.Event()
        self.go.set()

    async def verify(self, user: str, password: str) -> Role | None:
        self.asked += 1
        if not self.leads:
            raise NotReady("not here")
        await self.go.wait()
        return {"ann": Role.USER, "root": Role.ADMIN}.get(user) if password == "pw" else None


def test_whoever_guesses_is_not_checked_for_a_while_and_others_are() -> None:
    async def story() -> None:
        book, clock = Book(), FakeClock()
        check = AccountCheck(book.verify, clock)
        for _ in range(PER_NAME_BURST):
            assert await check.role("root", "guess", "bad") is None
        asked = book.asked
        for password in ("guess", "pw"):
            with pytest.raises(Busy):
                await check.role("root", password, "bad")
        assert book.asked == asked
        assert await check.role("ann", "pw", "bad") is Role.USER
        assert await check.role("root", "pw", "good") is Role.ADMIN
        clock.advance_us(MINUTE_US // PER_NAME_MINUTE)
        assert await check.role("root", "pw", "bad") is Role.ADMIN

    asyncio.run(story())


def test_whoever_tries_many_names_is_not_checked_either() -> None:
    async def story() -> None:
        check = AccountCheck(Book().verify, FakeClock())
        for number in range(PER_PEER_BURST):
            assert await check.role(f"user{number}", "guess", "bad") is None
        with pytest.raises(Busy):
            await check.role("another", "guess", "bad")
        assert await check.role("another", "guess", "good") is None

    asyncio.run(story())


def test_guesses_at_the_same_time_count_as_well() -> None:
    async def story() -> None:
        book = Book()
        book.go.clear()
        check = AccountCheck(book.verify, FakeClock())
        waiting = [asyncio.ensure_future(check.role("root", f"guess {number}", "bad")) for number in range(50)]
        await asyncio.sleep(0)
        assert book.asked == PER_NAME_BURST
        book.go.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert answers.count(None) == PER_NAME_BURST

    asyncio.run(story())


def test_the_same_password_many_times_at_once_is_one_attempt_and_shuts_nobody_out() -> None:
    async def story() -> None:
        book = Book()
        book.go.clear()
        check = AccountCheck(book.verify, FakeClock())
        waiting = [asyncio.ensure_future(check.role("ann", "pw", "tool")) for _ in range(50)]
        guesses = [asyncio.ensure_future(check.role("ann", "guess", "tool")) for _ in range(50)]
        await asyncio.sleep(0)
        assert book.asked == 2
        waiting.pop(0).cancel()  # the one that all others wait for
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        book.go.set()
        assert await asyncio.gather(*waiting) == [Role.USER] * 49
        assert await asyncio.gather(*guesses) == [None] * 50
        for _ in range(PER_NAME_BURST - 1):
            assert await check.role("ann", "guess", "tool") is None
        with pytest.raises(Busy):
            await check.role("ann", "pw", "tool")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("addresses", "callers"),
    [
        (("10.0.0.1", "::ffff:10.0.0.1", "%5B::ffff:10.0.0.1%5D", "::ffff:a00:1"), 1),
        (("2001:db8::1", "%5B2001:db8::1%5D", "2001:db8::ffff:ffff:ffff:ffff", "[2001:DB8:0:0::9]"), 1),
        (("fe80::1%eth0", "%5Bfe80::2%25eth1%5D"), 1),
        (("2001:db8::1", "2001:db8:0:1::1", "10.0.0.1", "10.0.0.2", "::ffff:10.0.0.3", "", "a name"), 7),
    ],
)
def test_one_host_has_one_account_of_attempts_however_its_address_is_written(addresses: tuple[str, ...], callers: int) -> None:
    assert len({caller_of(address) for address in addresses}) == callers

    async def story() -> None:
        check = AccountCheck(Book().verify, FakeClock())
        for number in range(PER_NAME_BURST):
            assert await check.role("root", f"guess {number}", addresses[number % len(addresses)]) is None
        if callers == 1:
            for address in addresses:
                with pytest.raises(Busy):
                    await check.role("root", "another", address)

    asyncio.run(story())


def test_all_who_wait_for_a_check_that_cannot_be_made_are_told_at_once() -> None:
    async def story() -> None:
        asked = 0

        async def verify(user: str, password: str) -> Role | None:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            raise NotReady("too much to do")

        check = AccountCheck(verify, FakeClock())
        answers = await asyncio.gather(*(check.role("ann", "pw", "tool") for _ in range(20)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [NotReady] * 20
        assert asked == 1

    asyncio.run(story())


def test_right_passwords_and_checks_that_were_not_made_cost_no_attempts() -> None:
    async def story() -> None:
        book = Book()
        check = AccountCheck(book.verify, FakeClock())
        for _ in range(2 * PER_PEER_BURST):
            assert await check.role("ann", "pw", "peer") is Role.USER
        book.leads = False
        guard = Guard((Tokens(TokenSet([b"admin-token"])),), check)
        for _ in range(2 * PER_PEER_BURST):
            assert await guard.admit(basic("ann"), "peer", "ListStorage") is Refusal.UNAVAILABLE
        assert await guard.admit(b"Bearer admin-token", "peer", "AddStorage") is None
        book.leads = True
        assert await guard.admit(basic("ann"), "peer", "ListStorage") is None

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

    asyncio.run(story())


def test_what_accounts_may_read_exists_and_changes_nothing() -> None:
    names = {method.name for method in admin.DESCRIPTOR.services_by_name[FULL_NAME.rpartition(".")[2]].methods}
    assert names >= READS
    assert all(name.startswith(("Get", "List", "Check")) for name in READS)
    assert "ListAccount" not in READS


def test_a_caller_whose_password_is_being_checked_is_not_late_with_its_request() -> None:
    codes: list[grpc.StatusCode] = []

    class Context:
        def set_code(self, code: grpc.StatusCode) -> None:
            codes.append(code)

        def peer(self) -> str:
            return "ipv4:10.0.0.1:1"

        def invocation_metadata(self) -> list[tuple[str, str]]:
            return [("authorization", basic("ann").decode())]

    async def answer(request: bytes, context: object) -> bytes:
        return request

    async def story() -> None:
        book = Book()
        book.go.clear()
        guard = Guard((Tokens(TokenSet([b"admin-token"])),), AccountCheck(book.verify, FakeClock()))
        method = guarded(grpc.unary_unary_rpc_method_handler(answer), guard, "ListStorage")
        waiting = asyncio.ensure_future(method.unary_unary(b"request", Context()))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert codes == [grpc.StatusCode.OK]  # what unsent.py looks at
        book.go.set()
        assert await waiting == b"request"

    asyncio.run(story())
