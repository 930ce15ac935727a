"""Accounts: who may do what when authentication is on (wire contract 5.5). This is where a name and a password become a role.

    role = await registry.accounts.verify("ann", "secret")     # Role.ADMIN, Role.USER, or None

Passwords are kept as hashes only (`passwords.py`): never listed, logged, or in a snapshot. An account without a usable hash is *locked*: it is listed and
nobody can log in. That is so for an account that came without a password, with a configuration snapshot, or from a store that another program wrote.

Dangers: how long a refusal takes must not tell which names exist; and a check per request would keep the machine busy, so a success is remembered for a
minute, under a key that only this process knows, and forgotten when any account changes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable

from kvcm.common.clock import Clock
from kvcm.common.errors import CapacityReached, DuplicateEntity, InvalidArgument, NotFound, NotReady
from kvcm.config.passwords import PasswordHasher
from kvcm.config.persisted_account import Account, Role, account_to_dict
from kvcm.config.registry_core import RegistryCore, RegistryEventKind
from kvcm.config.registry_rules import name_problem
from kvcm.config.store import Change

__all__ = ["MAX_ACCOUNTS", "MAX_PASSWORD_CHARS", "Account", "Accounts", "Role", "check_user_name"]

MAX_ACCOUNTS = 1024
MAX_PASSWORD_CHARS = 1024
_REMEMBERED = 256
_REMEMBER_US = 60_000_000


class Accounts:
    """Reads are look-ups in published memory. `random(count)` gives that many random bytes."""

    def __init__(self, core: RegistryCore, hasher: PasswordHasher, clock: Clock, random: Callable[[int], bytes] = os.urandom) -> None:
        self._core = core
        self._hasher = hasher
        self._clock = clock
        self._key = random(32)
        self._verified: dict[bytes, tuple[Account, int]] = {}

    def list(self) -> list[Account]:
        return list(self._core.tables.accounts.values())

    async def add(self, user_name: str, password: str, role: Role) -> None:
        """An empty password makes a locked account. Raises InvalidArgument, DuplicateEntity, CapacityReached, NotReady, StorageError."""
        check_user_name(user_name)
        if len(password) > MAX_PASSWORD_CHARS:
            raise InvalidArgument(f"A password may have at most {MAX_PASSWORD_CHARS} characters.")
        self._check_free(user_name)
        secret = await self._hasher.make(password) if password else None
        await self._core.mutate(lambda: self._add(Account(user_name, role, secret)))

    async def delete(self, user_name: str) -> None:
        """Raises NotFound, StorageError. Removes a damaged record of that name too."""
        await self._core.mutate(lambda: self._delete(user_name))

    async def verify(self, user_name: str, password: str) -> Role | None:
        """The role of the account when the password is right, else None, after the same time whether or not the name exists.

        Only the leader knows accounts: elsewhere, and when too many checks are waiting, it raises NotReady.
        """
        if self._core.fence is None:
            raise NotReady("Accounts are known to the leader only; this manager does not lead or is still starting.")
        account = self._core.tables.accounts.get(user_name)
        key = hmac.digest(self._key, f"{len(user_name)}:{user_name}{password}".encode("utf-8", "surrogatepass"), hashlib.sha256)
        remembered = self._verified.get(key)
        # The very object: an account that was deleted and added again is another one.
        if remembered is not None and remembered[0] is account and self._clock.monotonic_us() < remembered[1]:
            return remembered[0].role
        usable = account is not None and account.secret is not None and 0 < len(password) <= MAX_PASSWORD_CHARS
        right = await self._hasher.matches(password[:MAX_PASSWORD_CHARS], account.secret if account is not None and usable else None)
        if not right or account is None or self._core.tables.accounts.get(user_name) is not account:
            return None
        if len(self._verified) >= _REMEMBERED:
            self._verified.clear()
        self._verified[key] = (account, self._clock.monotonic_us() + _REMEMBER_US)
        return account.role

    def _check_free(self, user_name: str) -> None:
        if user_name in self._core.tables.accounts:
            raise DuplicateEntity(f"Account {user_name!r} exists already.")
        if len(self._core.tables.accounts) >= MAX_ACCOUNTS:
            raise CapacityReached(f"There can be at most {MAX_ACCOUNTS} accounts.")

    async def _add(self, account: Account) -> None:
        self._check_free(account.user_name)

        async def publish() -> None:
            self._core.tables.accounts[account.user_name] = account
            self._core.emit(RegistryEventKind.ACCOUNT_ADDED, account.user_name)

        await self._core.commit([Change("account", account.user_name, account_to_dict(account))], publish)

    async def _delete(self, user_name: str) -> None:
        if user_name not in self._core.tables.accounts and ("account", user_name) not in self._core.tables.quarantined:
            raise NotFound(f"Account {user_name!r} does not exist.")

        async def publish() -> None:
            self._core.tables.accounts.pop(user_name, None)
            self._verified.clear()
            self._core.emit(RegistryEventKind.ACCOUNT_REMOVED, user_name)

        await self._core.commit([Change("account", user_name, None)], publish)


def check_user_name(user_name: str) -> None:
    """Raises InvalidArgument."""
    problem = name_problem(user_name)
    if problem:
        raise InvalidArgument(f"The user_name of the account {problem}.")
