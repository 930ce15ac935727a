"""Passwords as salted scrypt hashes, computed in threads of their own.

    scrypt$<n>$<r>$<p>$<salt, base64>$<hash, base64>

The parameters are stored with each hash, so they can be raised later and old hashes still count.

Dangers: one hash takes a fifth of a second of a core and 16 MB, which is its purpose and also a way to keep a manager busy. So threads and queue are
bounded, parameters read from a store are bounded too, and whoever cannot be served in time is refused. Nothing here is ever logged or printed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from kvcm.common.errors import NotReady
from kvcm.data_storage.pool import BlockingPool, PoolRefused, PoolTimeout

_SCHEME = "scrypt"
_SALT_BYTES = 16
_HASH_BYTES = 32
_MAX_WORK = 1 << 26  # n * r * p: what a damaged or hostile record may make us compute
_MAX_MEMORY = 128 << 20
_MAX_TEXT = 512
_THREADS = 2
_MAX_WAITING = 64
DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Cost:
    """scrypt's `n` (a power of two), `r` and `p`. Memory: 128 * n * r bytes."""

    n: int = 1 << 14
    r: int = 8
    p: int = 5

    def fits(self) -> bool:
        shape = self.n >= 2 and self.n & (self.n - 1) == 0 and self.r >= 1 and self.p >= 1
        return shape and self.n * self.r * self.p <= _MAX_WORK and 128 * self.n * self.r <= _MAX_MEMORY


@dataclass(frozen=True, slots=True)
class PasswordHash:
    cost: Cost
    salt: bytes = field(repr=False)
    hash: bytes = field(repr=False)

    def text(self) -> str:
        """The stored form."""
        salt, digest = (base64.b64encode(value).decode() for value in (self.salt, self.hash))
        return f"{_SCHEME}${self.cost.n}${self.cost.r}${self.cost.p}${salt}${digest}"

    @classmethod
    def parse(cls, text: str) -> PasswordHash | None:
        """None for anything that is not such a hash, or whose cost is out of bounds."""
        parts = text.split("$") if len(text) <= _MAX_TEXT else []
        if len(parts) != 6 or parts[0] != _SCHEME or not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts[1:4]):
            return None
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[4:])
        except (binascii.Error, ValueError):
            return None
        cost = Cost(*map(int, parts[1:4]))
        return cls(cost, salt, digest) if cost.fits() and salt and len(digest) == _HASH_BYTES else None


class PasswordHasher:
    """`salt(count)` gives that many random bytes."""

    def __init__(self, cost: Cost | None = None, salt: Callable[[int], bytes] = os.urandom) -> None:
        self._cost = cost or Cost()
        self._salt = salt
        self._pool = BlockingPool(_THREADS, _MAX_WAITING, "kvcm-passwords")
        self._decoy = PasswordHash(self._cost, salt(_SALT_BYTES), bytes(_HASH_BYTES))

    async def make(self, password: str) -> PasswordHash:
        """Raises NotReady when too many are being computed."""
        salt = self._salt(_SALT_BYTES)
        return PasswordHash(self._cost, salt, await self._run(password, self._cost, salt))

    async def matches(self, password: str, stored: PasswordHash | None) -> bool:
        """`stored` None: nobody by that name, or nobody who may log in; it takes as long as a wrong password. Raises NotReady."""
        compared = stored or self._decoy
        found = await self._run(password, compared.cost, compared.salt)
        return hmac.compare_digest(found, compared.hash) and stored is not None

    def close(self) -> None:
        self._pool.close()

    async def _run(self, password: str, cost: Cost, salt: bytes) -> bytes:
        try:
            return await self._pool.run(_scrypt, password, cost, salt, deadline_s=DEADLINE_S)
        except (PoolRefused, PoolTimeout):
            raise NotReady("Too many passwords are being checked; try again later.") from None


def _scrypt(password: str, cost: Cost, salt: bytes) -> bytes:
    text = password.encode("utf-8", errors="surrogatepass")
    return hashlib.scrypt(text, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=2 * _MAX_MEMORY, dklen=_HASH_BYTES)
