"""Accounts and their records: table `account`, user name -> JSON, as upstream lays it out, with a hash where upstream has the password itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvcm.config.passwords import PasswordHash
from kvcm.config.persisted_fields import Fields


class Role(IntEnum):
    """Numbers of the wire (wire contract 2.3)."""

    USER = 0
    ADMIN = 1


@dataclass(frozen=True, slots=True)
class Account:
    """`secret`: None when locked, that is, nobody can log in."""

    user_name: str
    role: Role
    secret: PasswordHash | None = field(default=None, repr=False)


def account_to_dict(account: Account) -> dict[str, object]:
    """The record of one account; `password` holds the hash, or nothing when locked."""
    return {"user_name": account.user_name, "password": account.secret.text() if account.secret is not None else "", "role": int(account.role)}


def account_from_dict(value: object) -> Account:
    """One account from its record. A password that is not one of our hashes locks it. Raises PersistedFormatError."""
    fields = Fields(value, "account")
    return Account(fields.required_text("user_name"), fields.choice("role", Role, Role.USER), PasswordHash.parse(fields.text("password")))
