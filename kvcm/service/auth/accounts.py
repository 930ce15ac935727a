"""Passwords of accounts, checked without letting anybody spend the manager's time.

A password hash is slow on purpose (tens of milliseconds of one core). So it runs in a thread, at most a few wait, a peer that is wrong too often is not
served at all, and what was right is remembered for a short time under a keyed hash, so that a client which sends the password with every call pays once.

Dangers: a memory of right answers outlives a removed account, so it is short and `forget` empties it; a failure is never remembered, because an account may
be added a moment later.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from kvcm.common.clock import Clock
from kvcm.service.auth.limiter import FailureLimiter

REMEMBER_S = 30
MAX_REMEMBERED = 1024
MAX_WAITING = 32
MAX_CREDENTIAL_CHARS = 1024
_DEADLINE_S = 10.0
_THREADS = 2


class Role(Enum):
    """What a caller may do. A token is an ADMIN; a USER reads the admin API and uses the metadata API."""

    USER = "user"
    ADMIN = "admin"


class Busy(Exception):
    """Not checked: too many checks are waiting, or this peer was wrong too often."""


Verify = Callable[[str, str], Role | None]
"""(user, password) -> the role, None when there is no such account or the password is another. Called in a thread; slow."""


class AccountCheck:
    def __init__(self, verify: Verify, clock: Clock, limiter: FailureLimiter | None = None) -> None:
        self._verify = verify
        self._clock = clock
        self._limiter = FailureLimiter() if limiter is None else limiter
        self._key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, tuple[Role, int]] = OrderedDict()
        self._pool = ThreadPoolExecutor(_THREADS, "kvcm-accounts")
        self._waiting = 0

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def forget(self) -> None:
        """Accounts have changed: ask again."""
        self._remembered.clear()
        # Answers on their way belong to the accounts of before.
        self._key = secrets.token_bytes(32)

    async def role(self, user: str, password: str, peer: str) -> Role | None:
        """None: wrong. Raises Busy."""
        if len(user) > MAX_CREDENTIAL_CHARS or len(password) > MAX_CREDENTIAL_CHARS:
            return None
        now = self._clock.monotonic_us()
        key = self._key
        mark = hmac.digest(key, f"{len(user)}:{user}:{password}".encode(), "sha256")
        known = self._remembered.get(mark)
        if known is not None and known[1] > now:
            return known[0]
        if self._waiting >= MAX_WAITING or self._limiter.blocked(peer, now):
            raise Busy
        self._waiting += 1
        try:
            async with asyncio.timeout(_DEADLINE_S):
                found = await asyncio.get_running_loop().run_in_executor(self._pool, self._verify, user, password)
        except TimeoutError:
            raise Busy from None
        finally:
            self._waiting -= 1
        if found is None:
            self._limiter.failed(peer, self._clock.monotonic_us())
        elif key is self._key:
            self._remember(mark, found)
        return found

    def _remember(self, mark: bytes, role: Role) -> None:
        self._remembered.pop(mark, None)
        self._remembered[mark] = (role, self._clock.monotonic_us() + REMEMBER_S * 1_000_000)
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
