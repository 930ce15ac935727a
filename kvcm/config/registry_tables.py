"""What a registry store holds, read into the tables of a registry: one bad record is quarantined and never stops the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kvcm.common.errors import InvalidArgument
from kvcm.config.persisted import group_from_dict, instance_from_dict, storage_from_dict
from kvcm.config.persisted_account import account_from_dict
from kvcm.config.registry_core import Tables
from kvcm.config.store import QuarantinedRecord, RegistrySnapshot, Table

_T = TypeVar("_T")


def read_tables(snapshot: RegistrySnapshot) -> Tables:
    """Never raises for a bad record."""
    tables = Tables(quarantined={(item.table, item.id): item for item in snapshot.quarantined})

    def read(table: Table, known: dict[str, _T], parse: Callable[[Any], _T], name: Callable[[_T], str]) -> None:
        for record_id, record in snapshot.tables.get(table, {}).items():
            try:
                entity = parse(record)
            except InvalidArgument as error:
                reason = error.message
            else:
                if name(entity) == record_id:
                    known[record_id] = entity
                    continue
                reason = "its name differs from the key it is stored under"
            tables.quarantined[table, record_id] = QuarantinedRecord(table, record_id, reason)

    read("storage", tables.storages, storage_from_dict, lambda storage: storage.name)
    read("account", tables.accounts, account_from_dict, lambda account: account.user_name)
    read("instance_group", tables.groups, group_from_dict, lambda group: group.name)
    read("instance", tables.instances, instance_from_dict, lambda instance: instance.instance_id)
    return tables
