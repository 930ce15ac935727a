"""Between the tables of a registry and the sections of a snapshot: which fields go in, and how every mistake of a text is named.

Passwords, also hashed ones, stay out: an account that a load makes is locked until it is added anew. Credentials inside URIs: see `snapshot_secrets.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kvcm.common.errors import InvalidArgument
from kvcm.config import snapshot_text
from kvcm.config.accounts import MAX_ACCOUNTS, check_user_name
from kvcm.config.model import Instance, InstanceGroup
from kvcm.config.persisted import group_from_dict, group_to_dict, instance_from_dict, instance_to_dict, storage_from_dict, storage_to_dict
from kvcm.config.persisted_account import Account, account_from_dict, account_to_dict
from kvcm.config.registry_core import Tables
from kvcm.config.registry_entities import MAX_GROUPS, MAX_INSTANCES, as_record
from kvcm.config.registry_rules import check_group, check_instance, check_size, check_storage
from kvcm.config.registry_storages import MAX_STORAGES
from kvcm.config.snapshot_secrets import hide, restore
from kvcm.config.snapshot_text import Section
from kvcm.config.store import Record
from kvcm.data_storage.model import Storage

LIMITS: Final[Mapping[Section, int]] = {"storages": MAX_STORAGES, "instance_groups": MAX_GROUPS, "instances": MAX_INSTANCES, "accounts": MAX_ACCOUNTS}
_SLICE = 64
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Each entity is valid by itself; how they fit together and to what exists is not checked yet. Accounts are locked."""

    storages: tuple[Storage, ...]
    groups: tuple[InstanceGroup, ...]
    instances: tuple[Instance, ...]
    accounts: tuple[Account, ...]


async def snapshot_of(tables: Tables) -> str:
    """The text. Consistent: what changes while it is written does not show. Raises CapacityReached."""
    sections: dict[Section, Iterable[Record]] = {
        "storages": _hidden(storage_to_dict, _sorted(tables.storages)),
        "instance_groups": _hidden(group_to_dict, _sorted(tables.groups)),
        "instances": map(instance_to_dict, _sorted(tables.instances)),
        "accounts": map(_account_to_dict, _sorted(tables.accounts)),
    }
    known: Mapping[str, Mapping[str, object]] = {"storage": tables.storages, "account": tables.accounts}
    damaged = sorted((item.table, item.id, item.reason) for item in tables.quarantined.values() if item.id not in known.get(item.table, {}))
    return await snapshot_text.write(sections, [{"table": table, "id": name, "reason": reason} for table, name, reason in damaged])


async def read_snapshot(text: str, tables: Tables) -> Snapshot:
    """Raises InvalidArgument for the first mistake, naming the entity and the field. `tables`: where hidden secrets are looked for."""
    raw = await snapshot_text.read(text, LIMITS)
    known_storages, known_groups = _records(storage_to_dict, tables.storages), _records(group_to_dict, tables.groups)
    return Snapshot(
        await _read(raw["storages"], "storages", storage_from_dict, storage_to_dict, lambda item: item.name, check_storage, known_storages),
        await _read(raw["instance_groups"], "instance_groups", group_from_dict, group_to_dict, lambda item: item.name, check_group, known_groups),
        await _read(raw["instances"], "instances", instance_from_dict, instance_to_dict, lambda item: item.instance_id, check_instance, None),
        await _read(raw["accounts"], "accounts", _account_from_dict, _account_to_dict, lambda item: item.user_name, _check_account, None),
    )


def _sorted(table: Mapping[str, _T]) -> list[_T]:
    return [table[name] for name in sorted(table)]


def _hidden(convert: Callable[[_T], Record], entities: Iterable[_T]) -> Iterable[Record]:
    return (hide(convert(entity)) for entity in entities)


def _records(convert: Callable[[_T], Record], table: Mapping[str, _T]) -> Callable[[str], Record | None]:
    return lambda name: convert(table[name]) if name in table else None


def _account_to_dict(account: Account) -> Record:
    return {key: value for key, value in account_to_dict(account).items() if key != "password"}


def _account_from_dict(value: object) -> Account:
    account = account_from_dict(value)
    return Account(account.user_name, account.role)


def _check_account(account: Account) -> None:
    check_user_name(account.user_name)


async def _read(
    raw: list[object],
    section: Section,
    parse: Callable[[Any], _T],
    write: Callable[[_T], Record],
    name_of: Callable[[_T], str],
    check: Callable[[_T], None],
    known: Callable[[str], Record | None] | None,
) -> tuple[_T, ...]:
    found: dict[str, _T] = {}
    for number, value in enumerate(raw):
        place = f"{section}[{number}]"
        try:
            entity = parse(value)
            name = name_of(entity)
            if known is not None:
                assert isinstance(value, dict)  # or it would not have been understood
                value = restore(value, known(name), f"{place} ({name!r})")
                entity = parse(value)
            record = as_record(entity, write)
            _refuse_strays(value, record, place)
            check_size(place, record)
            check(entity)
        except InvalidArgument as error:
            text = error.message if error.message.startswith(place) else f"{place}: {error.message}"
            raise InvalidArgument(f"config_snapshot, {text}") from None
        except RecursionError:
            raise InvalidArgument(f"config_snapshot, {place} is nested too deeply.") from None
        if name in found:
            raise InvalidArgument(f"config_snapshot, {place}: the name {name!r} was there before.")
        found[name] = entity
        if number % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
    return tuple(found.values())


def _refuse_strays(given: object, understood: object, path: str) -> None:
    """A key that nobody reads is a mistake in a text that may have been written by hand."""
    if isinstance(given, dict) and isinstance(understood, dict):
        for key, value in given.items():
            if value is None:
                continue
            if key not in understood:
                raise InvalidArgument(f"{path}: the field {str(key)[:64]!r} is unknown")
            _refuse_strays(value, understood[key], f"{path}.{key}")
    elif isinstance(given, list) and isinstance(understood, list):
        for number, (item, other) in enumerate(zip(given, understood, strict=False)):
            _refuse_strays(item, other, f"{path}[{number}]")
