"""Passwords of accounts at the door: the check itself, its cost and its memory of right answers are the registry's (`kvcm.config.accounts`).

What is added here is that nobody may go on guessing: failures are counted per caller (`caller_of`) and name, and per caller in all, and whoever has had too
many is not checked for a while. Names are counted as short hashes, so that long ones cost no memory.

The same name and password from one caller are one attempt while they are being checked: a tool that opens twenty connections at once is no guesser.

Danger: callers behind one proxy share an address. A guesser among them shuts the name out that it guesses, and the others only when it tries very many.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from collections.abc import Awaitable, Callable

from kvcm.common.clock import Clock
from kvcm.common.errors import NotReady
from kvcm.config.accounts import Role
from kvcm.service.auth.limiter import FailureLimiter

PER_NAME_BURST, PER_NAME_MINUTE = 10, 10
PER_PEER_BURST, PER_PEER_MINUTE = 100, 60

Verify = Callable[[str, str], Awaitable[Role | None]]
"""(user, password) -> the role; None when there is no such account or the password is another. Raises NotReady."""


class Busy(Exception):
    """Not checked: the caller was wrong too often."""


def caller_of(address: str) -> str:
    """Whose attempts are counted together: an IPv4 address, however it is written, or 64 bits of an IPv6 address, which one host has all of.

    `address` is as HTTP (`::1`) or gRPC (`%5B::1%5D`, with a zone `%5Bfe80::1%25eth0%5D`) gives it; other texts stay as they are.
    """
    plain = address.removeprefix("%5B").removesuffix("%5D").strip("[]").partition("%")[0]
    try:
        known = ipaddress.ip_address(plain)
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        return str(known.ipv4_mapped or ipaddress.IPv6Address(int(known) >> 64 << 64))
    return plain


class _HungUp(Exception):
    """Whoever led a check has gone; it is nobody's answer."""


_HUNG_UP = _HungUp()
_Answer = Role | Exception | None
"""The role, None for a wrong password, or why there is no answer."""


class AccountCheck:
    def __init__(self, verify: Verify, clock: Clock) -> None:
        self._verify = verify
        self._clock = clock
        self._names = FailureLimiter(PER_NAME_BURST, PER_NAME_MINUTE)
        self._peers = FailureLimiter(PER_PEER_BURST, PER_PEER_MINUTE)
        self._running: dict[tuple[str, str, str], asyncio.Future[_Answer]] = {}

    async def role(self, user: str, password: str, peer: str) -> Role | None:
        """None: wrong. Raises Busy, and NotReady when accounts cannot be checked here and now."""
        attempt = (caller_of(peer), user, password)
        answer: _Answer = _HUNG_UP
        while answer is _HUNG_UP and (running := self._running.get(attempt)) is not None:
            answer = await asyncio.shield(running)
        if answer is _HUNG_UP:
            answer = await self._lead(attempt)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _lead(self, attempt: tuple[str, str, str]) -> _Answer:
        """Check for all who ask the same meanwhile. When this caller hangs up, another one of them leads."""
        answer: _Answer = _HUNG_UP
        running = self._running[attempt] = asyncio.get_running_loop().create_future()
        try:
            peer, user, password = attempt
            answer = await self._attempt(user, password, peer)
        except (Busy, NotReady) as refused:
            answer = refused
        finally:
            del self._running[attempt]
            running.set_result(answer)
        return answer

    async def _attempt(self, user: str, password: str, peer: str) -> Role | None:
        name = f"{peer} {hashlib.blake2b(user.encode(), digest_size=8).hexdigest()}"
        now = self._clock.monotonic_us()
        if self._names.blocked(name, now) or self._peers.blocked(peer, now):
            raise Busy
        # Counted before the answer, or a hundred guesses at once would all be checked; taken back when it was right or was not given.
        self._names.failed(name, now)
        self._peers.failed(peer, now)
        wrong = False
        try:
            role = await self._verify(user, password)
            wrong = role is None
        finally:
            if not wrong:
                self._names.forgive(name)
                self._peers.forgive(peer)
        return role
